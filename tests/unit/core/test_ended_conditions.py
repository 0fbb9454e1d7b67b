"""Problems that a job still has at its end are over with it."""

from pstraining.core.actions import Create
from tests.support.simulation import phase, running


def test_a_refused_change_of_a_job_is_over_when_the_job_succeeds() -> None:
    world = running(worker={"replicas": 1})
    world.refuse = lambda action: "imge: unknown" if isinstance(action, Create) and action.kind == "Deployment" else ""
    world.edit({"worker": {"replicas": 2}})
    world.settle()
    assert phase(world) == "Invalid"
    world.end("chief")
    world.settle()
    assert phase(world) == "Succeeded"
    found = world.condition("InvalidTemplate")
    assert (found["status"], found["reason"]) == ("False", "JobFinished")


def test_a_conflict_of_names_is_over_when_the_job_fails() -> None:
    world = running(worker={"replicas": 1}, runPolicy={"cleanPodPolicy": {"onFailure": "None"}})
    world.foreign = {("Deployment", "digits-worker-1")}
    world.edit({"worker": {"replicas": 2}})
    world.reconcile()
    assert world.condition("NameConflict")["status"] == "True"
    world.edit({"runPolicy": {"activeDeadlineSeconds": 1}})
    world.settle()
    assert phase(world) == "Failed"
    found = world.condition("NameConflict")
    assert (found["status"], found["reason"]) == ("False", "JobFinished")
