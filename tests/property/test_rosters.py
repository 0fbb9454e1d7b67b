"""Rosters of hot standbys: no acknowledged step is lost, whoever dies, is cut off, or acts too late.

Histories are drawn at random; a failure names its seed, and is found again by it.
"""

import random
from contextlib import nullcontext
from dataclasses import replace
from typing import Any

import pytest

from pstraining.runtime.replication.view import Action, Answer, Ballot, Process, Seats, View, decide
from tests.support.roster_rules import AnyNumber, careless, credulous, forgetful, lenient
from tests.support.roster_state import Faults, ForkedError, World
from tests.support.roster_world import Rules, Scope, walk

WALKS = 300
ENOUGH = 500
"""Walks in which a rule that is switched off has to be missed."""


def scope(drawn: random.Random, kind: type[Seats] = Seats) -> Scope:
    """One shard or two of two members, one to three workers, anybody on either side of the network; members learn."""
    shards = (("p", "s"),) if drawn.random() < 0.7 else (("p", "s"), ("q", "t"))
    seats = kind(shards, tuple(f"w{index}" for index in range(drawn.choice([1, 2, 3]))))
    return Scope(seats, {place: drawn.choice([0, 1]) for place in seats.places}, pieces=drawn.choice([0, 1, 3]))


def history(seed: int, kind: type[Seats] = Seats) -> tuple[Scope, World]:
    drawn = random.Random(seed)
    found = scope(drawn, kind)
    faults = Faults(kills=drawn.choice([1, 2, 4]), cuts=3, chiefs=3, steps=30, late=2, leaves=1)
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


def played(found: Scope, world: World, *script: str) -> World:
    """What comes of events one after the other, each the first whose actor and words contain those of a line."""
    for line in script:
        events = list(found.events(world))
        hits = [
            event for event in events if all(word in f"{event.actor}: {event.what}" for word in line.split(" ... "))
        ]
        assert hits, f"{line!r} cannot happen now, but {[f'{e.actor}: {e.what}' for e in events]}"
        world = hits[0].then
    return world


def looking(chief: str, *acts: str) -> list[str]:
    """A chief that looks, decides for each of these, and carries it out."""
    lines = []
    for act in acts:
        kind, *targets = act.split()
        lines += [f"{chief} ... sees: {kind}", *(f"{chief} ... -> {target}" for target in targets)]
    return lines


def small(rules: Rules, pieces: int = 0) -> tuple[Scope, World]:
    """One shard, one worker; chiefs see everything at once."""
    found = Scope(Seats((("p", "s"),), ("w",)), {"p": 1, "s": 0, "w": 0}, rules, looks_at_once=True, pieces=pieces)
    return found, found.start(Faults(kills=3, cuts=1, chiefs=2, steps=5))


STEP = ["worker: begins", "worker: acknowledged"]


@pytest.mark.parametrize("is_on", [True, False], ids=["on", "off"])
def test_a_promise_is_not_taken_back(is_on: bool) -> None:
    """A chief that stood still while the next one took over."""
    found, world = small(Rules() if is_on else Rules(promise=forgetful))
    world = played(found, world, "kill: p", "chief 1 ... sees: Promise", "next chief")
    world = played(found, world, *looking("chief 2", "Promise s w", "Adopt s w", "Open s"), *STEP)
    world = played(found, world, "chief 1 ... promise -> s", "chief 1 ... promise -> w")
    if is_on:
        played(found, world, "chief 1 ... sees: Superseded")
        return
    world = played(found, world, *looking("chief 1", "Adopt s w", "Open s"))
    with pytest.raises(ForkedError, match="is still there"):
        played(found, world, *STEP)


@pytest.mark.parametrize("is_on", [True, False], ids=["on", "off"])
def test_no_step_is_made_while_a_member_gets_its_copy(is_on: bool) -> None:
    found, world = small(Rules() if is_on else Rules(promise=lenient))
    world = played(found, world, "kill: s", *looking("chief 1", "Promise p w", "Adopt p w", "Open p"), *STEP)
    world = played(found, world, "restart: s", *looking("chief 1", "Open", "Seat s", "Promise p s w", "Copy s"))
    with pytest.raises(AssertionError, match="cannot happen now") if is_on else nullcontext():
        world = played(found, world, *STEP)
    world = played(found, world, *looking("chief 1", "Adopt p s w", "Open p s"), "kill: p")
    world = played(found, world, *looking("chief 1", "Promise s w", "Adopt s w", "Open s"))
    with nullcontext() if is_on else pytest.raises(ForkedError, match="nobody has told"):
        played(found, world, *STEP)


LEARNS = [
    "kill: p",
    "restart: p",
    *looking("chief 1", "Promise p s w"),
    *("sees: Adopt ... learners=(Process", "adopt -> p", "adopt -> s", "adopt -> w"),
    *("sees: Open", "begin -> p", "open -> p", "open -> s", "sees: Seat", "seat -> p", "reads a piece for p"),
]
"""It comes back, and a piece for it is on its way."""


@pytest.mark.parametrize("is_on", [True, False], ids=["on", "off"])
def test_a_piece_is_taken_at_its_own_step_alone(is_on: bool) -> None:
    found, world = small(Rules() if is_on else Rules(learn=careless), pieces=1)
    world = played(found, world, *LEARNS, "worker: begins", "step on p", "acknowledged", "learn -> p")
    world = played(found, world, *looking("chief 1", "Promise p s w", "Copy p", "Adopt p s w", "Open p s"), "kill: s")
    world = played(found, world, *looking("chief 1", "Promise p w", "Adopt p w", "Open p"))
    with nullcontext() if is_on else pytest.raises(ForkedError, match="nobody has told"):
        played(found, world, *STEP)


@pytest.mark.parametrize("is_on", [True, False], ids=["on", "off"])
def test_pieces_count_under_the_former_roster_alone(is_on: bool) -> None:
    """A learner made a step that nobody else made, and the others made another one without it."""
    found, world = small(Rules() if is_on else Rules(join=credulous), pieces=1)
    world = played(found, world, *LEARNS, "learn -> p", "worker: begins", "step on p", "worker: dies", "cut")
    world = played(found, world, *looking("chief 1", "Promise s w", "Adopt s w", "Open s"))
    world = played(found, world, "begins under Ballot(term=1, epoch=3) on side 0", STEP[1], "heal")
    world = played(found, world, *looking("chief 1", "Promise p s w", "Copy p", "Adopt p s w", "Open p s"), "kill: s")
    world = played(found, world, *looking("chief 1", "Promise p w", "Adopt p w", "Open p"))
    with nullcontext() if is_on else pytest.raises(ForkedError, match="nobody has told"):
        played(found, world, *STEP)


@pytest.mark.parametrize("is_on", [True, False], ids=["on", "off"])
def test_a_seat_is_given_after_a_second_look_alone(is_on: bool) -> None:
    """A chief looked at a majority before the next one took over, and at a process that has forgotten that after it."""

    def hasty(own: Ballot, seats: Seats, view: View, *, seen: Any, **told: Any) -> Action:
        del seen
        new = [Process(place, a.life) for place, a in view.items() if isinstance(a, Answer) and not a.votes]
        return decide(own, seats, view, seen=new, **told)

    sides = {"p": 0, "s": 1, "w0": 0, "w1": 1, "w2": 1}
    found = Scope(Seats((("p", "s"),), ("w0", "w1", "w2")), sides, Rules() if is_on else Rules(decide=hasty))
    world = found.start(Faults(kills=1, cuts=9, chiefs=3, steps=5))

    def looks(number: int) -> list[str]:
        return [f"chief {number}: looks at {place}" for place in ("p", "s", "w0", "w1")]

    world = played(found, world, *looks(1), "next chief", "cut")
    for act in ("Promise s w1 w2", "Adopt s w1 w2", "Open s"):
        world = played(found, world, *looks(2), *looking("chief 2", act))
    world = played(found, world, "begins under Ballot(term=2 ... on side 1", STEP[1], "kill: w2", "restart: w2", "heal")
    if is_on:
        played(found, world, "chief 1 ... sees: Open", *looks(1), "chief 1 ... sees: Superseded")
        return
    world = played(found, world, *looking("chief 1", "Seat w2"), "next chief")
    for act in ("Promise p w0 w2", "Adopt p w0 w2", "Open p"):
        world = played(found, world, "cut", *looks(3), "heal", *looking("chief 3", act))
    with pytest.raises(ForkedError, match="is still there"):
        played(found, world, "begins under Ballot(term=3", STEP[1])
