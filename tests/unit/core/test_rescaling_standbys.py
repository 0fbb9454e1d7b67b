"""Changes of the number of parameter servers with standbys or a gang, in a simulated world, keep the pods."""

import copy
from datetime import timedelta
from typing import Any

import pytest

from pstraining.api import contract, names
from pstraining.api.conditions import Reason
from pstraining.core.actions import Kind
from pstraining.core.policies import resharding
from pstraining.core.policies.resharding import ReshardingStep
from pstraining.core.snapshot import Child, Container, Termination
from tests.support.builders import NOW, deep_merge, job, typed
from tests.support.cluster_maps import layout
from tests.support.simulation import World, phase, running
from tests.support.snapshots import a_child, a_pod, snapshot_of
from tests.unit.core.test_rescaling import CHECKPOINT, HOT, hold, release, rescaling, serve, uids

WARM: dict[str, Any] = {"ps": {"standby": {"mode": "Warm"}}}
GANG: dict[str, Any] = {"runPolicy": {"schedulingPolicy": {"gang": "SchedulerPlugins"}}}


def records(world: World) -> dict[str, tuple[str, str, int]]:
    """Return each StatefulSet's record, as shards and layout, with its replicas."""
    sets = {n: world.children["StatefulSet", n] for n in world.names_of("StatefulSet")}
    keys = names.ANNOTATION_SHARDS, names.ANNOTATION_LAYOUT
    return {n: (*(c["metadata"]["annotations"][k] for k in keys), c["spec"]["replicas"]) for n, c in sets.items()}


def test_the_pods_of_warm_standbys_stay_and_every_set_records_the_layout() -> None:
    world = running(**deep_merge({"ps": {"replicas": 2}, "checkpoint": CHECKPOINT}, WARM))
    world.lingering = {"chief"}
    before = uids(world, "ps", "worker")
    assert records(world) == {"digits-ps": ("2", "1", 2), "digits-standby": ("2", "1", 2)}
    world.edit({"ps": {"replicas": 3}})
    world.reconcile()
    world.controllers()
    hold(world, 2, member="standby")
    hold(world, 2)
    world.settle()
    assert (rescaling(world), phase(world)) == (("True", "StartingServers"), "Running")
    assert [s["index"] for s in (world.job or {})["status"]["shards"]] == [0, 1], "the next layout is no part of it yet"
    release(world, 2)
    world.settle()
    assert rescaling(world) == ("True", "Checkpointing")
    world.gone("chief")
    assert [a.name for a in world.plan().actions] == ["digits-ps"], "one write records the next layout"
    world.reconcile()
    made = [a.name for a in world.reconcile().actions]
    assert made[:3] == ["digits-standby", "digits", "digits-chief-2"], "the copy, the map, and then the chief"
    serve(world, 2)
    world.settle()
    assert (rescaling(world), phase(world), layout(world)) == (("False", "Rescaled"), "Running", (2, 3))
    assert records(world) == {"digits-ps": ("3", "2", 3), "digits-standby": ("3", "2", 3)}
    assert uids(world, "ps", "worker").items() >= before.items(), "no pod is replaced"
    assert world.names_of("PodDisruptionBudget") == [f"digits-ps-{index}" for index in range(3)]
    assert {s["index"]: s["takeovers"] for s in (world.job or {})["status"]["shards"]} == {0: 0, 1: 0, 2: 0}


def test_fewer_servers_with_warm_standbys_leave_nothing_of_their_shards() -> None:
    world = running(**deep_merge({"ps": {"replicas": 2}}, WARM))
    world.delete_pod("ps", 1)
    world.settle()
    assert [s["primary"] for s in (world.job or {})["status"]["shards"]] == ["digits-ps-0", "digits-standby-1"]
    world.edit({"ps": {"replicas": 1}})
    world.settle()
    assert records(world) == {"digits-ps": ("1", "2", 1), "digits-standby": ("1", "2", 1)}
    assert world.names_of("Service") == ["digits-hs", "digits-ps-0"]
    world.edit({"ps": {"replicas": 2}})
    world.settle()
    shards = (world.job or {})["status"]["shards"]
    assert [(s["primary"], s["takeovers"]) for s in shards] == [("digits-ps-0", 0), ("digits-ps-1", 0)], "a new shard"


def test_a_standby_without_a_node_does_not_hold_the_change_up_and_one_that_starts_does() -> None:
    world = running(**deep_merge({"ps": {"replicas": 1}}, WARM))
    world.edit({"ps": {"replicas": 2}})
    world.reconcile()
    world.controllers()
    standby = world.pods["digits-standby-1"]["status"]
    standby |= {"phase": "Pending", "containerStatuses": [], "conditions": []}
    world.settle()
    assert rescaling(world) == ("True", "StartingServers"), "it may pull its image"
    no_room = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": "0/1 nodes"}
    standby["conditions"] = [no_room]
    world.settle()
    assert (rescaling(world), layout(world)) == (("False", "Rescaled"), (2, 2))


@pytest.mark.parametrize("name", ["digits-ps", "digits-standby"])
def test_a_lost_set_of_servers_costs_no_layout(name: str) -> None:
    world = running(**deep_merge({"ps": {"replicas": 2}}, WARM))
    world.edit({"ps": {"replicas": 1}})
    world.settle()
    assert layout(world) == (2, 1)
    del world.children["StatefulSet", name]
    world.edit({"ps": {"replicas": 2}})
    world.settle()
    assert (layout(world), phase(world)) == ((3, 2), "Running")
    assert set(records(world).values()) == {("2", "3", 2)}


def test_a_server_of_a_new_shard_that_has_waited_for_its_layout_has_time_to_start() -> None:
    world = running(**deep_merge({"ps": {"replicas": 1}}, WARM))
    world.edit({"ps": {"replicas": 2}})
    world.reconcile()
    world.controllers()
    release(world, 1)
    waiting = copy.deepcopy(world.pods["digits-ps-1"]["status"])
    standby = world.pods["digits-standby-1"]["status"]
    standby |= {"phase": "Pending", "containerStatuses": [], "conditions": []}
    world.now += timedelta(minutes=5)  # the standby pulls its image
    standby |= waiting
    world.settle()
    assert layout(world) == (2, 2)
    ready = [{"type": "Ready", "status": "True"}]
    # the server has the map, and the primary does not yet
    world.pods["digits-standby-1"]["status"]["conditions"] = ready
    world.settle()
    assert rescaling(world) == ("True", "Resuming")
    shards = (world.job or {})["status"]["shards"]
    assert [(s["primary"], s["takeovers"]) for s in shards] == [("digits-ps-0", 0), ("digits-ps-1", 0)]
    world.now += timedelta(seconds=31)
    world.settle()
    assert (world.job or {})["status"]["shards"][1]["primary"] == "digits-standby-1", "it has had its time"


@pytest.mark.parametrize("wanted", [1, 3])
def test_a_gang_keeps_its_pods_and_its_group_follows_the_layout(wanted: int) -> None:
    world = running(**deep_merge({"ps": {"replicas": 2}, "checkpoint": CHECKPOINT}, GANG))
    group = next(body for (kind, _), body in world.children.items() if kind in map(str, Kind.pod_groups()))
    size = group["spec"]["minMember"]
    world.lingering = {"chief"}
    before = uids(world, "ps", "worker")
    world.edit({"ps": {"replicas": wanted}})
    world.settle()
    assert rescaling(world) == ("True", "Checkpointing")
    assert group["spec"]["minMember"] == size, "the servers that start are no members yet"
    world.gone("chief")
    world.settle()
    assert (rescaling(world), phase(world), layout(world)) == (("False", "Rescaled"), "Running", (2, wanted))
    assert group["spec"]["minMember"] == size + wanted - 2
    stays = {n: uid for n, uid in before.items() if wanted > 1 or n != "digits-ps-1"}
    assert uids(world, "ps", "worker").items() >= stays.items()


def test_the_next_term_follows_the_newest_chief_whose_pod_may_be_gone() -> None:
    manifest = job(spec={"ps": {"standby": {"mode": "Hot"}}, "training": {"mode": "Sync"}})
    record = resharding.annotations(1, 2)
    servers = a_child(Kind.STATEFUL_SET, "digits-ps", annotations=record)
    chief = a_child(Kind.JOB, "digits-chief-3", labels={names.LABEL_ROLE: names.CHIEF, names.LABEL_TERM: "3"})
    evaluator = a_child(
        Kind.JOB, "digits-evaluator-7", labels={names.LABEL_ROLE: names.EVALUATOR, names.LABEL_TERM: "7"}
    )
    others = a_pod(names.WORKER, 0, "other", term=9), a_pod(names.PS, 0, "other", term=9)
    found = resharding.observed(typed(manifest), snapshot_of(manifest, servers, chief, evaluator, *others))
    assert (found.next_term, found.term, found.number) == (4, 1, 2)
    assert resharding.observed(typed(manifest), snapshot_of(manifest, servers)).next_term == 1
    without_job = snapshot_of(manifest, servers, chief, a_pod(names.CHIEF, 0, "other", term=5))
    assert resharding.observed(typed(manifest), without_job).next_term == 6


def standbys_of(shards: int, **more: Any) -> Child:
    """Return the StatefulSet of the standbys with its copy of the record of layout 2."""
    return a_child(Kind.STATEFUL_SET, "digits-standby", annotations=resharding.annotations(shards, 2), **more)


@pytest.mark.parametrize("kind", [WARM, HOT])
@pytest.mark.parametrize(
    ("wanted", "step", "message"),
    [
        (1, ReshardingStep.STEADY, ""),
        (3, ReshardingStep.START_SERVERS, "0 of 2 new parameter servers run; until all do,"),
    ],
)
def test_without_the_set_of_primaries_the_copy_of_the_record_decides(
    kind: dict[str, Any], wanted: int, step: ReshardingStep, message: str
) -> None:
    manifest, standby = job(ps=wanted, spec={**kind, "checkpoint": CHECKPOINT}), standbys_of(1)
    found = resharding.observed(typed(manifest), snapshot_of(manifest, standby))
    assert (found.step, found.current, found.number, found.servers) == (step, 1, 2, standby)
    progress = resharding.progress(typed(manifest), found, None, runs=True)
    assert progress is None if not message else progress is not None and progress[2].startswith(message)


def test_fewer_servers_wait_for_the_missing_set_of_primaries() -> None:
    manifest = job(ps=1, spec={**WARM, "checkpoint": CHECKPOINT})
    found = resharding.observed(typed(manifest), snapshot_of(manifest, standbys_of(2)))
    assert found.step is ReshardingStep.START_SERVERS
    message = "The StatefulSet of the parameter servers is created again first; until then, training continues with 2."
    message += " Set ps.replicas to 2 to withdraw the change."
    assert resharding.progress(typed(manifest), found, None, runs=True) == (True, Reason.STARTING_SERVERS, message)


def test_a_set_that_is_being_deleted_needs_no_record_and_another_one_does() -> None:
    manifest = job(ps=3, spec=WARM)
    primaries = a_child(Kind.STATEFUL_SET, "digits-ps", annotations=resharding.annotations(2, 4))
    going = standbys_of(2, deleting=True)
    found = resharding.observed(typed(manifest), snapshot_of(manifest, primaries, going))
    assert (found.step, found.current, found.number) == (ReshardingStep.START_SERVERS, 2, 4)
    older = a_child(Kind.STATEFUL_SET, "digits-standby", spec={"replicas": 2})
    found = resharding.observed(typed(manifest), snapshot_of(manifest, primaries, older))
    assert found == resharding.Resharding(ReshardingStep.REPLACE_ALL, 3, 3)


def test_hot_standbys_whose_state_cannot_be_saved_are_replaced_for_the_number_of_the_spec() -> None:
    manifest = job(ps=3, spec=HOT)
    primaries = a_child(Kind.STATEFUL_SET, "digits-ps", annotations=resharding.annotations(2, 4, 1))
    found = resharding.observed(typed(manifest), snapshot_of(manifest, primaries))
    assert found == resharding.Resharding(ReshardingStep.REPLACE_ALL, 3, 3)


def test_an_announcement_of_the_recorded_layout_is_over() -> None:
    manifest = job(ps=3, spec={**HOT, "checkpoint": CHECKPOINT})
    record = resharding.annotations(2, 4, 1) | {names.ANNOTATION_NEXT_SHARDS: "2"}
    primaries = a_child(Kind.STATEFUL_SET, "digits-ps", annotations=record)
    found = resharding.observed(typed(manifest), snapshot_of(manifest, primaries))
    assert (found.current, found.wanted, found.is_announced) == (2, 3, False)


def test_a_saved_state_counts_once_no_chief_runs() -> None:
    manifest = job(ps=1, spec={**HOT, "checkpoint": CHECKPOINT})
    primaries = a_child(Kind.STATEFUL_SET, "digits-ps", annotations=resharding.annotations(2, 4, 1))
    end = Container(terminated=Termination(contract.EXIT_SAVED, "Error", "", NOW))
    newest, former = a_pod(names.CHIEF, 0, "other", term=2, container=end), a_pod(names.CHIEF, 0, "other", term=1)
    for seen, step in (((newest, former), ReshardingStep.SAVE), ((newest,), ReshardingStep.SWITCH)):
        assert resharding.observed(typed(manifest), snapshot_of(manifest, primaries, *seen)).step is step
