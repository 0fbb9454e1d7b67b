"""A state as a file of named tensors, NumPy's `.npz`, and the checks that it is what it was.

Whatever is wrong with a file is found before memory is taken for its tensors, so a lack of memory is just that.
"""

import math
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from pstraining.runtime.checkpoint.state import State
from pstraining.runtime.model.partition import Array


class CorruptCheckpointError(Exception):
    """A checkpoint that cannot be read as a whole."""


def flatten(state: State) -> dict[str, Array]:
    """All of a state but its step, by name."""
    arrays = {f"model/{path}": value for path, value in state.variables.items()}
    for slot, values in state.slots.items():
        arrays |= {f"slot/{slot}/{path}": value for path, value in values.items()}
    return arrays | {f"scalar/{name}": np.asarray(value) for name, value in state.scalars.items()}


def unflatten(step: int, arrays: Mapping[str, Array]) -> State:
    """The state of which these are the tensors."""
    state = State(step, {}, {}, {})
    for name, value in arrays.items():
        kind, _, rest = name.partition("/")
        if kind == "model":
            state.variables[rest] = value
        elif kind == "slot":
            slot, _, path = rest.partition("/")
            state.slots.setdefault(slot, {})[path] = value
        else:
            state.scalars[rest] = value
    return state


def describe(arrays: Mapping[str, Array]) -> dict[str, list[Any]]:
    """Dtype and shape by name, for the metadata."""
    return {name: [str(value.dtype), list(value.shape)] for name, value in arrays.items()}


def read(path: Path, expected: Mapping[str, Any]) -> dict[str, Array]:
    """The tensors of a file that has just these.

    Raises:
        CorruptCheckpointError: it has others.
        Exception: it is damaged, in whatever way the libraries notice it.
        MemoryError: there is not enough for what the file really holds.
    """
    with zipfile.ZipFile(path) as archive:
        entries = {entry.filename: entry for entry in archive.infolist()}
        if set(entries) != {f"{name}.npy" for name in expected}:
            raise CorruptCheckpointError("the metadata names other tensors than there are")
        room = path.stat().st_size
        return {name: _read(archive, entries[f"{name}.npy"], described, room) for name, described in expected.items()}


def _read(archive: zipfile.ZipFile, entry: zipfile.ZipInfo, described: Any, room: int) -> Array:
    stored = entry.compress_type == zipfile.ZIP_STORED and entry.compress_size == entry.file_size <= room
    if not stored or entry.flag_bits & 1:
        raise CorruptCheckpointError(f"{entry.filename} is not stored as it was written")
    with archive.open(entry) as file:
        version = np.lib.format.read_magic(file)
        readers = {(1, 0): np.lib.format.read_array_header_1_0, (2, 0): np.lib.format.read_array_header_2_0}
        shape, _, dtype = readers[version](file)
        begin = file.tell()
    fits = begin + math.prod(shape) * dtype.itemsize == entry.file_size
    if not fits or [str(dtype), list(shape)] != described:
        raise CorruptCheckpointError(f"{entry.filename} is not what the metadata says")
    with archive.open(entry) as file:
        return np.lib.format.read_array(file, allow_pickle=False)
