"""A batch on several devices of one worker, without servers: division, statistics, seeds, and rejected programs."""

import threading
from contextlib import suppress
from typing import Any

import numpy as np
import pytest

from pstraining.runtime.errors import FinalError

pytestmark = [pytest.mark.training, pytest.mark.usefixtures("cluster")]
DEVICES = ("CPU:1", "CPU:2")


def passed(model: Any, batch: Any, devices: Any = DEVICES) -> Any:
    """Return loss, gradients and touched rows."""
    import tensorflow as tf

    from pstraining.runtime.model import data_parallel

    def emit(given: Any) -> Any:
        return data_parallel.loss_and_gradients(model, given, lambda _: None, devices)  # type: ignore[arg-type, return-value]

    with tf.device(devices[0]):
        return tf.function(emit, autograph=False)(batch)


def on_devices(*layers: Any, loss: Any = "mse", **options: Any) -> Any:
    import keras
    import tensorflow as tf

    from pstraining.runtime.model.keras_model import Model
    from pstraining.runtime.model.training.objective import Objective

    with tf.device(DEVICES[0]):
        make = keras.optimizers.SGD
        return Model(lambda: keras.Sequential([keras.Input((2,)), *layers]), make, Objective(loss), **options)


def test_statistics_are_the_sample_weighted_mean_of_the_parts() -> None:
    import keras
    import tensorflow as tf

    model = on_devices(keras.layers.BatchNormalization(momentum=0.5))
    values = np.arange(10, dtype="float32").reshape(5, 2)
    passed(model, (tf.constant(values), tf.constant(values)))
    layer = model.keras.layers[0]
    variances = [part.var(0) for part in (values[:3], values[3:])]
    np.testing.assert_allclose(layer.moving_mean.numpy(), 0.5 * values.mean(0), rtol=1e-6)
    expected = 0.5 + 0.5 * (3 * variances[0] + 2 * variances[1]) / 5
    np.testing.assert_allclose(layer.moving_variance.numpy(), expected, rtol=1e-6)


def test_dropout_differs_between_devices_and_steps() -> None:
    import keras
    import tensorflow as tf

    dropout = keras.layers.Dropout(0.5)
    model = on_devices(keras.layers.Dense(64, use_bias=False), dropout)
    batch = (tf.ones([2, 2]), tf.zeros([2, 64]))
    masks = []
    for _ in range(2):
        _, (gradient,), _ = passed(model, batch)
        masks.append(gradient.numpy()[0])
        one_device = passed(model, batch, DEVICES[:1])[1][0].numpy()[0]
        masks.append(one_device)
    assert len({tuple(mask != 0) for mask in masks}) == len(masks)
    assert (masks[0] != 0).mean() > 0.6  # half, if both masks were equal


def test_sparse_tensors_are_rejected() -> None:
    import keras
    import tensorflow as tf

    model = on_devices(keras.layers.Dense(1))
    with pytest.raises(FinalError, match="devices: sparse tensors"):
        passed(model, (tf.sparse.eye(2), tf.ones([2, 1])))


@pytest.mark.parametrize("several", [False, True])
def test_a_loss_that_is_a_sum_is_rejected_on_several_devices(*, several: bool) -> None:
    import keras
    import tensorflow as tf

    loss = keras.losses.MeanSquaredError(reduction="sum")
    model = on_devices(keras.layers.Dense(1, kernel_initializer="ones"), loss=loss)
    batch = tf.ones([4, 2]), tf.zeros([4, 1])
    if several:
        with pytest.raises(FinalError, match='loss: with reduction="sum"'):
            passed(model, batch)
    else:
        assert passed(model, batch, DEVICES[:1])[0].numpy() == 16


def test_two_threads_trace_a_model_one_after_the_other() -> None:
    """Workers with hot standbys trace steps on the other members beside training. Layers hold tensors of the trace."""
    import keras
    import tensorflow as tf

    inside, most, crossed = [0], [0], threading.Barrier(2)

    class Busy(keras.layers.Layer):  # type: ignore[misc]
        def call(self, inputs: Any) -> Any:
            inside[0] += 1
            most[0] = max(most[0], inside[0])
            with suppress(threading.BrokenBarrierError):
                crossed.wait(0.5)  # until the other thread is here as well
            inside[0] -= 1
            return inputs

    model = on_devices(Busy(), keras.layers.Dense(1))
    batch = (tf.ones([4, 2]), tf.zeros([4, 1]))
    inside[0] = most[0] = 0
    crossed.reset()
    threads = [threading.Thread(target=passed, args=(model, batch, DEVICES[:1])) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert most == [1]


def test_the_next_batch_is_prefetched_to_the_device() -> None:
    import tensorflow as tf

    from pstraining.runtime.data.batches import DatasetBatches

    read = threading.Semaphore(0)

    def batches() -> Any:
        for number in (0, 1):
            yield tf.fill([2], float(number)), tf.constant([number, number]), tf.constant("text")
            read.release()

    def data() -> Any:
        return batches()

    drawn = DatasetBatches(data, "CPU:0", "CPU:1")
    first: Any = drawn.draw(1).batches[0]
    x, y, text = first
    assert x.device.endswith("CPU:1")
    assert all(kept.device.endswith("CPU:0") for kept in (y, text))
    assert read.acquire(timeout=60)  # the second batch, or the end after it, has been read by now
    following: list[Any] = [drawn.draw(1).batches[0] for _ in range(3)]
    values = [float(batch[0][0]) for batch in following]
    assert values == [1.0, 0.0, 1.0]
    drawn.close()


def test_a_batch_without_labels_is_divided_and_prefetched() -> None:
    """A batch may have None instead of labels, as Keras's `fit` accepts it."""
    import keras
    import tensorflow as tf

    from pstraining.runtime.data.ahead import on_device

    class Penalty(keras.layers.Layer):  # type: ignore[misc]
        def call(self, x: Any) -> Any:
            self.add_loss(keras.ops.mean(x))
            return x

    batch: Any = next(
        on_device(iter([(tf.constant([[1.0, 2.0], [3.0, 4.0], [5.0, 6.0]]), None)]), "CPU:1", cpu="CPU:0")
    )
    assert batch[1] is None
    model = on_devices(keras.layers.Dense(1, kernel_initializer="ones"), Penalty(), loss=None)
    assert float(passed(model, batch)[0]) == pytest.approx(7.0)


def test_an_error_in_the_data_reaches_the_worker() -> None:
    from pstraining.runtime.data.ahead import on_device

    found = on_device(iter(lambda: 1 / 0, None), "CPU:1", cpu="CPU:0")
    for _ in range(2):
        with pytest.raises(ZeroDivisionError):
            next(found)


@pytest.mark.parametrize("devices", [DEVICES[:1], DEVICES], ids=["CPU:1", "two"])
def test_a_compiled_pass_equals_an_uncompiled_one(devices: Any) -> None:
    import keras
    import tensorflow as tf

    random = np.random.default_rng(0)
    batch = tuple(tf.constant(random.normal(size=[3, 2]).astype("float32")) for _ in range(2))
    found = []
    for jit_compile in (False, True, "auto"):
        keras.utils.set_random_seed(1)
        layers = keras.layers.Dense(2, kernel_regularizer="l2"), keras.layers.BatchNormalization()
        model = on_devices(*layers, jit_compile=jit_compile)
        assert model.jit_compile == bool(jit_compile)
        loss, gradients, _ = passed(model, batch, devices)
        state = [variable.numpy() for variable in model.variables[2:]]
        found.append([loss.numpy(), *(gradient.numpy() for gradient in gradients), *state])
        assert model.writes == [1, 1]
    for compiled in found[1:]:
        for value, expected in zip(compiled, found[0], strict=True):
            np.testing.assert_allclose(value, expected, rtol=1e-5, atol=1e-6)
