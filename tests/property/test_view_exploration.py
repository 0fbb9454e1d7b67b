"""View changes of hot standbys, explored: every interleaving of polls, messages, steps and faults up to a bound.

One shard of two members and a worker; chiefs poll all tasks at once. The state of learners has one chunk or two, which
are read and received in two events; the chief may transfer the whole state instead. The random histories of
`test_views` are longer and wider, and are a sample.
"""

from collections.abc import Callable
from dataclasses import replace

import pytest

from pstraining.runtime.replication.view import Voters
from tests.support.soak_marks import ALL, THOROUGH, in_all, in_soak, some
from tests.support.view_explorer import explore, play
from tests.support.view_rules import AnyNumber, careless, forgetful, lenient, repeatable
from tests.support.view_state import Faults, ForkedError, World
from tests.support.view_world import Rules, Scope

LIMIT = 5_000_000
"""Maximum number of states; a world with more is not explored completely, and the test fails."""
SIDES = {"p": 0, "s": 1, "w": 0}

BOUNDS = [
    (Faults(kills=1, steps=2), 3),
    (Faults(kills=1, cuts=1, steps=1), 3),
    (Faults(kills=1, chiefs=2, steps=1), 2),
    (Faults(drains=1, kills=1, steps=1), 3),
]
"""The faults that may occur, and the number of epochs that each chief may use."""
WIDER = [
    (Faults(kills=1, chiefs=2, steps=1), 3),
    (Faults(kills=1, cuts=1, chiefs=2, steps=1), 2),
    (Faults(kills=1, steps=1, late=1), 3),
    (Faults(kills=2, steps=2), 3),
    (Faults(drains=2, kills=1, steps=1), 3),
]
LEARNING = [
    (Faults(kills=1, steps=2), 3, 2),
    *([(Faults(kills=1, cuts=1, steps=1), 3, 1)] if ALL else []),
    *([(Faults(drains=1, kills=1, steps=1), 3, 1)] if ALL else []),
    *([(Faults(kills=1, chiefs=2, steps=1), 2, 1)] if ALL else []),
]
"""The same with the number of chunks of a learner's state."""
LEARNING_WIDER = [
    (Faults(kills=2, steps=2), 4, 1),
    (Faults(kills=1, chiefs=2, steps=1), 3, 1),
    (Faults(kills=1, steps=2, late=1), 3, 1),
    (Faults(kills=2, steps=3), 3, 2),
]


def scope(rules: Rules | None = None, kind: type[Voters] = Voters, chunk_count: int = 0) -> Scope:
    return Scope(kind((("p", "s"),), ("w",)), SIDES, rules or Rules(), polls_at_once=True, chunk_count=chunk_count)


@pytest.mark.parametrize(("faults", "epochs"), [*BOUNDS, *(WIDER if THOROUGH else [])])
def test_no_interleaving_loses_an_acknowledged_step(faults: Faults, epochs: int) -> None:
    found = explore(scope(), scope().start(faults), epochs=epochs, limit=LIMIT)
    print(faults, found)
    assert found.complete
    assert found.acknowledging, "steps were applied meanwhile"


@pytest.mark.parametrize(("faults", "epochs", "chunk_count"), [*LEARNING, *(LEARNING_WIDER if THOROUGH else [])])
def test_no_interleaving_loses_an_acknowledged_step_during_a_state_transfer(
    faults: Faults, epochs: int, chunk_count: int
) -> None:
    found = explore(scope(chunk_count=chunk_count), scope().start(faults), epochs=epochs, limit=LIMIT)
    print(faults, chunk_count, found)
    assert found.complete
    assert found.acknowledging


@pytest.mark.parametrize(
    ("rules", "kind", "faults", "epochs"),
    [
        pytest.param(Rules(on_prepare=forgetful), Voters, Faults(kills=1, chiefs=2, steps=2), 2, marks=in_soak),
        pytest.param(Rules(on_prepare=lenient), Voters, Faults(kills=2, chiefs=1, steps=3), 4, marks=in_soak),
        (Rules(), AnyNumber, Faults(cuts=1, chiefs=2, steps=2), 2),
    ],
    ids=["promises are taken back", "steps continue while a copy is made", "votes are not counted"],
)
def test_without_a_rule_an_interleaving_loses_an_acknowledged_step(
    rules: Rules, kind: type[Voters], faults: Faults, epochs: int
) -> None:
    with pytest.raises(ForkedError) as forked:
        explore(scope(rules, kind), scope(rules, kind).start(faults), epochs=epochs, limit=LIMIT)
    print(forked.value)


@in_soak
def test_with_chunks_of_any_step_an_interleaving_loses_an_acknowledged_step() -> None:
    """With chunks of any step, an acknowledged step is lost. The shortest history: a chunk is read, a step is applied
    on the learner, it receives the chunk, and the source is lost.
    """
    rules, faults = Rules(on_chunk=careless), Faults(kills=2, steps=2)
    with pytest.raises(ForkedError, match="its loss was not reported") as forked:
        explore(scope(rules, chunk_count=1), scope().start(faults), epochs=3, limit=LIMIT)
    print(forked.value)


# A transfer is read on one member and written on another, so the write may arrive late.

LATE_TRANSFER = (
    *("kill s", "restart s", "chief 1: sees: Prepare", "prepare -> p", "prepare -> s", "prepare -> w"),
    *("chief 1: sees: TransferState", "transfer -> s is read, and written later"),
    *("chief 1: sees: TransferState", "transfer -> s"),  # the call was cancelled, and the chief transfers once more
    *("chief 1: sees: Accept", "accept -> p", "accept -> s", "accept -> w"),
    *("chief 1: sees: Activate", "activate -> p", "activate -> s", "chief 1: sees: AdmitVoter", "admit -> s"),
    *("worker: begins", "worker: step on s", "worker: acknowledged", "late: write -> s", "kill p"),
    *("chief 1: sees: Prepare", "prepare -> s", "prepare -> w", "chief 1: sees: Accept", "accept -> s", "accept -> w"),
    *("chief 1: sees: Activate", "activate -> s", "worker: begins", "worker: acknowledged"),
)


def test_a_transfer_that_is_written_late_changes_nothing() -> None:
    world = play(scope(), scope().start(Faults(kills=2, steps=2, late=1)), LATE_TRANSFER)
    assert len(world.acknowledged) == 2
    assert not world.lossy


def test_without_the_guard_a_late_transfer_loses_an_acknowledged_step() -> None:
    found = scope(Rules(on_transfer=repeatable))
    with pytest.raises(ForkedError) as forked:
        play(found, found.start(Faults(kills=2, steps=2, late=1)), LATE_TRANSFER)
    print(forked.value)


# A partition of the cluster: the operator, on side 1, sees only its part, and replaces only what it may there.

CUT = Faults(chiefs=2, steps=2, replaces=2)
MOST, FEW, ALL_MEMBERS = ({"p": 0, "s": 1, "w": 0}, {"p": 0, "s": 1, "w": 1}, {"p": 0, "s": 0, "v": 1, "w": 1})


def cut(sides: dict[str, int], rules: Rules | None = None, faults: Faults = CUT) -> tuple[Scope, World]:
    witnesses = tuple(task for task in sides if task not in ("p", "s"))
    found = Scope(Voters((("p", "s"),), witnesses), sides, rules or Rules(), polls_at_once=True)
    return found, replace(found.start(faults), is_cut=True)


@pytest.mark.parametrize(
    "sides",
    some(
        [MOST, FEW, ALL_MEMBERS],
        lambda sides: sides is not FEW,
        in_all(
            "tests/property/test_view_exploration.py::test_the_two_sides_of_a_partition_do_not_both_continue"
        ),  # 13 s
    ),
    ids=["most voters", "few voters", "all members"],
)
def test_the_two_sides_of_a_partition_do_not_both_continue(sides: dict[str, int]) -> None:
    found = explore(*cut(sides), epochs=2, limit=LIMIT)
    print(found)
    assert found.complete
    assert found.acknowledging


def never(silent: int, voters: int, *, members_elsewhere: bool) -> bool:
    return False


def if_most(silent: int, voters: int, *, members_elsewhere: bool) -> bool:
    return 2 * silent > voters


@pytest.mark.parametrize(
    ("sides", "rule"),
    [(MOST, never), pytest.param(ALL_MEMBERS, if_most, marks=in_soak)],
    ids=["most voters", "all members"],
)
def test_without_the_operators_rule_both_sides_continue(sides: dict[str, int], rule: Callable[..., bool]) -> None:
    with pytest.raises(ForkedError, match="is still there") as forked:
        explore(*cut(sides, Rules(may_go_on=rule), replace(CUT, replaces=1)), epochs=2, limit=LIMIT)
    print(forked.value)
