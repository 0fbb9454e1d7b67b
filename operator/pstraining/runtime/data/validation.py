"""The validation at the end of epochs. Imports no TensorFlow."""

from collections.abc import Callable
from dataclasses import dataclass, replace

from pstraining.runtime.model.tensor import Dataset


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
        return replace(self, data=wrap(self.data) or self.data)
