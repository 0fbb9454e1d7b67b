"""Rosters of hot standbys: no acknowledged step is lost, whoever dies, is cut off, or acts too late.

Histories are drawn at random; a failure names its seed, and is found again by it.
"""

import random
from dataclasses import replace

import pytest

from pstraining.runtime.rosters import Seats
from tests.support.roster_world import Faults, ForkedError, Scope, World, walk

WALKS = 300
ENOUGH = 500
"""Walks in which a rule that is switched off has to be missed."""


class AnyNumber(Seats):
    """As if nobody counted."""

    def is_majority(self, number: int) -> bool:
        return True


def scope(drawn: random.Random, kind: type[Seats] = Seats) -> Scope:
    """One shard or two of two members, one to three workers, anybody on either side of the network."""
    shards = (("p", "s"),) if drawn.random() < 0.7 else (("p", "s"), ("q", "t"))
    seats = kind(shards, tuple(f"w{index}" for index in range(drawn.choice([1, 2, 3]))))
    return Scope(seats, {place: drawn.choice([0, 1]) for place in seats.places})


def history(seed: int, kind: type[Seats] = Seats) -> tuple[Scope, World]:
    drawn = random.Random(seed)
    found = scope(drawn, kind)
    faults = Faults(kills=drawn.choice([1, 2, 4]), cuts=3, chiefs=3, steps=30, late=2)
    return found, walk(found, found.start(faults), seed)[0]


def test_no_acknowledged_step_is_lost_and_training_goes_on_in_the_end() -> None:
    acknowledged = 0
    for seed in range(WALKS):
        found, world = history(seed)
        acknowledged += len(world.acknowledged)
        assert _goes_on(found, world), f"seed {seed}"
    assert acknowledged > WALKS, "steps were made meanwhile"


def test_without_majorities_one_is() -> None:
    def all_of_them() -> None:
        for seed in range(ENOUGH):
            history(seed, AnyNumber)

    with pytest.raises(ForkedError, match="was acknowledged"):
        all_of_them()


def _goes_on(found: Scope, world: World) -> bool:
    """Whether the newest chief brings a step about, once nothing more goes wrong."""
    calm = replace(world, is_cut=False, late=(), steps=(), faults=Faults(chiefs=len(world.chiefs), steps=1000))
    drawn, actors = random.Random(0), {"restart": 1.0, "worker": 0.2, f"chief {len(world.chiefs)}": 1.0}
    for _ in range(1500):
        events = [event for event in found.events(calm) if event.actor in actors]
        event = drawn.choices(events, [actors[event.actor] for event in events])[0]
        calm = event.then
        if event.what.startswith("acknowledged"):
            return True
    return False
