"""ResourceFlavors and priority classes are read when a job needs them, and shared by all jobs."""

from dataclasses import replace
from typing import Any

import pytest

from pstraining.controller.queue_objects import REREAD_SECONDS, QueueObjectReader
from pstraining.core.actions import Kind
from pstraining.core.snapshot import Snapshot
from pstraining.kube.errors import NotFound, Refused, Transient
from pstraining.kube.port import Object
from pstraining.resources import kueue
from tests.support.builders import NOW, stamp
from tests.support.fakekube import FakeKube
from tests.support.queued_world import QueuedWorld, queued, with_flavor

pytestmark = pytest.mark.asyncio


class ClusterObjects(FakeKube):
    """Serves the objects of a cluster by kind and name, and records each read."""

    def __init__(self, **found: Object | Exception) -> None:
        super().__init__()
        self.found = found
        self.reads: list[tuple[Kind, str]] = []

    async def get(self, kind: Kind, namespace: str, name: str) -> Object:
        self.reads.append((kind, name))
        found = self.found.get(name, NotFound("absent", status=404))
        if isinstance(found, Exception):
            raise found
        return found


class Reading:
    """A reader with its own clock."""

    def __init__(self, **found: Object | Exception) -> None:
        self.kube, self.seconds = ClusterObjects(**found), 0.0
        self.reader = QueueObjectReader(self.kube, lambda: self.seconds)

    async def read(self, world: QueuedWorld) -> Snapshot:
        await self.reader.read(world.snapshot())
        return replace(world.snapshot(), queue_objects=self.reader.objects())


def admitted(flavor: str = "gpu") -> QueuedWorld:
    world = queued()
    world.flavors = (flavor,)
    world.reconcile()
    world.admit()
    return world


async def test_a_flavor_is_read_once_for_all_jobs() -> None:
    flavor: dict[str, Any] = {"spec": {"nodeLabels": {"pool": "a"}}}
    reading = Reading(gpu=flavor)
    for _ in range(3):
        snapshot = await reading.read(admitted())
    assert snapshot.queue_objects.flavors == {"gpu": flavor}
    assert reading.kube.reads == [(Kind.RESOURCE_FLAVOR, "gpu")]


async def test_a_job_that_starts_reads_a_flavor_that_may_have_changed() -> None:
    reading, world = Reading(gpu={}), admitted()
    await reading.read(world)
    reading.seconds += REREAD_SECONDS
    await reading.read(world)
    assert len(reading.kube.reads) == 2


@pytest.mark.parametrize("error", [NotFound("absent", status=404), Refused("no right", status=403, reason="Forbidden")])
async def test_an_unreadable_object_is_read_again(error: Exception) -> None:
    reading, world = Reading(gpu=error), admitted()
    assert (await reading.read(world)).queue_objects.flavors == {}
    reading.kube.found["gpu"] = {}
    reading.seconds += REREAD_SECONDS
    assert (await reading.read(world)).queue_objects.flavors == {"gpu": {}}


async def test_a_running_job_does_not_wait_for_a_webhook_that_does_not_answer() -> None:
    """An operator that has just started knows no flavor, and looks after the job nevertheless."""
    error = Transient("conversion webhook for kueue.x-k8s.io/v1beta1, Kind=ResourceFlavor failed: EOF", status=500)
    reading, world = Reading(gpu=error), with_flavor(queued(), {})
    world.reconcile()
    world.admit()
    with pytest.raises(Transient):
        await reading.read(world)
    world.run()
    assert (await reading.read(world)).queue_objects.flavors == {}
    reading.kube.found["gpu"] = Transient("the API server is away", status=503)
    reading.seconds += REREAD_SECONDS
    with pytest.raises(Transient):
        await reading.read(world)


async def test_the_value_of_a_priority_class_is_read_before_the_workload_exists() -> None:
    reading, world = Reading(high={"value": 1000}), queued()
    assert world.job is not None
    world.job["metadata"]["labels"][kueue.LABEL_PRIORITY_CLASS] = "high"
    snapshot = await reading.read(world)
    assert snapshot.queue_objects.priorities == {(Kind.WORKLOAD_PRIORITY_CLASS, "high"): 1000}


async def test_an_operator_that_starts_reads_the_class_of_a_job_that_runs() -> None:
    """A starting operator reads the priority class of a running job, because the job's next slice needs the
    priority.
    """
    reading, world = Reading(high={"value": 1000}, gpu={}), admitted()
    assert world.job is not None
    world.job["metadata"]["labels"][kueue.LABEL_PRIORITY_CLASS] = "high"
    snapshot = await reading.read(world)
    assert snapshot.queue_objects.priorities == {(Kind.WORKLOAD_PRIORITY_CLASS, "high"): 1000}
    assert snapshot.queue_objects.flavors == {"gpu": {}}


@pytest.mark.parametrize("exists", [True, False])
async def test_jobs_without_a_queue_read_the_default_queue_once(exists: bool) -> None:
    reading, world = Reading(**({"default": {}} if exists else {})), queued()
    assert world.job is not None
    world.job["metadata"]["labels"] = {}
    for _ in range(2):
        snapshot = await reading.read(world)
    assert snapshot.queue_objects.default_queues == ({"default"} if exists else set()), "its namespace"
    assert reading.kube.reads == [(Kind.LOCAL_QUEUE, "default")]
    world.run()
    reading.seconds += REREAD_SECONDS
    await reading.read(world)
    assert len(reading.kube.reads) == 1, "it runs"


@pytest.mark.parametrize("state", ["suspended", "ended"])
async def test_a_job_that_does_not_start_reads_no_default_queue(state: str) -> None:
    """While Kueue's objects cannot be read, such a job is cleaned up and deleted in time nevertheless."""
    reading, world = Reading(default=Transient("conversion webhook failed", status=500)), queued()
    assert world.job is not None
    world.job["metadata"]["labels"] = {}
    if state == "suspended":
        world.edit({"runPolicy": {"suspend": True}})
    else:
        ended = {"type": "Succeeded", "status": "True", "reason": "ChiefSucceeded", "message": ""}
        world.job["status"] = {"conditions": [{**ended, "lastTransitionTime": stamp(NOW)}]}
    await reading.read(world)
    assert reading.kube.reads == []
