"""The place of the files that servers wrote to an object store, each as one object."""

import threading
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING, Final, Literal

import numpy as np

from pstraining.runtime.checkpoint.errors import CorruptCheckpointError
from pstraining.runtime.checkpoint.ports.ranges import SeekableFile, read_at
from pstraining.runtime.model.partition import Array

if TYPE_CHECKING:
    from pstraining.runtime.checkpoint.objects.bucket import Bucket  # imports a library that few jobs need

VALID_SECONDS: Final = 300.0
"""Duration of a signed URL's validity."""
AHEAD_BYTES: Final = 4 << 20
"""Number of bytes that a reader of successive ranges gets with one request."""


class RemoteFile:
    """An object that is read in ranges, a request for each, except that successive ranges are read ahead.

    Args:
        bucket: the prefix.
        key: the object's key.
    """

    def __init__(self, bucket: "Bucket", key: str) -> None:
        self._bucket, self.key, self._lock = bucket, key, threading.Lock()
        self.size = bucket.size(key)
        """Number of bytes."""
        self._begin, self._kept = 0, memoryview(b"")

    def read_into(self, offset: int, target: memoryview) -> int:
        """Fill the beginning of `target` with bytes from `offset` on, and return their number; 0 at the file's end."""
        size = min(len(target), self.size - offset)
        if size <= 0:
            return 0
        with self._lock:
            end = self._begin + len(self._kept)
            if not self._begin <= offset < end:
                self._kept = memoryview(b"")  # before the next range is read, which needs its memory
                length = min(max(size, AHEAD_BYTES), self.size - offset) if offset == end else size
                self._begin, self._kept = offset, self._bucket.get_range(self.key, offset, length)
            found = self._kept[offset - self._begin :][:size]
        target[: len(found)] = found
        return len(found)


class ObjectsPlace:
    """The objects of one attempt at a checkpoint; see `PartPlace` for the methods of its reader.

    Args:
        bucket: the prefix.
        folder: the beginning of the objects' keys, without a slash at its end.
    """

    def __init__(self, bucket: "Bucket", folder: str) -> None:
        self._bucket, self._folder = bucket, folder
        self.store = bucket.url
        """The prefix as a URI."""
        self._opened: RemoteFile | None = None

    def open(self, name: str) -> AbstractContextManager[SeekableFile]:
        """Return an object as a file; the last one is kept for its next range.

        Raises:
            OSError: the object is missing, or the store does not answer.
        """
        if (found := self._opened) is None or found.key != self._key(name):
            found = self._opened = RemoteFile(self._bucket, self._key(name))
        return nullcontext(found)

    def integers(self, name: str, skip: int, rows: int) -> Array:
        """Return the numbers in an object after its first `skip` bytes. int64[rows].

        Raises:
            CorruptCheckpointError: the object is shorter.
            OSError: the object is missing, or the store does not answer.
        """
        file = RemoteFile(self._bucket, self._key(name))
        return read_at(file, skip, rows * np.dtype(np.int64).itemsize, name).view(np.int64)

    def content(self, name: str) -> bytes:
        """Return all bytes of an object.

        Raises:
            CorruptCheckpointError: the object is missing.
            OSError: the store does not answer at present.
        """
        try:
            return bytes(self._bucket.get(self._key(name)))
        except FileNotFoundError:
            raise CorruptCheckpointError(f"{name} is missing") from None

    def size(self, name: str) -> int:
        """Return the size of an object in bytes.

        Raises:
            OSError: the object is missing, or the store does not answer.
        """
        return self._bucket.size(self._key(name))

    def why_unsigned(self) -> str | None:
        """Return why no URL can be signed; None if one can."""
        return self._bucket.why_unsigned()

    def sign(self, method: Literal["GET", "PUT"], name: str) -> str:
        """Return a URL with which a server can read or write an object for VALID_SECONDS.

        Raises:
            OSError: the credentials cannot sign.
        """
        return self._bucket.sign(method, self._key(name), VALID_SECONDS)

    def remove(self, name: str) -> None:
        """Delete an object."""
        self._bucket.delete([self._key(name)])

    def _key(self, name: str) -> str:
        return f"{self._folder}/{name}"
