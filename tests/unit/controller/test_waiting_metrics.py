"""The metric of jobs that do not train because the number of their parameter servers changes."""

from datetime import timedelta

from pstraining.controller.metrics import unhealthy_since
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
