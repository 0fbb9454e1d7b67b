"""Every hybrid step on both members of a shard and on all workers, with a loss at any moment."""

import os
import random
from collections.abc import Iterator
from typing import Any

import pytest

from pstraining.runtime.allreduce import transport as ring_transport
from pstraining.runtime.ps import worker_registry
from tests.support.pairs import PRIMARY, STANDBY, STEPS, WORKERS, Message, losses, rounds_messages
from tests.support.placement import USUAL, assert_computes, computing_on
from tests.support.ring_pairs import RingPairs
from tests.support.soak_marks import THOROUGH, in_all, some

pytestmark = [pytest.mark.training, pytest.mark.timeout(600)]
CUTS = int(os.environ.get("PSTRAINING_CUTS", "20" if THOROUGH else "3"))
"""Moments of a loss that are tried; `make soak` tries 1,000."""
LEFT = 9 if THOROUGH else 1
"""How many of the nine combinations of surviving members are tried; functions are traced for each."""
CROSSED = ((STANDBY,), (PRIMARY,))
"""The standby of one shard and the primary of the other survive."""


def adam() -> Any:
    import keras

    return keras.optimizers.Adam(0.01)


@pytest.fixture(
    scope="module",
    params=some(
        [USUAL, "CPU:1"],
        lambda device: device == USUAL,
        in_all(
            "tests/training/test_runtime_hybrid_pairs.py::test_no_step_is_lost_torn_or_applied_twice_after_any_loss"
        ),
    ),
)
def pairs(cluster: Any, request: pytest.FixtureRequest) -> Iterator[RingPairs]:
    cluster.container = f"test.hybrid.pairs.{request.param}"
    with pytest.MonkeyPatch.context() as patch, computing_on(cluster, request.param):
        # A busy machine's worker traces for long; the others wait for it, because they would otherwise make additional
        # steps without it.
        patch.setattr(worker_registry, "LAPSE_SECONDS", 600.0)
        patch.setattr(ring_transport, "SILENT_BEATS", 600)
        found = RingPairs(cluster, adam)
        assert_computes(found.rig.workers[0]._store, request.param)
        yield found
        found.close()


def test_no_step_is_lost_torn_or_applied_twice_after_any_loss(pairs: RingPairs) -> None:
    """No step is lost, torn or applied twice after any loss: of servers, and in every third history also of a worker.
    Surviving workers repeat unacknowledged batches.
    """
    seed = random.randrange(10**6)
    print(f"seed {seed}")
    dice = random.Random(seed)
    left = [CROSSED, *dice.sample([found for found in losses() if found != CROSSED], LEFT - 1)]
    assert pairs.expected
    assert not pairs.differences(pairs.both), "standbys equal their primaries"
    for number in range(CUTS):
        messages = rounds_messages(dice)
        cut, survivors = dice.randrange(len(messages) + 1), dice.choice(left)
        pairs.play(messages[:cut])
        silent = [w for w in range(WORKERS) if not any(m.what == "push" and m.worker == w for m in messages[:cut])]
        if silent and dice.random() < 0.5:
            pairs.lose_sum(dice.choice(silent))
        pairs.fail_over(survivors)
        newcomer = dice.randrange(WORKERS) if number % 3 == 0 else None
        if newcomer is not None:
            pairs.replace(newcomer, survivors)
        pairs.finish(survivors, newcomer)
        reported = ", ".join(map(str, messages[:cut]))
        assert not pairs.differences(survivors), (
            f"seed {seed}; left are {survivors}; {newcomer} is new; after {reported}"
        )


def test_without_the_standbys_acknowledgement_first_a_step_is_lost(pairs: RingPairs) -> None:
    """If the primary applies a step before its standby has acknowledged it, a step is lost: only the arbiter knows of
    it, and is lost.
    """
    early = [m for m in rounds_messages(random.Random(0)) if m.what in ("push", "prepare")]
    pairs.play([*early, Message("apply primary", 0), Message("apply primary", 1)])
    with pytest.raises(AssertionError, match="cannot follow"):
        pairs.fail_over(CROSSED)


@in_all(
    "tests/training/test_runtime_hybrid_pairs.py::test_no_step_is_lost_torn_or_applied_twice_after_any_loss"
)  # shows the reason for the attempt
def test_a_standby_without_the_attempt_costs_the_dense_parameters(
    pairs: RingPairs, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without the recorded attempt, workers do not know that their sum belongs to an applied step, and its dense
    parameters are lost.
    """
    from pstraining.runtime.updates.hybrid import updates as hybrid
    from pstraining.runtime.updates.hybrid.server import HybridRoundOps
    from pstraining.runtime.updates.hybrid.two_phase_commit import HybridStandbyRoundOps

    monkeypatch.setattr(hybrid, "LOST_SECONDS", 0.5)
    monkeypatch.setattr(HybridStandbyRoundOps, "_attempt", HybridRoundOps._attempt)
    monkeypatch.setattr(pairs, "_functions", {})
    pairs.play([m for m in rounds_messages(random.Random(0)) if m.what != "apply primary"][:9])
    pairs.fail_over(CROSSED)
    with pytest.raises(AssertionError, match="was refused"):
        pairs.finish(CROSSED)


def test_without_recorded_attempts_batches_count_twice(pairs: RingPairs, monkeypatch: pytest.MonkeyPatch) -> None:
    pairs.play(rounds_messages(random.Random(0)))
    pairs.fail_over(pairs.both)
    copied = [[list(first), *rest] for first, *rest in pairs.updates]  # equal batches that count as other ones
    monkeypatch.setattr(pairs, "updates", copied)
    with pytest.raises(AssertionError, match=f"step {STEPS + 1}"):
        pairs.finish(pairs.both)


def test_a_committed_round_is_applied_after_the_loss_of_all_holders_of_its_sum(
    pairs: RingPairs, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A standby may have applied a round, so the round is applied although its dense sum was lost with the workers."""
    from pstraining.runtime.updates.hybrid import updates as hybrid

    monkeypatch.setattr(hybrid, "LOST_SECONDS", 0.5)
    pairs.play([m for m in rounds_messages(random.Random(0)) if m.what in ("push", "prepare")])
    for worker in range(WORKERS):
        pairs.replace(worker, pairs.both)
    with pytest.raises(AssertionError, match="was refused at step 1"):
        pairs.finish(pairs.both)
