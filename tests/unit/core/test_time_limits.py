"""The time limit of a queued job, which Kueue lets change until it has admitted the job's Workload."""

from typing import Any

import pytest

from pstraining.core.actions import Replace
from pstraining.core.facts import Facts, gather
from pstraining.core.policies import queue_writes
from pstraining.resources import kueue
from tests.support.queued_world import QueuedWorld
from tests.support.simulation import phase
from tests.unit.core.test_queue_terms import labelled, relabel


def limits(world: QueuedWorld) -> list[Any]:
    return [workload["spec"].get("maximumExecutionTimeSeconds") for workload in world.workloads]


def retimed(world: QueuedWorld) -> list[Replace]:
    facts = gather(world.snapshot(), world.now)
    assert isinstance(facts, Facts)
    return list(queue_writes.retimed(facts))


def writes_of_a_pass(world: QueuedWorld) -> int:
    before = len(world.writes)
    world.reconcile()
    return len(world.writes) - before


@pytest.mark.parametrize(("before", "after"), [("60", "90"), (None, "60"), ("60", None)])
def test_a_job_that_admission_checks_hold_gets_its_new_time_limit(before: str | None, after: str | None) -> None:
    """Its Workload kept the former limit, and Kueue stopped the job by it once the checks had passed."""
    world = labelled(100, **({"max_exec_time_seconds": before} if before else {}))
    world.checks = True
    world.run()
    uid = world.workload["metadata"]["uid"]
    relabel(world, kueue.LABEL_MAX_SECONDS, after)
    relabel(world, kueue.LABEL_PRIORITY_CLASS, "high")
    world.run()
    wanted = None if after is None else int(after)
    assert (phase(world), limits(world)) == ("Queued", [wanted])
    world.pass_checks()
    world.run()
    assert (phase(world), limits(world)) == ("Running", [wanted])
    assert world.workload["metadata"]["uid"] == uid, "it has kept its quota"
    assert not writes_of_a_pass(world)


@pytest.mark.parametrize("quota", [0, 100], ids=["it waits", "checks hold it"])
def test_a_larger_slice_gets_the_new_time_limit_until_it_is_admitted(quota: int) -> None:
    world = labelled(priority_class="low", max_exec_time_seconds="60")
    world.run()
    world.checks, world.quota = True, quota
    world.edit({"worker": {"replicas": 4}})
    world.run()
    relabel(world, kueue.LABEL_MAX_SECONDS, "90")
    relabel(world, kueue.LABEL_PRIORITY_CLASS, "high")
    world.run()
    assert limits(world) == [60, 90], "the admitted one keeps its limit"
    assert world.workloads[-1]["spec"]["priority"] == 1000
    assert not writes_of_a_pass(world)


def test_a_workload_that_multikueue_has_sent_keeps_its_time_limit() -> None:
    world = labelled(max_exec_time_seconds="60")
    world.checks = True
    world.run()
    assert world.job is not None
    world.job["metadata"]["annotations"] = {kueue.PREBUILT: world.workload["metadata"]["name"]}
    relabel(world, kueue.LABEL_MAX_SECONDS, "90")
    assert not writes_of_a_pass(world)


def test_only_a_workload_that_has_not_changed_since_gets_another_time_limit() -> None:
    world = labelled(max_exec_time_seconds="60")
    world.checks = True
    world.run()
    relabel(world, kueue.LABEL_MAX_SECONDS, "90")
    (write,) = retimed(world)
    version = world.workload["metadata"]["resourceVersion"]
    assert write.parts == {"/metadata/resourceVersion": version, "/spec/maximumExecutionTimeSeconds": 90}
    world._set(world.workload, "Evicted", True, "Preempted", "preempted")
    assert not retimed(world), "it gets a new Workload"
