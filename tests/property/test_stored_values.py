"""A stored value that this version does not know, at every path, does not make a pass fail.

Other versions of the operator write other statuses, and people change labels and annotations.
"""

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pytest

from pstraining.core.actions import Outcomes
from pstraining.core.facts import gather
from pstraining.core.observe import observe
from pstraining.core.planner import plan
from pstraining.core.status import events, next_status
from tests.property.test_nulls import Path, at, paths
from tests.support.copying import copied
from tests.support.simulation import World, running
from tests.support.soak_marks import ALL

TEXTS = ("", "OfALaterVersion", "-1", "1.5", "99999999999999999999", "{", "[]", "{}", "null", '{"0": null}', "²")
VALUES: tuple[Any, ...] = (*TEXTS, None, True, -1, 2.5, [], {}, [3], [{}], {"x": 1}, 10**30)
SIZE = {"resources": {"limits": {"memory": "1Gi"}}}


def trains() -> World:
    return running(ps={"replicas": 2, "standby": {"mode": "Hot"}, "server": "Builtin"}, training={"mode": "Sync"})


def grows() -> World:
    return running(autoscaling={"mode": "Grow", "maxMemory": "4Gi"}, ps=SIZE, worker=SIZE)


def failed() -> World:
    world = running(runPolicy={"backoffLimit": 0})
    world.end("chief", 0, 1)
    for _ in range(4):
        world.reconcile()
        world.controllers()
    return world


def changed(world: World) -> Iterator[tuple[Any, tuple[Any, list[Any], list[Any]]]]:
    """Yield the job, its children and its pods with one value changed, and the place and value."""
    assert world.job is not None
    objects = [world.job, *world.children.values(), *world.pods.values()]
    places: list[tuple[int, Path, Sequence[Any]]]
    places = [(0, ("status", *path), VALUES) for path in paths(world.job.get("status") or {})]
    for number, found in enumerate(objects):
        for kind in ("labels", "annotations"):
            marks = found["metadata"].get(kind) or {}
            places += [(number, ("metadata", kind, mark), TEXTS) for mark in marks]
    for turn, (number, (*above, last), values) in enumerate(places):
        for value in values if ALL else (values[turn % len(values)],):
            copies = copied(objects)
            at(copies[number], above)[last] = value
            children = len(world.children)
            yield (number, above, last, value), (copies[0], copies[1 : 1 + children], copies[1 + children :])


@pytest.mark.parametrize("make", [trains, grows, failed])
def test_no_stored_value_makes_a_pass_fail(make: Callable[[], World]) -> None:
    world, tried = make(), 0
    for place, (job, children, pods) in changed(world):
        tried += 1
        try:
            snapshot = observe(job, children, pods)
            facts = gather(snapshot, world.now)
            plan(facts, world.launcher)
            tuple(events(snapshot, next_status(facts, Outcomes())))
        except Exception as error:
            raise AssertionError(place) from error
    assert tried > 100


@pytest.mark.parametrize("make", [trains, failed])
def test_a_condition_of_a_later_version_is_kept(make: Callable[[], World]) -> None:
    world = make()
    assert world.job is not None
    for condition in world.job["status"]["conditions"]:
        condition["reason"] = "OfALaterVersion"
    found = next_status(gather(world.snapshot(), world.now), Outcomes())["conditions"]
    kept = {c["type"] for c in found if c["reason"] == "OfALaterVersion"}
    assert kept >= ({"Failed"} if make is failed else {"Created"})


@pytest.mark.parametrize("wrong", [{"startTime": "x"}, {"autoscaling": [{"role": 7}]}, {"replicaRecords": "x"}])
@pytest.mark.parametrize("make", [trains, failed])
def test_a_value_in_another_form_leaves_the_rest_of_the_status_readable(
    make: Callable[[], World], wrong: dict[str, Any]
) -> None:
    """As after a rollback of the operator: a job that has failed would start again, and a term be used twice."""
    world = make()
    assert world.job is not None
    before = world.snapshot().typed_status
    world.job["status"] |= wrong
    world.job["status"]["conditions"].append({"type": "OfALaterVersion", "status": ["True"]})
    found = world.snapshot().typed_status
    assert found.conditions == before.conditions
    assert found.term == before.term
    if make is failed:
        assert not [a for a in world.plan().actions if type(a).__name__ == "Create"]
