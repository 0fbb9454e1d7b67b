"""Changes of the number of replicas of a running job in a simulated world, one scenario per test."""

import copy
from datetime import timedelta
from typing import Any

import pytest

from pstraining.api import names
from pstraining.core.actions import Apply, Kind
from pstraining.core.facts import gather
from pstraining.core.planner import plan
from pstraining.resources.launcher import LauncherFiles
from tests.support.builders import LAUNCHER, deep_merge, job
from tests.support.cluster_maps import layout
from tests.support.simulation import StaleError, World, phase, running

HOT: dict[str, Any] = {"ps": {"standby": {"mode": "Hot"}}, "training": {"mode": "Sync"}}
LOST_WITH_POD: list[dict[str, Any]] = [{"emptyDir": {}}, {"ephemeral": {}}, {}]
CHECKPOINT = {"volume": {"persistentVolumeClaim": {"claimName": "c"}}}


def rescaling(world: World) -> tuple[str, str]:
    found = world.condition("Rescaling")
    return found["status"], found["reason"]


def reported(world: World) -> list[str]:
    reasons = ("StartingServers", "Checkpointing", "Resharding", "Resuming", "Rescaled")
    return [e.reason for e in world.reported if e.reason in reasons]


def uids(world: World, *roles: str) -> dict[str, str]:
    """Return the uids of the pods of these roles, by name."""
    found = [p["metadata"] for p in world.pods.values() if p["metadata"]["labels"][names.LABEL_ROLE] in roles]
    return {m["name"]: m["uid"] for m in found}


def hold(world: World, *indices: int, member: str = "ps") -> None:
    """Let the new servers with these indices find no node."""
    for index in indices:
        found = world.pods[f"digits-{member}-{index}"]
        no_room = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": "0/3 nodes"}
        found["status"] |= {"phase": "Pending", "containerStatuses": [], "conditions": [no_room]}


def release(world: World, index: int) -> None:
    """Let a server that has waited for a node run; it is not ready, because its launcher waits for the map."""
    found = world.pods[f"digits-ps-{index}"]
    state = {"name": "tensorflow", "image": "img:1", "restartCount": 0, "ready": False, "state": {"running": {}}}
    found["status"] |= {"phase": "Running", "containerStatuses": [state], "conditions": []}


def serve(world: World, *indices: int) -> None:
    """Let these servers have the map, and serve."""
    for index in indices:
        found = world.pods[f"digits-ps-{index}"]["status"]
        found["containerStatuses"][0]["ready"] = True
        found["conditions"] = [{"type": "Ready", "status": "True"}]


def test_new_servers_start_beside_training_which_then_stops_for_a_save_alone() -> None:
    world = running(ps={"replicas": 2}, checkpoint=CHECKPOINT)
    world.lingering = {"chief"}
    before = uids(world, "ps", "worker", "chief")
    world.edit({"ps": {"replicas": 4}})
    world.reconcile()
    world.controllers()
    hold(world, 2, 3)
    world.settle()
    assert (rescaling(world), phase(world)) == (("True", "StartingServers"), "Running")
    assert uids(world, "ps", "worker", "chief").items() >= before.items(), "training continues"
    assert layout(world) == (1, 2)
    assert {"digits-ps-2", "digits-ps-3"} <= set(world.names_of("Service")), "their names resolve when they are needed"
    release(world, 2)
    world.settle()
    assert rescaling(world) == ("True", "StartingServers")
    release(world, 3)
    assert [a.name for a in world.plan().actions] == ["digits-chief-1"], "all run: the chief may save"
    world.settle()
    assert (rescaling(world), phase(world)) == (("True", "Checkpointing"), "Rescaling")
    assert layout(world) == (1, 2), "the servers serve while it saves"
    world.gone("chief")
    assert [a.name for a in world.plan().actions] == ["digits-ps"], "one write records the next layout"
    world.reconcile()
    assert rescaling(world) == ("True", "Resuming")
    made = world.reconcile()
    assert [a.name for a in made.actions][:2] == ["digits", "digits-chief-2"], "the map is there before the chief"
    assert layout(world) == (2, 4)
    serve(world, 2, 3)
    world.settle()
    assert (rescaling(world), phase(world)) == (("False", "Rescaled"), "Running")
    gone = before.items() - uids(world, "ps", "worker", "chief").items()
    assert ["-chief-" in name for name, _ in gone] == [True], "no pod but the chief's is replaced"
    assert reported(world) == ["StartingServers", "Checkpointing", "Resuming", "Rescaled"], "one event each"


def test_surplus_servers_are_deleted_after_the_switch() -> None:
    world = running(ps={"replicas": 3}, checkpoint=CHECKPOINT)
    world.lingering = {"chief"}
    before = uids(world, "ps", "worker")
    world.edit({"ps": {"replicas": 1}})
    world.settle()
    assert rescaling(world) == ("True", "Checkpointing")
    assert uids(world, "ps", "worker") == before, "all servers serve while the chief saves"
    world.gone("chief")
    world.settle()
    assert rescaling(world) == ("False", "Rescaled")
    assert uids(world, "ps", "worker") == {
        n: uid for n, uid in before.items() if n not in ("digits-ps-1", "digits-ps-2")
    }
    assert world.names_of("Service") == ["digits-hs", "digits-ps-0"]
    assert (layout(world), world.names_of("Job")) == ((2, 1), ["digits-chief-2"])
    assert reported(world) == ["Checkpointing", "Resuming", "Rescaled"]


def test_a_change_that_finds_no_room_is_explained_costs_no_failure_and_can_be_withdrawn() -> None:
    world = running(ps={"replicas": 1}, runPolicy={"backoffLimit": 0})
    before = uids(world, "ps", "worker", "chief")
    world.edit({"ps": {"replicas": 3}})
    world.reconcile()
    world.controllers()
    hold(world, 1)
    world.end("ps", 2, code=1)  # its image is broken
    world.now += timedelta(seconds=60)
    world.settle()
    message = world.condition("Rescaling")["message"]
    assert message.startswith("1 of 2 new parameter servers run; until all do, training continues with 1.")
    assert "Pod digits-ps-1 cannot be scheduled: 0/3 nodes" in message
    assert (phase(world), world.condition("Running")["reason"]) == ("Running", "Training")
    assert (world.job or {})["status"]["ps"]["summary"] == "1/1"
    world.edit({"ps": {"replicas": 1}})
    world.settle()
    assert rescaling(world) == ("False", "Rescaled")
    assert uids(world, "ps", "worker", "chief") == before, "nothing has stopped"
    assert (world.job or {})["status"]["restarts"] == 0
    assert world.names_of("Service") == ["digits-hs", "digits-ps-0"]


def test_the_claims_of_servers_that_start_stay_until_the_change_is_withdrawn() -> None:
    template = {"metadata": {"name": "shard"}, "spec": {"accessModes": ["ReadWriteOnce"]}}
    retention = {"whenScaled": "Delete"}
    spec = {"replicas": 1, "volumeClaimTemplates": [template], "persistentVolumeClaimRetentionPolicy": retention}
    world = running(ps=spec)
    world.edit({"ps": {"replicas": 2}})
    world.reconcile()
    world.controllers()
    hold(world, 1)
    world.settle()
    assert world.names_of("PersistentVolumeClaim") == ["shard-digits-ps-0", "shard-digits-ps-1"]
    world.edit({"ps": {"replicas": 1}})
    world.settle()
    assert world.names_of("PersistentVolumeClaim") == ["shard-digits-ps-0"]


def test_a_new_server_that_is_lost_while_the_chief_saves_lets_training_continue_with_the_former_number() -> None:
    world = running(ps={"replicas": 1})
    world.lingering = {"chief"}
    world.edit({"ps": {"replicas": 2}})
    world.settle()
    assert rescaling(world) == ("True", "Checkpointing")
    hold(world, 1)
    world.gone("chief")
    world.settle()
    assert (rescaling(world), layout(world)) == (("True", "StartingServers"), (1, 1))
    assert (phase(world), world.names_of("Job")) == ("Running", ["digits-chief-2"])
    release(world, 1)
    world.settle()
    assert (rescaling(world), layout(world)) == (("True", "Resuming"), (2, 2))
    serve(world, 1)
    world.settle()
    assert rescaling(world) == ("False", "Rescaled")


@pytest.mark.parametrize(("wanted", "expected"), [((4, 3), (2, 3)), ((4, 2), (1, 2)), ((4, 1), (2, 1))])
def test_a_change_that_is_changed_before_it_has_begun_only_counts_as_the_last_one(
    wanted: tuple[int, int], expected: tuple[int, int]
) -> None:
    world = running(ps={"replicas": 2})
    world.edit({"ps": {"replicas": wanted[0]}})
    world.reconcile()
    world.controllers()
    hold(world, 3)
    world.settle()
    world.edit({"ps": {"replicas": wanted[1]}})
    world.settle()
    assert (rescaling(world), layout(world)) == (("False", "Rescaled"), expected)


def test_two_layouts_with_the_same_number_of_servers_have_different_numbers() -> None:
    world = running(ps={"replicas": 2})
    for count in (3, 2):
        world.edit({"ps": {"replicas": count}})
        world.settle()
    assert layout(world) == (3, 2)
    world.children["StatefulSet", "digits-ps"]["spec"]["replicas"] = 5  # by hand
    world.settle()
    annotations = world.children["StatefulSet", "digits-ps"]["metadata"]["annotations"]
    assert annotations[names.ANNOTATION_LAYOUT] == "3"
    assert layout(world) == (3, 2), "corrected, and the layout is still recorded"


def test_every_write_to_the_servers_keeps_what_the_operator_wrote_to_them_before() -> None:
    """Every write to the servers keeps the operator's earlier fields, because server-side apply removes the fields that
    a later apply omits.
    """
    world = running(ps={"replicas": 1})
    applied: list[Apply] = []
    for count in (2, 1):
        world.edit({"ps": {"replicas": count}})
        for _ in range(12):
            applied += [a for a in world.reconcile().actions if isinstance(a, Apply) and a.kind is Kind.STATEFUL_SET]
            world.controllers()
    assert [(a.reason, a.body["spec"]["replicas"]) for a in applied] == [
        ("Drifted", 2),
        ("SwitchLayout", 2),
        ("SwitchLayout", 2),
        ("Drifted", 1),
    ]
    assert {frozenset(a.body["metadata"]["annotations"]) for a in applied} == {
        frozenset({names.ANNOTATION_SHARDS, names.ANNOTATION_LAYOUT})
    }


def test_a_layout_is_only_recorded_on_the_servers_that_were_observed() -> None:
    world = running(ps={"replicas": 2}, chief={"enabled": False})
    world.edit({"ps": {"replicas": 1}})
    world.reconcile()
    world.controllers()
    stale = world.snapshot()
    world.settle()
    (action,) = plan(gather(stale, world.now), LAUNCHER).actions
    with pytest.raises(StaleError):
        world._write(action)


def test_without_a_chief_the_pod_of_worker_0_is_replaced_and_the_others_stay() -> None:
    world = running(ps={"replicas": 1}, chief={"enabled": False})
    before = uids(world, "ps", "worker")
    world.edit({"ps": {"replicas": 2}})
    world.settle()
    assert (rescaling(world), layout(world)) == (("False", "Rescaled"), (2, 2))
    after = uids(world, "ps", "worker")
    assert before.items() - after.items() == {i for i in before.items() if "-worker-0" in i[0]}


def test_a_planned_change_causes_no_restart_and_no_warning() -> None:
    world = running(ps={"replicas": 2}, runPolicy={"backoffLimit": 0})
    world.lingering = {"chief"}
    world.now += timedelta(seconds=1)
    world.edit({"ps": {"replicas": 1}})
    world.settle()
    world.end("worker", 0, code=1)  # its chief was deleted
    world.settle()
    world.gone("chief")
    world.settle()
    assert world.job is not None
    assert phase(world) == "Running"
    assert world.job["status"]["restarts"] == 0
    assert [e.reason for e in world.reported if e.type == "Warning"] == ["CheckpointNotDurable"]


@pytest.mark.parametrize("spec", [HOT, *(HOT | {"checkpoint": {"volume": volume}} for volume in LOST_WITH_POD), {}])
def test_hot_standbys_that_cannot_be_saved_and_a_former_launcher_get_new_pods_in_order(spec: dict[str, Any]) -> None:
    """Unsaveable hot standbys and a former launcher get new pods in order.

    The state of hot standbys is not given up for checkpoints that do not outlive the chief's pod.
    """
    world = World(job(spec=deep_merge({"ps": {"replicas": 1}, "checkpoint": None if spec else CHECKPOINT}, spec)))
    if not spec:
        world.launcher = LauncherFiles("former", {})
        world.reconcile()
        del world.children["StatefulSet", "digits-ps"]
        world.launcher = LAUNCHER
    world.settle()
    world.lingering = {"chief"}
    old = uids(world, "ps", "worker", "chief")
    world.edit({"ps": {"replicas": 2}})
    world.settle()
    assert rescaling(world) == ("True", "Checkpointing")
    assert len([p for p in world.pods if "-ps-" in p]) == 1, "the servers serve while it saves"
    world.gone("chief")
    made = world.reconcile()
    assert made.actions[-1].kind in (Kind.STATEFUL_SET, *Kind.pod_groups()), (
        "the objects that show an incomplete deletion are deleted last"
    )
    assert rescaling(world) == ("True", "Resharding")
    world.controllers()
    world.settle()
    assert (rescaling(world), phase(world)) == (("False", "Rescaled"), "Running")
    assert not set(old.values()) & set(uids(world, "ps", "worker", "chief").values())
    assert reported(world) == ["Checkpointing", "Resharding", "Resuming", "Rescaled"], "one event each"


def test_without_a_checkpoint_the_restart_of_training_is_reported() -> None:
    world = running()
    world.lingering = {"chief"}
    world.edit({"ps": {"replicas": 2}})
    world.settle()
    assert "training restarts from the beginning" in world.condition("Rescaling")["message"]


def test_a_change_that_is_revised_half_way_continues_with_the_existing_servers() -> None:
    world = running(ps={"replicas": 2})
    world.lingering = {"chief"}
    world.edit({"ps": {"replicas": 3}})
    world.settle()
    world.edit({"ps": {"replicas": 2}})
    before = uids(world, "ps", "worker")
    world.settle()
    assert world.names_of("Job") == [], "no second chief beside one that may still write"
    world.gone("chief")
    world.settle()
    assert (rescaling(world), layout(world)) == (("False", "Rescaled"), (1, 2))
    assert uids(world, "ps", "worker") == {n: uid for n, uid in before.items() if n != "digits-ps-2"}


@pytest.mark.parametrize("after", [1, 3])
@pytest.mark.parametrize("writes", range(5))
def test_an_operator_that_crashes_anywhere_leads_to_the_same_result(writes: int, after: int) -> None:
    world = running(ps={"replicas": 2})
    before = uids(world, "worker")
    world.edit({"ps": {"replicas": after}})
    for _ in range(5):
        world.reconcile(stop_after=writes)
        world.controllers()
    world.settle()
    assert phase(world) == "Running"
    assert world.children["StatefulSet", "digits-ps"]["spec"]["replicas"] == after
    assert layout(world) == (2, after)
    assert world.plan().actions == ()
    assert uids(world, "worker") == before
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


def test_a_change_that_is_suspended_half_way_completes_after_the_resume() -> None:
    world = running(ps={"replicas": 2})
    world.edit({"ps": {"replicas": 1}})
    world.reconcile()
    world.edit({"runPolicy": {"suspend": True}})
    world.settle()
    assert not world.pods
    assert (phase(world), rescaling(world)) == ("Suspended", ("False", "Suspended"))
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
    assert (status["worker"]["succeeded"], status["worker"]["restarts"]) == (0, 1)
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
