"""Another number of replicas on a running job, played out in a simulated world: one test a story."""

import copy
from datetime import timedelta
from typing import Any

import pytest

from pstraining.api import names
from tests.support.simulation import World, phase, running

CHECKPOINT = {"volume": {"persistentVolumeClaim": {"claimName": "c"}}}


def rescaling(world: World) -> tuple[str, str]:
    found = world.condition("Rescaling")
    return found["status"], found["reason"]


def reported(world: World) -> list[str]:
    reasons = ("Checkpointing", "Resharding", "Resuming", "Rescaled")
    return [e.reason for e in world.reported if e.reason in reasons]


@pytest.mark.parametrize(("before", "after"), [(1, 3), (3, 2)])
def test_another_number_of_parameter_servers_is_a_new_beginning_in_order(before: int, after: int) -> None:
    world = running(ps={"replicas": before}, checkpoint=CHECKPOINT)
    world.lingering = {"chief"}
    uid = world.children["StatefulSet", "digits-ps"]["metadata"]["uid"]
    world.edit({"ps": {"replicas": after}})
    assert [a.name for a in world.plan().actions] == ["digits-chief-1"], "the chief first"
    world.settle()
    assert rescaling(world) == ("True", "Checkpointing")
    assert phase(world) == "Rescaling"
    assert len([p for p in world.pods if "-ps-" in p]) == before, "the servers serve while it saves"
    world.gone("chief")
    made = world.reconcile()
    assert [(a.kind, a.name) for a in made.actions] == [
        ("Deployment", "digits-worker-0"),
        ("Deployment", "digits-worker-1"),
        ("StatefulSet", "digits-ps"),
    ], "what says that this is not over goes last"
    assert rescaling(world) == ("True", "Resharding")
    world.controllers()
    world.reconcile()
    assert rescaling(world) == ("True", "Resuming")
    world.settle()
    assert rescaling(world) == ("False", "Rescaled")
    assert phase(world) == "Running"
    stateful_set = world.children["StatefulSet", "digits-ps"]
    assert stateful_set["metadata"]["uid"] != uid
    assert stateful_set["spec"]["replicas"] == after
    assert world.names_of("Service") == ["digits-hs", *(f"digits-ps-{i}" for i in range(after))]
    assert world.names_of("Job") == ["digits-chief-2"]
    assert reported(world) == ["Checkpointing", "Resharding", "Resuming", "Rescaled"], "one event each"
    assert not [w for w in world.writes if w[:2] == ("Apply", "Pod")], "new pods have the map from the start"
    assert "anew" not in world.condition("Rescaling")["message"]


def test_what_is_planned_costs_nobody_a_restart_or_a_warning() -> None:
    world = running(ps={"replicas": 2}, runPolicy={"backoffLimit": 0})
    world.lingering = {"chief", "worker", "ps"}
    world.now += timedelta(seconds=1)
    world.edit({"ps": {"replicas": 1}})
    for role in ("chief", "worker", "ps"):
        world.settle()
        if role != "ps":
            world.end("worker", 0, code=1)  # its servers are gone
        world.gone(role)
    world.settle()
    assert world.job is not None
    assert phase(world) == "Running"
    assert world.job["status"]["restarts"] == 0
    assert [e.reason for e in world.reported if e.type == "Warning"] == ["CheckpointNotDurable"]


def test_without_a_checkpoint_it_says_that_training_begins_anew() -> None:
    world = running()
    world.lingering = {"chief"}
    world.edit({"ps": {"replicas": 2}})
    world.settle()
    assert "training restarts from the beginning" in world.condition("Rescaling")["message"]


def test_a_change_of_mind_half_way_goes_on_with_what_is_there() -> None:
    world = running(ps={"replicas": 2})
    world.lingering = {"chief"}
    world.edit({"ps": {"replicas": 3}})
    world.settle()
    world.edit({"ps": {"replicas": 2}})
    uid = world.children["StatefulSet", "digits-ps"]["metadata"]["uid"]
    world.settle()
    assert world.names_of("Job") == [], "no second chief beside one that may still write"
    world.gone("chief")
    world.settle()
    assert rescaling(world) == ("False", "Rescaled")
    assert world.children["StatefulSet", "digits-ps"]["metadata"]["uid"] == uid


@pytest.mark.parametrize("writes", range(5))
def test_an_operator_that_dies_anywhere_comes_to_the_same_end(writes: int) -> None:
    world = running(ps={"replicas": 2})
    world.edit({"ps": {"replicas": 3}})
    for _ in range(3):
        world.reconcile(stop_after=writes)
        world.controllers()
    world.settle()
    assert phase(world) == "Running"
    assert world.children["StatefulSet", "digits-ps"]["spec"]["replicas"] == 3
    assert world.plan().actions == ()
    assert {k for k in world.writes if k[0] == "Create" and k[1] == "Job"} == {
        ("Create", "Job", "digits-chief-1"),
        ("Create", "Job", "digits-chief-2"),
    }


def test_replicas_changed_by_hand_are_corrected_and_nothing_stops() -> None:
    world = running(ps={"replicas": 2})
    pods = set(world.pods)
    world.children["StatefulSet", "digits-ps"]["spec"]["replicas"] = 3
    world.settle()
    assert world.children["StatefulSet", "digits-ps"]["spec"]["replicas"] == 2
    assert set(world.pods) == pods
    assert world.names_of("Job") == ["digits-chief-1"]


def test_all_members_of_the_shards_are_made_anew() -> None:
    world = running(ps={"replicas": 1, "standby": {"mode": "Warm"}})
    world.edit({"ps": {"replicas": 2}})
    world.settle()
    sets = {n: world.children["StatefulSet", n]["spec"]["replicas"] for n in world.names_of("StatefulSet")}
    assert sets == {"digits-ps": 2, "digits-standby": 2}
    assert world.names_of("PodDisruptionBudget") == ["digits-ps-0", "digits-ps-1"]
    assert phase(world) == "Running"


def test_suspended_half_way_it_ends_when_it_is_resumed() -> None:
    world = running(ps={"replicas": 2})
    world.edit({"ps": {"replicas": 1}})
    world.reconcile()
    world.edit({"runPolicy": {"suspend": True}})
    world.settle()
    assert not world.pods
    assert phase(world) == "Suspended"
    world.edit({"runPolicy": {"suspend": False}})
    world.settle()
    assert rescaling(world) == ("False", "Rescaled")
    assert world.names_of("Service") == ["digits-hs", "digits-ps-0"]


def test_a_worker_that_was_scaled_away_leaves_nothing_behind() -> None:
    world = running()
    world.end("worker", 1, code=1)
    world.settle()
    world.end("worker", 1, code=0)
    world.settle()
    status: Any = (world.job or {})["status"]
    assert status["worker"]["succeeded"] == 1
    world.edit({"worker": {"replicas": 1}})
    world.settle()
    status = (world.job or {})["status"]
    assert status["replicaRecords"] == []
    assert (status["worker"]["succeeded"], status["worker"]["restarts"]) == (0, 0)
    world.edit({"worker": {"replicas": 2}})
    world.settle()
    deployment = world.children["Deployment", "digits-worker-1"]
    assert deployment["spec"]["replicas"] == 1
    assert names.ANNOTATION_SUCCEEDED not in (deployment["metadata"].get("annotations") or {})
    assert (world.job or {})["status"]["worker"]["summary"] == "2/2"


def test_a_worker_that_was_scaled_away_cannot_fail_the_job() -> None:
    world = running(runPolicy={"backoffLimit": 0})
    world.lingering = {"worker"}
    world.edit({"worker": {"replicas": 1}})
    world.settle()
    world.end("worker", 1, code=1)
    world.settle()
    assert phase(world) == "Running"
    assert copy.deepcopy(world.job or {})["status"]["replicaRecords"] == []
