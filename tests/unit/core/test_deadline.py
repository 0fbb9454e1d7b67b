"""When a job with `runPolicy.activeDeadlineSeconds` is looked at again, whatever it does meanwhile."""

from datetime import timedelta
from typing import Any

import pytest

from pstraining.core.actions import Create, Kind
from tests.support.builders import NOW, job
from tests.support.simulation import World, phase, running

LIMIT = timedelta(seconds=100)
LIMITED: dict[str, Any] = {"runPolicy": {"activeDeadlineSeconds": 100}}


def refused() -> World:
    """Return a job whose pod template the API server refuses."""
    world = World(job(spec=LIMITED))
    world.refuse = lambda action: "bad image" if isinstance(action, Create) and action.kind is Kind.DEPLOYMENT else ""
    return world


def restarting() -> World:
    """Return a job that stops for a restart by a rule, and whose chief does not end."""
    rules = [{"role": "worker", "action": "RestartJob"}]
    world = running(failurePolicy={"rules": rules}, **LIMITED)
    world.lingering = {"chief"}
    world.end("worker", code=3)
    return world


def rescaling() -> World:
    """Return a job that stops for another number of servers, and whose chief does not end."""
    world = running(ps={"replicas": 2}, **LIMITED)
    world.lingering = {"chief"}
    world.edit({"ps": {"replicas": 1}})
    return world


@pytest.mark.parametrize("make", [refused, restarting, rescaling])
def test_a_job_that_waits_fails_at_its_deadline(make: Any) -> None:
    world = make()
    world.settle()
    assert phase(world) not in ("Running", "Failed")
    due = world.plan().requeue_at
    assert due is not None
    assert due == NOW + LIMIT
    world.now = due
    world.reconcile()
    assert phase(world) == "Failed"
    assert world.condition("Failed")["reason"] == "DeadlineExceeded"
