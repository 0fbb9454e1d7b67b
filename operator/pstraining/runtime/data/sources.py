"""Sources of assigned data: their splits, and the order in which the splits are trained.

A source has a number of splits: blocks of an index range, or files. Training follows an endless sequence of positions:
position p is split p modulo the count, in epoch p divided by the count. Each epoch has a different random order, equal
in every process. The `ps.data_ledger` records which worker trains which position.

Pure; importing it imports no TensorFlow.
"""

import json
import math
import os
import zlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import lru_cache
from itertools import takewhile
from numbers import Integral
from pathlib import PurePath, PurePosixPath
from typing import TYPE_CHECKING, Protocol

from pstraining.runtime.config.arguments import check_call, count, strict
from pstraining.runtime.config.settings import SettingsError
from pstraining.runtime.model.tensor import Dataset

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt


@dataclass(frozen=True)
class Order:
    """The splits of a source and their order: in equal ones a position means the same samples."""

    count: int
    """Number of splits."""
    seed: int | None
    parts: str
    """What the splits are: sizes, or a checksum of the files' names without the folder that all have in common."""

    @classmethod
    def of(cls, text: str) -> "Order":
        """Return the order of a text."""
        return cls(**json.loads(text))

    def text(self) -> str:
        """Return the order as text."""
        return json.dumps(asdict(self))


class Source(Protocol):
    """A source of splits."""

    @property
    def count(self) -> int:
        """Return the number of splits."""

    @property
    def order(self) -> Order:
        """Return the splits and their order."""

    def open(self, position: int) -> Dataset:
        """Return a `tf.data.Dataset` of the batches at a position; equal batches at each call."""


@strict
@dataclass(frozen=True)
class Ranges:
    """The samples 0 to `size` - 1, in blocks.

    Args:
        size: number of samples.
        block: samples in a block, a multiple of the batch size; the last block may be smaller.
        read: returns a `tf.data.Dataset` of batches from the first index of a block and the index after its last.
        seed: seed of the blocks' order, which differs from epoch to epoch; None: in order of the index.
    """

    size: int
    block: int
    read: Callable[[int, int], Dataset]
    seed: int | None = 0

    def __post_init__(self) -> None:
        for name in ("size", "block"):  # as Python's numbers, because products of NumPy's may overflow
            object.__setattr__(self, name, count(f"Ranges: {name}", getattr(self, name)))
        _check_seed("Ranges", self.seed)
        check_call("Ranges: read", self.read, 0, self.block, how="with the first index and the index after the last")

    @property
    def count(self) -> int:
        """Return the number of blocks."""
        return math.ceil(self.size / self.block)

    @property
    def order(self) -> Order:
        """Return the blocks and their order."""
        return Order(self.count, _seed(self.seed), f"{self.size} samples in blocks of {self.block}")

    def bounds(self, position: int) -> tuple[int, int]:
        """Return the first index of the block at a position, and the index after its last."""
        begin = place(position, self.count, self.seed) * self.block
        return begin, min(begin + self.block, self.size)

    def open(self, position: int) -> Dataset:
        """Return the batches of the block at a position."""
        return self.read(*self.bounds(position))


@strict
@dataclass(frozen=True)
class Files:
    """Files, each of them a split.

    Args:
        paths: the files.
        read: returns a `tf.data.Dataset` of batches from a path.
        seed: seed of the files' order, which differs from epoch to epoch; None: in order of `paths`.
    """

    paths: Sequence[str]
    read: Callable[[str], Dataset]
    seed: int | None = 0

    def __post_init__(self) -> None:
        _check_paths(self.paths)
        _check_seed("Files", self.seed)
        check_call("Files: read", self.read, self.paths[0], how="with a path")

    @property
    def count(self) -> int:
        """Return the number of files."""
        return len(self.paths)

    @property
    def order(self) -> Order:
        """Return the files and their order."""
        parts = [PurePosixPath(path).parts for path in self.paths]
        folders = zip(*(own[:-1] for own in parts), strict=False)
        common = sum(1 for _ in takewhile(lambda level: len(set(level)) == 1, folders))
        names = "\n".join("/".join(own[common:]) for own in parts)
        return Order(self.count, _seed(self.seed), f"files {zlib.crc32(names.encode(errors='surrogateescape')):08x}")

    def open(self, position: int) -> Dataset:
        """Return the batches of the file at a position."""
        return self.read(self.paths[place(position, self.count, self.seed)])


def check_workers(reported: Mapping[int, str], order: Order | None) -> None:
    """Refuse workers with other data than the chief's, which would train some samples twice and others never.

    Args:
        reported: the order of each worker's data as text, by index; empty if a worker reports none.
        order: the order of the chief's data; None: the data is not assigned.

    Raises:
        SettingsError: names a worker, and how all tasks get the same order.
    """
    for worker, text in sorted(reported.items()):
        if order is not None and text and Order.of(text) != order:
            raise SettingsError(
                f"data: worker {worker} has other splits than the chief, or in another order ({text} instead of "
                f"{order.text()}). Give every task the same paths, or size and block, and the same seed. Sort listed "
                "paths, as in Files(sorted(paths), read), and add no file while the job runs"
            )


def _check_paths(paths: object) -> None:
    """Refuse paths without a fixed order, and those that are no text.

    Raises:
        SettingsError: names the type, or an example.
    """
    if isinstance(paths, str | PurePath):  # each character would be a path
        raise SettingsError(f"Files: give a list of paths, such as [{str(paths)!r}]")
    if not isinstance(paths, Sequence):  # a generator is empty once it was read, and a set has no order
        raise SettingsError(f"Files: give a list of paths, such as sorted(paths); it is a {type(paths).__name__}")
    if not paths:
        raise SettingsError("Files: there is no path")
    for path in paths:
        if not isinstance(path, str | os.PathLike):
            kind, way = type(path).__name__, "; path.decode() returns its text" if isinstance(path, bytes) else ""
            raise SettingsError(f"Files: each path must be a text; {path!r} is of the type {kind}{way}")


def _check_seed(source: str, seed: object) -> None:
    """Refuse a seed that NumPy refuses, which the workers would learn only when they train.

    Raises:
        SettingsError: the seed is not a whole number of at least 0.
    """
    if seed is not None and not (isinstance(seed, Integral) and int(seed) >= 0):
        raise SettingsError(f"{source}: seed must be a whole number of at least 0, or None; it is {seed!r}")


def _seed(seed: int | None) -> int | None:
    """Return a seed, which may be one of NumPy's integers, as one of Python's."""
    return None if seed is None else int(seed)


def place(position: int, count: int, seed: int | None) -> int:
    """Return the split at a position of the sequence."""
    epoch, number = divmod(position, count)
    return number if seed is None else int(_order(count, seed, epoch)[number])


@lru_cache(maxsize=4)
def _order(count: int, seed: int, epoch: int) -> "npt.NDArray[np.int64]":
    import numpy as np

    return np.random.default_rng([seed, epoch]).permutation(count)
