"""AutoGraph converts nothing of a program, as in `fit`."""

from typing import Any

import numpy as np
import pytest

from tests.support.servers import Rig

pytestmark = [pytest.mark.training, pytest.mark.timeout(300)]


def sgd() -> Any:
    import keras

    return keras.optimizers.SGD(0.05)


def doubled(x: Any) -> Any:
    """Double a tensor whose sum is positive, with a condition of Python."""
    import tensorflow as tf

    if tf.reduce_sum(x) > 0:
        x = x * 2.0
    return x


def absolute(labels: Any, predicted: Any) -> Any:
    return abs(doubled(labels) - predicted)


def own_step(model: Any, batch: Any) -> Any:
    import tensorflow as tf

    return tf.reduce_mean((model(batch[0], training=True) - doubled(batch[1])) ** 2)


def with_tf_cond(model: Any, batch: Any) -> Any:
    import tensorflow as tf

    labels = tf.cond(tf.reduce_sum(batch[1]) > 0, lambda: batch[1] * 2.0, lambda: batch[1])
    return tf.reduce_mean((model(batch[0], training=True) - labels) ** 2)


def plain() -> Any:
    import keras

    return keras.Sequential([keras.Input((2,)), keras.layers.Dense(1, kernel_initializer="ones")])


def deciding() -> Any:
    """Return a model with a layer whose `call` doubles its input."""
    import keras

    class Deciding(keras.layers.Layer):  # type: ignore[misc]
        def call(self, x: Any) -> Any:
            return doubled(x)

        def compute_output_shape(self, shape: Any) -> Any:
            return shape

    class Own(keras.Model):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.dense, self.deciding = keras.layers.Dense(1), Deciding()
            self.build((None, 2))

        def call(self, x: Any) -> Any:
            return self.deciding(self.dense(x))

    return Own()


def batch() -> Any:
    import tensorflow as tf

    x = np.random.default_rng(0).normal(size=(16, 2)).astype("float32")
    return tf.constant(x), tf.constant(np.abs(x).sum(1, keepdims=True))


@pytest.mark.parametrize(("build", "loss"), [(deciding, "mse"), (plain, absolute)], ids=["layer", "loss"])
def test_a_condition_that_fit_refuses_is_refused(client: Any, build: Any, loss: Any) -> None:
    import tensorflow as tf

    from pstraining.runtime.model.errors import ModelError

    model = build()
    model.compile(sgd(), loss)
    with pytest.raises(tf.errors.OperatorNotAllowedInGraphError):
        model.fit(*batch(), verbose=0)
    rig = Rig(client, sgd, ps=1, build=build, loss=loss)
    rig.start()
    with pytest.raises(ModelError, match=r"cannot be traced: if, while, for and assert .* as in fit; use tf\.cond"):
        rig.step(batch())


def test_a_converted_step_equals_one_with_a_condition_of_tensorflow(client: Any) -> None:
    import tensorflow as tf

    ends = []
    for step in (tf.autograph.to_graph(own_step), with_tf_cond):
        rig = Rig(client, sgd, ps=1, build=plain, loss="mse", compiled={"train_step": step}, mode="Sync")
        rig.start()
        rig.train([batch()] * 3)
        ends.append(rig.snapshot().variables)
    for name, value in ends[0].items():
        np.testing.assert_array_equal(value, ends[1][name])
