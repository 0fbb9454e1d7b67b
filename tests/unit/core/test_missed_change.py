"""A job that was suspended, changed and resumed while the operator was away stops in order, and then starts again."""

import copy
from typing import Any

import pytest

from pstraining.api import names
from pstraining.api.cel_rules import FIXED_WHILE_RUNNING, FREE_WITH_HOT_STANDBYS
from pstraining.api.models import PSTrainingJob
from pstraining.cli.validation.schema import with_defaults
from pstraining.core.actions import Delete
from pstraining.resources import fixed_fields
from tests.support.builders import deep_merge, job, typed
from tests.support.cluster_maps import cluster_map
from tests.support.refused import edit
from tests.support.simulation import World, phase, running
from tests.unit.cli.test_validation import OTHER

HOT = {"ps": {"standby": {"mode": "Hot"}}, "training": {"mode": "Sync"}, "worker": {"replicas": 5, "minReplicas": 3}}


def unseen(world: World, spec: dict[str, Any]) -> None:
    """Apply two updates between two passes."""
    world.edit(deep_merge(spec, {"runPolicy": {"suspend": True}}))
    world.edit({"runPolicy": {"suspend": False}})


def test_the_job_stops_in_order_and_restarts_with_the_new_values() -> None:
    world = running(**HOT)
    world.lingering = {"chief"}
    unseen(world, {"worker": {"minReplicas": 5}, "training": {"mode": "Async"}})
    made = world.plan().actions
    assert [(type(a), a.name) for a in made] == [(Delete, "digits-chief-1")], "the chief first, and no map of two minds"
    world.settle()
    assert len(cluster_map(world)["witnesses"]) == 3, "running tasks have the former voters"
    reported = world.condition("Restarting")
    assert (reported["status"], reported["reason"], phase(world)) == ("True", "SpecChanged", "Restarting")
    world.gone("chief")
    world.settle()
    assert phase(world) == "Running"
    assert len(cluster_map(world)["witnesses"]) == 5
    assert cluster_map(world)["training"]["mode"] == "Async"
    assert world.condition("Restarting")["status"] == "False"
    assert world.job is not None
    assert world.job["status"]["restarts"] == 0, "a requested stop is not a failure"
    assert world.names_of("Job") == ["digits-chief-2"]
    assert world.plan().actions == ()


def test_a_change_of_the_voters_alone_stops_the_job() -> None:
    """Majorities of 5 and of 7 voters need not share one."""
    world = running(**HOT)
    unseen(world, {"worker": {"minReplicas": 5}})
    assert [(type(a), a.name) for a in world.plan().actions] == [(Delete, "digits-chief-1")]


def test_mutable_fields_stop_nothing() -> None:
    world = running(**HOT)
    unseen(world, {"runPolicy": {"backoffLimit": 99}, "worker": {"replicas": 6}})
    assert not [a for a in world.plan().actions if isinstance(a, Delete)]


def test_pods_of_an_older_version_are_left_alone() -> None:
    world = running(**HOT)
    for child in world.children.values():
        (child["metadata"].get("annotations") or {}).pop(names.ANNOTATION_FIXED, None)
    unseen(world, {"training": {"mode": "Async"}})
    assert not [a for a in world.plan().actions if isinstance(a, Delete)]
    assert not fixed_fields.differ(typed(job()), "0-abc"), "so are those with a hash of another format"


@pytest.mark.parametrize("path", [*FIXED_WHILE_RUNNING, *FREE_WITH_HOT_STANDBYS])
def test_every_fixed_field_counts(path: str) -> None:
    old = job(spec={"checkpoint": {"volume": {"emptyDir": {}}}} if path.startswith("checkpoint") else {})
    new = copy.deepcopy(old)
    path = f"spec.{path.rstrip('?')}"
    edit(path, OTHER[path])(new)
    assert fixed_fields.digest(typed(old)) != fixed_fields.digest(typed(new))


@pytest.mark.parametrize("path", FREE_WITH_HOT_STANDBYS)
def test_servers_with_hot_standbys_are_replaced_one_at_a_time(path: str) -> None:
    old = job(spec=HOT)
    new = copy.deepcopy(old)
    path = f"spec.{path.rstrip('?')}"
    edit(path, OTHER[path])(new)
    assert fixed_fields.digest(typed(old)) == fixed_fields.digest(typed(new))


def test_defaults_equal_absent_fields() -> None:
    """Defaults equal absent fields: a CRD that adds a field with a default, or fills defaults in, restarts nothing."""
    written = job(spec=HOT)
    assert fixed_fields.digest(typed(written)) == fixed_fields.digest(typed(with_defaults(written)))
    later = copy.deepcopy(with_defaults(written))
    later["spec"]["training"]["fieldOfALaterVersion"] = 7
    assert fixed_fields.digest(typed(later)) == fixed_fields.digest(typed(written))


def test_the_hash_is_the_same_in_every_version() -> None:
    """The hash is the same in every version. Another value here would restart every running job at the upgrade, and
    needs another FORMAT.
    """
    made: PSTrainingJob = typed(job(spec={**HOT, "checkpoint": {"volume": {"emptyDir": {}}}}))
    assert fixed_fields.digest(made) == "3-46c83b5fc7"
