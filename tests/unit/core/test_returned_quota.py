"""The quota of workers that have ended returns to the queue, and only theirs."""

from pstraining.api import names
from pstraining.core.actions import Kind
from tests.support.queued_world import running
from tests.unit.core.test_queue_writes import workers


def test_a_worker_that_has_returned_its_quota_is_not_counted_twice() -> None:
    world = running(successPolicy="AllWorkers")
    world.end(names.WORKER, 1)
    world.run()
    assert world.workload["status"]["reclaimablePods"] == [{"name": names.WORKER, "count": 1}]
    assert workers(world.workload) == 2
    assert world.with_quota()[names.WORKER] == 1


def test_a_worker_returns_its_quota_when_its_pod_is_deleted() -> None:
    world = running(successPolicy="AllWorkers")
    world.lingering.add(names.WORKER)
    world.end(names.WORKER, 1)
    for _ in range(4):
        world.reconcile()
        world.controllers()
        assert not world.without_quota()
    assert world.existing()[names.WORKER] == 2
    assert "reclaimablePods" not in world.workload["status"]
    world.gone(names.WORKER)
    world.run()
    assert world.workload["status"]["reclaimablePods"] == [{"name": names.WORKER, "count": 1}]


def test_a_worker_beyond_the_number_of_workers_returns_no_quota() -> None:
    world = running()
    assert world.job is not None
    former = {"role": names.WORKER, "index": 2, "givenUp": True}
    world.job["status"]["replicaRecords"] = [*(world.job["status"].get("replicaRecords") or ()), former]
    assert not [action for action in world.plan().actions if action.kind is Kind.WORKLOAD]


def test_a_count_without_a_worker_that_has_returned_its_quota_leaves_the_others_theirs() -> None:
    world = running(successPolicy="AllWorkers", worker={"replicas": 3})
    world.end(names.WORKER, 2)
    world.run()
    assert (workers(world.workload), world.with_quota()[names.WORKER]) == (3, 2)
    world.edit({"worker": {"replicas": 2}})
    for _ in world.steps():
        assert not world.without_quota()
    assert (workers(world.workload), world.with_quota()[names.WORKER]) == (3, 2)
