"""A Workload that loses the labels by which the watch selects it gets them back, and its job runs on."""

from typing import Any

import pytest

from pstraining.api import names
from pstraining.controller import hidden_workloads
from pstraining.controller.clocks import ReconcilerClocks
from pstraining.controller.hidden_workloads import HiddenWorkloads
from pstraining.controller.metrics import OperatorMetrics
from pstraining.controller.reconciler import Reconciler
from pstraining.controller.watch_state import WatchState
from pstraining.core.actions import Kind
from pstraining.kube.errors import Conflict, Transient
from pstraining.kube.executor import Executor
from pstraining.kube.port import Object
from pstraining.resources import kueue
from pstraining.resources.installation import Installation, KueueSupport
from tests.support.builders import LAUNCHER, NOW, job, stamp
from tests.support.fakekube import FakeKube
from tests.support.reconcilers import CORE

pytestmark = pytest.mark.asyncio
KEY = ("default", "digits")
LABELS = (names.LABEL_JOB, names.LABEL_JOB_UID)


@pytest.fixture(autouse=True)
def settled(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hidden_workloads, "SETTLE_SECONDS", 0.0)


class Bench:
    """A job that Kueue has admitted, with an operator whose watches deliver what a test says."""

    def __init__(self, kube: FakeKube | None = None) -> None:
        """Start an operator in a new cluster, or in one of an earlier operator."""
        self.kube, self.watch_state = kube or FakeKube(), WatchState(installation=Installation(kueue=KueueSupport.ON))
        clocks = ReconcilerClocks(lambda: NOW, lambda: 0.0)
        metrics = OperatorMetrics(lambda: 0, lambda: 0)
        made: dict[str, Any] = {"watch_state": self.watch_state, "port": self.kube, "metrics": metrics}
        self.reconciler = Reconciler(**made, decisions=CORE, launcher=LAUNCHER, instance="op-0", clocks=clocks)
        if kube is None:
            manifest = job()
            manifest["metadata"]["labels"] = {kueue.LABEL_QUEUE: "team-a"}
            self.kube.put(manifest)
        for (kind, _, _), found in self.kube.objects.items():
            if kind == "PSTrainingJob" or names.LABEL_JOB_UID in found["metadata"].get("labels", {}):
                self.watch_state.receive(found, None)

    async def settle(self) -> None:
        for _ in range(50):
            if await self.reconciler.reconcile(KEY) != 0.0:
                return
        raise AssertionError("does not settle")

    async def admit(self) -> None:
        """Admit the job, and let it create its objects."""
        await self.settle()
        since = {"lastTransitionTime": stamp(NOW), "reason": "Admitted", "message": ""}
        conditions = [{"type": t, "status": "True", **since} for t in ("QuotaReserved", "Admitted")]
        sets = [{"name": s["name"], "count": s["count"], "flavors": {}} for s in self.workload["spec"]["podSets"]]
        admission = {"clusterQueue": "all", "podSetAssignments": sets}
        admitted = self.kube.put(self.workload, conditions=conditions, admission=admission)
        self.watch_state.receive(admitted, "MODIFIED")
        await self.settle()
        assert ("Job", "digits-chief-1") in self.kube.world

    @property
    def workload(self) -> Object:
        return next(found for (kind, _, _), found in self.kube.objects.items() if kind == "Workload")

    def unlabel(self, label: str) -> None:
        """Remove a label as a user does. The watch selects by one of them: for it, the object is deleted."""
        before = dict(self.workload["metadata"]["labels"])
        left = {k: v for k, v in before.items() if k != label}
        changed = self.kube.put({**self.workload, "metadata": {**self.workload["metadata"], "labels": left}})
        if label == names.LABEL_JOB_UID:
            changed["metadata"]["labels"] = before  # its former state, with the new version
            self.watch_state.receive(changed, "DELETED")
        else:
            self.watch_state.receive(changed, "MODIFIED")


async def without(label: str, bench: Bench, *, restarts: bool) -> Bench:
    """Remove a label, demand that the job runs on and the label is restored, and return the operator.

    Args:
        label: the label that a user removes.
        bench: the job, which is admitted.
        restarts: whether another operator starts meanwhile.
    """
    before = bench.kube.world
    bench.unlabel(label)
    operator = Bench(bench.kube) if restarts else bench
    await operator.settle()
    assert bench.kube.world == before, "nothing was stopped"
    assert set(LABELS) <= bench.workload["metadata"]["labels"].keys()
    return operator


@pytest.mark.parametrize("label", LABELS)
async def test_a_running_job_whose_workload_loses_a_label_runs_on(label: str) -> None:
    bench = Bench()
    await bench.admit()
    assert await without(label, bench, restarts=False) is bench
    status = bench.kube.objects["PSTrainingJob", *KEY]["status"]
    assert next(c["reason"] for c in status["conditions"] if c["type"] == "Queued") == "Admitted"


@pytest.mark.parametrize("label", LABELS)
async def test_a_job_whose_workload_has_lost_a_label_while_no_operator_ran_runs_on(label: str) -> None:
    bench = Bench()
    await bench.admit()
    restarted = await without(label, bench, restarts=True)
    bench.kube.writes()
    await restarted.settle()
    assert not bench.kube.writes()


@pytest.mark.parametrize("label", LABELS)
@pytest.mark.parametrize("waits", [False, True])
async def test_a_job_whose_slice_has_lost_a_label_while_no_operator_ran_runs_on(label: str, waits: bool) -> None:
    """The name of a slice is not known. A further slice, which waits for quota, may be the only known Workload."""
    bench = Bench()
    await bench.admit()
    first = bench.workload
    metadata = {k: v for k, v in first["metadata"].items() if k != "uid"} | {"name": "slice"}
    admitted = bench.kube.put({**first, "metadata": metadata}, **first["status"])
    bench.kube.remove(Kind.WORKLOAD, "default", first["metadata"]["name"])
    bench.unlabel(label)
    if label == names.LABEL_JOB_UID:
        bench.unlabel(kueue.LABEL_JOB_UID)
    if waits:
        bench.kube.put({**admitted, "metadata": {**metadata, "name": "next"}, "status": {}})
    before = bench.kube.world - {("Workload", "next")}
    await Bench(bench.kube).settle()
    assert before <= bench.kube.world, "nothing was stopped"
    found = bench.kube.objects["Workload", "default", "slice"]["metadata"]
    assert set(LABELS) <= found["labels"].keys()


@pytest.mark.parametrize("error", [Transient("busy"), Conflict("changed", status=409, reason="Conflict")])
async def test_a_workload_is_looked_for_until_the_api_server_answers(error: Exception) -> None:
    bench = Bench()
    await bench.admit()
    before = bench.kube.world
    bench.unlabel(names.LABEL_JOB_UID)
    bench.kube.failures = lambda verb, kind, *place: error if kind == Kind.WORKLOAD else None
    with pytest.raises(type(error)):
        await bench.settle()
    bench.kube.failures = lambda *request: None
    await bench.settle()
    assert bench.kube.world == before


async def test_a_workload_that_vanishes_while_another_one_is_read_is_read_as_well() -> None:
    """One command may remove the label of both slices of a job; the second event comes during the first read."""
    bench = Bench()
    await bench.admit()
    second = {**bench.workload, "metadata": {**bench.workload["metadata"], "name": "second", "uid": "", "labels": {}}}
    bench.unlabel(names.LABEL_JOB_UID)
    late = bench.kube.put(second)["metadata"]["uid"]

    def vanish(verb: str, *place: str) -> None:
        if verb == "get" and place[-1] != "second":
            bench.watch_state.hidden_workloads[KEY]["second"] = late

    bench.kube.failures = vanish
    restore = Executor(bench.kube, bench.watch_state.cache).with_labels
    assert await HiddenWorkloads(bench.kube, bench.watch_state, restore).read(bench.watch_state.snapshot(KEY))
    assert set(LABELS) <= bench.kube.objects["Workload", "default", "second"]["metadata"]["labels"].keys()
    assert bench.watch_state.hidden_workloads == {}


async def test_a_job_whose_workload_was_deleted_stops() -> None:
    bench = Bench()
    await bench.admit()
    name = bench.workload["metadata"]["name"]
    bench.kube.changes.clear()
    bench.kube.remove(Kind.WORKLOAD, "default", name)
    bench.watch_state.receive(bench.kube.changes[-1][1], "DELETED")
    await bench.settle()
    assert ("Job", "digits-chief-1") not in bench.kube.world
    assert bench.watch_state.hidden_workloads == {}


@pytest.mark.parametrize("is_stopping", [False, True])
async def test_a_running_job_runs_on_while_kueue_is_uninstalled(is_stopping: bool) -> None:
    """The API server first deletes the Workloads, and then the CRD. A stop that has begun is completed."""
    bench = Bench()
    await bench.admit()
    before = bench.kube.world
    conditions = [{**c, "status": "True"} for c in bench.workload["status"]["conditions"]]
    if is_stopping:
        evicted = {**conditions[0], "type": "Evicted", "reason": "Preempted"}
        status = {**bench.workload["status"], "conditions": [*conditions, evicted]}
        bench.watch_state.receive(bench.kube.put(bench.workload, **status), "MODIFIED")
        await bench.reconciler.reconcile(KEY)
    bench.kube.serves_queues = False
    bench.kube.changes.clear()
    bench.kube.remove(Kind.WORKLOAD, "default", bench.workload["metadata"]["name"])
    bench.watch_state.receive(bench.kube.changes[-1][1], "DELETED")
    await bench.settle()
    left = {place for place in before if place[0] != Kind.WORKLOAD}
    assert (left <= bench.kube.world) is not is_stopping
    found = bench.kube.objects["PSTrainingJob", *KEY]["status"]["conditions"]
    reason = next(c["reason"] for c in found if c["type"] == "Queued")
    assert (reason == "KueueNotInstalled") is not is_stopping


async def test_a_job_that_is_deleted_while_its_workload_is_read_fails_no_pass() -> None:
    bench = Bench()
    await bench.admit()
    bench.unlabel(names.LABEL_JOB_UID)
    gone = bench.kube.objects["PSTrainingJob", *KEY]

    def deleted(verb: str, kind: str, *_: str) -> None:
        if (verb, kind) == ("get", Kind.WORKLOAD):
            bench.watch_state.receive(gone, "DELETED")

    bench.kube.failures = deleted
    bench.kube.writes()
    await bench.settle()
    assert not bench.watch_state.cache.has_job(KEY)
    assert [kind for _, kind, _ in bench.kube.writes()] == [Kind.WORKLOAD], "only its label was restored"


async def test_a_job_whose_workload_was_deleted_while_no_operator_ran_stops() -> None:
    bench = Bench()
    await bench.admit()
    bench.kube.remove(Kind.WORKLOAD, "default", bench.workload["metadata"]["name"])
    await Bench(bench.kube).settle()
    assert ("Job", "digits-chief-1") not in bench.kube.world
