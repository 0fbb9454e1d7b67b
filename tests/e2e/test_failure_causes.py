"""Rows of the failure table that need a real kubelet, kernel or scheduler. All jobs run at the same time."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from tests.support.kube import Kube, Object, job_condition, wait_for
from tests.support.operator_process import OperatorProcess
from tests.support.pod_security import CONTAINER_SECURITY
from tests.support.scripted_program import PROGRAM, Puppet, template
from tests.support.soak_marks import ALL

pytestmark = pytest.mark.cluster

GREEDY = PROGRAM.replace(
    "while True:\n    for name",
    'if role == "worker" and len((orders / f"{me}.runs").read_text().splitlines()) == 1:\n'
    "    hog = [bytearray(1 << 20) for _ in range(4096)]\n"
    "while True:\n    for name",
)
LAVISH = PROGRAM.replace(
    "while True:\n    for name",
    'if role == "worker" and len((orders / f"{me}.runs").read_text().splitlines()) == 1:\n'
    '    pathlib.Path("/scratch/much").write_bytes(bytes(64 << 20))\n'
    "while True:\n    for name",
)


@dataclass(frozen=True)
class Case:
    """One cause: the worker's template, the fault, and the expected report."""

    reason: str
    make: Callable[[str], Object]
    policy: str
    fails: bool
    """Whether the job fails at once; otherwise the worker runs again."""
    failures: int = 0
    exit_code: int | None = None
    """The exit code that the test requests from the program."""


def plain(name: str) -> Object:
    return template(name)


def greedy(name: str) -> Object:
    made = template(name, GREEDY)
    made["spec"]["containers"][0]["resources"] = {"limits": {"memory": "128Mi"}}
    return made


def lavish(name: str) -> Object:
    made = template(name, LAVISH)
    made["spec"]["volumes"].append({"name": "scratch", "emptyDir": {"sizeLimit": "1Mi"}})
    made["spec"]["containers"][0]["volumeMounts"].append({"name": "scratch", "mountPath": "/scratch"})
    return made


def with_init(name: str) -> Object:
    made = template(name)
    image = made["spec"]["containers"][0]["image"]
    script = "import sys; sys.exit(4)"
    made["spec"]["initContainers"] = [{"name": "fetch", "image": image, "command": ["python3", "-c", script]}]
    return made


CASES = {
    "oom-again": Case("OOMKilled", greedy, "OnFailure", fails=False, failures=1),
    "oom-never": Case("OOMKilled", greedy, "Never", fails=True),
    "oom-code": Case("OOMKilled", greedy, "ExitCode", fails=False, failures=1),
    "init-never": Case("InitFailed", with_init, "Never", fails=True),
    "init-code": Case("InitFailed", with_init, "ExitCode", fails=True),
    "late-never": Case("StartTimeout", plain, "Never", fails=True, exit_code=75),
    "late-code": Case("StartTimeout", plain, "ExitCode", fails=False, failures=1, exit_code=75),
    "wrong-again": Case("BadSettings", plain, "OnFailure", fails=True, failures=1, exit_code=78),
    "full-never": Case("Evicted", lavish, "Never", fails=False),
}
ONCE = ("oom-again", "init-never", "late-code", "wrong-again")
TRIED = {name: case for name, case in CASES.items() if ALL or name in ONCE}
"""`make test` tries each cause under one policy, and an eviction by the API in tests/e2e/test_failures.py;
tests/unit/core/test_failures.py has all of them.
"""


@pytest.mark.minutes
def test_causes(kube: Kube, own_operator: OperatorProcess, namespace: str, shared: Path) -> None:
    own_operator.start()
    puppets = {}
    for name, case in TRIED.items():
        worker = {"replicas": 1, "template": case.make(name), "restartPolicy": case.policy}
        # The other roles' template has neither the worker's limit nor its init container.
        others: Any = {"ps": {"replicas": 1, "template": template(name)}, "chief": {"template": template(name)}}
        puppets[name] = Puppet.make(kube, namespace, name, shared, **{**others, "worker": worker})
    for name, case in TRIED.items():
        if case.exit_code is not None:
            wait_for(partial(has_run, puppets[name], 1), f"{name}: worker 0 runs")
            puppets[name].exit("worker-0", case.exit_code)
    for name, case in TRIED.items():
        puppet = puppets[name]
        if case.fails:
            failed = job_condition(puppet.wait_phase("Failed"), "Failed")
            assert failed["reason"] == ("BadSettings" if case.reason == "BadSettings" else "ReplicaFailed"), name
            assert puppet.runs("worker-0") <= 1, f"{name}: a final failure is never run again"
        else:
            wait_for(partial(has_run, puppet, 2), f"{name}: it is started again: {puppet.job()}", 180)
            wait_for(partial(restarted, puppet), f"{name}: its restart is reported")
            assert puppet.worker_record()["failures"] == case.failures, name
            assert puppet.phase() != "Failed", name
        if case.fails or case.failures:
            reported = puppet.status()["worker"]["lastFailure"]
            assert reported["reason"] == case.reason, (name, reported)


def has_run(puppet: Puppet, times: int) -> bool:
    return puppet.runs("worker-0") >= times


def restarted(puppet: Puppet) -> bool:
    return int(puppet.worker_record().get("restarts", 0)) >= 1


PRIORITY = "/apis/scheduling.k8s.io/v1/priorityclasses"


@pytest.fixture
def urgent(kube: Kube, namespace: str) -> Iterator[str]:
    """Return a PriorityClass above all jobs."""
    name = f"urgent-{namespace}"
    body = {"apiVersion": "scheduling.k8s.io/v1", "kind": "PriorityClass", "metadata": {"name": name}, "value": 1000}
    kube.request("POST", PRIORITY, body)
    yield name
    kube.request("DELETE", f"{PRIORITY}/{name}")


def test_a_preempted_worker_costs_no_budget_and_is_replaced(
    kube: Kube, own_operator: OperatorProcess, namespace: str, shared: Path, urgent: str
) -> None:
    own_operator.start()
    large = {"requests": {"memory": "14Gi"}}  # of the 24 GiB of one node, so two pods do not fit
    made = template("humble")
    made["spec"]["containers"][0]["resources"] = large
    made["spec"]["nodeSelector"] = {"kubernetes.io/hostname": "node-0"}
    worker = {"replicas": 1, "template": made, "restartPolicy": "Never"}
    others: Any = {"ps": {"replicas": 1, "template": template("humble")}, "chief": {"template": template("humble")}}
    puppet = Puppet.make(kube, namespace, "humble", shared, **{**others, "worker": worker})
    wait_for(partial(has_run, puppet, 1), "worker 0 runs", 120)
    pod = template("humble")["spec"] | {
        "nodeSelector": {"kubernetes.io/hostname": "node-0"},
        "priorityClassName": urgent,
    }
    pod["containers"][0] |= {"resources": large, "command": ["sleep", "600"], "volumeMounts": []}
    pod["containers"][0]["securityContext"] = CONTAINER_SECURITY | {"runAsUser": 1000}
    metadata = {"name": "urgent", "namespace": namespace}
    kube.create({"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": pod})
    wait_for(partial(restarted, puppet), f"its end is reported: {puppet.job()}", 90)
    assert puppet.worker_record()["failures"] == 0
    kube.delete("Pod", namespace, "urgent", grace=0)
    wait_for(partial(has_run, puppet, 2), "it is back", 120)
    assert puppet.phase() != "Failed"
