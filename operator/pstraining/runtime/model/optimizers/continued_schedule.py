"""Learning-rate schedules of a worker's own optimizer (`localSteps`), which starts again in each process of the worker.

Slots and the number of steps are those of the process, and belong together: Adam corrects its moments by the number.
A schedule, however, follows the job, so it also counts the steps that were made before the process started.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import keras

from pstraining.runtime.model.tensor import KerasOptimizer, Tensor


class ContinuedSchedule(keras.optimizers.schedules.LearningRateSchedule):  # type: ignore[misc]
    """A schedule that continues after a number of steps.

    Args:
        schedule: the program's schedule.
        made: steps that were made before.
    """

    def __init__(self, schedule: "keras.optimizers.schedules.LearningRateSchedule", made: int) -> None:
        self._schedule, self._made = schedule, made

    def __call__(self, step: Tensor) -> Tensor:
        """Return the learning rate at a step of this process."""
        rate: Tensor = self._schedule(step + self._made)
        return rate


@contextmanager
def continued(optimizers: Sequence[KerasOptimizer], made: int) -> Iterator[None]:
    """Emit steps whose schedules continue after `made` steps, while the block is traced."""
    before = [vars(own)["_learning_rate"] for own in optimizers]
    for own, rate in zip(optimizers, before, strict=True):
        if isinstance(rate, keras.optimizers.schedules.LearningRateSchedule):
            vars(own)["_learning_rate"] = ContinuedSchedule(rate, made)
    try:
        yield
    finally:
        for own, rate in zip(optimizers, before, strict=True):
            vars(own)["_learning_rate"] = rate
