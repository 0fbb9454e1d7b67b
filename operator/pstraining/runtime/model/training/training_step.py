"""The forward pass of one batch: Keras's, or the program's with its metrics."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Final

import keras
import tensorflow as tf

from pstraining.runtime.errors import FinalError
from pstraining.runtime.model.tensor import Batch, KerasModel, Tensor, Variable
from pstraining.runtime.model.training.objective import OwnStep
from pstraining.runtime.model.training.texts import refusing_texts
from pstraining.runtime.model.training.training_metrics import OWN_STEP, TrainingMetrics, unchanged

RETURNS: Final = "train_step must return the loss, a scalar, or (loss, {name: scalar})"


class TrainingStepError(FinalError, TypeError):
    """A training step with a return value of another type."""


class TrainingStep:
    """Emits the loss of a batch.

    Args:
        model: the compiled Keras model.
        own: the program's training step, from the model and a batch to a loss, or to a loss and metrics by name; None
            for the compiled loss. The program's step adds regularization itself.
        class_weight: factor of a sample's loss by its class, as in `keras.Model.fit`; a class without one has 1.
    """

    def __init__(
        self, model: KerasModel, own: OwnStep | None = None, class_weight: Mapping[int, float] | None = None
    ) -> None:
        self._model, self._own, self._class_weight = model, own, class_weight
        self.compiled = TrainingMetrics(model, used=own is None)
        """The metrics given to `compile`, which a program's own training step does not update."""
        self._names: list[str] = []
        self._sums: Variable | None = None

    def loss(self, batch: Batch) -> Tensor:
        """Emit one batch's mean loss, a scalar.

        Raises:
            ModelError: the batch has texts in place of numbers.
            TrainingStepError: the program's step returned something else, or `class_weight` does not fit the batch.
        """
        with refusing_texts("data", batch):
            return self._loss(batch)

    def _loss(self, batch: Batch) -> Tensor:
        if self._class_weight:
            batch = _with_class_weights(batch, self._class_weight)
        if self._own is None:
            x, y, weight = keras.utils.unpack_x_y_sample_weight(batch)
            # As in Keras's own step: without the argument, a model's layers compute as in inference.
            predicted = self._model(x, training=True) if self._model._call_has_training_arg else self._model(x)
            self.compiled.build(y, predicted)
            # As in Keras's own step: it also calls a compute_loss of the model's own without the argument `training`.
            loss = self._model._compute_loss(x=x, y=y, y_pred=predicted, sample_weight=weight, training=True)
            self.compiled.update(x, y, predicted, weight)
            if loss.shape.rank:
                raise TrainingStepError(
                    f"loss: a batch's loss has the shape {tuple(loss.shape)}: let the loss, or compute_loss, return "
                    'one number, as with reduction="sum_over_batch_size"'
                )
            return loss
        returned = self._own(self._model, batch)
        loss, metrics = returned if isinstance(returned, tuple) and len(returned) == 2 else (returned, {})
        if not isinstance(metrics, Mapping):
            raise TrainingStepError(f"{RETURNS}; its metrics are {type(metrics).__name__}")
        self.compiled.outputs = OWN_STEP
        self._count(samples(batch), {str(name): _scalar(value) for name, value in metrics.items()})
        return _scalar(loss)

    @contextmanager
    def counting(self, counts: Tensor) -> Iterator[None]:
        """Emit metrics only if the samples of the block count; a device may repeat a sample of another one. bool[]."""
        self.compiled.counts = counts
        try:
            yield
        finally:
            self.compiled.counts = None

    @property
    def counted(self) -> list[Variable]:
        """Return the variables of the metrics' sums; the first trace creates them."""
        return [*self.compiled.counted, *([] if self._sums is None else [self._sums])]

    @contextmanager
    def trial(self) -> Iterator[None]:
        """Leave the batches of the block, which only serve to trace functions, out of all metrics."""
        with self.compiled.unchanged(), unchanged(lambda: self._sums):
            yield

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
            raise TrainingStepError(
                f"train_step returned the metrics {self._names} for one batch and {names} for another"
            )
        if sums is not None and names:
            weight = tf.cast(number, tf.float64)
            rows = tf.stack([tf.stack([tf.cast(metrics[name], tf.float64) * weight, weight]) for name in names])
            self.compiled.add(sums, rows, tf.math.is_finite(rows[:, :1]))  # NaN would stay in the sums


def samples(batch: Batch) -> Tensor:
    """Emit the number of samples in a batch. int32[]."""
    return tf.shape(_of_samples(batch))[0]


def number_of_samples(batch: Batch) -> int:
    """Return the number of samples in a batch that is not traced."""
    return int(_of_samples(batch).shape[0])


def _of_samples(batch: Batch) -> Tensor:
    """Return the first tensor whose first dimension is the samples: neither None, as an optional input, nor a scalar.

    Raises:
        TrainingStepError: there is none.
    """
    found = [tensor for tensor in tf.nest.flatten(batch) if tf.TensorShape(getattr(tensor, "shape", ())).rank != 0]
    if not found:
        raise TrainingStepError("data: a batch has no tensor whose first dimension is the samples")
    return found[0]


def _with_class_weights(batch: Batch, class_weight: Mapping[int, float]) -> Batch:
    """Emit a batch with the weights of its samples, as `fit` does with arrays; in the trace: no tensor outlives it.

    Keras's function for datasets reads beyond its weights if the last classes have none. Only a CPU reports that.
    """
    x, y, weight = keras.utils.unpack_x_y_sample_weight(batch)
    if weight is not None:
        raise TrainingStepError("class_weight cannot be used together with sample weights")
    if y is None or keras.tree.is_nested(y):
        raise TrainingStepError("class_weight needs labels of one output")
    classes, known = _classes(tf.convert_to_tensor(y)), sorted(class_weight)
    numbers, weights = tf.constant(known, tf.int64), tf.constant([class_weight[own] for own in known], tf.float32)
    flat = tf.reshape(classes, [-1])
    place = tf.minimum(tf.searchsorted(numbers, flat), len(known) - 1)
    found = tf.where(tf.gather(numbers, place) == flat, tf.gather(weights, place), 1.0)
    return x, y, tf.reshape(found, tf.shape(classes))


def _classes(labels: Tensor) -> Tensor:
    """Emit the classes of labels that are numbers, one in each row, or one-hot. int64."""

    def numbers(values: Tensor) -> Tensor:
        return tf.cast(tf.round(values) if values.dtype.is_floating else values, tf.int64)

    if labels.shape.rank < 2:
        return numbers(labels)
    return tf.cond(tf.shape(labels)[-1] > 1, lambda: tf.argmax(labels, -1), lambda: numbers(labels[..., 0]))


def _scalar(value: object) -> Tensor:
    try:
        tensor = tf.convert_to_tensor(value)
    except (TypeError, ValueError) as error:
        raise TrainingStepError(f"{RETURNS}; {error}") from None
    if tensor.shape.rank != 0 or not tensor.dtype.is_floating:
        raise TrainingStepError(f"{RETURNS}; a value has shape {tensor.shape} and type {tensor.dtype.name}")
    return tensor
