"""The place of the files that parameter servers wrote: a folder of a volume, or a prefix of an object store."""

import os
import weakref
from contextlib import AbstractContextManager, closing
from pathlib import Path
from typing import Protocol

import numpy as np

from pstraining.runtime.checkpoint.errors import CorruptCheckpointError
from pstraining.runtime.checkpoint.files import NO_DAMAGE
from pstraining.runtime.checkpoint.ports.ranges import OpenFile, SeekableFile
from pstraining.runtime.model.partition import Array


class PartPlace(Protocol):
    """The place of a checkpoint's files, as the chief reads them."""

    def open(self, name: str) -> AbstractContextManager[SeekableFile]:
        """Return a file, open during the context.

        Raises:
            OSError: the file is missing or unreadable, or the place does not answer.
        """
        ...

    def integers(self, name: str, skip: int, rows: int) -> Array:
        """Return the numbers in a file after its first `skip` bytes. int64[rows].

        Raises:
            CorruptCheckpointError: the file is shorter.
            OSError: see `open`.
        """
        ...

    def content(self, name: str) -> bytes:
        """Return all bytes of a file.

        Raises:
            CorruptCheckpointError: the file is missing or unreadable.
            OSError: the place does not answer at present.
        """
        ...


class FolderPlace:
    """A folder of a volume, whose files stay readable if it is renamed; see `PartPlace` for its methods.

    Args:
        folder: the folder, which exists.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder.absolute()
        """The folder."""
        self._descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
        weakref.finalize(self, os.close, self._descriptor)

    def open(self, name: str) -> AbstractContextManager[SeekableFile]:
        """Return a file, open during the context.

        Raises:
            OSError: the file is missing or unreadable.
        """
        return closing(OpenFile(name, folder=self._descriptor))

    def integers(self, name: str, skip: int, rows: int) -> Array:
        """Return the numbers in a file after its first `skip` bytes, which are loaded where they are read. int64[rows].

        Raises:
            OSError: the file is missing or unreadable.
        """
        with open(name, "rb", opener=self._open) as file:
            return np.memmap(file, np.int64, "r", skip, (rows,))

    def content(self, name: str) -> bytes:
        """Return all bytes of a file.

        Raises:
            CorruptCheckpointError: the file is missing or unreadable.
            OSError: the volume does not answer at present.
        """
        try:
            with open(name, "rb", opener=self._open) as file:
                return file.read()
        except OSError as error:
            if error.errno in NO_DAMAGE:
                raise
            raise CorruptCheckpointError(f"{name} is unreadable: {error.strerror}") from None

    def _open(self, name: str, flags: int) -> int:
        return os.open(name, flags, dir_fd=self._descriptor)
