"""Programs for plain Keras, of the kind that users move to this library: `python -m tests.support.moved_programs NAME`.

Each is a model, an optimizer and data for `fit`, and the same ones for a job.
"""

import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from pstraining.runtime import Trainer

STEPS = 100


@dataclass(frozen=True)
class Program:
    """A program; `own_method` is a `train_step` as in Keras's guide, and `train_step` is the same for this library."""

    layers: Callable[[], list[Any]]
    optimizer: Callable[[], Any]
    batch: Callable[[int], tuple[Any, Any]]
    """The batch that a worker's data repeats."""
    width: int
    policy: str = "float32"
    own_method: Callable[[Any, Any], Any] | None = None
    train_step: Callable[[Any, Any], Any] | None = None

    def model(self, *, moved: bool = True) -> Any:
        """Return the model; the one that `fit` takes, unless it is to be moved."""
        import keras

        own = self.own_method is not None and not moved
        kind = type("Own", (keras.Model,), {"train_step": self.own_method}) if own else keras.Model
        former = keras.config.dtype_policy()
        keras.config.set_dtype_policy(self.policy)
        try:
            inputs = outputs = keras.Input((self.width,))
            for layer in self.layers():
                outputs = layer(outputs)
            return kind(inputs, outputs)  # fit scales the loss by the policy of the model itself
        finally:
            keras.config.set_dtype_policy(former)

    def data(self, worker: int, _: int) -> Any:
        import tensorflow as tf

        return tf.data.Dataset.from_tensors(self.batch(worker)).repeat()

    def fitted(self) -> Any:
        """Return the model after `fit`."""
        model = self.model(moved=False)
        model.compile(self.optimizer(), "mse", jit_compile=False)
        model.fit(self.data(0, 1), steps_per_epoch=STEPS, epochs=1, verbose=0)
        return model


def warmup() -> Any:
    """The schedule of the Transformer tutorial: without `get_config`, and with a tensor as an attribute."""
    import keras

    class Warmup(keras.optimizers.schedules.LearningRateSchedule):  # type: ignore[misc]
        def __init__(self, width: int, steps: int = 50) -> None:
            super().__init__()
            self.scale = keras.ops.cast(width, "float32") ** -0.5
            self.steps = steps

        def __call__(self, step: Any) -> Any:
            step = keras.ops.cast(step, "float32") + 1.0
            return self.scale * keras.ops.minimum(step**-0.5, step * self.steps**-1.5)

    return keras.optimizers.Adam(Warmup(64), beta_2=0.98, epsilon=1e-9)


def line(*, zeros: bool = False) -> list[Any]:
    import keras

    return [keras.layers.Dense(1, use_bias=False, kernel_initializer="zeros" if zeros else "ones")]


def half() -> list[Any]:
    import keras

    return [*line(zeros=True), keras.layers.Activation("linear", dtype="float32")]


def normalized() -> list[Any]:
    import keras

    return [keras.layers.BatchNormalization(momentum=0.3), *line()]


def numbers(worker: int, width: int, mean: float = 0.0) -> tuple[Any, Any]:
    import numpy as np

    x = np.random.default_rng(worker).normal(mean, size=(256, width)).astype("float32")
    return x, x.sum(1, keepdims=True) * 2


def tiny(_: int) -> tuple[Any, Any]:
    import tensorflow as tf

    return tf.fill([32, 1], 1e-4), tf.fill([32, 1], 1e-5)


def zeros(_: int) -> tuple[Any, Any]:
    import tensorflow as tf

    return tf.ones([8, 1]), tf.zeros([8, 1])


def sgd(rate: float) -> Callable[[], Any]:
    def make() -> Any:
        import keras

        return keras.optimizers.SGD(rate)

    return make


def sensitive_adam() -> Any:
    import keras

    return keras.optimizers.Adam(1e-3, epsilon=1e-12)


def towards_three(model: Any, batch: Any) -> Any:
    """A loss that is 0 where the prediction is 3, whatever the label."""
    import tensorflow as tf

    return tf.reduce_mean((model(batch[0], training=True) - 3.0) ** 2)


def method_towards_three(self: Any, batch: Any) -> Any:
    import tensorflow as tf

    with tf.GradientTape() as tape:
        loss = towards_three(self, batch)
    self.optimizer.apply(tape.gradient(loss, self.trainable_variables), self.trainable_variables)
    return {"loss": loss}


PROGRAMS = {
    "schedule without config": Program(line, warmup, lambda worker: numbers(worker, 4), 4),
    "statistics": Program(normalized, sgd(1e-3), lambda worker: numbers(worker, 8, 5.0), 8),
    "half precision": Program(half, sensitive_adam, tiny, 1, policy="mixed_float16"),
    "own train_step": Program(line, sgd(0.05), zeros, 1, own_method=method_towards_three, train_step=towards_three),
    "own train_step, not moved": Program(line, sgd(0.05), zeros, 1, own_method=method_towards_three),
}


if __name__ == "__main__":
    program = PROGRAMS[sys.argv[1]]
    Trainer(
        lambda: program.model(moved=program.train_step is not None),
        program.optimizer,
        "mse",
        program.data,
        train_step=program.train_step,
        steps=STEPS,
        tensorboard=False,
    ).run()
