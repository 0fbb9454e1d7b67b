"""View changes explored under faults that `test_view_exploration` does not have.

These are even numbers of voters, chiefs whose process is replaced within their term, and calls that arrive twice.
Further ones are mode Async, and leases under clocks that are changed. If the path to a loss is long, the exploration
begins in the middle of a history. Beside each test of a fault is one with a rule switched off, in which the exploration
finds a loss.
"""

from dataclasses import replace

import pytest

from pstraining.runtime.replication.view import Voters
from tests.support.soak_marks import THOROUGH, in_all, in_soak
from tests.support.view_async import AsyncScope, async_rules
from tests.support.view_explorer import Explored, explore, play
from tests.support.view_leases import GRACE, LEASE, LeasedScope, for_ever, while_its_end_is_ahead
from tests.support.view_rules import HalfIsEnough, lenient, repeatable, two_views_of_a_ballot
from tests.support.view_state import Faults, ForkedError, World
from tests.support.view_world import Rules, Scope

LARGE = 1_200_000
"""Maximum number of states of a soak; a larger world is explored up to it, the shortest histories first."""
SHARD = (("p", "s"),)
SIDES = {"p": 0, "s": 1, "w": 0, "v": 1}
ALL_PROMISE = ("Prepare", "prepare -> p", "prepare -> s", "prepare -> w")
IN_VIEW = ("sees: Accept", "accept -> p", "accept -> s", "accept -> w", "sees: Activate")


def explored(scope: Scope, world: World, epochs: int = 2) -> Explored:
    found = explore(scope, world, epochs=epochs, limit=LARGE)
    print(world.faults, found)
    assert found.complete or (THOROUGH and found.states == LARGE)
    assert found.acknowledging, "steps were applied meanwhile"
    return found


def finds(scope: Scope, world: World, match: str = "acknowledged", epochs: int = 2) -> None:
    with pytest.raises(ForkedError, match=match) as forked:
        explore(scope, world, epochs=epochs, limit=LARGE)
    print(forked.value)


# Two and four voters: a partition may cut the network into halves.

HALVES = [
    (Faults(cuts=1, chiefs=2, steps=2), 2),
    (Faults(kills=1, cuts=1, steps=1), 2),
    *([(Faults(kills=2, cuts=2, chiefs=2, steps=2), 3)] if THOROUGH else []),
]


def even(number: int, kind: type[Voters] = Voters) -> Scope:
    return Scope(kind(SHARD, ("w", "v")[: number - 2]), SIDES, polls_at_once=True)


@pytest.mark.parametrize("number", [2, 4])
@pytest.mark.parametrize(("faults", "epochs"), HALVES)
def test_an_even_number_of_voters_loses_no_step(faults: Faults, epochs: int, number: int) -> None:
    explored(even(number), even(number).start(faults), epochs)


@pytest.mark.parametrize("number", [2, pytest.param(4, marks=in_soak)])
def test_with_half_as_a_quorum_a_step_is_lost(number: int) -> None:
    found = even(number, HalfIsEnough)
    finds(found, found.start(Faults(cuts=1, chiefs=2, steps=2)), "is still there")


# Two chiefs at once, and a chief whose process is replaced within its term while one of its calls is on its way.

RESTARTED = (
    *("next chief", *(f"chief 2: {line}" for line in ("sees: " + ALL_PROMISE[0], *ALL_PROMISE[1:], "sees: Accept"))),
    *("chief 1: sees: Superseded", "chief 2: restarts, accept later", "late: accept -> p"),
)
"""The first view of chief 2 has members p and s, and is accepted only by p."""
MOST_WITH_CHIEF_2 = {"p": 0, "s": 1, "w": 1}


def three(rules: Rules | None = None, sides: dict[str, int] = SIDES) -> Scope:
    return Scope(Voters(SHARD, ("w",)), sides, rules or Rules(), polls_at_once=True)


def restarted(found: Scope, faults: Faults) -> World:
    world = play(found, found.start(replace(faults, chiefs=2, restarts=1)), RESTARTED)
    return replace(world, is_cut=True)


@pytest.mark.parametrize(
    "faults",
    [
        Faults(kills=1, steps=1, restarts=1),
        Faults(chiefs=2, steps=1, restarts=1),
        *([Faults(kills=2, cuts=1, chiefs=2, steps=2, restarts=2, late=1)] if THOROUGH else []),
    ],
)
def test_a_chief_that_restarts_within_its_term_loses_no_step(faults: Faults) -> None:
    explored(three(), three().start(faults), 3 if THOROUGH else 2)


def test_a_restarted_chief_sends_no_second_view_under_a_ballot() -> None:
    found = three(sides=MOST_WITH_CHIEF_2)
    explored(found, restarted(found, Faults(kills=1, steps=2)), 3)


def test_with_two_views_under_a_ballot_a_step_is_lost() -> None:
    """With two views under one ballot, a step is lost. Members p and w have different views of one number, and the
    later chief uses the older one.
    """
    found = three(Rules(next_action=two_views_of_a_ballot), MOST_WITH_CHIEF_2)
    finds(found, restarted(found, Faults(kills=1, steps=2)), "its loss was not reported", 3)


def test_a_chief_sends_no_second_view_while_the_first_ones_fate_is_unknown() -> None:
    """A chief sends no second view while it is unknown whether the first one was accepted. The first view reaches only
    p; the calls to s and w fail, and the network is cut.
    """
    found = three(sides=MOST_WITH_CHIEF_2)
    world = play(found, found.start(Faults(kills=1, steps=2, chiefs=2, late=2)), RESTARTED[:-3])
    lines = ("chief 1: sees: Superseded", "accept -> p", "accept -> s later", "accept -> w later")
    world = play(found, replace(world), lines)
    explored(found, replace(world, is_cut=True), 3)


# A call that arrives twice.

RETURNED = ("kill s", "restart s", "sees: " + ALL_PROMISE[0], *ALL_PROMISE[1:])
"""Member s has returned, and everyone has promised ballot (1, 2)."""


def returned(found: Scope, faults: Faults) -> World:
    world = play(found, found.start(replace(faults, kills=1)), RETURNED)
    return replace(world, faults=faults)


@pytest.mark.parametrize(
    "faults",
    [Faults(kills=1, steps=1, twice=1), *([Faults(kills=2, chiefs=2, steps=2, twice=2)] if THOROUGH else [])],
)
def test_a_call_that_arrives_twice_changes_nothing(faults: Faults) -> None:
    explored(three(), three().start(faults), 3 if THOROUGH else 2)


def test_a_transfer_that_arrives_twice_changes_nothing() -> None:
    explored(three(), returned(three(), Faults(steps=1, twice=1)))


def test_without_a_fence_on_the_second_write_a_step_is_lost() -> None:
    found = three(Rules(on_transfer=repeatable))
    lines = ("sees: TransferState", "transfer -> s, and once more later", *IN_VIEW, "activate -> p", "activate -> s")
    world = play(found, returned(found, Faults(kills=1, steps=2, twice=1)), (*lines, "AdmitVoter", "admit -> s"))
    finds(found, world, "its loss was not reported", 3)


# Mode Async: no rounds; each update reaches the members of its view in sequence.

UPDATES = [
    (Faults(kills=1, steps=2), 2),
    (Faults(cuts=1, chiefs=2, steps=1), 2),
    *([(Faults(kills=2, cuts=1, chiefs=2, steps=3), 3)] if THOROUGH else []),
]


def asynchronous(**switched_off: object) -> AsyncScope:
    return AsyncScope(Voters(SHARD, ("w",)), SIDES, async_rules(**switched_off), polls_at_once=True)


@pytest.mark.parametrize(("faults", "epochs"), UPDATES)
def test_no_acknowledged_update_is_lost_in_async(faults: Faults, epochs: int) -> None:
    explored(asynchronous(), asynchronous().start(faults), epochs)


@pytest.mark.parametrize("is_on", [True, False], ids=["on", "off"])
def test_no_update_is_applied_while_state_is_transferred_in_async(is_on: bool) -> None:
    """In Async, no update is applied while state is transferred. Otherwise p applies an update after s has received p's
    state, and both count as in sync.
    """
    found = asynchronous() if is_on else asynchronous(on_prepare=lenient)
    world = play(found, found.start(Faults(kills=1)), ("kill s", "sees: Prepare", "prepare -> p", "prepare -> w"))
    world = play(found, world, ("sees: Accept", "accept -> p", "accept -> w", "sees: Activate", "activate -> p"))
    world = replace(play(found, world, ("restart s",)), faults=Faults(kills=1, steps=2))
    world = play(found, world, ("sees: Prepare", "prepare -> p", "prepare -> s", "prepare -> w", "sees: TransferState"))
    if is_on:
        explored(found, world, 3)
    else:
        finds(found, world, epochs=3)


# Leases: only member p is in sync, and is cut off with its chief. The operator replaces it after a while.

CUT_OFF = (
    *("kill s", "restart s", "sees: Prepare", "prepare -> p", "prepare -> s", "prepare -> w"),
    *(*IN_VIEW, "activate -> p", "AdmitVoter", "admit -> s"),
)


def leased(faults: Faults, jumps: tuple[int, ...] = (), **rule: object) -> tuple[LeasedScope, World]:
    found = LeasedScope(Voters(SHARD, ("w",)), MOST_WITH_CHIEF_2, polls_at_once=True, jumps=jumps, **rule)  # type: ignore[arg-type]
    world = play(found, found.start(Faults(kills=1)), CUT_OFF)
    return found, replace(world, is_cut=True, faults=replace(faults, chiefs=2, steps=2, replaces=1))


@pytest.mark.parametrize(
    ("faults", "jumps"),
    [
        (Faults(), ()),
        pytest.param(
            Faults(jumps=1),
            (LEASE,),
            marks=in_all(
                "tests/property/test_view_faults.py::test_a_member_that_is_cut_off_stops_before_it_is_replaced"
            ),  # its clock is changed
        ),
        (Faults(jumps=1), (-GRACE,)),
        *([(Faults(jumps=1), (1 - LEASE,)), (Faults(jumps=2, kills=1, cuts=1), (LEASE, -1))] if THOROUGH else []),
    ],
)
def test_a_member_that_is_cut_off_stops_before_it_is_replaced(faults: Faults, jumps: tuple[int, ...]) -> None:
    """A member that is cut off stops before it is replaced. Its clock may be changed once by any time."""
    explored(*leased(faults, jumps))


@in_soak
def test_a_member_whose_clock_is_set_back_does_not_stop_in_time_without_the_rule() -> None:
    """Without the rule that a lease is over if its end is farther ahead than any that is set."""
    finds(*leased(Faults(jumps=1), (-GRACE,), seen=while_its_end_is_ahead), "is acknowledged under")


def test_a_member_without_leases_does_not_stop_in_time() -> None:
    finds(*leased(Faults(), seen=for_ever), "is acknowledged under")
