"""Epochs, counted in steps or in splits of assigned data.

Pure; importing it imports no TensorFlow.
"""

import math
from dataclasses import dataclass


@dataclass(frozen=True)
class Epochs:
    """The division of training into epochs. Without a size all training is one epoch.

    Args:
        size: steps, or splits of assigned data, in an epoch.
        number: number of epochs; None if unknown.
        by_splits: whether the size is a number of splits.
    """

    size: int | None = None
    number: int | None = None
    by_splits: bool = False

    @property
    def steps(self) -> int | None:
        """Return the number of steps in an epoch; None if unknown, as with splits, whose batches are not counted."""
        return None if self.by_splits else self.size

    def under_way(self, done: int) -> int:
        """Return the epoch that is trained after `done` steps or splits, from 0; at the end, the last epoch."""
        return self._bounded(done // self.size, last=1) if self.size else 0

    def ended(self, done: int, *, over: bool) -> int:
        """Return the number of ended epochs after `done` steps or splits; with `over`, including the current one."""
        if self.size is None:
            return int(over)
        return self._bounded(math.ceil(done / self.size) if over else done // self.size)

    def _bounded(self, epoch: int, last: int = 0) -> int:
        return epoch if self.number is None else min(epoch, self.number - last)


def by_steps(steps: int | None, epochs: int | None, steps_per_epoch: int | None) -> tuple[int | None, Epochs]:
    """Return the step budget and the epochs of data that is not assigned by the ledger.

    Args:
        steps: number of updates in the job; None if only `epochs` limits it.
        epochs: maximum number of epochs.
        steps_per_epoch: steps in an epoch; None: all training is one epoch.
    """
    if steps_per_epoch is None:
        return steps, Epochs(number=1)
    if epochs is not None:
        steps = min(epochs * steps_per_epoch, steps or epochs * steps_per_epoch)
    return steps, Epochs(steps_per_epoch, None if steps is None else math.ceil(steps / steps_per_epoch))


def by_splits(epochs: int | None, splits: int) -> Epochs:
    """Return the epochs of data with this number of splits; each epoch trains all of them."""
    return Epochs(splits, epochs, by_splits=True)


class Ends:
    """Reports the end of each epoch once, even if a restore repeats steps.

    Args:
        epochs: the division of training.
        done: steps or splits done at the start; epochs that ended before are not reported.
    """

    def __init__(self, epochs: Epochs, done: int) -> None:
        self._epochs = epochs
        self.reported = epochs.ended(done, over=False)
        """Number of epochs whose end was reported."""

    def waiting(self, done: int, *, over: bool = False) -> int:
        """Return the number of epochs whose end is not reported yet."""
        return max(0, self._epochs.ended(done, over=over) - self.reported)

    def begun(self, done: int) -> int:
        """Return the steps or splits that are done of the epochs not reported yet; negative where a restore repeats
        reported ones.
        """
        return done - self.reported * (self._epochs.size or 0)

    def report(self, number: int) -> int:
        """Record that the ends of `number` more epochs are reported; return the last epoch, from 0."""
        self.reported += number
        return self.reported - 1
