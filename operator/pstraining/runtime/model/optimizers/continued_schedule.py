"""Learning-rate schedules of a worker's own optimizer (`localSteps`), which starts again in each process of the worker.

Slots and the number of steps are those of the process, and belong together: Adam corrects its moments by the number.
A schedule, however, follows the job. It also counts the steps that were made before the process started, and does not
count those that a restore has undone.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import keras

from pstraining.runtime.model.tensor import KerasOptimizer, Tensor, Variable


class ContinuedSchedule(keras.optimizers.schedules.LearningRateSchedule):  # type: ignore[misc]
    """A schedule that continues after a number of steps.

    Args:
        schedule: the program's schedule.
        made: what the job's number of steps adds to that of this process. int64[].
    """

    def __init__(self, schedule: "keras.optimizers.schedules.LearningRateSchedule", made: Variable) -> None:
        self._schedule, self._made = schedule, made

    def __call__(self, step: Tensor) -> Tensor:
        """Return the learning rate at a step of this process."""
        rate: Tensor = self._schedule(step + self._made.read_value())
        return rate


@contextmanager
def continued(optimizers: Sequence[KerasOptimizer], made: Variable) -> Iterator[None]:
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
