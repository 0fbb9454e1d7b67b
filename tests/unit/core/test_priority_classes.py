"""Jobs with a queue whose priority class is deleted, which the operator reads again after a restart."""

from pstraining.core.actions import Kind
from pstraining.core.policies.queueing import LOOK_AGAIN
from pstraining.core.snapshot import QueueObjects
from pstraining.resources import kueue
from tests.support.queued_world import WithObjects, queued

HIGH = QueueObjects(priorities={(Kind.WORKLOAD_PRIORITY_CLASS, "high"): 1000})


def with_class(quota: int = 100) -> WithObjects:
    """Return a job with a priority class that the operator has read."""
    world = WithObjects(queued().job, quota=quota)
    assert world.job is not None
    world.job["metadata"]["labels"][kueue.LABEL_PRIORITY_CLASS] = "high"
    world.objects = HIGH
    world.run()
    return world


def test_a_larger_job_whose_class_was_deleted_reports_it_and_looks_again() -> None:
    world = with_class()
    world.objects = QueueObjects()  # as for an operator that has just started
    world.edit({"worker": {"replicas": 4}})
    world.run()
    assert world.existing()["worker"] == 2
    words = "WorkloadPriorityClass high does not exist or cannot be read: create it, or name another one."
    assert world.condition("Queued")["message"].endswith(words)
    assert world.plan().requeue_at == world.now + LOOK_AGAIN
    world.objects = HIGH
    world.run()
    assert world.existing()["worker"] == 4
    assert world.plan().requeue_at is None


def test_a_job_that_waits_needs_its_class_only_for_a_change() -> None:
    world = with_class(quota=0)
    world.objects = QueueObjects()
    world.run()
    assert world.condition("Queued")["message"] == "WaitingForQuota: insufficient unused quota for pods"
    assert world.plan().requeue_at is None
    world.edit({"worker": {"replicas": 4}})
    world.run()
    assert "WorkloadPriorityClass high" in world.condition("Queued")["message"]
    assert world.plan().requeue_at == world.now + LOOK_AGAIN
