"""The validation at the end of epochs, and data that is looked at before it is evaluated. Imports no TensorFlow."""

import itertools
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

from pstraining.runtime.model.tensor import Batch, Dataset


class KeptData:
    """A function that creates data to evaluate, such as a generator, whose first batches are read before training.

    The first evaluation gets the data that was read, with these batches, since a generator cannot be read again.

    Args:
        make: creates the data.
    """

    def __init__(self, make: Callable[[], Dataset]) -> None:
        self._make = make
        self._kept: Iterator[Batch] | None = None

    @classmethod
    def of(cls, make: Callable[[], Dataset] | None) -> "KeptData | None":
        """Return such a function; None for none."""
        return None if make is None else cls(make)

    def __call__(self) -> Dataset:
        """Return the data that was kept, once, and otherwise create it."""
        kept, self._kept = self._kept, None
        return self._make() if kept is None else kept

    def keep(self, first: list[Batch], data: Dataset) -> None:
        """Keep an iterator whose first batches were read for the next call; other data can be created again."""
        if isinstance(data, Iterator):
            self._kept = itertools.chain(first, data)


@dataclass(frozen=True)
class Validation:
    """The dataset and the frequency of the chief's validations.

    Args:
        data: creates the dataset.
        every: epochs from one validation to the next.
        steps: number of batches of a validation; None: all.
    """

    data: Callable[[], Dataset]
    every: int = 1
    steps: int | None = None

    def called_by(self, wrap: Callable[[Callable[[], Dataset]], Callable[[], Dataset] | None]) -> "Validation":
        """Return the same validation, whose dataset is created inside another function."""
        return replace(self, data=KeptData(wrap(self.data) or self.data))
