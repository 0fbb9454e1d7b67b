"""Two jobs that fit separately but not together, on a real gang scheduler: scheduler-plugins beside the cluster's own.

KWOK simulates the nodes, so the test shows only which pods get resources. The scheduler's order of pods is random and
mostly harmless. So scheduling gates force the worst order, with a gang and without.
"""

import subprocess
import sys
from collections.abc import Callable, Iterator

import pytest

from tests.e2e.conftest import ROOT
from tests.support.kube import Kube, Object, wait_for
from tests.support.operator_process import OperatorProcess
from tests.support.scripted_program import fake_template, manifest
from tests.support.soak_marks import ALL

pytestmark = pytest.mark.cluster

GATE = "pstraining.dev/one-by-one"
JOB_LABEL = "pstraining.dev/job-name"
FAKE_NODES, PLACES = 2, 4
"""Each node has 64 cores, which is enough for two pods of 30."""
PUT_ASIDE = 300
"""Seconds within which a job gets its resources. Every 30 s the scheduler retries pods that it has set aside for 20 s.
The members of a gang meet there after a few retries.
"""
GRACE = 90
"""Seconds within which a job reports the cause of its wait on a busy machine; its pods have 30."""


@pytest.fixture
def gang_scheduler() -> Iterator[None]:
    cluster = [sys.executable, "-m", "localcluster"]
    subprocess.run([*cluster, "kwok", "up", "--nodes", str(FAKE_NODES)], cwd=ROOT, check=True)
    subprocess.run([*cluster, "gang", "up"], cwd=ROOT, check=True)
    yield
    subprocess.run([*cluster, "gang", "down"], cwd=ROOT, check=True)
    subprocess.run([*cluster, "kwok", "down"], cwd=ROOT, check=True)


def wide_job(namespace: str, name: str, gang: str) -> Object:
    """Create a job of two parameter servers and two workers, each half a node, held back until the test releases them.

    It has no chief, because KWOK completes a Job's pods at once.
    """
    job = manifest(namespace, name, ps=2, chief={"enabled": False})
    job["spec"]["runPolicy"] = {"schedulingPolicy": {"gang": gang}}
    job["spec"]["worker"]["template"] = fake_template(cpu=30, schedulingGates=[{"name": GATE}])
    return job


class Line:
    """The pods of the jobs `one` and `two`, and their scheduling gate."""

    def __init__(self, kube: Kube, namespace: str) -> None:
        self.kube, self.namespace = kube, namespace

    def pods(self, job: str, role: str = "") -> list[Object]:
        """Return a job's pods that are not terminating."""
        selector = f"{JOB_LABEL}={job}" + (f",pstraining.dev/role={role}" if role else "")
        found = self.kube.list("Pod", self.namespace, selector)
        return [p for p in found if not p["metadata"].get("deletionTimestamp")]

    def placed(self, job: str) -> int:
        """Return the number of a job's pods with a node."""
        return sum(bool(p["spec"].get("nodeName")) for p in self.pods(job))

    def gang(self, job: str) -> int:
        """Return the size of a job's gang; 0 without a group."""
        found = self.kube.get("PodGroup", self.namespace, job)
        return int(found["spec"]["minMember"]) if found else 0

    def come(self, *jobs: str) -> None:
        """Wait until all pods of the jobs exist with their gate."""
        wait_for(lambda: all(len(self.pods(j)) == PLACES for j in jobs), f"the pods of {jobs}", 60)

    def let_go(self, job: str, role: str = "") -> None:
        """Remove the gate from pods of a job."""
        for pod in self.pods(job, role):
            if pod["spec"].get("schedulingGates"):
                self.kube.merge("Pod", self.namespace, pod["metadata"]["name"], {"spec": {"schedulingGates": []}})

    def refused(self, job: str, role: str = "") -> bool:
        """Whether a scheduler has rejected every released pod without a node."""
        return all(_scheduled(p).get("reason") == "Unschedulable" for p in self.pods(job, role) if not _node(p))

    def worst_order(self) -> None:
        """Release half of one job first, then the other half of the other job, then the rest."""
        self.let_go("one", "ps")
        wait_for(lambda: self.placed("one") == 2 or self.refused("one", "ps"), "the scheduler has tried the first pods")
        self.let_go("two", "worker")
        wait_for(
            lambda: self.placed("two") == 2 or self.refused("two", "worker"), "the scheduler has tried the next pods"
        )
        self.let_go("one")
        self.let_go("two")

    def condition(self, job: str, kind: str) -> Object:
        """Return a condition of a job."""
        stored = self.kube.get("PSTrainingJob", self.namespace, job) or {}
        reported = (stored.get("status") or {}).get("conditions") or ()
        return next((c for c in reported if c["type"] == kind), {})

    def reports(self, job: str, reason: str) -> Callable[[], bool]:
        """Return a condition: whether a job reports that it does not run, for this reason."""
        return lambda: self.condition(job, "Running").get("reason") == reason

    def runs(self, job: str) -> bool:
        """Whether a job runs."""
        return self.condition(job, "Running").get("status") == "True"


def _node(pod: Object) -> str:
    return str(pod["spec"].get("nodeName", ""))


def _scheduled(pod: Object) -> Object:
    found = (pod.get("status") or {}).get("conditions") or ()
    return next((c for c in found if c["type"] == "PodScheduled"), {})


def _without_gangs(line: Line) -> None:
    """Each job gets half of its resources, and keeps them."""
    kube, namespace = line.kube, line.namespace
    for name in ("one", "two"):
        kube.create(wide_job(namespace, name, "None"))
    line.come("one", "two")
    line.worst_order()
    wait_for(lambda: line.refused("one") and line.refused("two"), "all other pods find no room")
    wait_for(
        lambda: line.reports("one", "Unschedulable")() and line.reports("two", "Unschedulable")(), "both say so", GRACE
    )
    assert (line.placed("one"), line.placed("two")) == (2, 2), "a deadlock"
    assert not line.runs("one")
    assert not line.runs("two")
    assert kube.list("PodGroup", namespace) == []
    for name in ("one", "two"):
        kube.delete("PSTrainingJob", namespace, name)
    wait_for(lambda: not kube.list("Pod", namespace), "they are deleted", 60)


@pytest.mark.minutes
def test_gangs_run_in_turn_where_single_pods_deadlock(
    kube: Kube, namespace: str, own_operator: OperatorProcess, gang_scheduler: None
) -> None:
    own_operator.start()
    line = Line(kube, namespace)
    if ALL:
        _without_gangs(line)
    # With a gang and the same order of pods, one job gets all resources and the other none.
    for name in ("one", "two"):
        kube.create(wide_job(namespace, name, "SchedulerPlugins"))
    line.come("one", "two")
    groups = {g["metadata"]["name"]: g["spec"] for g in kube.list("PodGroup", namespace)}
    assert groups == {name: {"minMember": PLACES} for name in ("one", "two")}
    line.worst_order()
    wait_for(lambda: line.runs("one") or line.runs("two"), "one of them runs", PUT_ASIDE)
    winner, loser = ("one", "two") if line.runs("one") else ("two", "one")
    # A job runs before its last worker has a node.
    wait_for(lambda: line.placed(winner) == PLACES, "all of its pods have a node", 60)
    assert line.placed(loser) == 0
    wait_for(line.reports(loser, "WaitingForGang"), "the other job reports the cause of its wait", GRACE)
    assert line.placed(loser) == 0
    assert "The gang of 4 pods waits" in line.condition(loser, "Running")["message"]

    # A lost member is replaced by itself, because the running members count for its gang.
    (lost, *_) = line.pods(winner, "ps")
    kube.delete("Pod", namespace, lost["metadata"]["name"], grace=0)
    wait_for(lambda: len(line.pods(winner)) == PLACES and line.placed(winner) == PLACES - 1, "its successor", 60)
    assert line.placed(loser) == 0
    line.let_go(winner)
    wait_for(lambda: line.placed(winner) == PLACES, "its successor has its place", 60)
    assert line.placed(loser) == 0

    # Then the other job starts: mostly at once, else when the scheduler retries the pods that it has set aside.
    kube.delete("PSTrainingJob", namespace, winner)
    wait_for(lambda: line.runs(loser), "the other runs", PUT_ASIDE)
    wait_for(lambda: line.placed(loser) == PLACES, "all of its pods have a node", 60)
    wait_for(lambda: line.gang(winner) == 0, "its group is deleted with it", 60)

    # The group has the size of the job, and is deleted with it.
    kube.merge("PSTrainingJob", namespace, loser, {"spec": {"worker": {"replicas": 1}}})
    wait_for(lambda: line.gang(loser) == PLACES - 1, "a smaller gang")
    kube.merge("PSTrainingJob", namespace, loser, {"spec": {"runPolicy": {"suspend": True}}})
    wait_for(lambda: line.gang(loser) == 0, "no group")
