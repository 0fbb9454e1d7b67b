"""A child that has lost its owner gets the job as its controller again, in every state of the job."""

from collections.abc import Callable
from datetime import timedelta

import pytest

from pstraining.api import names
from pstraining.core.actions import Kind, Replace
from pstraining.core.observe import controller_uid, observe
from pstraining.core.policies.adoption import adoptions
from tests.support.builders import UID, typed
from tests.support.copying import copied
from tests.support.queued_world import queued
from tests.support.simulation import World, phase, running

OTHER = {"apiVersion": "v1", "kind": "ConfigMap", "name": "theirs", "uid": "theirs"}


def orphan(world: World, *left: dict[str, str]) -> None:
    """Leave only these owners, as `kubectl delete --cascade=orphan` and backup tools do."""
    for child in world.children.values():
        child["metadata"]["ownerReferences"] = list(left)


def suspended(world: World) -> None:
    world.edit({"runPolicy": {"suspend": True}})


def ended(world: World) -> None:
    world.end("chief")


def test_each_member_of_a_shard_is_adopted_again() -> None:
    world = running(ps={"replicas": 2, "standby": {"mode": "Hot", "replicasPerShard": 2}}, training={"mode": "Sync"})
    orphan(world)
    world.settle()
    assert {controller_uid(child) for child in world.children.values()} == {UID}


def test_a_job_without_the_owner_of_its_workload_stays_admitted() -> None:
    world = queued()
    world.run()
    before = dict(world.pods)
    orphan(world)
    world.settle()
    assert phase(world) == "Running"
    assert world.pods == before
    assert {controller_uid(child) for child in world.children.values()} == {UID}


@pytest.mark.parametrize("state", [lambda world: None, suspended, ended], ids=["running", "suspended", "ended"])
def test_a_child_without_its_owner_is_adopted_again(state: Callable[[World], None]) -> None:
    world = running()
    before = set(world.children)
    orphan(world)
    state(world)
    world.settle()
    left = {key: child for key, child in world.children.items() if key in before}
    assert left
    for key, child in left.items():
        assert controller_uid(child) == UID, key


def test_an_owner_that_is_no_controller_becomes_the_controller() -> None:
    world = running()
    assert world.job is not None
    own = {"apiVersion": names.API_VERSION, "kind": names.KIND, "name": "digits", "uid": UID}
    orphan(world, own, OTHER)
    world.settle()
    for child in world.children.values():
        found = [each for each in child["metadata"]["ownerReferences"] if each["uid"] == UID]
        assert [each.get("controller") for each in found] == [True], child["metadata"]["name"]


def test_a_running_job_continues() -> None:
    world = running()
    pods, children = dict(world.pods), {key: c["metadata"]["uid"] for key, c in world.children.items()}
    orphan(world)
    world.settle()
    assert world.pods == pods
    assert {key: c["metadata"]["uid"] for key, c in world.children.items()} == children
    assert not world.writes[-1:] or world.writes[-1][0] == "Replace"


def test_an_expiring_job_deletes_adopted_children() -> None:
    world = running(runPolicy={"ttlSecondsAfterFinished": 60})
    world.end("chief")
    world.settle()
    orphan(world)
    world.now += timedelta(seconds=61)
    world.settle()
    assert world.job is None
    assert all(controller_uid(child) == UID for child in world.children.values()), "the garbage collector finds them"


@pytest.mark.parametrize(
    ("labels", "owners"),
    [
        ({"pstraining.dev/job-uid": "another"}, []),
        ({}, []),
        ({"pstraining.dev/job-uid": UID}, [{**OTHER, "controller": True}]),
    ],
    ids=["another job's", "nobody's", "another controller's"],
)
def test_only_proven_children_are_adopted(labels: dict[str, str], owners: list[dict[str, object]]) -> None:
    metadata = {"name": "digits", "uid": "u", "labels": labels, "ownerReferences": owners}
    world = running()
    assert world.job is not None
    found = observe(world.job, [{"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata}], [])
    assert not found.children
    assert list(adoptions(typed(world.job), found)) == []


@pytest.mark.parametrize(
    ("kind", "child"), [("Deployment", "digits-worker-0"), ("StatefulSet", "digits-ps"), ("ConfigMap", "digits")]
)
def test_an_object_of_a_user_that_names_the_job_as_its_controller_is_left_alone(kind: str, child: str) -> None:
    """Such as a TensorBoard that is to be deleted with the job, made from the manifest of a child."""
    world = running()
    theirs = copied(world.children[kind, child])
    theirs["metadata"] |= {"name": "tensorboard", "uid": "theirs"}
    world.children[kind, "tensorboard"] = theirs
    before = copied(theirs)
    world.settle()
    assert world.children[kind, "tensorboard"] == before
    assert world.job is not None
    assert (Kind(kind), "tensorboard") not in observe(world.job, list(world.children.values()), []).children


def test_a_concurrent_change_of_the_owners_is_not_undone() -> None:
    world = running()
    orphan(world, OTHER)
    assert world.job is not None
    found = observe(world.job, list(world.children.values()), [])
    changes = list(adoptions(typed(world.job), found))
    assert {(change.kind, change.name) for change in changes} == set(found.children)
    for change in changes:
        assert isinstance(change, Replace)
        assert [o["uid"] for o in change.parts["/metadata/ownerReferences"]] == ["theirs", UID], "another owner stays"
        child = found.children[change.kind, change.name]
        assert change.parts["/metadata/resourceVersion"] == child.manifest["metadata"]["resourceVersion"]


def test_the_operator_knows_the_names_of_its_children() -> None:
    """The operator recognizes its children by name: a user's copy of a child, with its labels, is not one."""
    spec = {"ps": {"standby": {"mode": "Warm", "replicasPerShard": 2}}, "evaluator": {"enabled": True}}
    world = running(**spec)
    rendered = {name for kind, name in world.children if kind != "PersistentVolumeClaim"}
    assert {"digits-standby-2", "digits-evaluator-1", "digits-ps-0", "digits-hs"} <= rendered
    assert all(names.is_child("digits", name) for name in rendered)
    assert not any(names.is_child("digits", f"{name}-copy") or names.is_child("digit", name) for name in rendered)
