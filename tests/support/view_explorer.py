"""Explores a small world of views: every reachable state once, breadth first, or one random history."""

import random
from collections import deque
from dataclasses import dataclass
from operator import is_

from tests.support.view_state import Chief, ForkedError, World, altered
from tests.support.view_world import Scope

Came = dict[World, tuple[World, str, str] | None]
"""The states that were found, each with the one before it, an actor, and what it did; None for the first state."""


@dataclass(frozen=True)
class Explored:
    """The extent of an exploration."""

    states: int
    events: int
    acknowledging: int
    """Events with which a step was acknowledged."""
    complete: bool
    """Whether every reachable state was explored."""


def explore(scope: Scope, start: World, *, epochs: int, limit: int) -> Explored:
    """Explore every reachable state, up to a number of states.

    Args:
        scope: the world.
        start: the initial state.
        epochs: the number that each chief may use; without it a chief could raise its epoch without an end.
        limit: the number of states.

    Raises:
        ForkedError: describes the shortest history that leads to it.
    """
    first = canonical(scope, start)
    came: Came = {first: None}
    left, events, acknowledging = deque([first]), 0, 0
    while left:
        world = left.popleft()
        try:
            found = list(scope.events(world))
        except ForkedError as error:
            raise ForkedError("\n".join([*path(came, world), str(error)])) from None
        for event in found:
            events += 1
            acknowledging += event.what.startswith("acknowledged")
            if any(chief.epoch > epochs and not chief.ended for chief in event.then.chiefs):
                continue
            then, known = canonical(scope, event.then), len(came)
            came.setdefault(then, (world, event.actor, event.what))  # hash once: it takes most of the time
            if len(came) == known:
                continue
            if known == limit:
                return Explored(limit, events, acknowledging, complete=False)
            left.append(then)
    return Explored(len(came), events, acknowledging, complete=True)


def path(came: Came, world: World) -> list[str]:
    """Return the events that led to a state."""
    lines = []
    while step := came[world]:
        world, actor, what = step
        lines.append(f"{actor}: {what}")
    return lines[::-1]


def canonical(scope: Scope, world: World) -> World:
    """Return an equivalent state without parts that have no effect any more, so that more paths lead to it."""
    tasks = scope.voters.tasks
    # Plain tuples, which equal a Process and are made faster.
    alive: set[tuple[str, int]] = {
        (task, found.status.incarnation) for task, found in zip(tasks, world.running, strict=True) if found is not None
    }
    alive.update((tasks[index], found.status.incarnation) for index, found in world.former)
    chiefs = tuple([_kept(chief, alive) for chief in world.chiefs])
    late = world.late and tuple(sorted((call for call in world.late if call.to in alive), key=repr))
    if late == world.late and all(map(is_, chiefs, world.chiefs)):
        return world
    return altered(world, chiefs=chiefs, late=late)


def _kept(chief: Chief, alive: set[tuple[str, int]]) -> Chief:
    """Return what a chief may still do."""
    if chief.ended:
        ended = Chief(chief.term, chief.side, ended=True)
        return chief if chief == ended else ended
    if alive.issuperset(chief.voteless_before) and alive.issuperset([call.to for call in chief.calls]):
        return chief
    calls = tuple(call for call in chief.calls if call.to in alive)
    return altered(chief, calls=calls, voteless_before=frozenset(p for p in chief.voteless_before if p in alive))


def play(scope: Scope, world: World, script: tuple[str, ...]) -> World:
    """Play one history; each line has words from the description of the next event."""
    for line in script:
        happening = [e for e in scope.events(world) if all(word in f"{e.actor}: {e.what}" for word in line.split())]
        assert happening, (line, [f"{e.actor}: {e.what}" for e in scope.events(world)])
        world = happening[0].then
    return world


def walk(scope: Scope, world: World, seed: int, length: int = 400) -> tuple[World, list[str]]:
    """Play a random history, in which each actor pauses for a while at times.

    Raises:
        ForkedError: describes the history.
    """
    drawn, pace, path = random.Random(seed), dict[str, float](), list[str]()
    for _ in range(length):
        if drawn.random() < 0.05:
            pace.clear()
        try:
            events = list(scope.events(world))
        except ForkedError as error:
            raise ForkedError(
                "\n".join([f"seed {seed}, {scope.voters}, sides {scope.sides}", *path, str(error)])
            ) from None
        if not events:
            break
        for event in events:
            pace.setdefault(event.actor, drawn.choice([0.01, 0.3, 1.0]))
        event = drawn.choices(events, [pace[event.actor] for event in events])[0]
        world = event.then
        path.append(f"{event.actor}: {event.what}")
    return world, path
