"""All that can happen in a small world of views, not only what is drawn: every state once, breadth first."""

from collections import deque
from dataclasses import dataclass, replace

from pstraining.runtime.replication.view import Process
from tests.support.view_state import Chief, ForkedError, World
from tests.support.view_world import Scope


@dataclass(frozen=True)
class Explored:
    """What was looked at."""

    states: int
    events: int
    acknowledging: int
    """Events with which a step was acknowledged."""
    complete: bool
    """Nothing that can happen was left out."""


def explore(scope: Scope, start: World, *, epochs: int, limit: int) -> Explored:
    """Look at every state that can come about, up to a number of them.

    Args:
        scope: where.
        start: at first.
        epochs: that each chief may use; a chief that changes its mind takes a new one every time, without an end.
        limit: states.

    Raises:
        ForkedError: says what happened, by the shortest way there is.
    """
    first = canonical(scope, start)
    came: dict[World, tuple[World, str] | None] = {first: None}
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
            then = canonical(scope, event.then)
            if then in came or any(chief.epoch > epochs for chief in then.chiefs):
                continue
            if len(came) == limit:
                return Explored(limit, events, acknowledging, complete=False)
            came[then] = world, f"{event.actor}: {event.what}"
            left.append(then)
    return Explored(len(came), events, acknowledging, complete=True)


def path(came: dict[World, tuple[World, str] | None], world: World) -> list[str]:
    """What led to a state."""
    lines = []
    while step := came[world]:
        world, line = step
        lines.append(line)
    return lines[::-1]


def canonical(scope: Scope, world: World) -> World:
    """The same without what can have no effect any more, so that more ways lead to one state."""
    tasks = scope.voters.tasks

    def is_alive(process: Process) -> bool:
        found = world.running[tasks.index(process.task)]
        return found is not None and found.status.incarnation == process.incarnation

    def kept(chief: Chief) -> Chief:
        if chief.ended:
            return Chief(chief.term, chief.side, ended=True)
        calls = tuple(call for call in chief.calls if is_alive(call.to))
        return replace(chief, calls=calls, voteless_before=frozenset(filter(is_alive, chief.voteless_before)))

    late = sorted((call for call in world.late if is_alive(call.to)), key=repr)
    return replace(world, chiefs=tuple(map(kept, world.chiefs)), late=tuple(late))
