"""Changes of variables without gradients by asynchronous workers: BatchNormalization's statistics, and other state.

Each worker computes from values that other workers change meanwhile. If all n workers added their whole changes, a
moving average would move n times too far: past the true mean, and for a variance below zero. Here a server moves its
value towards a target by a fraction of at most 1, so the value stays within the range of the workers' values.

For a moving average, the target is the mean over the batches, and the fraction is 1 - momentum ** batches. The
server's value then equals that of one process that trains the batches in the order of arrival. For other state, the
target is the worker's value, and the fraction is one divided by the number of workers.
"""

from collections.abc import Sequence

import tensorflow as tf

from pstraining.runtime.model.keras_model import Model
from pstraining.runtime.model.partition import Segment
from pstraining.runtime.model.tensor import Tensor


class StateBlend:
    """Blends the state of several asynchronous workers.

    Args:
        model: the model; its step must be traced before `targets` and `weight` are called.
        workers: number of the job's workers.
    """

    def __init__(self, model: Model, *, workers: int) -> None:
        self._model, self._workers = model, workers

    def targets(self, before: Sequence[Tensor], after: Sequence[Tensor], batches: int = 1) -> list[Tensor]:
        """Emit the targets of all state, from its values before and after a number of batches."""
        return [self._target(number, *values, batches) for number, values in enumerate(zip(before, after, strict=True))]

    def weight(self, batches: Tensor, segment: Segment) -> Tensor:
        """Emit the fraction by which a server moves each element of a segment of state. [segment.size].

        Args:
            batches: number of batches in the update; the last one of a split may have fewer than the others. int64[].
            segment: the segment.
        """
        first, number = len(self._model.trainable), tf.cast(batches, tf.float64)
        parts = [
            tf.fill([slice_.size], tf.cast(1 - self._kept(slice_.tensor - first, number), segment.dtype))
            for slice_ in segment.slices
        ]
        return tf.concat(parts, 0)

    def _target(self, number: int, before: Tensor, after: Tensor, batches: int) -> Tensor:
        average = self._model.average(number)
        if average is None:
            return after
        kept = self._kept(number, batches)
        seen = (after - before * kept) / (1 - kept)
        return tf.maximum(seen, tf.zeros([], seen.dtype)) if average.is_positive else seen  # rounding may cross zero

    def _kept(self, number: int, batches: int | Tensor) -> float | Tensor:
        """Return the fraction that remains of the value before an update; emit it for a tensor of batches."""
        average = self._model.average(number)
        return 1 - 1 / self._workers if average is None else average.momentum**batches
