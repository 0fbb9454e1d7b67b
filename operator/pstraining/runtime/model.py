"""The user's Keras model as a list of named tensors.

What travels: trainable variables, and floating-point variables that training changes without a gradient (the
statistics of BatchNormalization). For those each worker sends its own change and the server adds it up, as with a
TensorFlow 1 parameter server. Integer state and random seeds stay with each process: workers are meant to draw
different numbers. They are not part of a checkpoint.
"""

from collections.abc import Callable
from typing import Any, Final

import keras
import numpy as np
import tensorflow as tf
from keras.src.utils import naming

from pstraining.runtime import layout, optimizer

STATE: Final = "state"
"""The layout's group of variables that no optimizer touches."""
DTYPES: Final = ("float16", "float32", "float64")
"""What a variable may hold; mixed precision policies keep float32 variables."""


class ModelError(ValueError):
    """A model that cannot be trained here; the message says what to change."""


class Model:
    """A built model, its variables by path in a fixed order, and its optimizer."""

    def __init__(
        self, build: Callable[[], Any], make_optimizer: Callable[[], Any], loss: Any, metrics: Any = None
    ) -> None:
        # Names are numbered per process; every task, and every rebuild in one process, must count from the start.
        naming.reset_uids()  # the public clear_session would also forget the dtype policy
        self.keras = build()
        if not isinstance(self.keras, keras.Model):
            raise ModelError(f"the model function returned {type(self.keras).__name__}, not a keras.Model")
        if not self.keras.built:
            raise ModelError("the model has no variables yet: begin it with keras.Input, or call it once")
        self.optimizer = make_optimizer()
        optimizer.check(self.optimizer)
        self.keras.compile(
            optimizer=self.optimizer,
            loss=loss,
            metrics=metrics() if callable(metrics) else metrics,
            jit_compile=False,
        )
        trainable = list(self.keras.trainable_variables)
        state = [variable for variable in self.keras.non_trainable_variables if tf.as_dtype(variable.dtype).is_floating]
        if odd := [v.path for v in trainable + state if str(v.dtype) not in DTYPES]:
            raise ModelError(f"variables must be of {', '.join(DTYPES)}; {', '.join(odd)} are not")
        self.trainable = trainable
        self.variables = trainable + state
        groups = [optimizer.group_of(self.optimizer, variable) for variable in trainable] + [STATE] * len(state)
        self.tensors = tuple(
            layout.Tensor(path, tuple(int(size) for size in variable.shape), str(variable.dtype), group)
            for path, variable, group in zip(_paths(self.variables), self.variables, groups, strict=True)
        )

    def identity(self) -> str:
        """What two tasks must share besides the layout: the optimizer and its settings."""
        config = {key: value for key, value in self.optimizer.get_config().items() if key != "name"}
        return f"{type(self.optimizer).__name__} {sorted(config.items())!r}"

    def values(self) -> dict[str, layout.Array]:
        """Copies of the local values by path."""
        return {
            tensor.path: np.array(variable.numpy())
            for tensor, variable in zip(self.tensors, self.variables, strict=True)
        }

    def assign(self, values: dict[str, layout.Array]) -> None:
        """Set the local values by path."""
        for tensor, variable in zip(self.tensors, self.variables, strict=True):
            variable.assign(values[tensor.path])

    def loss_and_gradients(self, batch: Any) -> tuple[Any, list[Any]]:
        """Emit one forward and backward pass on the local values; gradients are dense and clipped by norm.

        Args:
            batch: (x, y) or (x, y, sample_weight), as Keras takes them.
        """
        x, y, weight = keras.utils.unpack_x_y_sample_weight(batch)
        with tf.GradientTape() as tape:
            predicted = self.keras(x, training=True)
            loss = self.keras.compute_loss(x=x, y=y, y_pred=predicted, sample_weight=weight, training=True)
        variables = [variable.value for variable in self.trainable]
        gradients = tape.gradient(loss, variables, unconnected_gradients=tf.UnconnectedGradients.ZERO)
        dense = [tf.convert_to_tensor(gradient) for gradient in gradients]
        return loss, optimizer.clip(self.optimizer, dense)


def _paths(variables: list[Any]) -> list[str]:
    """Keras's paths, made unique: layers of subclassed models may share a name."""
    seen: dict[str, int] = {}
    paths = []
    for variable in variables:
        seen[variable.path] = seen.get(variable.path, 0) + 1
        paths.append(variable.path if seen[variable.path] == 1 else f"{variable.path}#{seen[variable.path]}")
    return paths
