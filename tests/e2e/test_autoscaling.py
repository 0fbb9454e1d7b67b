"""Memory grows before the container of a real kubelet runs out of it: no OOM kill, no restart, never beyond the
maximum.
"""

from pathlib import Path

import pytest

from tests.support.kube import Kube, Object, job_condition, wait_for
from tests.support.scripted_program import PROGRAM, Puppet, template
from tests.support.soak_marks import in_all

pytestmark = [pytest.mark.cluster, pytest.mark.usefixtures("installed")]

WHOLE = 1024
"""Mi that the server needs, and its maximum; it starts with a quarter."""
USED = 850
"""Mi that the server fills in the end."""
PARAMETERS = 150
"""Mi of parameters, which the servers share."""
FIRST = 160
"""Mi that the server fills before it is measured."""
RATE = 1.6
"""Mi per second near its first limit: 85 % of the limit are reached after a whole period of measurement."""
GROWING = """
import json, os, pathlib, threading, time
first = (pathlib.Path("/sys/fs/cgroup"), pathlib.Path("/sys/fs/cgroup/memory"))
folder = next(f for f in first if (f / "memory.max").exists() or (f / "memory.limit_in_bytes").exists())
limit = next(folder / name for name in ("memory.max", "memory.limit_in_bytes") if (folder / name).exists())
kills = next(folder / name for name in ("memory.events", "memory.oom_control") if (folder / name).exists())
held, limits = [], set()
def note():
    limits.add(limit.read_text().strip())
    killed = next(line.split()[1] for line in kills.read_text().splitlines() if line.startswith("oom_kill "))
    draft = pathlib.Path("/orders", ".memory")
    draft.write_text(" ".join([str(len(held)), killed, *limits]))
    draft.rename("/orders/memory")
def fill(mebibytes):
    while len(held) < mebibytes:
        held.append(bytearray(b"x") * 2**20)
        note()
        time.sleep(0.01)
def grow():
    fill(min(FIRST, USED))
    while USED > FIRST and not pathlib.Path("/orders/grow").exists():
        time.sleep(0.05)
    began = time.monotonic()
    while len(held) < USED and len(limits) == 1:
        fill(min(USED, FIRST + int(RATE * (time.monotonic() - began))))
        note()
        time.sleep(0.05)
    fill(USED)
if os.environ["PSTRAINING_TASK_TYPE"] == "ps":
    threading.Thread(target=grow, daemon=True).start()
"""
"""Fills memory: after an order slowly until its first limit is raised, and then fast. Records its Mi, the OOM kills of
its container, and every limit that the kernel enforced.
"""


@pytest.mark.minutes
def test_a_job_with_a_quarter_of_its_memory_finishes_without_an_oom_kill(
    kube: Kube, namespace: str, shared: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    program = filling(str(USED))
    server = {"limits": {"memory": f"{WHOLE // 4}Mi"}, "requests": {"memory": f"{WHOLE // 16}Mi"}}
    worker = {"replicas": 1, "template": template("job", program)}
    policy = {"role": "ps", "maxAllowed": {"memory": f"{WHOLE}Mi"}}
    puppet = Puppet.make(
        kube,
        namespace,
        "job",
        shared,
        ps={"replicas": 1, "resources": server},
        worker=worker,
        autoscaling={"mode": "Grow", "rolePolicies": [policy]},
    )
    puppet.wait_phase("Running")
    before = restarts_by_uid(puppet)
    wait_for(lambda: "peakMemory" in sizing(puppet), f"the server is measured; {puppet.job()}", 120)
    (puppet.orders / "grow").touch()
    wait_for(lambda: memory(puppet)[:1] == [USED], f"the server holds all of it; {puppet.job()}", 300)
    assert restarts_by_uid(puppet) == before, "no pod was replaced, and no container restarted"
    assert puppet.runs("ps-0") == 1, "and the server neither"
    puppet.exit("chief-0", 0)
    puppet.wait_phase("Succeeded")
    _, killed, *limits = memory(puppet)
    assert killed == 0
    assert sorted(limits)[0] == WHOLE // 4 << 20
    assert sorted(limits)[-1] <= WHOLE << 20
    reasons = [e["reason"] for e in kube.list("Event", namespace) if e["regarding"]["name"] == "job"]
    assert "MemoryGrown" in reasons
    assert "MemoryDoubled" not in reasons
    with capsys.disabled():
        print(f"\nlimits in Mi: {[limit >> 20 for limit in sorted(limits)]}; {sizing(puppet)}")


@in_all("tests/unit/core/test_server_growth.py::test_servers_are_added_at_half_of_the_largest_memory_limit")
@pytest.mark.minutes
def test_a_server_is_added_at_half_of_the_largest_memory_limit(kube: Kube, namespace: str, shared: Path) -> None:
    servers = 'len(json.loads(os.environ["TF_CONFIG"])["cluster"]["ps"])'
    program = filling(f"{PARAMETERS} // {servers}")
    server = {"limits": {"memory": "256Mi"}}
    puppet = Puppet.make(
        kube,
        namespace,
        "job",
        shared,
        ps={"replicas": 1, "resources": server},
        worker={"replicas": 1, "template": template("job", program)},
        checkpoint={"volume": {"persistentVolumeClaim": {"claimName": "job-orders"}}},  # the template has it, too
        autoscaling={
            "mode": "Full",
            "rolePolicies": [{"role": "ps", "maxAllowed": {"memory": "256Mi"}, "maxReplicas": 4}],
        },
    )
    # Its parameters are measured, and a server is added, maybe before the job is Running.
    wait_for(lambda: len(puppet.pods("ps")) == 1, f"the first server; {puppet.job()}", 60)
    first = puppet.pods("ps")[0]["metadata"]["uid"]
    wait_for(lambda: puppet.status().get("ps", {}).get("summary") == "2/2", f"two servers; {puppet.job()}", 240)
    wait_for(lambda: (job_condition(puppet.job(), "Rescaling") or {}).get("reason") == "Rescaled", "the change", 120)
    assert sizing(puppet)["grownReplicas"] == 2
    assert "of the largest memory limit that it may have: ps.replicas 1 -> 2." in sizing(puppet)["message"]
    assert (puppet.job() or {})["spec"]["ps"]["replicas"] == 1, "the spec stays as its user wrote it"
    assert first in {p["metadata"]["uid"] for p in puppet.pods("ps")}, "the first server's pod stays"
    puppet.exit("chief-0", 0)
    puppet.wait_phase("Succeeded")
    assert "ServersAdded" in [e["reason"] for e in kube.list("Event", namespace) if e["regarding"]["name"] == "job"]


def filling(used: str) -> str:
    """Return a program whose server fills this number of Mi, a Python expression."""
    return GROWING.replace("USED", used).replace("FIRST", str(FIRST)).replace("RATE", str(RATE)) + PROGRAM


def sizing(puppet: Puppet) -> Object:
    """Return what status.autoscaling has of the servers; empty before their first measurement."""
    return next((s for s in puppet.status().get("autoscaling") or () if s["role"] == "ps"), {})


def restarts_by_uid(puppet: Puppet) -> dict[str, int]:
    """Return the restarts of each pod's container, by the pod's uid."""
    return {p["metadata"]["uid"]: restarts(p) for p in puppet.pods()}


def restarts(pod: Object) -> int:
    return sum(status["restartCount"] for status in pod["status"].get("containerStatuses", ()))


def memory(puppet: Puppet) -> list[int]:
    """Return the server's Mi, the OOM kills, and the limits in bytes; empty before the first record."""
    noted = puppet.orders / "memory"
    return [int(word) for word in noted.read_text().split()] if noted.exists() else []


@in_all(
    "tests/e2e/test_autoscaling.py::test_a_job_with_a_quarter_of_its_memory_finishes_without_an_oom_kill"
)  # measured, and applied
def test_sizes_are_recommended_without_a_change(kube: Kube, namespace: str, shared: Path) -> None:
    server = {"limits": {"memory": "256Mi"}}
    puppet = Puppet.make(
        kube, namespace, "job", shared, ps={"replicas": 1, "resources": server}, autoscaling={"mode": "Recommend"}
    )

    def recommended() -> dict[str, str]:
        found = puppet.status().get("autoscaling") or ()
        return {s["role"]: s["recommendedMemory"] for s in found if s.get("recommendedMemory")}

    wait_for(lambda: {"ps", "worker", "chief"} <= recommended().keys(), f"all roles are measured; {puppet.job()}", 90)
    assert (job_condition(puppet.job(), "Autoscaling") or {})["reason"] == "SizesRecommended"
