"""Epochs, counted in steps or in splits of assigned data.

Pure; importing it imports no TensorFlow.
"""

import math
from dataclasses import dataclass


@dataclass(frozen=True)
class Epochs:
    """How training is divided. Without a size all of it is one epoch.

    Args:
        size: steps, or splits of assigned data, in an epoch.
        number: how many epochs there are; None: nobody knows.
    """

    size: int | None = None
    number: int | None = None

    def under_way(self, done: int) -> int:
        """The number of the epoch that is trained once so much is done, from 0; at the end, the last one."""
        return self._bounded(done // self.size, last=1) if self.size else 0

    def ended(self, done: int, *, over: bool) -> int:
        """How many epochs have ended once so much is done; with `over` what was begun has ended, too."""
        if self.size is None:
            return int(over)
        return self._bounded(math.ceil(done / self.size) if over else done // self.size)

    def _bounded(self, epoch: int, last: int = 0) -> int:
        return epoch if self.number is None else min(epoch, self.number - last)


def by_steps(steps: int | None, epochs: int | None, steps_per_epoch: int | None) -> tuple[int | None, Epochs]:
    """The step budget and the epochs of data that nobody hands out.

    Args:
        steps: updates in the whole job, None: `epochs` says it.
        epochs: how many there are, at most.
        steps_per_epoch: steps in each; None: all training is one epoch.
    """
    if steps_per_epoch is None:
        return steps, Epochs(number=1)
    if epochs is not None:
        steps = min(epochs * steps_per_epoch, steps or epochs * steps_per_epoch)
    return steps, Epochs(steps_per_epoch, None if steps is None else math.ceil(steps / steps_per_epoch))


def by_splits(epochs: int | None, splits: int) -> Epochs:
    """Return the epochs of data with this number of splits; each epoch trains all of them."""
    return Epochs(splits, epochs)


class Ends:
    """Which epochs end, each told once, also where training is set back by the loss of a server.

    Args:
        epochs: how training is divided.
        done: how far it is when the watch begins: what had ended before is not told.
    """

    def __init__(self, epochs: Epochs, done: int) -> None:
        self._epochs = epochs
        self.told = epochs.ended(done, over=False)
        """How many epochs have ended, as far as was told."""

    def waiting(self, done: int, *, over: bool = False) -> int:
        """How many epochs have ended that were not told yet."""
        return max(0, self._epochs.ended(done, over=over) - self.told)

    def tell(self, number: int) -> int:
        """So many are told now; returns the number of the last one, from 0."""
        self.told += number
        return self.told - 1
