"""Users may write any labels and annotations: a pass never raises because of their values."""

from collections.abc import Callable
from typing import Any

import pytest

from pstraining.api import names
from pstraining.api.numbers import number
from pstraining.core.actions import Outcomes
from pstraining.core.facts import gather
from pstraining.core.planner import plan
from pstraining.core.status import next_status
from tests.support.simulation import World, running
from tests.support.soak_marks import ALL

TEXTS = (
    "{",
    "[]",
    '{"limits": 1}',
    '{"limits": {"cpu": "x"}}',
    "",
    "x",
    "-1",
    " 1",
    "1_0",
    "\u00b2",
    "\u0661",
    "1" * 5000,
    "0@" + "1" * 5000,
    "1" * 5000 + "@0",
    "0@\u00b2",
)
TRAINING = {"training": {"mode": "Sync"}}
CLAIM = {"metadata": {"name": "data"}, "spec": {"accessModes": ["ReadWriteOnce"], "resources": {}}}
SPECS: tuple[dict[str, Any], ...] = (
    {"ps": {"standby": {"mode": "Warm"}, "volumeClaimTemplates": [CLAIM]}, "evaluator": {"enabled": True}},
    {"ps": {"standby": {"mode": "Hot"}}, **TRAINING},
)


def written(world: World) -> dict[str, list[dict[str, Any]]]:
    """Yield every label and annotation of this project that a pass may read, with the mappings that hold it."""
    assert world.job is not None
    world.job["metadata"]["annotations"] = {names.ANNOTATION_TAKEOVER: "0@0"}
    objects = (world.job, *world.children.values(), *world.pods.values())
    found = (o["metadata"].get(field) or {} for o in objects for field in ("labels", "annotations"))
    holders: dict[str, list[dict[str, Any]]] = {}
    for mapping in found:
        for key in mapping:
            if key.startswith(f"{names.GROUP}/"):
                holders.setdefault(key, []).append(mapping)
    return holders


def ended(world: World) -> None:
    world.end("chief")
    world.reconcile()


def stopping(world: World) -> None:
    world.edit({"runPolicy": {"suspend": True}})


STATES = (None, ended, stopping)
"""What has happened. `make test` tries each text in one of these states."""


@pytest.mark.parametrize("spec", SPECS, ids=["Warm", "Hot"])
@pytest.mark.parametrize("then", STATES)
def test_no_malformed_number_stops_a_pass(spec: dict[str, Any], then: Callable[[World], None] | None) -> None:
    world = running(**spec)
    if then is not None:
        then(world)
    for key, mappings in written(world).items():
        turn = (sum(key.encode()) + STATES.index(then)) % len(STATES)
        before = [mapping[key] for mapping in mappings]
        for text in TEXTS if ALL else TEXTS[turn :: len(STATES)]:
            for mapping in mappings:
                mapping[key] = text
            snapshot = world.snapshot()
            facts = gather(snapshot, world.now)
            plan(facts, world.launcher)
            next_status(facts, Outcomes())
        for mapping, former in zip(mappings, before, strict=True):
            mapping[key] = former


@pytest.mark.parametrize(("text", "value"), [("0", 0), ("007", 7), ("9" * 18, 10**18 - 1), (None, None), (7, None)])
def test_valid_numbers_are_read(text: object, value: int | None) -> None:
    assert number(text) == value


@pytest.mark.parametrize("text", [t for t in TEXTS if "@" not in t])
def test_invalid_numbers_are_ignored(text: str) -> None:
    assert number(text) is None
