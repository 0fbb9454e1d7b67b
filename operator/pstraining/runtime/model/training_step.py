"""The forward pass of one batch: Keras's, or the program's with its metrics."""

from collections.abc import Callable, Mapping
from typing import Final

import keras
import tensorflow as tf

from pstraining.runtime.errors import FinalError
from pstraining.runtime.model.tensor import Batch, KerasModel, Tensor, Variable

RETURNS: Final = "train_step must return the loss, a scalar, or (loss, {name: scalar})"


OwnStep = Callable[[KerasModel, Batch], object]
"""The program's training step: returns a scalar loss, or the loss and metrics by name."""


class TrainingStepError(FinalError, TypeError):
    """A training step with a return value of another type."""


class TrainingStep:
    """Emits the loss of a batch.

    Args:
        model: the compiled Keras model.
        own: the program's training step, from the model and a batch to a loss, or to a loss and metrics by name; None
            for the compiled loss. The program's step adds regularization itself.
    """

    def __init__(self, model: KerasModel, own: OwnStep | None = None) -> None:
        self._model, self._own = model, own
        self._names: list[str] = []
        self._sums: Variable | None = None

    def loss(self, batch: Batch) -> Tensor:
        """Emit one batch's mean loss, a scalar.

        Raises:
            TrainingStepError: the program's step returned something else.
        """
        if self._own is None:
            x, y, weight = keras.utils.unpack_x_y_sample_weight(batch)
            predicted = self._model(x, training=True)
            # As in Keras's own step: it also calls a compute_loss of the model's own without the argument `training`.
            return self._model._compute_loss(x=x, y=y, y_pred=predicted, sample_weight=weight, training=True)
        returned = self._own(self._model, batch)
        loss, metrics = returned if isinstance(returned, tuple) and len(returned) == 2 else (returned, {})
        if not isinstance(metrics, Mapping):
            raise TrainingStepError(f"{RETURNS}; its metrics are {type(metrics).__name__}")
        self._count(samples(batch), {str(name): _scalar(value) for name, value in metrics.items()})
        return _scalar(loss)

    def metrics(self) -> dict[str, tuple[float, float]]:
        """Return by name the sum of a metric's values times samples, and the number of samples, over all batches."""
        if self._sums is None:
            return {}
        return {name: (float(row[0]), float(row[1])) for name, row in zip(self._names, self._sums.numpy(), strict=True)}

    def _count(self, number: Tensor, metrics: Mapping[str, Tensor]) -> None:
        """Emit adding to the sums; batches of other shapes trace again and must return the same metrics."""
        names = sorted(metrics)
        sums = self._sums
        if sums is None and names:
            with tf.init_scope():
                sums = self._sums = tf.Variable(tf.zeros([len(names), 2], tf.float64), trainable=False)
            self._names = names
        if names != self._names:
            raise TrainingStepError(f"train_step told the metrics {self._names} for one batch and {names} for another")
        if sums is not None and names:
            weight = tf.cast(number, tf.float64)
            rows = [tf.stack([tf.cast(metrics[name], tf.float64) * weight, weight]) for name in names]
            sums.assign_add(tf.stack(rows), read_value=False)


def samples(batch: Batch) -> Tensor:
    """Emit the number of samples in a batch: the first dimension of its first tensor. int32[]."""
    return tf.shape(tf.nest.flatten(batch)[0])[0]


def _scalar(value: object) -> Tensor:
    try:
        tensor = tf.convert_to_tensor(value)
    except (TypeError, ValueError) as error:
        raise TrainingStepError(f"{RETURNS}; {error}") from None
    if tensor.shape.rank != 0 or not tensor.dtype.is_floating:
        raise TrainingStepError(f"{RETURNS}; there is one of shape {tensor.shape} and type {tensor.dtype.name}")
    return tensor
