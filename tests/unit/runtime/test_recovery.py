"""Decisions of the chief and of workers from the servers' records."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pstraining.runtime.chief.recovery import ORDER_BITS, ChiefAction, decide, has_other_order
from pstraining.runtime.ps.record import LayoutMismatchError, Session, ShardRecord, session
from pstraining.runtime.transport.errors import ATTEMPTS, is_retried, name_of

WHOLE = ShardRecord(fence=2, generation=9, step=100, layout=5)
EMPTY = ShardRecord()
shards = st.builds(
    ShardRecord,
    fence=st.integers(0, 3),
    generation=st.integers(-2, 2),
    done=st.booleans(),
    step=st.integers(0, 9),
    layout=st.integers(0, 2),
)


@pytest.mark.parametrize(
    ("seen", "expected"),
    [
        ([WHOLE, WHOLE], ChiefAction.PROCEED),
        ([WHOLE, replace(WHOLE, step=98)], ChiefAction.PROCEED),
        ([EMPTY, EMPTY], ChiefAction.RAISE_FENCE),
        ([WHOLE, EMPTY], ChiefAction.RAISE_FENCE),
        ([WHOLE, ShardRecord(fence=2)], ChiefAction.RESTORE),
        ([WHOLE, replace(WHOLE, generation=8)], ChiefAction.RESTORE),
        ([replace(WHOLE, generation=0)] * 2, ChiefAction.RESTORE),
        ([replace(WHOLE, generation=-9)] * 2, ChiefAction.REOPEN),
        ([WHOLE, replace(WHOLE, generation=-9)], ChiefAction.REOPEN),
        ([replace(WHOLE, generation=-9), replace(WHOLE, generation=0)], ChiefAction.RESTORE),
        ([replace(WHOLE, generation=-9, layout=6)] * 2, ChiefAction.RESTORE),
        ([replace(WHOLE, layout=6)] * 2, ChiefAction.RESTORE),
        ([replace(WHOLE, fence=1)] * 2, ChiefAction.RAISE_FENCE),
        ([WHOLE, replace(WHOLE, fence=3)], ChiefAction.SUPERSEDED),
        ([EMPTY, replace(WHOLE, fence=3)], ChiefAction.SUPERSEDED),
    ],
)
def test_the_chiefs_next_action(seen: list[ShardRecord], expected: ChiefAction) -> None:
    assert decide(seen, fence=2, layout=5) is expected


@pytest.mark.parametrize(
    ("generation", "order", "expected"),
    [
        ((1_795_970_000_000 << ORDER_BITS) + 7, 7, ChiefAction.PROCEED),
        ((1_795_970_000_000 << ORDER_BITS) + 7, 8, ChiefAction.RESTORE),
        (-(1_795_970_000_000 << ORDER_BITS) - 7, 7, ChiefAction.REOPEN),
        (-(1_795_970_000_000 << ORDER_BITS) - 7, 8, ChiefAction.RESTORE),
        (1_795_970_000_000 << ORDER_BITS, 8, ChiefAction.PROCEED),  # of a program whose data was not assigned
        ((1_795_970_000_000 << ORDER_BITS) + 7, 0, ChiefAction.PROCEED),
        (1_795_970_000_001, 8, ChiefAction.PROCEED),  # of an earlier version
    ],
)
def test_positions_of_another_order_of_the_data_are_not_continued(
    generation: int, order: int, expected: ChiefAction
) -> None:
    seen = [replace(WHOLE, generation=generation)] * 2
    assert decide(seen, fence=2, layout=5, order=order) is expected
    assert has_other_order(seen, order) == (expected is ChiefAction.RESTORE)


@given(st.lists(shards, min_size=1, max_size=4), st.integers(1, 3), st.integers(1, 9))
def test_following_the_decisions_ends_with_one_complete_set_or_with_resignation(
    seen: list[ShardRecord], term: int, generation: int
) -> None:
    for _ in range(3):
        action = decide(seen, fence=term, layout=1)
        if action is ChiefAction.SUPERSEDED:
            assert max(shard.fence for shard in seen) > term
            return
        if action is ChiefAction.PROCEED:
            break
        if action is ChiefAction.RAISE_FENCE:
            seen = [replace(shard, fence=term) for shard in seen]
        elif action is ChiefAction.REOPEN:
            seen = [replace(shard, generation=abs(shard.generation)) for shard in seen]
        else:
            seen = [ShardRecord(fence=term, generation=generation, layout=1) for _ in seen]
    assert decide(seen, fence=term, layout=1) is ChiefAction.PROCEED
    assert session(seen, layout=1) == Session(term, seen[0].generation)


@given(st.lists(shards, min_size=1, max_size=4))
def test_a_worker_never_works_on_a_part_of_a_set(seen: list[ShardRecord]) -> None:
    try:
        found = session(seen, layout=1)
    except LayoutMismatchError:
        return
    if found is not None:
        assert {(shard.fence, shard.generation, shard.layout) for shard in seen} == {(found.fence, found.generation, 1)}
        assert found.fence > 0
        assert found.generation > 0


def test_a_worker_with_another_layout_than_all_servers_gets_an_error() -> None:
    with pytest.raises(LayoutMismatchError, match="same program"):
        session([WHOLE, WHOLE], layout=6)


@pytest.mark.parametrize(
    ("code", "attempts", "expected"),
    [
        ("UNAVAILABLE", 1000, True),
        ("ABORTED", 1000, True),
        ("FAILED_PRECONDITION", 1, True),
        ("INVALID_ARGUMENT", ATTEMPTS - 1, True),
        ("INVALID_ARGUMENT", ATTEMPTS, False),
        ("INTERNAL", ATTEMPTS + 1, False),
        ("OUT_OF_RANGE", 1, False),
        ("RESOURCE_EXHAUSTED", 1, False),
    ],
)
def test_which_failures_are_answered_by_reconnecting(code: str, attempts: int, expected: bool) -> None:
    assert is_retried(code, attempts) is expected


@pytest.mark.parametrize(("done", "expected"), [(0, (False, False)), (1, (True, False)), (2, (True, True))])
def test_a_record_is_read_from_the_servers_vector(done: int, expected: tuple[bool, bool]) -> None:
    found = ShardRecord.from_vector(np.array([3, -9, done, 7, 5]))
    assert found == ShardRecord(3, -9, expected[0], 7, 5, expected[1])


def test_a_worker_with_another_model_gets_an_error() -> None:
    words = "^this task's model or optimizer differs from the chief's: all tasks must run the same program$"
    with pytest.raises(LayoutMismatchError, match=words):
        session([WHOLE, replace(WHOLE, layout=6)], layout=5)
    with pytest.raises(LayoutMismatchError):
        session([replace(WHOLE, layout=6)], layout=5)


def test_a_worker_with_another_vocabulary_gets_an_error_with_the_layer() -> None:
    words = r"run the same program\. The contents of lookup, perm must be equal as well: adapt layers to the same data"
    with pytest.raises(LayoutMismatchError, match=words):
        session([replace(WHOLE, layout=6)], layout=5, unshared=["lookup", "perm"])


def test_shards_without_layouts_are_restored() -> None:
    assert decide([WHOLE, replace(WHOLE, layout=6)], fence=2, layout=5) == ChiefAction.RESTORE


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({}, Session(2, 9)),
        ({"fence": 0}, None),
        ({"generation": 0}, None),
        ({"generation": -9}, None),
        ({"fence": 0, "generation": 0}, None),
        ({"fence": 1, "generation": 1}, Session(1, 1)),
    ],
)
def test_workers_train_under_a_fence_in_an_active_set(changes: dict[str, int], expected: Session | None) -> None:
    assert session([replace(WHOLE, **changes)] * 2, layout=5) == expected  # type: ignore[arg-type]


def test_a_missing_variable_is_a_lost_state_and_another_missing_thing_is_not() -> None:
    """Operations name a variable that a server lacks in two ways; a file that a program reads may be missing, too."""
    message = "Resource pstraining.a.2/0/12/N10tensorflow3VarE does not exist.\n\t [[{{node ResourceGather}}]]"
    assert name_of("NOT_FOUND", message) == "FAILED_PRECONDITION"
    assert name_of("NOT_FOUND", "/data/a.txt; No such file or directory") == "NOT_FOUND"
    assert not is_retried("NOT_FOUND", 1)
    assert name_of("INTERNAL", message) == "INTERNAL"
