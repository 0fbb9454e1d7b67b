"""Changes of variables without gradients by asynchronous workers: BatchNormalization's statistics, and other state.

Each worker computes from values that other workers change meanwhile. If all n workers added their whole changes, a
moving average would move n times too far: past the true mean, and for a variance below zero. Here a server moves its
value towards a target by a fraction of at most 1, so the value stays within the range of the workers' values.

For a moving average, the target is the mean over the batches, and the fraction is 1 - momentum ** batches. The
server's value then equals that of one process that trains the batches in the order of arrival. For other state, the
target is the worker's value, and the fraction is one divided by the number of workers.
"""

import time
from collections.abc import Callable, Sequence

import tensorflow as tf

from pstraining.runtime.data.divided import LOOK_SECONDS
from pstraining.runtime.model.keras_model import Model
from pstraining.runtime.model.partition import Segment
from pstraining.runtime.model.tensor import Tensor


class StateBlend:
    """Blends the state of several asynchronous workers.

    Args:
        model: the model; its step must be traced before `targets` and `weight` are called.
        count: returns the job's number of workers.
        clock: returns seconds on a monotonic clock.
    """

    def __init__(self, model: Model, count: Callable[[], int], clock: Callable[[], float] = time.monotonic) -> None:
        self._model, self._count, self._clock = model, count, clock
        self._workers, self._looked_at = count(), clock()

    def workers(self) -> int:
        """Return the number of workers, which changes when the job is scaled; read at most every `LOOK_SECONDS`."""
        if self._clock() - self._looked_at >= LOOK_SECONDS:
            self._workers, self._looked_at = max(1, self._count()), self._clock()
        return self._workers

    def targets(self, before: Sequence[Tensor], after: Sequence[Tensor], batches: int = 1) -> list[Tensor]:
        """Emit the targets of all state, from its values before and after a number of batches."""
        return [self._target(number, *values, batches) for number, values in enumerate(zip(before, after, strict=True))]

    def weight(self, batches: Tensor, workers: Tensor, segment: Segment) -> Tensor:
        """Emit the fraction by which a server moves each element of a segment of state. [segment.size].

        Args:
            batches: number of batches in the update; the last one of a split may have fewer than the others. int64[].
            workers: number of workers. int64[].
            segment: the segment.
        """
        first, numbers = len(self._model.trainable), (tf.cast(batches, tf.float64), tf.cast(workers, tf.float64))
        parts = [
            tf.fill([slice_.size], tf.cast(self._fraction(slice_.tensor - first, *numbers), segment.dtype))
            for slice_ in segment.slices
        ]
        return tf.concat(parts, 0)

    def _target(self, number: int, before: Tensor, after: Tensor, batches: int) -> Tensor:
        average = self._model.average(number)
        if average is None:
            return after
        kept = average.momentum**batches
        seen = (after - before * kept) / (1 - kept)
        return tf.maximum(seen, tf.zeros([], seen.dtype)) if average.is_positive else seen  # rounding may cross zero

    def _fraction(self, number: int, batches: Tensor, workers: Tensor) -> Tensor:
        """Emit the fraction by which a server moves a variable of state. float64[]."""
        average = self._model.average(number)
        return 1 / workers if average is None else 1 - average.momentum**batches
