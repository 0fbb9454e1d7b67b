"""Tensors whose rows the parameter servers wrote to separate files, and the mapping of rows to files.

A file is a NumPy file of some rows, which `numpy.load` reads. The manifest has its name, its rows and its checksum.
After an incremental save, files of changed rows follow those of the full save before it. They replace rows in order.
"""

import errno
import io
import math
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, Final, NamedTuple, Protocol, runtime_checkable

import numpy as np

from pstraining.runtime.checkpoint.errors import CorruptCheckpointError
from pstraining.runtime.checkpoint.ports.part_place import PartPlace
from pstraining.runtime.checkpoint.ports.ranges import read_at
from pstraining.runtime.checkpoint.state import Entry, StateBlocks
from pstraining.runtime.model.partition import Array

FILE_BYTES: Final = 16 << 20
"""Maximum size of a file's rows, except that one row may be larger. A server holds four copies while it writes."""


class PartFile(NamedTuple):
    """Some rows of a tensor in a file: row `first` and each `stride`-th after it."""

    name: str
    first: int
    stride: int
    rows: int
    checksum: str
    """The checksum of the whole file, see `checksums`."""


class ChangedFile(NamedTuple):
    """Rows of a tensor that have changed since the files before were written, and their indices in another file.

    The index i in that file, int64, stands for row `first` + `stride` * i of the tensor.
    """

    name: str
    indices: str
    """Name of the file of indices, which are in ascending order."""
    first: int
    stride: int
    rows: int
    checksum: str
    checksum_of_indices: str


class Parts(NamedTuple):
    """The files of one tensor."""

    width: int
    """Number of elements in a row; 1 for a tensor that is split by elements instead of rows."""
    files: Sequence[PartFile]
    """Files that have each row exactly once. Empty in the result of an incremental save for a tensor with `changes`."""
    changes: Sequence[ChangedFile] = ()
    """Files of changed rows, in the order in which they replace rows."""

    @classmethod
    def of(cls, described: Any) -> "Parts":
        """Return the parts that a manifest describes."""
        changes = [ChangedFile(*file) for file in described.get("changes", ())]
        return cls(described["width"], [PartFile(*file) for file in described["files"]], changes)

    def describe(self) -> dict[str, object]:
        """Return the description for the manifest."""
        changes = {"changes": [list(file) for file in self.changes]} if self.changes else {}
        return {"width": self.width, "files": [list(file) for file in self.files], **changes}

    def followed_by(self, later: "Parts") -> "Parts":
        """Return these files and the changes of a later incremental save."""
        return self._replace(changes=[*self.changes, *later.changes])

    @property
    def checksums(self) -> dict[str, str]:
        """The checksum of each file by name."""
        found = {file.name: file.checksum for file in self.files}
        for change in self.changes:
            found |= {change.indices: change.checksum_of_indices, change.name: change.checksum}
        return found


class SavedParts(NamedTuple):
    """The parts of a checkpoint that the next save may continue."""

    copy: int
    """The name of the servers' copy that was saved."""
    folder: str
    """The checkpoint's folder, or the beginning of the keys of its objects."""
    parts: Mapping[str, Parts]


def continued(parts: Mapping[str, Parts], last: SavedParts | None) -> tuple[dict[str, Parts], dict[str, str]]:
    """Return the files of every tensor after an incremental save, and the former place of each file to take over.

    Args:
        parts: the files that the servers have just written.
        last: the checkpoint that the save continues.

    Raises:
        OSError: that checkpoint is gone, or has no files of a tensor.
    """
    found, taken = dict(parts), dict[str, str]()  # a table's tensors share the indices of changed rows
    for name, changed in parts.items():
        if changed.files:
            continue
        if last is None or name not in last.parts:
            raise OSError(errno.ENOENT, "the checkpoint that an incremental save continues is gone", name)
        taken |= {file: f"{last.folder}/{file}" for file in last.parts[name].checksums}
        found[name] = last.parts[name].followed_by(changed)
    return found, taken


def header(dtype: str, rows: int, width: int) -> bytes:
    """Return the NumPy header of a file of rows. Shape of the file's array: [rows, width], or [rows] for width 1."""
    found, shape = io.BytesIO(), (rows, width) if width > 1 else (rows,)
    descr = np.lib.format.dtype_to_descr(np.dtype(dtype))
    np.lib.format.write_array_header_1_0(found, {"descr": descr, "fortran_order": False, "shape": shape})
    return found.getvalue()


@runtime_checkable
class WritesParts(StateBlocks, Protocol):
    """A state of which the servers may write some tensors themselves, to separate files."""

    @property
    def copy(self) -> int:
        """The name of the servers' copy that the state is read from."""
        ...

    @property
    def base(self) -> int | None:
        """The copy whose tables this state continues with the rows that have changed since; None: it is complete."""
        ...

    def write_parts(self, place: PartPlace) -> Mapping[str, Parts]:
        """Let the servers write tensors to the place of a checkpoint where they can, and make the files durable.

        Returns:
            The files of the written tensors, by the tensor's name.

        Raises:
            OSError: a file could not be written.
        """
        ...

    def without(self, names: Collection[str]) -> StateBlocks:
        """Return the state without some tensors."""
        ...


def write_parts(
    state: StateBlocks, place: PartPlace, last: SavedParts | None, take: Callable[[Mapping[str, str]], None]
) -> tuple[Mapping[str, Parts], StateBlocks]:
    """Let the servers write tensors, and return the files of these tensors, and the state without them.

    Args:
        state: the state to save.
        place: the place of the checkpoint.
        last: the checkpoint that was saved last.
        take: takes over files of that checkpoint, given their names and former places. Raises OSError.

    Raises:
        OSError: a file could not be written or taken over, or the checkpoint that the state continues is gone.
    """
    if not isinstance(state, WritesParts):
        return {}, state
    parts = state.write_parts(place)
    if state.base is not None:
        parts, former = continued(parts, last if last and last.copy == state.base else None)
        take(former)
    return parts, state.without(parts)


class SharedRows(NamedTuple):
    """The rows of a file that belong to a server: row `source` of the file is row `target` of the server.

    Further rows follow at `source_step` in the file and at `target_step` on the server, `rows` in total.
    """

    source: int
    source_step: int
    target: int
    target_step: int
    rows: int


def shared_rows(file: PartFile, first: int, stride: int) -> SharedRows | None:
    """Return the rows of a file that belong to a server.

    Both sets are arithmetic progressions. Their intersection is found with the inverse modulo the server's stride.

    Args:
        file: the file.
        first: the server's first row, less than `stride`.
        stride: distance of the server's rows.

    Returns:
        None if the file has none of the server's rows.
    """
    common = math.gcd(file.stride, stride)
    distance, step = first - file.first, stride // common
    if distance % common:
        return None
    source = distance // common * pow(file.stride // common, -1, step) % step
    rows = len(range(source, file.rows, step))
    target = (file.first + file.stride * source - first) // stride
    return SharedRows(source, step, target, file.stride // common, rows) if rows else None


class StoredParts:
    """The tensors of a checkpoint that servers wrote, read from their files.

    Args:
        place: the place of the files.
        entries: dtype and shape of the tensors by name.
        parts: the tensors' files by name.

    Raises:
        CorruptCheckpointError: the files of a tensor have another number of rows than the tensor.
    """

    def __init__(self, place: PartPlace, entries: Mapping[str, Entry], parts: Mapping[str, Parts]) -> None:
        self.place, self.parts, self._entries = place, parts, entries
        for name, own in parts.items():
            if sum(file.rows for file in own.files) * own.width != entries[name].size:
                raise CorruptCheckpointError(f"the files of {name} have another number of rows than it has")

    @property
    def checksums(self) -> dict[str, str]:
        """The expected checksum of each file by name."""
        return {file: checksum for own in self.parts.values() for file, checksum in own.checksums.items()}

    def read(self, name: str, begin: int, end: int) -> Array:
        """Return elements `begin` to `end` of a flattened tensor. Shape: [end - begin].

        Raises:
            CorruptCheckpointError: a file was truncated after its check.
            OSError: a file is missing, or the place does not answer.
        """
        (width, files, changes), dtype = self.parts[name], np.dtype(self._entries[name].dtype)
        low, high = begin // width, -(-end // width)
        found = np.empty([high - low, width], dtype)
        for file in files:
            first = max(0, -(-(low - file.first) // file.stride))
            last = min(file.rows, -(-(high - file.first) // file.stride))
            if first < last:
                at = file.first + file.stride * first - low
                rows = self._rows(file, dtype, width, first, last)
                found[at : at + file.stride * (last - first) : file.stride] = rows
        for change in changes:
            indices = self.place.integers(change.indices, len(header("int64", change.rows, 1)), change.rows)
            first, last = (
                int(np.searchsorted(indices, -(-(row - change.first) // change.stride))) for row in (low, high)
            )
            if first < last:
                rows = self._rows(change, dtype, width, first, last)
                found[change.first + change.stride * np.asarray(indices[first:last]) - low] = rows
        return found.reshape(-1)[begin - low * width : end - low * width]

    def _rows(
        self, file: PartFile | ChangedFile, dtype: np.dtype[np.generic], width: int, first: int, last: int
    ) -> Array:
        skip, of_row = len(header(str(dtype), file.rows, width)), width * dtype.itemsize
        with self.place.open(file.name) as opened:
            content = read_at(opened, skip + first * of_row, (last - first) * of_row, file.name)
        return content.view(dtype).reshape(-1, width)
