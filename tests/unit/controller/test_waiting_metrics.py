"""The metric of jobs that wait: while the number of servers changes, and while a change of the spec is refused."""

from datetime import timedelta

from pstraining.controller.metrics import unhealthy_since
from pstraining.core.actions import Create
from tests.support.simulation import phase, running


def test_a_job_whose_chief_finds_no_place_after_a_rescaling_waits() -> None:
    world = running(ps={"replicas": 2}, worker={"replicas": 1})
    world.lingering = {"chief"}
    world.now += timedelta(minutes=1)
    world.edit({"ps": {"replicas": 1}})
    world.settle()
    world.now += timedelta(hours=1)
    world.gone("chief")
    world.reconcile()
    assert world.job is not None
    assert phase(world) == "Rescaling"
    since = unhealthy_since(world.job["status"])["Rescaling"]
    assert world.now - since >= timedelta(hours=1), "it has not trained since its chief was deleted"
    world.settle()
    assert not unhealthy_since(world.job["status"])


def test_a_job_whose_change_is_refused_waits_for_a_lost_server() -> None:
    """Its phase is Invalid, so no alert named a job that had trained."""
    world = running(ps={"replicas": 1, "standby": {"mode": "Warm"}}, worker={"replicas": 1})
    world.refuse = lambda action: "must be at least requests" if isinstance(action, Create) else ""
    world.edit({"worker": {"replicas": 2}})
    world.settle()
    assert world.job is not None
    assert phase(world) == "Invalid"
    assert not unhealthy_since(world.job["status"]), "it trains"
    del world.pods["digits-standby-0"]
    world.reconcile()
    assert unhealthy_since(world.job["status"]).keys() == {"Degraded"}
    del world.pods["digits-ps-0"]
    world.reconcile()
    assert unhealthy_since(world.job["status"]).keys() == {"Degraded", "Restarting"}
