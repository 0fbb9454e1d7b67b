"""`doctor JOB`: the most likely cause of each kind of trouble comes first, with advice; missing reads are listed."""

import json
import re
from collections.abc import Iterator, Mapping
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from hack.docs.pages import ROOT, pages
from pstraining.api.conditions import Reason
from pstraining.api.run_policy import FailureReason
from pstraining.cli.commands import doctor
from pstraining.cli.doctor.advice import NAMESPACE, OF_EVENTS, OF_FAILURES, OF_REASONS, PAGE, Advice, of_waiting
from pstraining.cli.errors import DeniedError
from pstraining.cli.main import app
from tests.support.builders import NOW, job, pod
from tests.support.cli_cluster import Object, WithJobs
from tests.support.command_runner import CliRunner
from tests.support.simulation import World, running

TROUBLES = pages()[ROOT / PAGE]


class Read(WithJobs):
    """Has a world, the logs of its pods by name, and reads that are denied."""

    def __init__(self, world: World, denied: tuple[str, ...] = ()) -> None:
        assert world.job is not None
        super().__init__(world.job, pods=list(world.pods.values()))
        self.logs: dict[str, list[str]] = {}
        self.denied = denied

    def _may(self, what: str) -> None:
        if what in self.denied:
            raise DeniedError(f"You (eve) may not read {what}.", 403)

    def pods(self, namespace: str, job: str) -> list[Object]:
        self._may("pods")
        return super().pods(namespace, job)

    def events(self, namespace: str, uid: str) -> list[Object]:
        self._may("events")
        return super().events(namespace, uid)

    def log(self, namespace: str, pod: str, query: Mapping[str, str]) -> Iterator[str]:
        self._may("logs")
        return iter(self.logs.get(pod, []))

    def read(self, path: str) -> Any:
        return None

    def listed(self, path: str, **query: str) -> list[Object]:
        return []


@pytest.fixture(autouse=True)
def steps(monkeypatch: pytest.MonkeyPatch) -> dict[str, float | None]:
    """Return the measured rate of steps without waiting."""
    rates: dict[str, float | None] = {"stepsPerSecond": 10.0}
    monkeypatch.setattr(doctor, "measure", lambda *_: {"job": rates})
    return rates


def examined(cluster: Read) -> dict[str, Any]:
    return doctor.examine_job(cluster, None, "digits", NOW + timedelta(hours=1))


def found(cluster: Read) -> list[tuple[str, str]]:
    return [(c["result"], c["check"]) for c in examined(cluster)["checks"]]


def pending(**spec: Any) -> World:
    """Return a job whose pods the test replaces."""
    world = World(job(spec=spec))
    world.settle()
    return world


def out_of_memory() -> World:
    """Return a job whose server has failed too often."""
    world = running(checkpoint={"volume": {"persistentVolumeClaim": {"claimName": "c"}}})
    for _ in range(7):
        world.end("ps", code=137, message="Killed")
        world.settle()
    assert world.job is not None
    assert world.job["status"]["phase"] == "Failed"
    world.job["status"]["ps"]["lastFailure"]["reason"] = "OOMKilled"
    return world


def only(world: World, role: str) -> Object:
    return next(p for p in world.pods.values() if p["metadata"]["labels"]["pstraining.dev/role"] == role)


def test_a_healthy_job() -> None:
    cluster = Read(running(checkpoint={"volume": {"persistentVolumeClaim": {"claimName": "c"}}}))
    assert examined(cluster)["checks"] == [
        {"check": "job", "result": "ok", "message": "no problem was found", "todo": ""}
    ]
    assert found(Read(running())) == [("warn", "NoCheckpointVolume")], "a remark"


def test_the_operators_findings_come_first() -> None:
    world = pending()
    waits = pod("ps", unschedulable="0/2 nodes are available", phase="Pending", state={}, ready=False)
    only(world, "ps")["status"] = waits["status"]
    only(world, "worker")["status"]["containerStatuses"][0]["ready"] = False
    world.now += timedelta(minutes=2)
    world.settle()
    done = examined(Read(world))
    assert done["mostLikely"] == {
        "cause": "Unschedulable",
        "message": "Pod digits-ps-0 cannot be scheduled: 0/2 nodes are available",
        "todo": "Request less, add nodes, or check taints, node selectors and unbound volumes. See "
        "docs/users/troubleshoot.md#the-job-stays-pending",
    }
    assert done["checks"][0]["check"] == "Unschedulable"


def test_a_failed_job_is_explained_by_the_failure_not_by_the_budget() -> None:
    world = out_of_memory()
    done = examined(Read(world))
    assert done["mostLikely"]["cause"] == "OOMKilled"
    assert done["mostLikely"]["message"] == "digits-ps-0 ended with exit code 137: Killed"
    assert done["mostLikely"]["todo"].startswith("Raise the memory: resources of the role")
    assert found(Read(world))[1] == ("fail", "BackoffLimitExceeded")


def test_a_failing_program_leads_to_its_log() -> None:
    world = running()
    world.end("chief", code=78, message="optimizer: no such field")
    world.settle()
    done = examined(Read(world))
    assert "optimizer: no such field" in done["mostLikely"]["message"]
    assert done["mostLikely"]["cause"] == "BadSettings"
    world = running()
    world.end("chief", code=1, message="NameError: x")
    world.settle()
    (restarted,) = [c for c in examined(Read(world))["checks"] if c["check"] == "Error"]
    assert restarted["result"] == "warn", "the job runs again"
    assert "kubectl pstraining logs digits --role chief --previous" in restarted["todo"]


def test_without_an_operator_the_installation_is_the_problem() -> None:
    done = examined(Read(World(job())))
    assert [c["check"] for c in done["checks"][:3]] == ["crd", "operator", "operator"]
    assert done["mostLikely"]["message"] == "pstrainingjobs.pstraining.dev is not installed"
    assert done["checks"][2]["message"] == "No operator has processed this job yet."
    world = running()
    world.edit({"worker": {"replicas": 3}})
    assert ("fail", "operator") in found(Read(world))
    managed = World(job(spec={"runPolicy": {"managedBy": "other.dev/operator"}}))
    assert found(Read(managed)) == [("warn", "managedBy")]
    sent = World(job(spec={"managedBy": "kueue.x-k8s.io/multikueue"}))
    (cause,) = examined(Read(sent))["checks"]
    assert "Kueue sends this job to another cluster" in cause["message"]
    assert "label kueue.x-k8s.io/queue-name" in cause["todo"]


def test_a_suspended_or_queued_job_is_healthy() -> None:
    world = running()
    world.edit({"runPolicy": {"suspend": True}})
    world.settle()
    assert found(Read(world))[0] == ("warn", "Suspended")
    going = running()
    assert going.job is not None
    going.job["metadata"]["deletionTimestamp"] = "2030-01-01T12:00:00Z"
    assert found(Read(going))[0] == ("warn", "deleted")


def test_waiting_launchers_name_the_server() -> None:
    world = pending()
    chief = only(world, "chief")
    chief["status"] = pod("chief", term=1, ready=False)["status"]
    cluster = Read(world)
    line = "pstraining-launcher: waiting for PS digits-ps-0:2222 (timed out), since 8 s"
    cluster.logs[chief["metadata"]["name"]] = ["begins", line]
    (waits,) = [c for c in examined(cluster)["checks"] if c["check"] == "waiting for PS"]
    assert waits["message"] == "chief-0 waits for parameter servers: digits-ps-0:2222 (timed out)"
    assert "NetworkPolicies that drop its packets" in waits["todo"]


def test_stalled_training(steps: dict[str, float | None]) -> None:
    steps["stepsPerSecond"] = 0.0
    cluster = Read(running())
    chief = only(running(), "chief")["metadata"]["name"]
    waiting = json.dumps({"event": "waiting", "what": "ps-0", "time": 1.0, "monotonic": 1.0})
    own = json.dumps({"event": {"kind": "request"}})
    cluster.logs[chief] = ["a line", '{"event": broken', own, json.dumps({"event": "step", "step": 1}), waiting]
    said = [(c["check"], c["message"]) for c in examined(cluster)["checks"]]
    assert ("waiting", "chief-0 has reported waiting: what ps-0") in said
    assert ("no steps", "The job runs, and training has made no step in the last seconds.") in said
    stalled = running()
    stalled.stall = "No step since step 5"
    stalled.settle()
    assert examined(Read(stalled))["mostLikely"]["cause"] == "NoStep"
    assert ("warn", "no steps") not in found(Read(stalled)), "it is reported once"


def test_a_pod_without_a_message_is_explained_by_its_events() -> None:
    world = running()
    worker = only(world, "worker")
    worker["status"] = pod("worker", state={"waiting": {"reason": "ContainerCreating"}}, ready=False)["status"]
    worker["status"]["phase"] = "Pending"
    cluster = Read(world)
    event = {"type": "Warning", "reason": "FailedMount", "message": 'secret "keys" not found', "metadata": {}}
    cluster.there_events[worker["metadata"]["uid"]] = [event | {"lastTimestamp": "2030-01-01T12:00:00Z"}]
    (pods,) = [c for c in examined(cluster)["checks"] if c["check"] == "ContainerCreating"]
    assert pods["result"] == "warn", "training continues without it"
    assert pods["message"].endswith('FailedMount: secret "keys" not found')


@pytest.mark.parametrize("denied", ["pods", "logs"])
def test_a_missing_right_is_a_warning(denied: str) -> None:
    said = examined(Read(running(), (denied,)))["checks"]
    assert said[-1] == {
        "check": denied,
        "result": "warn",
        "message": f"unknown: You (eve) may not read {denied}.",
        "todo": "",
    }


def test_what_it_prints(monkeypatch: pytest.MonkeyPatch) -> None:
    world = out_of_memory()
    monkeypatch.setattr(doctor, "KubeconfigClient", lambda context: Read(world))
    done = CliRunner().invoke(app, ["doctor", "digits"])
    assert done.exit_code == 1
    lines = [line.rstrip() for line in done.output.splitlines()]
    assert lines[0] == "digits  Failed"
    assert lines[1].startswith("fail  OOMKilled")
    assert lines[-1].startswith("Most likely: ")
    page = (Path(ROOT) / "docs" / "operators" / "doctor.md").read_text(encoding="utf-8")
    assert page.split("## One job")[1].split("```\n")[1].splitlines() == lines


def anchors() -> dict[str, str]:
    """Return the text below each heading of the page, by the heading's anchor."""
    text = TROUBLES.path.read_text(encoding="utf-8")
    parts = re.split(r"^#{2,3} (.+)$", text, flags=re.MULTILINE)
    made = [re.sub(r"[^a-z0-9 -]", "", heading.lower()).replace(" ", "-") for heading in parts[1::2]]
    return dict(zip(made, parts[2::2], strict=True))


ADVICE = {**OF_REASONS, **{f"{r} (failure)": a for r, a in OF_FAILURES.items()}, **OF_EVENTS}


@pytest.mark.parametrize(("reason", "advice"), ADVICE.items(), ids=map(str, ADVICE))
def test_every_advice_leads_to_a_section_about_it(reason: str, advice: Advice) -> None:
    assert f"`{reason.removesuffix(' (failure)')}`" in anchors()[advice.section]


def test_every_problem_has_advice() -> None:
    assert {*OF_FAILURES} == {*FailureReason}
    text = TROUBLES.path.read_text(encoding="utf-8")
    rows = {reason for reason in Reason if re.search(rf"^\| `{reason}`", text, re.MULTILINE)}
    assert rows - {*OF_REASONS, *OF_FAILURES} == set()


WAITS = {
    "timed out": "Check the server's node",
    "No route to host": "Check the server's node",
    "its port is open, but its launcher does not answer on port 2223": "port 2223",
    "it has not read the chief's attempt 2 yet": "Wait: the server restarts for a new chief.",
    "it runs for layout 1, not 2": "Wait: the server restarts for another number",
    "Terminating": "Wait: the server's pod is being deleted.",
    "Name or service not known": "the cluster's DNS",
    "Temporary failure in name resolution": "the cluster's DNS",
    "No address associated with hostname": "the cluster's DNS",
    "Connection refused": "Read the log of the parameter server.",
}


@pytest.mark.parametrize(("reason", "todo"), WAITS.items())
def test_a_waiting_launcher_leads_to_the_cause(reason: str, todo: str) -> None:
    advice = of_waiting(f"digits-ps-0:2222 ({reason})")
    assert todo in advice.todo
    cells = re.findall(r"^\| (.+?) \|", anchors()[advice.section], re.MULTILINE)
    shown = [words for cell in cells for words in re.findall("`(.+?)`", cell)]
    assert any(words in reason for words in shown) or "DNS" in todo, "the page has the reason, or one like it"


def test_commands_name_a_namespace_that_is_not_the_contexts(steps: dict[str, float | None]) -> None:
    failed, still = running(), running()
    failed.end("chief", code=1)
    failed.settle()
    steps["stepsPerSecond"] = 0.0
    for world, command, end in (
        (failed, "kubectl pstraining logs digits --role chief --previous", ". See "),
        (still, "kubectl pstraining top digits", ", and read their logs"),
    ):
        cluster = Read(world)
        assert f"{command}{end}" in str(examined(cluster))
        cluster.namespace = "elsewhere"
        there = doctor.examine_job(cluster, "default", "digits", NOW + timedelta(hours=1))
        assert f"{command} -n default{end}" in str(there)
    queue = OF_REASONS[Reason.AWAITS_ADMISSION]
    assert "check the queue: kubectl describe localqueue -n a. See " in queue.text("a")
    assert "check the queue: kubectl describe localqueue. See " in queue.text("")


def test_every_command_of_an_advice_has_a_place_for_the_namespace() -> None:
    for advice in ADVICE.values():
        assert advice.todo.count("kubectl ") == advice.todo.count(NAMESPACE)


def test_only_commands_about_the_job_name_its_namespace() -> None:
    cluster = Read(World(job(spec={"runPolicy": {"managedBy": "kubectl delete"}})))
    cluster.namespace = "elsewhere"
    (managed,) = doctor.examine_job(cluster, "default", "digits", NOW)["checks"]
    assert managed["todo"].startswith("Ask kubectl delete. ")
