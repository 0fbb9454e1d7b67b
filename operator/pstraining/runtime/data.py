"""A worker's batches."""

from collections.abc import Callable, Iterator
from typing import Any

import tensorflow as tf


class Batches:
    """Batches of the user's dataset without end: one that ends is begun again."""

    def __init__(self, make: Callable[[], Any], device: str) -> None:
        self._make, self._device = make, device
        self._iterator: Iterator[Any] | None = None

    def next(self) -> Any:
        """The next batch, as the dataset gives it.

        Raises:
            ValueError: the dataset is empty.
        """
        with tf.device(self._device):
            if self._iterator is not None:
                for batch in self._iterator:
                    return batch
            self._iterator = iter(self._make())
            for batch in self._iterator:
                return batch
        raise ValueError("the data function returned an empty dataset")
