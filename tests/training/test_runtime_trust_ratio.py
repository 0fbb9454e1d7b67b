"""Lamb on tensors that are cut over parameter servers: its trust ratio is of whole tensors, as in one process."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pstraining.runtime.allreduce import transport as ring_transport
from pstraining.runtime.model import optimizer, partition, trust_ratio
from tests.support.local_servers import LocalServers
from tests.support.servers import Rig, batches, in_float64
from tests.support.soak_marks import ALL, in_all
from tests.support.worker_threads import Crew
from tests.training import test_runtime_sync as sync
from tests.training.test_runtime_optimizers import STEPS, assert_equal, train_and_restore

pytestmark = [pytest.mark.training, pytest.mark.timeout(300), pytest.mark.usefixtures("client")]


def lamb() -> Any:
    """With what changes a step besides: a schedule, decay of the kernels, clipping by value, and averages."""
    import keras

    rate = keras.optimizers.schedules.CosineDecay(1e-2, 60)
    own = keras.optimizers.Lamb(rate, weight_decay=0.1, clipvalue=0.05, use_ema=True, ema_overwrite_frequency=7)
    own.exclude_from_weight_decay(var_names=["bias"])
    return own


def plain() -> Any:
    import keras

    return keras.optimizers.Lamb(1e-2)


def wide(units: int = 300) -> Any:
    """With a kernel of more than 256 KB, whose pieces are smaller than that."""
    import keras

    layers = [keras.layers.Dense(units, activation="tanh") for _ in range(2)]
    return keras.Sequential([keras.Input((8,)), *layers, keras.layers.Dense(3, activation="softmax")])


def cut(layout: partition.Layout) -> set[str]:
    return {layout.tensors[number].path for number in layout.cut_by_norms()}


@pytest.mark.usefixtures("plain_arithmetic")
def test_pieces_on_three_servers_equal_keras() -> None:
    """In this process: the same gradients for Keras's Lamb, and for its clones on every server's pieces."""

    from pstraining.runtime.model.keras_model import Model
    from pstraining.runtime.model.objective import Objective

    model = Model(wide, lamb, Objective("sparse_categorical_crossentropy"))
    alone, own = wide(), lamb()
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


def test_clipped_and_accumulated_gradients_need_whole_tensors() -> None:
    """The servers agree on norms before they know such a gradient."""
    import keras

    found = [
        optimizer.needs_only_norms(keras.optimizers.Lamb(**options))
        for options in ({}, {"clipvalue": 1.0}, {"clipnorm": 1.0}, {"global_clipnorm": 1.0})
    ]
    assert found == [True, True, False, False]
    assert not optimizer.needs_only_norms(keras.optimizers.Lamb(gradient_accumulation_steps=2))
    assert not optimizer.needs_only_norms(keras.optimizers.Adafactor())


@pytest.mark.usefixtures("plain_arithmetic")
def test_on_servers_it_equals_keras_and_is_restored(client: Any, tmp_path: Path) -> None:
    """Restored onto another number of servers, where it has other pieces, and in Async, where it has none."""
    shares = [batches(STEPS, seed=worker) for worker in range(2 if ALL else 1)]
    state, rig = train_and_restore(client, lamb, shares, tmp_path, build=wide)
    assert cut(rig.store.layout) == {"sequential/dense_1/kernel"}
    assert_equal(state.variables, rig, sync.alone(rig, wide, lamb, list(zip(*shares, strict=True)), ordered=True))
    whole = Rig(client, lamb, ps=3, build=wide)
    assert not cut(whole.store.layout)
    whole.start(state)
    found = whole.control.snapshot(fence=1)
    assert found.slots.keys() == {"momentum", "velocity", "average"}
    for slot, values in state.slots.items():
        for path, value in values.items():
            np.testing.assert_array_equal(found.slots[slot][path], value)


@in_all("tests/training/test_runtime_trust_ratio.py::test_on_servers_it_equals_keras_and_is_restored")  # in Hybrid
@pytest.mark.usefixtures("plain_arithmetic")
def test_hybrid_workers_have_every_piece(client: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ring_transport, "SILENT_BEATS", 600)
    build = in_float64(lambda: wide(200))
    rig = Rig(client, lamb, ps=3, build=build, workers=2, mode="Hybrid")
    assert cut(rig.store.layout)
    rig.start()
    shares = [batches(10, seed=worker) for worker in range(2)]
    try:
        Crew(rig, shares).join()
        state = rig.snapshot()
    finally:
        for updates in rig.workers:
            updates.close()
    assert_equal(state.variables, rig, sync.alone(rig, build, lamb, list(zip(*shares, strict=True)), ordered=False))


@in_all("tests/training/test_runtime_trust_ratio.py::test_on_servers_it_equals_keras_and_is_restored")  # in any order
@pytest.mark.usefixtures("plain_arithmetic")
def test_sums_in_any_order(client: Any) -> None:
    rig = Rig(client, plain, ps=2, build=wide, mode="Sync")
    assert cut(rig.store.layout)
    rig.start()
    rig.train(batches(5))
    expected = sync.alone(rig, wide, plain, [[batch] for batch in batches(5)], ordered=False)
    assert_equal(rig.snapshot().variables, rig, expected)


@pytest.mark.parametrize("mode", ["Sync", "Hybrid", "Async"])
def test_tensors_stay_whole_where_servers_have_standbys(client: Any, mode: str) -> None:
    rig = Rig(client, plain, ps=2, members=2, build=wide, mode=mode)
    assert not cut(rig.store.layout)
    for updates in rig.workers if mode == "Hybrid" else ():
        updates.close()
