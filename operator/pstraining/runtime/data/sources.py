"""Data that is handed out piece by piece: what the pieces are, and in which order they are trained.

A source has a number of pieces: blocks of an index range, or files. Training goes through them in a sequence of
positions that never ends: position p is piece number p modulo their count of epoch p divided by it, in an order that is
drawn anew for every epoch and is the same in every process. Who trains which position is written in the
`ps.data_ledger`.

Pure; importing it imports no TensorFlow.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Protocol

from pstraining.runtime.model.tensor import Dataset

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt


class Source(Protocol):
    """Pieces of data."""

    @property
    def count(self) -> int:
        """How many pieces there are."""

    def open(self, position: int) -> Dataset:
        """A `tf.data.Dataset` of the batches at a position, the same ones whenever it is asked for."""


@dataclass(frozen=True)
class Ranges:
    """The samples 0 to `size` - 1, in blocks.

    Args:
        size: number of samples.
        block: samples in a block, a multiple of the batch size; the last block may be smaller.
        read: a `tf.data.Dataset` of batches from the first index of a block and the one behind its last.
        seed: of the order of the blocks, which differs from epoch to epoch; None: as they come.
    """

    size: int
    block: int
    read: Callable[[int, int], Dataset]
    seed: int | None = 0

    def __post_init__(self) -> None:
        if self.size < 1 or self.block < 1:
            raise ValueError("Ranges: size and block must be at least 1")

    @property
    def count(self) -> int:
        """How many blocks there are."""
        return math.ceil(self.size / self.block)

    def bounds(self, position: int) -> tuple[int, int]:
        """The first index of the block at a position, and the one behind its last."""
        begin = place(position, self.count, self.seed) * self.block
        return begin, min(begin + self.block, self.size)

    def open(self, position: int) -> Dataset:
        """The batches of the block at a position."""
        return self.read(*self.bounds(position))


@dataclass(frozen=True)
class Files:
    """Files, each a piece.

    Args:
        paths: the files.
        read: a `tf.data.Dataset` of batches from a path.
        seed: of the order of the files, which differs from epoch to epoch; None: as they come.
    """

    paths: Sequence[str]
    read: Callable[[str], Dataset]
    seed: int | None = 0

    def __post_init__(self) -> None:
        if not self.paths:
            raise ValueError("Files: there is no path")

    @property
    def count(self) -> int:
        """How many files there are."""
        return len(self.paths)

    def open(self, position: int) -> Dataset:
        """The batches of the file at a position."""
        return self.read(self.paths[place(position, self.count, self.seed)])


def place(position: int, count: int, seed: int | None) -> int:
    """The piece at a position of the sequence."""
    epoch, number = divmod(position, count)
    return number if seed is None else int(_order(count, seed, epoch)[number])


@lru_cache(maxsize=4)
def _order(count: int, seed: int, epoch: int) -> "npt.NDArray[np.int64]":
    import numpy as np

    return np.random.default_rng([seed, epoch]).permutation(count)
