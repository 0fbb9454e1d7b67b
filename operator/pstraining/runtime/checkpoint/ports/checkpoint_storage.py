"""The storage of a job's checkpoints, as the chief uses it: a folder of a volume, or a prefix of an object store."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Protocol, runtime_checkable

from pstraining.runtime.checkpoint.arrays import StoredState
from pstraining.runtime.checkpoint.state import StateBlocks
from pstraining.runtime.model.partition import Layout


@runtime_checkable
class RemoteStorage(Protocol):
    """A storage that repeats requests."""

    def hurry(self, seconds: float) -> None:
        """Bound the requests of a process that ends after some seconds, and fail after the first silent one."""
        ...


class CheckpointStorage(Protocol):
    """The checkpoints of a job; `open` it to write. Only the chief with the highest term of the storage writes."""

    @property
    def location(self) -> str:
        """The folder or the URI of the checkpoints, for messages."""
        ...

    def remedy(self, error: OSError) -> str:
        """Return what a user can do about a failed save, as a sentence without its full stop."""
        ...

    @property
    def base(self) -> int | None:
        """The copy of the servers that an incremental save may continue; None: the next save is full."""
        ...

    def open(self) -> None:
        """Check that the storage can hold checkpoints, and take its next term.

        Raises:
            SettingsError: the storage cannot be written to, or lacks an operation.
            SupersededError: the storage belongs to a later chief.
            OSError: the storage does not answer at present.
        """
        ...

    def steps(self) -> list[int]:
        """Return the steps of all checkpoints, including unreadable ones, the newest last."""
        ...

    def newest(self) -> StoredState | None:
        """Return the newest readable state, with every byte checked; None without a checkpoint.

        Raises:
            UnusableCheckpointsError: no checkpoint can be read, or a later version wrote one.
            OSError: the storage does not answer at present.
        """
        ...

    def load(self, step: int) -> StoredState:
        """Return the state of the newest checkpoint of a step.

        Raises:
            CorruptCheckpointError: a part is missing, damaged or of another format.
            OSError: the storage does not answer at present.
        """
        ...

    def save(self, state: StateBlocks, *, term: int, layout: Layout) -> Path | str:
        """Write a checkpoint, delete superfluous ones, and return the new one's folder or URI.

        Args:
            state: the state to save.
            term: the chief's term in its job, which the manifest has for human readers.
            layout: the layout of the state on the servers.

        Raises:
            OSError: the checkpoint could not be written. Earlier checkpoints are kept.
            SupersededError: the storage belongs to another chief now, whose checkpoints are unchanged.
            Exception: the state's blocks could not be read.
        """
        ...

    def size(self, step: int) -> int:
        """Return the size of the newest checkpoint of a step in bytes."""
        ...

    def write_whole(self, name: str, write: Callable[[Path], object]) -> None:
        """Create or replace a file beside the checkpoints in one operation.

        Args:
            name: the file's name.
            write: writes the content to a local path.

        Raises:
            OSError: the file could not be written. A former file of this name is kept.
            SupersededError: the storage belongs to another chief now.
        """
        ...

    def write_folder_whole(self, name: str, contents: Mapping[str, bytes]) -> None:
        """Create or replace a folder of files beside the checkpoints.

        Args:
            name: the folder's name.
            contents: the content of each file, by name.

        Raises:
            OSError: a file could not be written.
            SupersededError: the storage belongs to another chief now.
        """
        ...
