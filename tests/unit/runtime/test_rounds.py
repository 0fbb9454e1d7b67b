"""Rounds: tables of next actions."""

import pytest

from pstraining.runtime.updates.synchronous.protocol import (
    FURTHER_SHARE,
    USUAL_SHARE,
    PushObservation,
    PushStatus,
    RoundAction,
    RoundObservation,
    ShardRound,
    mask,
    next_action,
    pause,
    push_status,
    quorum,
)


def observation(
    *shards: tuple[int, int, int],
    admitted: int,
    closed: bool = False,
    alive: int = 0b111,
    standbys: tuple[int, ...] = (),
) -> RoundObservation:
    found = tuple(ShardRound(*shard) for shard in shards)
    return RoundObservation(found, admitted=admitted, closed=closed, alive=alive, standbys=standbys)


@pytest.mark.parametrize(
    ("found", "expected"),
    [
        (observation((5, 0, 0), admitted=0), RoundAction.PUSH),
        (observation((5, 0, 0b01), admitted=0b01), RoundAction.WAIT),
        (observation((5, 0, 0b10), admitted=0b10), RoundAction.PUSH),
        (observation((5, 0, 0b11), (5, 0, 0b11), admitted=0b11, closed=True), RoundAction.APPLY),
        (observation((5, 0, 0b11), (5, 0, 0b01), admitted=0b11, closed=True), RoundAction.WAIT),
        (observation((5, 0, 0b11), (5, 0, 0b10), admitted=0b11, closed=True), RoundAction.PUSH),
        (observation((5, 0, 0b11), (5, 0, 0b01), admitted=0b11, closed=True, alive=0b01), RoundAction.GIVE_UP),
        (observation((5, 0, 0b11), (5, 0, 0b11), admitted=0b11, closed=True, alive=0b01), RoundAction.APPLY),
        (observation((5, 2, 0b01), (5, 1, 0b01), admitted=0b01), RoundAction.PUSH),
        (observation((5, 0, 0b110), (5, 0, 0b110), admitted=0b110, closed=True), RoundAction.APPLY),
        (observation((6, 0, 0), (6, 0, 0), admitted=0), RoundAction.PULL),
        (observation((6, 0, 0), (5, 0, 0b11), admitted=0), RoundAction.APPLY),
        (observation((9, 0, 0), (9, 0, 0), admitted=0), RoundAction.PULL),
        (observation((5, 0, 0b11), (5, 0, 0b11), admitted=0b11, closed=True, standbys=(6, 5)), RoundAction.APPLY),
        (observation((5, 0, 0b11), (6, 0, 0), admitted=0b11, closed=True, standbys=(6, 6)), RoundAction.APPLY),
        (observation((6, 0, 0), (6, 0, 0), admitted=0, standbys=(6, 6)), RoundAction.PULL),
    ],
    ids=lambda value: value.name if isinstance(value, RoundAction) else "",
)
def test_the_next_action(found: RoundObservation, expected: RoundAction) -> None:
    assert next_action(found, worker=0, step=5) is expected


def test_a_closed_round_without_this_worker_is_waited_for() -> None:
    found = observation((5, 0, 0b010), (5, 0, 0), admitted=0b010, closed=True)
    assert next_action(found, worker=0, step=5) is RoundAction.WAIT


@pytest.mark.parametrize(
    ("observation", "expected"),
    [
        (PushObservation((True, True), (2, 2), admitted=2, closed=True, void=False), PushStatus.COMPLETE),
        (PushObservation((True, True), (2, 2), admitted=2, closed=False, void=False), PushStatus.INCOMPLETE),
        (PushObservation((True, True), (2, 1), admitted=2, closed=True, void=False), PushStatus.INCOMPLETE),
        (PushObservation((True, True), (1, 2), admitted=2, closed=True, void=False), PushStatus.INCOMPLETE),
        (PushObservation((True, False), (2, 2), admitted=2, closed=True, void=False), PushStatus.INCOMPLETE),
        (PushObservation((False, False), (0, 0), admitted=0, closed=False, void=True), PushStatus.VOID),
    ],
)
def test_the_result_of_a_push(observation: PushObservation, expected: PushStatus) -> None:
    assert push_status(observation) is expected


@pytest.mark.parametrize(
    ("alive", "expected", "backups", "waits", "wanted"),
    [
        (3, 3, 0, True, 3),
        (2, 3, 0, True, 3),
        (2, 3, 0, False, 2),
        (3, 3, 1, False, 2),
        (1, 4, 2, False, 1),
        (0, 4, 0, False, 1),
    ],
)
def test_the_quorum(alive: int, expected: int, backups: int, waits: bool, wanted: int) -> None:
    assert quorum(alive=alive, expected=expected, backups=backups, waits=waits) == wanted


@pytest.mark.parametrize(
    ("waited", "usual", "expected"),
    [
        (0.0, 0.0, 0.0002),
        (0.0, 0.010, 0.007),
        (0.003, 0.010, 0.004),
        (0.008, 0.010, 0.0005),
        (0.080, 0.010, 0.005),
        (0.0, 5.0, 0.1),
        (30.0, 0.010, 0.1),
    ],
)
def test_others_are_polled_after_most_of_their_usual_time(waited: float, usual: float, expected: float) -> None:
    assert pause(waited, usual=usual) == pytest.approx(expected)


def test_a_mask_has_the_first_worker_lowest() -> None:
    assert mask(bytes([0b101, 0b1])) == 0b1_0000_0101


def test_each_worker_pushes_its_missing_gradients() -> None:
    found = observation((5, 0, 0b001), (5, 0, 0b001), admitted=0b011)
    assert next_action(found, worker=1, step=5) is RoundAction.PUSH
    assert next_action(found, worker=0, step=5) is RoundAction.WAIT
    found = observation((5, 0, 0b010), (5, 0, 0b010), admitted=0b011)
    assert next_action(found, worker=1, step=5) is RoundAction.WAIT
    assert next_action(found, worker=0, step=5) is RoundAction.PUSH


def test_after_the_usual_wait_the_pauses_follow_the_wait_so_far() -> None:
    assert pause(USUAL_SHARE * 2.0, usual=2.0) == pytest.approx(USUAL_SHARE * 2.0 * FURTHER_SHARE)
