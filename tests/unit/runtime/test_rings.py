"""Hybrid rounds: tables of next actions, and the members that relay parameters."""

from typing import Any

import pytest

from pstraining.runtime.updates.hybrid.protocol import (
    BroadcastPlan,
    HybridAction,
    HybridObservation,
    WorkerState,
    broadcast_plan,
    is_made,
    next_action,
)
from pstraining.runtime.updates.synchronous.protocol import ShardRound


def observation(
    *shards: tuple[int, int, int], admitted: int = 0, closed: bool = False, **more: Any
) -> HybridObservation:
    found: dict[str, Any] = {"made_in": 0, "members": 0b11, "ready": 0b11, **more}
    return HybridObservation(tuple(ShardRound(*shard) for shard in shards), admitted=admitted, closed=closed, **found)


def me(
    step: int | None = 5, *, ring: int | None = 2, left: int | None = None, held: int | None = None, suspects: int = 0
) -> WorkerState:
    return WorkerState(0, step, ring, left, held, suspects)


@pytest.mark.parametrize(
    ("found", "standing", "expected"),
    [
        (observation((5, 2, 0)), me(), HybridAction.SUM),
        (observation((5, 2, 0)), me(held=2), HybridAction.PUSH),
        (observation((5, 2, 0)), me(held=1), HybridAction.SUM),
        (observation((5, 2, 0b01)), me(held=2), HybridAction.WAIT),
        (observation((5, 2, 0b11), (5, 2, 0b10), closed=True), me(held=2), HybridAction.PUSH),
        (observation((5, 2, 0b11), (5, 1, 0b11), closed=True), me(held=2), HybridAction.PUSH),
        (observation((5, 2, 0b11), (5, 2, 0b11), closed=True), me(held=2), HybridAction.APPLY),
        (observation((5, 2, 0b11), closed=True, ready=0b01), me(held=2, left=2, ring=None), HybridAction.APPLY),
        (observation((5, 2, 0b11), closed=True, paused=True), me(held=2), HybridAction.GIVE_WAY),
        (observation((5, 2, 0b11), closed=True), me(None, ring=None), HybridAction.JOIN),
        (observation((5, 2, 0b10), closed=True, members=0b10), me(None, ring=None), HybridAction.FORM),
        (observation((6, 2, 0), made_in=2), me(held=2), HybridAction.SETTLE),
        (observation((6, 3, 0), made_in=2), me(held=2, ring=None), HybridAction.SETTLE),
        (observation((6, 3, 0), made_in=3), me(held=2, ring=None), HybridAction.MISSED),
        (observation((6, 2, 0), made_in=2), me(), HybridAction.MISSED),
        (observation((7, 2, 0), made_in=2), me(held=2), HybridAction.MISSED),
        (observation((6, 2, 0), (5, 2, 0b11), made_in=2), me(held=2), HybridAction.FOLLOW),
        (observation((6, 2, 0), (6, 2, 0), made_in=2, standbys=(6, 5)), me(held=2), HybridAction.FOLLOW),
        (observation((6, 2, 0), (6, 2, 0), made_in=2, standbys=(6, 6)), me(held=2), HybridAction.SETTLE),
        (observation((5, 2, 0b11), closed=True, prepared=True, paused=True), me(held=2), HybridAction.APPLY),
        (observation((5, 2, 0b11), closed=True, prepared=True, standbys=(6,)), me(held=2), HybridAction.APPLY),
        (
            observation((5, 2, 0b11), closed=True, prepared=True, ready=0b01),
            me(None, ring=None, left=2),
            HybridAction.APPLY,
        ),
        (observation((5, 2, 0b11), closed=True, prepared=True), me(4, held=1), HybridAction.MISSED),
        (observation((5, 3, 0)), me(held=2), HybridAction.JOIN),
        (observation((5, 3, 0)), me(None), HybridAction.JOIN),
        (observation((5, 2, 0)), me(None), HybridAction.WAIT),
        (observation((5, 2, 0)), me(left=2, ring=None), HybridAction.FORM),
        (observation((5, 3, 0)), me(left=2, ring=None, suspects=0b10), HybridAction.FORM),
        (observation((5, 3, 0), members=0b01, ready=0b01), me(left=2, ring=None, suspects=0b10), HybridAction.JOIN),
        (observation((5, 2, 0), ready=0b111), me(), HybridAction.FORM),
        (observation((5, 2, 0), ready=0b01), me(), HybridAction.FORM),
        (observation((5, 2, 0), ready=0b10), me(), HybridAction.WAIT),
        (observation((0, 0, 0), members=0, ready=0b01, waits=True), me(None, ring=None), HybridAction.WAIT),
        (observation((0, 0, 0), members=0, ready=0b11), me(None, ring=None), HybridAction.FORM),
    ],
)
def test_the_next_action(found: HybridObservation, standing: WorkerState, expected: HybridAction) -> None:
    assert next_action(found, standing) is expected


@pytest.mark.parametrize(
    ("steps", "expected"),
    [
        ([5, 5, 5], None),
        ([None, None], None),
        ([4, None], None),
        ([5, None, 5], BroadcastPlan(0, 1)),
        ([None, 5, 4], BroadcastPlan(1, 0)),
        ([None, 4, 5], BroadcastPlan(2, 1)),
        ([5, 5, None], BroadcastPlan(0, 2)),
    ],
)
def test_the_members_that_relay_parameters(steps: list[int | None], expected: BroadcastPlan | None) -> None:
    assert broadcast_plan(steps, 5) == expected


def test_a_worker_without_parameters_or_a_sum_has_applied_no_step() -> None:
    found = observation((6, 2, 0), made_in=2)
    assert is_made(found, me(5, held=2))
    assert not is_made(found, me(None, held=2))
    assert not is_made(found, me(5, held=None))
