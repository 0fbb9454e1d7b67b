"""View changes of hot standbys: no acknowledged step is lost, whichever process crashes, is cut off, or acts too late.

Histories are random; a failure names its seed, with which it can be repeated.
"""

import random
from contextlib import nullcontext
from dataclasses import replace
from typing import Any

import pytest

from pstraining.runtime.replication.view import Action, Ballot, Observation, Process, ProcessStatus, Voters
from pstraining.runtime.replication.view_decisions import next_action
from tests.support.soak_marks import ALL
from tests.support.view_explorer import walk
from tests.support.view_rules import AnyNumber, careless, credulous, forgetful, lenient
from tests.support.view_state import Faults, ForkedError, World
from tests.support.view_world import Rules, Scope

WALKS = 300 if ALL else 150
ENOUGH = 500
"""Number of walks within which a switched-off rule must lead to a loss."""


def scope(drawn: random.Random, kind: type[Voters] = Voters) -> Scope:
    """Draw one or two shards of two members, one to three workers, and the side of each on the network; members can be
    learners.
    """
    shards = (("p", "s"),) if drawn.random() < 0.7 else (("p", "s"), ("q", "t"))
    voters = kind(shards, tuple(f"w{index}" for index in range(drawn.choice([1, 2, 3]))))
    return Scope(voters, {task: drawn.choice([0, 1]) for task in voters.tasks}, chunk_count=drawn.choice([0, 1, 3]))


def history(seed: int, kind: type[Voters] = Voters) -> tuple[Scope, World]:
    drawn = random.Random(seed)
    found = scope(drawn, kind)
    faults = Faults(kills=drawn.choice([1, 2, 4]), cuts=3, chiefs=3, steps=30, late=2, drains=1)
    return found, walk(found, found.start(faults), seed)[0]


def test_no_acknowledged_step_is_lost_and_training_resumes_in_the_end() -> None:
    acknowledged = 0
    for seed in range(WALKS):
        found, world = history(seed)
        acknowledged += len(world.acknowledged)
        assert _makes_progress(found, world), f"seed {seed}"
    assert acknowledged > WALKS, "steps were applied meanwhile"


def test_without_majorities_an_acknowledged_step_is_lost() -> None:
    def all_of_them() -> None:
        for seed in range(ENOUGH):
            history(seed, AnyNumber)

    with pytest.raises(ForkedError, match="was acknowledged"):
        all_of_them()


def _makes_progress(found: Scope, world: World) -> bool:
    """Whether the newest chief completes a step once no more faults occur."""
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
    """Play events in sequence, each the first whose actor and words contain those of a line; return the world."""
    for line in script:
        events = list(found.events(world))
        hits = [
            event for event in events if all(word in f"{event.actor}: {event.what}" for word in line.split(" ... "))
        ]
        assert hits, f"{line!r} cannot happen now, but {[f'{e.actor}: {e.what}' for e in events]}"
        world = hits[0].then
    return world


def polling(chief: str, *acts: str) -> list[str]:
    """Return the lines of a chief that polls before each of these actions."""
    lines = []
    for act in acts:
        kind, *targets = act.split()
        lines += [f"{chief} ... sees: {kind}", *(f"{chief} ... -> {target}" for target in targets)]
    return lines


def small(rules: Rules, chunk_count: int = 0) -> tuple[Scope, World]:
    """Return a scope of one shard and one worker, in which chiefs poll all tasks at once."""
    found = Scope(
        Voters((("p", "s"),), ("w",)), {"p": 1, "s": 0, "w": 0}, rules, polls_at_once=True, chunk_count=chunk_count
    )
    return found, found.start(Faults(kills=3, cuts=1, chiefs=2, steps=5))


STEP = ["worker: begins", "worker: acknowledged"]


@pytest.mark.parametrize("is_on", [True, False], ids=["on", "off"])
def test_a_promise_is_not_withdrawn(is_on: bool) -> None:
    """A promise is not withdrawn by a chief that was paused while the next one took its place."""
    found, world = small(Rules() if is_on else Rules(on_prepare=forgetful))
    world = played(found, world, "kill: p", "chief 1 ... sees: Prepare", "next chief")
    world = played(found, world, *polling("chief 2", "Prepare s w", "Accept s w", "Activate s"), *STEP)
    world = played(found, world, "chief 1 ... prepare -> s", "chief 1 ... prepare -> w")
    if is_on:
        played(found, world, "chief 1 ... sees: Superseded")
        return
    world = played(found, world, *polling("chief 1", "Accept s w", "Activate s"))
    with pytest.raises(ForkedError, match="is still there"):
        played(found, world, *STEP)


@pytest.mark.parametrize("is_on", [True, False], ids=["on", "off"])
def test_no_step_is_applied_during_a_whole_state_transfer(is_on: bool) -> None:
    found, world = small(Rules() if is_on else Rules(on_prepare=lenient))
    world = played(found, world, "kill: s", *polling("chief 1", "Prepare p w", "Accept p w", "Activate p"), *STEP)
    world = played(
        found, world, "restart: s", *polling("chief 1", "Activate", "AdmitVoter s", "Prepare p s w", "TransferState s")
    )
    with pytest.raises(AssertionError, match="cannot happen now") if is_on else nullcontext():
        world = played(found, world, *STEP)
    world = played(found, world, *polling("chief 1", "Accept p s w", "Activate p s"), "kill: p")
    world = played(found, world, *polling("chief 1", "Prepare s w", "Accept s w", "Activate s"))
    with nullcontext() if is_on else pytest.raises(ForkedError, match="its loss was not reported"):
        played(found, world, *STEP)


LEARNS = [
    "kill: p",
    "restart: p",
    *polling("chief 1", "Prepare p s w"),
    *("sees: Accept ... learners=(Process", "accept -> p", "accept -> s", "accept -> w"),
    *(
        "sees: Activate",
        "begin -> p",
        "activate -> p",
        "activate -> s",
        "sees: AdmitVoter",
        "admit -> p",
        "reads a chunk for p",
    ),
]
"""Member s returns, and a chunk for it is on its way."""


@pytest.mark.parametrize("is_on", [True, False], ids=["on", "off"])
def test_a_chunk_is_accepted_only_at_its_own_step(is_on: bool) -> None:
    found, world = small(Rules() if is_on else Rules(on_chunk=careless), chunk_count=1)
    world = played(found, world, *LEARNS, "worker: begins", "step on p", "acknowledged", "chunk -> p")
    world = played(
        found, world, *polling("chief 1", "Prepare p s w", "TransferState p", "Accept p s w", "Activate p s"), "kill: s"
    )
    world = played(found, world, *polling("chief 1", "Prepare p w", "Accept p w", "Activate p"))
    with nullcontext() if is_on else pytest.raises(ForkedError, match="its loss was not reported"):
        played(found, world, *STEP)


@pytest.mark.parametrize("is_on", [True, False], ids=["on", "off"])
def test_chunks_count_only_under_the_previous_view(is_on: bool) -> None:
    """Chunks count only under the previous view. Otherwise a learner has applied a step that no other member has, and
    the others have applied another one without it.
    """
    found, world = small(Rules() if is_on else Rules(on_transfer_finish=credulous), chunk_count=1)
    world = played(found, world, *LEARNS, "chunk -> p", "worker: begins", "step on p", "worker: dies", "cut")
    world = played(found, world, *polling("chief 1", "Prepare s w", "Accept s w", "Activate s"))
    world = played(found, world, "begins under Ballot(term=1, epoch=3) on side 0", STEP[1], "heal")
    world = played(
        found, world, *polling("chief 1", "Prepare p s w", "TransferState p", "Accept p s w", "Activate p s"), "kill: s"
    )
    world = played(found, world, *polling("chief 1", "Prepare p w", "Accept p w", "Activate p"))
    with nullcontext() if is_on else pytest.raises(ForkedError, match="its loss was not reported"):
        played(found, world, *STEP)


@pytest.mark.parametrize("is_on", [True, False], ids=["on", "off"])
def test_a_vote_is_given_only_after_a_second_poll(is_on: bool) -> None:
    """A vote is given only after a second poll. A chief polls a majority before its successor does, and afterwards a
    process that has lost its memory of the successor.
    """

    def hasty(
        own: Ballot, voters: Voters, observation: Observation, *, voteless_before: Any, **reported: Any
    ) -> Action:
        del voteless_before
        new = [
            Process(task, a.incarnation)
            for task, a in observation.items()
            if isinstance(a, ProcessStatus) and not a.is_voter
        ]
        return next_action(own, voters, observation, voteless_before=new, **reported)

    sides = {"p": 0, "s": 1, "w0": 0, "w1": 1, "w2": 1}
    found = Scope(Voters((("p", "s"),), ("w0", "w1", "w2")), sides, Rules() if is_on else Rules(next_action=hasty))
    world = found.start(Faults(kills=1, cuts=9, chiefs=3, steps=5))

    def looks(number: int) -> list[str]:
        return [f"chief {number}: looks at {task}" for task in ("p", "s", "w0", "w1")]

    world = played(found, world, *looks(1), "next chief", "cut")
    for act in ("Prepare s w1 w2", "Accept s w1 w2", "Activate s"):
        world = played(found, world, *looks(2), *polling("chief 2", act))
    world = played(found, world, "begins under Ballot(term=2 ... on side 1", STEP[1], "kill: w2", "restart: w2", "heal")
    if is_on:
        played(found, world, "chief 1 ... sees: Activate", *looks(1), "chief 1 ... sees: Superseded")
        return
    world = played(found, world, *polling("chief 1", "AdmitVoter w2"), "next chief")
    for act in ("Prepare p w0 w2", "Accept p w0 w2", "Activate p"):
        world = played(found, world, "cut", *looks(3), "heal", *polling("chief 3", act))
    with pytest.raises(ForkedError, match="is still there"):
        played(found, world, "begins under Ballot(term=3", STEP[1])
