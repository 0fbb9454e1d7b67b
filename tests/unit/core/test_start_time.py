"""The start time of a job, also after a crash of the operator that created its objects."""

from datetime import timedelta
from typing import Any

from pstraining.core.observe import parse_time
from tests.support.builders import NOW, job, stamp
from tests.support.simulation import World


def half_made() -> World:
    """Create a job whose operator crashed after creating everything, before its status write. Pods start, and the next
    operator starts later.
    """
    world = World(job(spec={"runPolicy": {"backoffLimit": 0}}))
    world.reconcile(stop_after=len(world.plan().actions))
    for child in world.children.values():
        child["metadata"]["creationTimestamp"] = stamp(NOW)
    world.controllers()
    world.now += timedelta(seconds=10)
    return world


def status(world: World) -> dict[str, Any]:
    assert world.job is not None
    found: dict[str, Any] = world.job["status"]
    return found


def test_a_job_starts_when_its_workloads_are_created() -> None:
    world = half_made()
    world.settle()
    assert parse_time(status(world)["startTime"]) == NOW


def test_a_failure_of_a_pod_that_is_older_than_the_first_status_counts() -> None:
    world = half_made()
    world.settle()
    world.end("chief", code=1)
    world.settle()
    assert status(world)["phase"] == "Failed"


def test_failures_count_if_the_operators_clock_is_ahead_of_the_api_servers() -> None:
    world = World(job(spec={"runPolicy": {"backoffLimit": 0}}))
    world.now = NOW + timedelta(seconds=30)
    world.reconcile()
    for child in world.children.values():
        child["metadata"]["creationTimestamp"] = stamp(NOW)
    world.now = NOW
    world.controllers()
    world.now = NOW + timedelta(seconds=40)
    world.settle()
    assert parse_time(status(world)["startTime"]) == NOW
    world.end("worker", 1, code=1)
    world.settle()
    assert (status(world)["phase"], status(world)["failedReplica"]) == ("Failed", "worker/1")


def test_a_resumed_job_has_a_new_start_time() -> None:
    world = half_made()
    world.settle()
    world.edit({"runPolicy": {"suspend": True}})
    world.settle()
    assert "startTime" not in status(world)
    world.now += timedelta(seconds=100)
    resumed = world.now
    world.edit({"runPolicy": {"suspend": False}})
    world.settle()
    started = parse_time(status(world)["startTime"])
    assert started is not None
    assert started >= resumed.replace(microsecond=0)
