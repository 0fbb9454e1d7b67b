"""PodGroups are read only if a gang needs them."""

from datetime import timedelta
from typing import Any

import pytest

from pstraining.api.conditions import Reason
from pstraining.controller.clocks import ReconcilerClocks
from pstraining.controller.metrics import OperatorMetrics
from pstraining.controller.pod_groups import REREAD_SECONDS
from pstraining.controller.reconciler import UNKNOWN_DELAY, Reconciler
from pstraining.controller.watch_state import WatchState
from pstraining.core.actions import Kind
from pstraining.kube.errors import Conflict, NotFound, Refused, Transient
from pstraining.kube.port import Object
from tests.support.builders import LAUNCHER, NOW, job
from tests.support.fakekube import FakeKube
from tests.support.reconcilers import CORE

pytestmark = pytest.mark.asyncio
KEY = ("default", "digits")
PLACE = (str(Kind.POD_GROUP), *KEY)
PLUGINS = {"runPolicy": {"schedulingPolicy": {"gang": "SchedulerPlugins"}}}


class Counting(FakeKube):
    """Counts the reads."""

    def __init__(self) -> None:
        super().__init__()
        self.reads: list[str] = []

    async def get(self, kind: Kind, namespace: str, name: str) -> Object:
        self.reads.append(str(kind))
        return await super().get(kind, namespace, name)


class Bench:
    """A reconciler with core's decisions; the watch delivers no PodGroups, as in a real cluster."""

    def __init__(self, spec: dict[str, Any]) -> None:
        self.kube, self.now, self.seconds = Counting(), NOW, 0.0
        self.kube.put(job(spec=spec))
        self.restart()

    def restart(self) -> None:
        """Start a new process, whose empty cache is filled by lists."""
        self.watch_state = WatchState()
        self.reconciler = Reconciler(
            watch_state=self.watch_state,
            port=self.kube,
            decisions=CORE,
            launcher=LAUNCHER,
            metrics=OperatorMetrics(lambda: 0, lambda: 0),
            instance="op-0",
            clocks=ReconcilerClocks(lambda: self.now, lambda: self.seconds),
        )
        for place, found in self.kube.objects.items():
            if place[0] not in Kind.pod_groups():
                self.watch_state.cache.observed(found)

    async def settle(self) -> float | None:
        """Run passes until none follows at once; return the time of the next one."""
        for _ in range(50):
            if (again := await self.reconciler.reconcile(KEY)) != 0.0:
                return again
        raise AssertionError("does not settle")

    def pod(self, name: str, node: str = "") -> None:
        """Return a parameter server's pod, as the watch shows it."""
        uid = self.kube.objects["PSTrainingJob", *KEY]["metadata"]["uid"]
        labels = {"pstraining.dev/job-name": "digits", "pstraining.dev/job-uid": uid, "pstraining.dev/role": "ps"}
        found = {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {"name": name, "generateName": "digits-ps-", "labels": labels},
        }
        if node:
            found["spec"] = {"nodeName": node}
        self.watch_state.cache.observed(self.kube.put(found))

    def condition(self, kind: str) -> dict[str, Any]:
        reported = self.kube.objects["PSTrainingJob", *KEY]["status"]["conditions"]
        return next(c for c in reported if c["type"] == kind)


async def test_a_job_without_a_gang_costs_no_read() -> None:
    bench = Bench({})
    bench.pod("digits-ps-0")
    await bench.settle()
    assert bench.kube.reads == []


@pytest.mark.parametrize(("gang", "kind"), [("SchedulerPlugins", Kind.POD_GROUP), ("Volcano", Kind.VOLCANO_POD_GROUP)])
async def test_a_restarted_operator_reads_once_and_writes_nothing(gang: str, kind: Kind) -> None:
    bench = Bench({"runPolicy": {"schedulingPolicy": {"gang": gang}}})
    await bench.settle()
    assert bench.kube.objects[str(kind), *KEY]["spec"]["minMember"] == 4
    bench.kube.writes()
    bench.kube.reads.clear()
    bench.restart()
    await bench.settle()
    await bench.settle()
    assert bench.kube.reads == [kind]
    assert bench.kube.writes() == []


async def test_a_deleted_group_is_recreated_while_a_pod_waits() -> None:
    bench = Bench(PLUGINS)
    await bench.settle()
    bench.pod("digits-ps-0")
    bench.kube.remove(*PLACE)
    await bench.settle()
    assert PLACE not in bench.kube.objects, "it was read a moment ago"
    bench.seconds += REREAD_SECONDS
    await bench.settle()
    assert bench.kube.objects[PLACE]["spec"]["minMember"] == 4
    changed = bench.kube.objects[PLACE]
    bench.kube.put({**changed, "spec": {**changed["spec"], "minMember": 7}})
    bench.seconds += REREAD_SECONDS
    await bench.settle()
    assert bench.kube.objects[PLACE]["spec"]["minMember"] == 4


async def test_a_time_of_day_that_is_set_back_delays_no_read() -> None:
    bench = Bench(PLUGINS)
    await bench.settle()
    bench.pod("digits-ps-0")
    bench.kube.remove(*PLACE)
    bench.now -= timedelta(hours=1)
    bench.seconds += REREAD_SECONDS
    await bench.settle()
    assert PLACE in bench.kube.objects


async def test_a_fully_scheduled_gang_costs_no_read() -> None:
    bench = Bench(PLUGINS)
    await bench.settle()
    bench.kube.reads.clear()
    bench.pod("digits-ps-0", "node-1")
    bench.seconds += 3600
    await bench.settle()
    assert bench.kube.reads == []


async def test_a_job_waits_for_the_missing_kind_and_then_continues() -> None:
    bench = Bench(PLUGINS)
    unknown = NotFound("404 page not found", status=404)
    bench.kube.failures = lambda verb, kind, *_: unknown if kind == Kind.POD_GROUP else None
    assert await bench.settle() == UNKNOWN_DELAY
    assert bench.kube.world == {("PSTrainingJob", "digits")}
    assert bench.condition("Created")["reason"] == Reason.GANG_NOT_INSTALLED
    bench.kube.writes()
    assert await bench.settle() == UNKNOWN_DELAY
    assert bench.kube.writes() == [("create", "PodGroup", "digits")], "one try, and the same status"
    bench.kube.failures = lambda *_: None
    await bench.settle()
    assert bench.condition("Created")["status"] == "True"
    assert PLACE in bench.kube.objects


async def test_a_missing_right_is_reported() -> None:
    bench = Bench(PLUGINS)
    denied = Refused("podgroups is forbidden", status=403)
    bench.kube.failures = lambda verb, kind, *_: denied if kind == Kind.POD_GROUP else None
    await bench.settle()
    assert bench.condition("Created")["reason"] == Reason.WRITE_REFUSED
    assert "podgroups is forbidden" in bench.condition("Created")["message"]


async def test_a_failed_read_is_retried() -> None:
    bench = Bench(PLUGINS)
    away = Transient("the server is away", status=503)
    bench.kube.failures = lambda verb, *_: away if verb == "get" else None
    with pytest.raises(Transient):
        await bench.settle()
    assert bench.kube.writes() == []
    bench.kube.failures = lambda *_: None
    await bench.settle()
    assert PLACE in bench.kube.objects


async def test_a_foreign_group_is_not_changed() -> None:
    bench = Bench(PLUGINS)
    theirs = {"apiVersion": "scheduling.x-k8s.io/v1alpha1", "kind": "PodGroup", "metadata": {"name": "digits"}}
    bench.kube.put({**theirs, "spec": {"minMember": 9}})
    await bench.settle()
    assert bench.condition("NameConflict")["status"] == "True"
    assert bench.kube.objects[PLACE]["spec"] == {"minMember": 9}


async def test_a_replaced_group_is_read_again() -> None:
    bench = Bench(PLUGINS)
    await bench.settle()
    bench.pod("digits-ps-0", "node-1")
    bench.kube.remove(*PLACE)
    found = bench.kube.objects["PSTrainingJob", *KEY]
    found["spec"]["worker"]["replicas"] = 1
    bench.watch_state.cache.observed(bench.kube.put(found))
    with pytest.raises(Conflict) as raised:
        await bench.settle()
    bench.reconciler.failed(KEY, raised.value, 0.1)
    await bench.settle()
    assert bench.kube.objects[PLACE]["spec"]["minMember"] == 3


@pytest.mark.parametrize("gang", ["SchedulerPlugins", "Volcano"])
async def test_a_group_that_was_deleted_is_deleted_once(gang: str) -> None:
    bench = Bench({"runPolicy": {"schedulingPolicy": {"gang": gang}}})
    await bench.settle()
    found = bench.kube.objects["PSTrainingJob", *KEY]
    found["spec"]["runPolicy"]["suspend"] = True
    bench.watch_state.cache.observed(bench.kube.put(found))
    await bench.settle()
    deleted = [r for r in bench.kube.writes() if r[0] == "delete" and "PodGroup" in r[1]]
    assert len(deleted) == 1
    await bench.settle()
    assert bench.kube.writes() == []
