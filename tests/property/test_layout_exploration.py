"""A change of the layout with hot standbys, explored: every interleaving of calls, steps and faults up to a bound."""

from collections import deque
from dataclasses import replace
from typing import Any

import pytest

from pstraining.runtime.replication.view import NO_BALLOT, Action, Ballot, Observation, ProcessStatus, Voters
from pstraining.runtime.replication.view_decisions import next_action
from tests.support.layout_world import Faults, Rules, Scope, World, start
from tests.support.soak_marks import THOROUGH
from tests.support.view_state import ForkedError

LIMIT = 3_000_000
"""Maximum number of states; a world with more is not explored completely, and the test fails."""


class Explored:
    """The extent of an exploration."""

    def __init__(self) -> None:
        self.states = self.changed = 0
        """Number of states, and of steps that were acknowledged in the next layout after one in the current one."""


def explore(scope: Scope, first: World, epochs: int) -> Explored:
    """Explore every reachable state, breadth first.

    Raises:
        ForkedError: describes the shortest history that leads to it.
    """
    came: dict[World, tuple[World, str] | None] = {first: None}
    left, found = deque([first]), Explored()
    while left:
        world = left.popleft()
        try:
            events = list(scope.events(world))
        except ForkedError as error:
            lines = [str(error)]
            while before := came[world]:
                world, what = before
                lines.append(what)
            raise ForkedError("\n".join(lines[::-1])) from None
        for what, then in events:
            found.changed += what == "acknowledged in layout 1" and len(then.acknowledged) > 1
            if then in came or any(max(chief.epochs) > epochs for chief in then.chiefs):
                continue
            came[then] = world, what
            left.append(then)
            assert len(came) < LIMIT
    found.states = len(came)
    return found


BOUNDS = [
    (Faults(steps=2), 4),
    (Faults(steps=2, give_ups=1), 4),
    (Faults(steps=2, kills=1), 3),
]
WIDER = [
    (Faults(steps=2, chiefs=2), 3),
    (Faults(steps=2, kills=1, give_ups=1), 4),
    (Faults(steps=2, late=1, give_ups=1), 4),
    (Faults(steps=2, kills=1, chiefs=2), 3),
]


@pytest.mark.timeout(7200 if THOROUGH else 300)
@pytest.mark.parametrize(("faults", "epochs"), [*BOUNDS, *(WIDER if THOROUGH else [])])
def test_no_interleaving_loses_an_acknowledged_step(faults: Faults, epochs: int) -> None:
    found = explore(Scope(), start(faults), epochs)
    print(faults, found.states)
    assert found.changed, "steps were acknowledged in both layouts"


def trusting(status: ProcessStatus, founded: Ballot) -> ProcessStatus:
    """Count what an attempt to found the layout has left, although it was given up."""
    del founded
    return status


def forgetting(own: Ballot, voters: Voters, observation: Observation, **others: Any) -> Action:
    """Continue the current layout although a view says that it is over, as a chief of a later term."""
    seen = {
        task: replace(found, view=replace(found.view, successor=NO_BALLOT))
        if isinstance(found, ProcessStatus) and found.view and found.view.ballot.term < own.term
        else found
        for task, found in observation.items()
    }
    return next_action(own, voters, seen, **others)


@pytest.mark.parametrize(
    ("rules", "faults", "epochs"),
    [
        (Rules(of_founding=trusting), Faults(steps=3, give_ups=1), 4),
        (Rules(waits_for_quorum=False), Faults(steps=2, chiefs=2), 3),
        (Rules(next_action=forgetting), Faults(steps=3, chiefs=2), 3),
    ],
    ids=["an attempt is not forgotten", "no quorum is waited for", "a later chief does not see that it is over"],
)
def test_without_a_rule_an_interleaving_loses_an_acknowledged_step(rules: Rules, faults: Faults, epochs: int) -> None:
    with pytest.raises(ForkedError) as forked:
        explore(Scope(rules), start(faults), epochs)
    print(forked.value)
