"""The start time of a job, also after a crash of the operator that created its objects."""

from datetime import timedelta
from typing import Any

import pytest

from pstraining.api import names
from pstraining.core.observe import parse_time
from tests.support.builders import NOW, job, stamp
from tests.support.simulation import World, phase


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


@pytest.mark.parametrize("former", [0, 500], ids=["never suspended before", "suspended before"])
def test_a_job_that_is_resumed_while_it_stops_counts_its_active_time_once(former: int) -> None:
    """Its parameter servers are those from before, and its start is theirs again."""
    world = World(job(spec={"runPolicy": {"activeDeadlineSeconds": 1000}}))
    world.settle()
    status(world)["activeSeconds"] = former
    for child in world.children.values():
        child["metadata"]["creationTimestamp"] = stamp(NOW)
    world.lingering = {names.CHIEF}
    world.now = NOW + timedelta(seconds=400)
    world.edit({"runPolicy": {"suspend": True}})
    world.reconcile()
    world.controllers()
    world.reconcile()
    assert (phase(world), status(world)["activeSeconds"]) == ("Stopping", former + 400)
    world.now += timedelta(seconds=5)
    world.edit({"runPolicy": {"suspend": False}})
    world.reconcile()
    world.reconcile()
    assert phase(world) != "Failed"
    started = parse_time(status(world)["startTime"])
    assert started == NOW, "failures of the pods that stayed count"
    counted = status(world)["activeSeconds"] + (world.now - started).total_seconds()
    assert counted == pytest.approx(former + 400, abs=5)
