"""Reading of a file in ranges of bytes, wherever the file is."""

import io
import os
import weakref
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

import numpy as np

from pstraining.runtime.checkpoint.errors import CorruptCheckpointError
from pstraining.runtime.model.partition import Array

if TYPE_CHECKING:
    from _typeshed import WriteableBuffer


class SeekableFile(Protocol):
    """A file that can be read from any byte on."""

    @property
    def size(self) -> int:
        """Number of bytes."""
        ...

    def read_into(self, offset: int, target: memoryview) -> int:
        """Fill the beginning of `target` with bytes from `offset` on, and return their number; 0 at the file's end."""
        ...


class OpenFile:
    """A file of a volume, which stays readable while this object lives, even if its folder is renamed."""

    def __init__(self, path: Path | str, *, folder: int | None = None) -> None:
        self._descriptor = os.open(path, os.O_RDONLY, dir_fd=folder)
        self.close = weakref.finalize(self, os.close, self._descriptor)
        self.size = os.fstat(self._descriptor).st_size
        """Number of bytes."""

    def read_into(self, offset: int, target: memoryview) -> int:
        """Fill the beginning of `target` with bytes from `offset` on, and return their number; 0 at the file's end."""
        return os.preadv(self._descriptor, [target], offset)


def read_at(file: SeekableFile, offset: int, size: int, name: str) -> Array:
    """Return `size` bytes of a file from `offset` on. Shape: [size].

    Raises:
        CorruptCheckpointError: the file ends earlier.
    """
    found = np.empty(size, np.uint8)
    rest = found.data
    while rest:
        read = file.read_into(offset, rest)
        if not read:
            raise CorruptCheckpointError(f"{name} ends too early")
        rest, offset = rest[read:], offset + read
    return found


class RangeStream(io.RawIOBase):
    """A file as Python's libraries read it."""

    def __init__(self, file: SeekableFile) -> None:
        self._file, self._position = file, 0

    def readable(self) -> bool:
        """Return True."""
        return True

    def seekable(self) -> bool:
        """Return True."""
        return True

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        """Move to a byte, and return its offset from the beginning of the file.

        Raises:
            ValueError: the offset is before the beginning.
        """
        bases = {os.SEEK_SET: 0, os.SEEK_CUR: self._position, os.SEEK_END: self._file.size}
        position = bases[whence] + offset
        if position < 0:
            raise ValueError("an offset before the beginning of the file")
        self._position = position
        return position

    def readinto(self, buffer: "WriteableBuffer") -> int:
        """Read bytes into a buffer, and return their number; 0 at the file's end."""
        target = memoryview(buffer).cast("B")
        read = self._file.read_into(self._position, target) if target else 0
        self._position += read
        return read
