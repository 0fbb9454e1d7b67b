"""A running job is looked after although the API server refuses one of its objects in each pass."""

import pytest

from pstraining.core.actions import Action, Apply, Create, Verdict
from tests.support.builders import job
from tests.support.simulation import World, phase, running


def without_room(action: Action) -> str:
    """Act as a ResourceQuota that permits no further Deployment."""
    is_worker = isinstance(action, Create) and action.kind == "Deployment"
    return "exceeded quota: few, requested: count/deployments.apps=1" if is_worker else ""


def passes(world: World) -> None:
    """Make a few passes; a refused write is repeated in each of them."""
    for _ in range(4):
        world.reconcile()
        world.controllers()


def test_a_lost_chief_is_replaced_although_a_quota_refuses_a_worker() -> None:
    world = running(worker={"replicas": 1})
    world.refuse, world.verdict = without_room, Verdict.REFUSED
    world.edit({"worker": {"replicas": 2}})
    world.end("chief", code=1)
    passes(world)
    assert world.names_of("Job") == ["digits-chief-2"]
    assert phase(world) == "Running"
    assert "exceeded quota" in world.condition("Created")["message"]
    world.refuse = None
    world.settle()
    assert world.names_of("Deployment") == ["digits-worker-0", "digits-worker-1"]
    assert world.condition("Created")["status"] == "True"


def test_a_lost_chief_is_replaced_although_the_name_of_a_worker_is_taken() -> None:
    world = running(worker={"replicas": 1})
    world.foreign = {("Deployment", "digits-worker-1")}
    world.edit({"worker": {"replicas": 2}})
    world.end("chief", code=1)
    passes(world)
    assert world.names_of("Job") == ["digits-chief-2"]
    assert world.condition("NameConflict")["status"] == "True"


def test_a_worker_that_has_succeeded_is_scaled_to_zero_although_a_quota_refuses_another() -> None:
    world = running(worker={"replicas": 1})
    world.refuse, world.verdict = without_room, Verdict.REFUSED
    world.edit({"worker": {"replicas": 2}})
    world.end("worker", 0, code=0)
    passes(world)
    assert world.children["Deployment", "digits-worker-0"]["spec"]["replicas"] == 0


def test_a_worker_is_created_although_a_quota_refuses_the_evaluator() -> None:
    world = running(worker={"replicas": 1}, evaluator={"enabled": True})
    world.verdict = Verdict.REFUSED
    world.refuse = lambda action: "exceeded quota: few" if isinstance(action, Create) and action.kind == "Job" else ""
    world.end("evaluator", code=1)
    world.edit({"worker": {"replicas": 2}})
    passes(world)
    assert world.names_of("Deployment") == ["digits-worker-0", "digits-worker-1"]


def test_a_worker_that_has_succeeded_is_scaled_to_zero_although_a_policy_refuses_a_budget() -> None:
    world = World(job(spec={"ps": {"replicas": 1, "standby": {"mode": "Warm"}}}), verdict=Verdict.REFUSED)
    world.refuse = lambda action: "denied the request: no voluntary disruptions" if "Budget" in action.kind else ""
    passes(world)
    assert phase(world) == "Running"
    world.end("worker", 1, code=0)
    passes(world)
    assert world.children["Deployment", "digits-worker-1"]["spec"]["replicas"] == 0
    assert "PodDisruptionBudget digits-ps-0 was refused" in world.condition("Created")["message"]


@pytest.mark.parametrize("state", ["running", "resumed"])
def test_a_claim_is_released_although_a_quota_refuses_an_object(state: str) -> None:
    """Otherwise, the checkpoints would be deleted with the job."""
    claim = {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}}
    world = running(worker={"replicas": 1}, checkpoint={"volumeClaimTemplate": claim, "retainPolicy": "Delete"})
    if state == "resumed":
        world.edit({"runPolicy": {"suspend": True}})
        world.settle()
    world.refuse, world.verdict = without_room, Verdict.REFUSED
    world.edit({"worker": {"replicas": 2}, "runPolicy": {"suspend": False}, "checkpoint": {"retainPolicy": "Retain"}})
    passes(world)
    assert not world.children["PersistentVolumeClaim", "digits-checkpoint"]["metadata"].get("ownerReferences")


def test_a_corrected_job_is_valid_although_a_policy_sets_a_service_back() -> None:
    world = running(worker={"replicas": 1})
    world.refuse = without_room
    world.edit({"worker": {"replicas": 2}})
    passes(world)
    assert phase(world) == "Invalid"
    world.children["Service", "digits-hs"]["spec"]["publishNotReadyAddresses"] = False
    world.refuse = lambda action: "set back" if isinstance(action, Apply) and action.kind == "Service" else ""
    world.verdict = Verdict.UNCHANGED
    world.edit({"worker": {"replicas": 1}})
    passes(world)
    assert world.plan().actions, "the operator writes the Service after each event"
    assert phase(world) == "Running"


@pytest.mark.parametrize("role", ["chief", "evaluator"])
def test_an_ended_attempt_gives_way_if_a_quota_permits_no_further_job(role: str) -> None:
    """It is otherwise kept for its log during the whole next attempt."""
    world = running(evaluator={"enabled": True})
    message = (
        "exceeded quota: few, requested: count/jobs.batch=1, used: count/jobs.batch=2, limited: count/jobs.batch=2"
    )

    def without_a_third(action: Action) -> str:
        is_job = isinstance(action, Create) and action.kind == "Job"
        return message if is_job and len(world.names_of("Job")) > 1 else ""

    world.refuse, world.verdict = without_a_third, Verdict.REFUSED
    world.end(role, code=1)
    passes(world)
    assert f"digits-{role}-2" in world.names_of("Job")
    assert f"digits-{role}-1" not in world.names_of("Job")
    assert (phase(world), world.condition("Created")["status"]) == ("Running", "True")
