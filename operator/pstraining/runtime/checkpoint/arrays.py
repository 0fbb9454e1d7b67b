"""A state as a file of named tensors, NumPy's `.npz`, and the detection of damage.

The file is written in blocks and read in ranges: no tensor has to fit into memory. Damage is detected when the file is
opened, before memory is allocated for its tensors. A MemoryError is therefore never a sign of damage. Tensors that the
servers wrote themselves are in separate files beside it, see `parts`.
"""

import io
import math
import zipfile
from collections.abc import Iterator, Mapping
from functools import cached_property
from itertools import groupby
from operator import itemgetter
from typing import IO, Final, NamedTuple

import numpy as np

from pstraining.runtime.checkpoint.checksums import FindDamaged
from pstraining.runtime.checkpoint.errors import CorruptCheckpointError
from pstraining.runtime.checkpoint.manifest import Manifest
from pstraining.runtime.checkpoint.parts import StoredParts
from pstraining.runtime.checkpoint.ports.part_place import PartPlace
from pstraining.runtime.checkpoint.ports.ranges import RangeStream, SeekableFile, read_at
from pstraining.runtime.checkpoint.state import ENDED, Entry, State, StateBlocks, whole
from pstraining.runtime.model.partition import Array

ARRAYS: Final = "state.npz"
"""The name of the file."""
READ_BYTES: Final = 1 << 20
"""Number of bytes that a check reads at once."""
BLOCK_BYTES: Final = 4 << 20
"""Maximum size of a block that `StoredState.blocks` yields, in bytes."""
_LOCAL_HEADER: Final = 30
"""Bytes of a zip entry's local header before its name and extra field. The last four bytes are their lengths."""


def write(file: IO[bytes], state: StateBlocks) -> None:
    """Write a state's tensors as `numpy.savez` does, one block at a time.

    Raises:
        OSError: the file could not be written.
        ValueError: the blocks do not match the entries.
    """
    entries, names = state.entries, []
    with zipfile.ZipFile(file, "w", zipfile.ZIP_STORED, allowZip64=True) as archive:
        for name, blocks in groupby(_all_blocks(state), itemgetter(0)):
            names.append(name)
            with archive.open(f"{name}.npy", "w", force_zip64=True) as target:
                _write(target, entries[name], (block for _, block in blocks))
    if sorted(names) != sorted(entries):
        raise ValueError("the state's blocks do not match its entries")


def _all_blocks(state: StateBlocks) -> Iterator[tuple[str, Array]]:
    """Yield a state's blocks, and an empty one for each tensor without elements."""
    yield from state.blocks()
    for name, entry in state.entries.items():
        if not entry.size:
            yield name, np.empty(0, entry.dtype)


def _write(target: IO[bytes], entry: Entry, blocks: Iterator[Array]) -> None:
    dtype = np.dtype(entry.dtype)
    header = {"descr": np.lib.format.dtype_to_descr(dtype), "fortran_order": False, "shape": entry.shape}
    np.lib.format.write_array_header_1_0(target, header)
    written = 0
    for block in blocks:
        if block.dtype != dtype:
            raise ValueError(f"a block of {block.dtype} in a tensor of {dtype}")
        target.write(np.ascontiguousarray(block).view(np.uint8).data)
        written += block.size
    if written != entry.size:
        raise ValueError(f"{written} elements of a tensor of {entry.size}")


class _Place(NamedTuple):
    """The location of a tensor's elements in the file."""

    entry: Entry
    begin: int
    """Offset of the first element from the beginning of the file, in bytes."""
    in_order: bool
    """Whether the last dimension varies fastest, as in every file that this module writes."""


class StoredState:
    """A state in a file, and in parts beside it if the servers wrote some tensors themselves.

    Args:
        file: the file of tensors.
        step: the state's step.
        manifest: the description of the files.
        place: the place of the parts.

    Raises:
        CorruptCheckpointError: the file does not match the manifest, or is damaged.
        Exception: the file is damaged; the type depends on the library that detects it.
    """

    def __init__(self, file: SeekableFile, step: int, manifest: Manifest, place: PartPlace) -> None:
        self.step, self._file = step, file
        described = {name: own for name, own in manifest.tensors.items() if name not in manifest.parts}
        with io.BufferedReader(RangeStream(file)) as stream, zipfile.ZipFile(stream) as archive:
            found = {entry.filename: entry for entry in archive.infolist()}
            if set(found) != {f"{name}.npy" for name in described}:
                raise CorruptCheckpointError("the file's tensors differ from those that the metadata lists")
            self._places = {
                name: _place(archive, stream, found[f"{name}.npy"], own, file.size) for name, own in described.items()
            }
            for entry in found.values():
                _check_sum(archive, entry)
        shapes = {name: manifest.tensors[name] for name in manifest.parts}
        self._in_parts = {name: Entry(dtype, tuple(shape)) for name, (dtype, shape) in shapes.items()}
        self.parts = StoredParts(place, self._in_parts, manifest.parts) if manifest.parts else None
        """The tensors in separate files; None without any. `check_parts` checks their content."""

    def check_parts(self, find_damaged: FindDamaged) -> None:
        """Compare the checksums of all parts.

        Raises:
            CorruptCheckpointError: a file is unreadable or does not match its checksum.
            OSError: an object store does not answer at present.
        """
        if self.parts and (damaged := find_damaged(self.parts.place, self.parts.checksums)):
            raise CorruptCheckpointError(f"{damaged[0]} is unreadable or does not match its checksum")

    @property
    def ended_early(self) -> bool:
        """Whether training ended with this state before its last step; no later run trains this state further."""
        return ENDED in self._places

    @property
    def entries(self) -> Mapping[str, Entry]:
        """The tensors by name, in the order of `blocks`."""
        return {name: place.entry for name, place in self._places.items()} | self._in_parts

    def blocks(self) -> Iterator[tuple[str, Array]]:
        """Yield names and flattened blocks of tensors."""
        for name, entry in self.entries.items():
            length = max(1, BLOCK_BYTES // np.dtype(entry.dtype).itemsize)
            for begin in range(0, entry.size, length):
                yield name, self.read(name, begin, min(begin + length, entry.size))

    def read(self, name: str, begin: int, end: int) -> Array:
        """Return elements `begin` to `end` of a flattened tensor. Shape: [end - begin].

        Raises:
            CorruptCheckpointError: the file was truncated after its check.
        """
        if self.parts and name in self._in_parts:
            return self.parts.read(name, begin, end)
        entry, first, in_order = self._places[name]
        if not in_order:
            stored = self._elements(name, first, 0, entry.size).reshape(entry.shape, order="F")
            return np.ascontiguousarray(stored).reshape(-1)[begin:end]
        return self._elements(name, first, begin, end)

    @cached_property
    def _state(self) -> State:
        return whole(self)

    @property
    def variables(self) -> dict[str, Array]:
        """The model's variables by path. This property, `slots` and `scalars` read the whole state into memory."""
        return self._state.variables

    @property
    def slots(self) -> dict[str, dict[str, Array]]:
        """The optimizer's tensors by slot, then by the path of their variable."""
        return self._state.slots

    @property
    def scalars(self) -> dict[str, Array]:
        """The optimizer's counters, and other values that no server holds."""
        return self._state.scalars

    def _elements(self, name: str, first: int, begin: int, end: int) -> Array:
        dtype = np.dtype(self._places[name].entry.dtype)
        offset, size = first + begin * dtype.itemsize, (end - begin) * dtype.itemsize
        return read_at(self._file, offset, size, name).view(dtype)


def _place(archive: zipfile.ZipFile, file: IO[bytes], entry: zipfile.ZipInfo, described: object, room: int) -> _Place:
    """Return the location of a tensor's elements, after a check of its headers.

    Raises:
        CorruptCheckpointError: the entry does not match the metadata, or is compressed or encrypted.
    """
    stored = entry.compress_type == zipfile.ZIP_STORED and entry.compress_size == entry.file_size <= room
    if not stored or entry.flag_bits & 1:
        raise CorruptCheckpointError(f"{entry.filename} is compressed, encrypted or truncated")
    with archive.open(entry) as stream:
        version = np.lib.format.read_magic(stream)
        readers = {(1, 0): np.lib.format.read_array_header_1_0, (2, 0): np.lib.format.read_array_header_2_0}
        shape, is_fortran, dtype = readers[version](stream)
        header = stream.tell()
    fits = header + math.prod(shape) * dtype.itemsize == entry.file_size
    if not fits or dtype.hasobject or [str(dtype), list(shape)] != described:
        raise CorruptCheckpointError(f"{entry.filename} does not match the metadata")
    file.seek(entry.header_offset)
    local = file.read(_LOCAL_HEADER)
    begin = entry.header_offset + _LOCAL_HEADER + sum(np.frombuffer(local[-4:], "<u2").tolist()) + header
    return _Place(Entry(str(dtype), tuple(shape)), begin, not is_fortran or len(shape) < 2)


def _check_sum(archive: zipfile.ZipFile, entry: zipfile.ZipInfo) -> None:
    """Read all of an entry; the library compares the checksum at the entry's end.

    Raises:
        zipfile.BadZipFile: the checksum does not match.
    """
    with archive.open(entry) as stream:
        while stream.read(READ_BYTES):
            pass
