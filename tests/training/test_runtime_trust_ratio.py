"""Lamb on tensors that are sliced over parameter servers: its trust ratio is that of whole tensors, as in one
process.
"""

import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pstraining.runtime.allreduce import transport as ring_transport
from pstraining.runtime.model import partition
from pstraining.runtime.model.optimizers import optimizer, trust_ratio
from tests.support.local_servers import LocalServers
from tests.support.pairs import Message, Pairs, rounds_messages
from tests.support.servers import Rig, batches, in_float64
from tests.support.soak_marks import THOROUGH, in_all, some
from tests.support.worker_threads import Crew
from tests.training import test_runtime_sync as sync
from tests.training.test_runtime_optimizers import STEPS, assert_equal, train_and_restore

pytestmark = [pytest.mark.training, pytest.mark.timeout(300), pytest.mark.usefixtures("client")]


def lamb() -> Any:
    """Return Lamb with further features: a schedule, decay of the kernels, clipping by value, and averages."""
    import keras

    rate = keras.optimizers.schedules.CosineDecay(1e-2, 60)
    own = keras.optimizers.Lamb(rate, weight_decay=0.1, clipvalue=0.05, use_ema=True, ema_overwrite_frequency=7)
    own.exclude_from_weight_decay(var_names=["bias"])
    return own


def plain() -> Any:
    import keras

    return keras.optimizers.Lamb(1e-2)


def accumulating() -> Any:
    import keras

    return keras.optimizers.Lamb(1e-2, weight_decay=0.1, gradient_accumulation_steps=3)


def wide(units: int = 300) -> Any:
    """Return a model with a kernel of more than 256 KB, whose slices are smaller than that."""
    import keras

    layers = [keras.layers.Dense(units, activation="tanh") for _ in range(2)]
    return keras.Sequential([keras.Input((8,)), *layers, keras.layers.Dense(3, activation="softmax")])


def cut(layout: partition.Layout) -> set[str]:
    return {layout.tensors[number].path for number in layout.cut_by_norms()}


@pytest.mark.usefixtures("plain_arithmetic")
@pytest.mark.parametrize("make", [lamb, accumulating])
def test_segments_on_three_servers_equal_keras(make: Any) -> None:
    """In this process: clones of Lamb on the slices of three servers equal Keras's Lamb, given the same gradients."""

    from pstraining.runtime.model.keras_model import Model
    from pstraining.runtime.model.training.objective import Objective

    model = Model(wide, make, Objective("sparse_categorical_crossentropy"))
    alone, own = wide(), make()
    for variable, initial in zip(alone.trainable_variables, model.trainable, strict=True):
        variable.assign(initial)
    own.build(alone.trainable_variables)
    servers = LocalServers(model, 3, agrees_on_norms=True)
    assert cut(servers.layout) == {"sequential/dense_1/kernel"}
    servers.train_beside(own, alone, STEPS)


def test_a_ratio_is_one_if_a_norm_is_zero() -> None:
    import tensorflow as tf

    def ratio(*squares: float) -> float:
        return float(trust_ratio._ratio(*(tf.constant(value, tf.float64) for value in squares)))

    assert [ratio(4, 16), ratio(0, 16), ratio(4, 0), ratio(0, 0)] == [0.5, 1, 1, 1]


def test_gradients_that_are_clipped_by_norm_need_whole_tensors() -> None:
    """Gradients that are clipped by norm need whole tensors, because servers agree on norms before they know clipped
    gradients.
    """
    import keras

    options: list[dict[str, Any]] = [{}, {"clipvalue": 1.0}, {"gradient_accumulation_steps": 2}]
    options += [{"clipnorm": 1.0}, {"global_clipnorm": 1.0}]
    found = [optimizer.needs_only_norms(keras.optimizers.Lamb(**own)) for own in options]
    assert found == [True, True, True, False, False]
    assert not optimizer.needs_only_norms(keras.optimizers.Adafactor())


@in_all("tests/training/test_runtime_trust_ratio.py::test_members_scale_alike_after_any_loss")  # and a restore
@pytest.mark.usefixtures("plain_arithmetic")
@pytest.mark.parametrize(("make", "slot"), [(lamb, "average"), (accumulating, "gradient_accumulator")])
def test_on_servers_it_equals_keras_and_is_restored(client: Any, tmp_path: Path, make: Any, slot: str) -> None:
    """Lamb on servers equals Keras, also after a restore onto a server number with other slices, and in Async, where
    tensors are whole.
    """
    shares = [batches(STEPS, seed=worker) for worker in range(2 if THOROUGH else 1)]
    state, rig = train_and_restore(client, make, shares, tmp_path, servers=3, build=wide)
    assert cut(rig.store.layout) == {"sequential/dense_1/kernel"}
    assert_equal(
        state.variables, rig, sync.in_one_process(rig, wide, make, list(zip(*shares, strict=True)), ordered=True)
    )
    whole = Rig(client, make, ps=3, build=wide)
    assert not cut(whole.store.layout)
    whole.start(state)
    found = whole.control.snapshot(fence=1)
    assert found.slots.keys() == {"momentum", "velocity", slot}
    for name, values in state.slots.items():
        for path, value in values.items():
            np.testing.assert_array_equal(found.slots[name][path], value)


@in_all("tests/training/test_runtime_trust_ratio.py::test_members_scale_alike_after_any_loss")  # in Hybrid
@pytest.mark.usefixtures("plain_arithmetic")
@pytest.mark.parametrize("members", [1, 2])
def test_hybrid_workers_have_every_segment(client: Any, monkeypatch: pytest.MonkeyPatch, members: int) -> None:
    monkeypatch.setattr(ring_transport, "SILENT_BEATS", 600)
    build = in_float64(lambda: wide(200))
    rig = Rig(client, lamb, ps=2, members=members, build=build, workers=2, mode="Hybrid")
    assert cut(rig.store.layout)
    rig.start()
    shares = [batches(10, seed=worker) for worker in range(2)]
    try:
        Crew(rig, shares).join()
        state = rig.snapshot()
    finally:
        for updates in rig.workers:
            updates.close()
    assert_equal(
        state.variables, rig, sync.in_one_process(rig, build, lamb, list(zip(*shares, strict=True)), ordered=False)
    )


@in_all("tests/training/test_runtime_trust_ratio.py::test_members_scale_alike_after_any_loss")  # in any order
@pytest.mark.usefixtures("plain_arithmetic")
def test_sums_in_any_order(client: Any) -> None:
    rig = Rig(client, plain, ps=2, build=wide, mode="Sync")
    assert cut(rig.store.layout)
    rig.start()
    rig.train(batches(5))
    expected = sync.in_one_process(rig, wide, plain, [[batch] for batch in batches(5)], ordered=False)
    assert_equal(rig.snapshot().variables, rig, expected)


def test_tensors_stay_whole_without_synchronous_rounds(client: Any) -> None:
    assert not cut(Rig(client, plain, ps=2, build=wide, mode="Async").store.layout)
    assert not cut(Rig(client, plain, ps=2, build=wide, mode="Sync", local_steps=2).store.layout)


MESSAGES = rounds_messages(random.Random(0), clips=True, workers=1)
DECIDED = MESSAGES.index(Message("apply standby", 0)) + 1
"""The number of messages up to the decision, which one member of each shard has not received."""


@pytest.mark.usefixtures("plain_arithmetic")
@pytest.mark.parametrize(
    "cuts",
    some(
        [[DECIDED], [*range(1, DECIDED), *range(DECIDED + 1, len(MESSAGES) + 1)]],
        lambda cuts: cuts == [DECIDED],
        in_all("tests/training/test_runtime_trust_ratio.py::test_members_scale_alike_after_any_loss"),
    ),
    ids=["decided", "others"],
)
def test_members_scale_alike_after_any_loss(client: Any, cuts: list[int]) -> None:
    """Members scale alike after any loss: standbys receive the totals with the mean. An undisturbed run equals Keras in
    one process.
    """
    pairs = Pairs(client, plain, wide, workers=1)
    assert cut(pairs.rig.store.layout) == {"sequential/dense_1/kernel"}
    assert pairs.expected
    assert not pairs.differences(pairs.both)
    steps = list(zip(*pairs.shares, strict=True))
    assert_equal(
        pairs.rig.snapshot().variables, pairs.rig, sync.in_one_process(pairs.rig, wide, plain, steps, ordered=True)
    )
    survivors = ((1,), (0,))
    for end in cuts:
        pairs.play(MESSAGES[:end])
        pairs.fail_over(survivors)
        pairs.finish(survivors)
        assert not pairs.differences(survivors), list(map(str, MESSAGES[:end]))
