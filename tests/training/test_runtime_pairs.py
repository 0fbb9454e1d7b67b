"""Every step on both members of a shard: no step is lost, torn or applied twice after a loss at any moment."""

import os
import random
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from pstraining.runtime.ps import worker_registry
from tests.support.pairs import RATE, Message, Pairs, losses, rounds_messages
from tests.support.placement import USUAL, assert_computes, computing_on
from tests.support.soak_marks import THOROUGH, in_all, some

pytestmark = [pytest.mark.training, pytest.mark.timeout(600)]
CUTS = int(os.environ.get("PSTRAINING_CUTS", "30" if THOROUGH else "4"))
"""Moments of a loss that are tried; `make soak` tries 1,000."""
LEFT = 9 if THOROUGH else 1
"""How many of the nine combinations of surviving members are tried; functions are traced for each."""


def adam() -> Any:
    import keras

    return keras.optimizers.Adam(0.01)


def model() -> Any:
    """Return a model with tensors on each of two servers."""
    import keras

    hidden = keras.layers.Dense(8, activation="tanh")
    return keras.Sequential([keras.Input((8,)), hidden, keras.layers.Dense(3, activation="softmax")])


@pytest.fixture(
    scope="module",
    params=some(
        [USUAL, "CPU:1"],
        lambda device: device == USUAL,
        in_all("tests/training/test_runtime_pairs.py::test_no_step_is_lost_torn_or_applied_twice_after_any_loss"),
    ),
)
def pairs(cluster: Any, request: pytest.FixtureRequest) -> Iterator[Pairs]:
    cluster.container = f"test.pairs.{request.param}"
    with pytest.MonkeyPatch.context() as patch, computing_on(cluster, request.param):
        # A busy machine's worker traces for long; the others wait for it, because they would otherwise make additional
        # steps without it.
        patch.setattr(worker_registry, "LAPSE_SECONDS", 600.0)
        found = Pairs(cluster, adam, model)
        assert_computes(found.rig.store, request.param)
        yield found


def test_standbys_equal_their_primaries_bit_for_bit(pairs: Pairs) -> None:
    assert pairs.expected
    pairs.begin()  # whatever test was the first
    pairs.finish(pairs.both)
    assert not pairs.differences(pairs.both)


def test_no_step_is_lost_torn_or_applied_twice_after_any_loss(pairs: Pairs) -> None:
    seed = random.randrange(10**6)
    print(f"seed {seed}")
    dice = random.Random(seed)
    left = dice.sample(list(losses()), LEFT)
    assert pairs.expected
    for _ in range(CUTS):
        messages = rounds_messages(dice)
        cut, survivors = dice.randrange(len(messages) + 1), dice.choice(left)
        pairs.play(messages[:cut])
        pairs.fail_over(survivors)
        pairs.finish(survivors)
        reported = ", ".join(map(str, messages[:cut]))
        assert not pairs.differences(survivors), f"seed {seed}; left are {survivors}; after {reported}"


def test_without_the_standbys_acknowledgement_first_a_step_is_lost(pairs: Pairs) -> None:
    """If the primary applies a step before its standby has acknowledged it, a step is lost: only the arbiter knows of
    it, and is lost.
    """
    messages = rounds_messages(random.Random(0))
    early = [m for m in messages if m.what in ("push", "prepare")]
    assert pairs.expected
    pairs.play([*early, Message("apply primary", 0), Message("apply primary", 1)])
    with pytest.raises(AssertionError, match="cannot follow"):
        pairs.fail_over(((1,), (0,)))


def test_a_save_from_standbys_completes_a_step_that_its_worker_left(pairs: Pairs) -> None:
    """The worker is lost once one standby has applied the step: the save includes the step, and no primary has it."""
    messages = rounds_messages(random.Random(0))
    pairs.play(messages[: messages.index(Message("apply standby", 0)) + 1])
    states = pairs.rig.control.snapshot(fence=pairs.fence)
    assert states.step == 1
    assert [record.step for record in pairs.rig.store.read()] == [0, 0, 1, 1]
    pairs.fail_over(pairs.both)
    of_primaries = pairs.primaries().snapshot(fence=pairs.fence)
    assert of_primaries.step == 1
    for name, value in states.tensors.items():
        assert np.array_equal(of_primaries.tensors[name], value), name


@pytest.mark.timeout(240)
def test_the_last_step_is_saved_though_its_worker_left(pairs: Pairs) -> None:
    """The primary of the first shard has the last step, so training is over; no other server of a shard has it."""
    messages = rounds_messages(random.Random(0))
    decided = messages[: messages.index(Message("apply standby", 0)) + 1]
    pairs.play([*decided, Message("apply primary", 0)])
    control = pairs.rig.control
    control.set_record(pairs.fence, done=1)
    assert control.snapshot(fence=pairs.fence).step == 1


@pytest.mark.parametrize("after", ["stage", "apply standby", "apply primary"])
def test_a_learning_rate_holds_from_the_same_step_on_for_all_members_of_a_shard(pairs: Pairs, after: str) -> None:
    """A callback sets it while a step is under way, which some members have applied, and others have not."""
    messages = rounds_messages(random.Random(0))
    place = next(number for number, message in enumerate(messages) if message.what == after) + 1
    pairs.play([*messages[:place], Message("rate", 0), *messages[place:]])
    assert pairs.rig.control.learning_rates() == [RATE]
    pairs.fail_over(pairs.both)
    pairs.finish(pairs.both)
    for shard in range(2):
        (steps, state), (others, other) = (pairs.snapshot(shard, member) for member in (0, 1))
        assert steps == others == [3]
        assert all(np.array_equal(one, two) for one, two in zip(state, other, strict=True)), f"shard {shard}"
