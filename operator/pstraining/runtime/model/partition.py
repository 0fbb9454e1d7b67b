"""Partitions a model's tensors over the parameter servers.

A call to a parameter server costs per operation and per tensor, not per byte, so tensors travel in segments: a tensor
of 256 KB or more alone, the small ones of a server packed into one vector per group and dtype. Tensors are balanced
over the servers by bytes. Only a tensor of more than half a server's share is split, unless its optimizer needs it
whole. Because every step calls each server that has parameters, a small model uses only some of the servers
(`servers_to_use`).

Pure and deterministic: every task computes the same layout from the same model. Knows numpy, not TensorFlow.
"""

import hashlib
import itertools
import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from pstraining.api.codec_sizes import servers_used

LARGE_BYTES: Final = 256 * 1024
"""Size from which a tensor is a separate segment: copying it into a packed vector costs more than a call."""

TABLE: Final = "table"
"""The group of embedding tables: row r of each is on server r modulo the number of servers."""

FROZEN: Final = "frozen"
"""The group of weights that no step changes: workers fetch them once for each set of parameters."""

Array = npt.NDArray[Any]


@dataclass(frozen=True)
class Tensor:
    """A model's variable in the layout.

    `group` separates variables that must not share a vector: those that the optimizer decays, those that it does not,
    state that no optimizer updates, and frozen weights.
    """

    path: str
    shape: tuple[int, ...]
    dtype: str
    group: str
    whole: bool = field(default=False, repr=False)
    """Whether the optimizer needs the whole tensor; not in the fingerprint, which has the optimizer's name."""
    by_norms: bool = field(default=False, repr=False)
    """Whether the optimizer needs only norms of the whole tensor, which may be split if servers agree on norms."""
    dynamic: bool = field(default=False, repr=False)
    """Whether the tensor is a table with rows by key, of shape [0, width]: only the servers know its rows."""

    @property
    def size(self) -> int:
        """Number of elements."""
        return math.prod(self.shape)

    @property
    def bytes(self) -> int:
        """Size in bytes."""
        return self.size * np.dtype(self.dtype).itemsize


def key_path(path: str) -> str:
    """Return the path of a dynamic table's keys, a variable of the model like its rows."""
    return f"{path}/keys"


@dataclass(frozen=True)
class Slice:
    """Elements `begin` to `end` of the flattened tensor number `tensor`; with a stride n, every n-th row of them.

    For a table, `begin` is the first row, and `end` the number of rows times a row's length.
    """

    tensor: int
    begin: int
    end: int
    stride: int = 0
    width: int = 0
    """Length of a row, with a stride."""

    @property
    def size(self) -> int:
        """Number of elements."""
        return self.rows * self.width if self.stride else self.end - self.begin

    @property
    def rows(self) -> int:
        """Number of rows, with a stride."""
        return len(range(self.begin, self.end // self.width, self.stride))


@dataclass(frozen=True)
class Segment:
    """One vector on one parameter server: its slices, end to end."""

    ps: int
    group: str
    dtype: str
    slices: tuple[Slice, ...]

    @property
    def size(self) -> int:
        """Number of elements."""
        return sum(slice_.size for slice_ in self.slices)


@dataclass(frozen=True)
class Layout:
    """The tensors of a model, in the model's order, and their segments, in the order of the servers."""

    tensors: tuple[Tensor, ...]
    ps: int
    segments: tuple[Segment, ...]

    def on(self, ps: int) -> tuple[Segment, ...]:
        """Return one parameter server's segments that steps change, without tables."""
        return tuple(segment for segment in self.segments if segment.ps == ps and segment.group not in (TABLE, FROZEN))

    def frozen_on(self, ps: int) -> tuple[Segment, ...]:
        """Return one parameter server's segments that no step changes."""
        return tuple(segment for segment in self.segments if segment.ps == ps and segment.group == FROZEN)

    def tables_on(self, ps: int) -> tuple[Segment, ...]:
        """Return one parameter server's rows of every table."""
        return tuple(segment for segment in self.segments if segment.ps == ps and segment.group == TABLE)

    def cut_by_norms(self) -> tuple[int, ...]:
        """Return the numbers of tensors in several pieces whose optimizer needs the norms of all of them."""
        slices = [slice_ for segment in self.segments for slice_ in segment.slices]
        return tuple(sorted({s.tensor for s in slices if self.tensors[s.tensor].whole and self.is_piece(s)}))

    def is_piece(self, slice_: Slice) -> bool:
        """Return whether a slice is not all of its tensor."""
        return slice_.size < self.tensors[slice_.tensor].size

    def skew(self) -> float:
        """Return the bytes of the fullest server as a multiple of the mean of all servers, without tables."""
        load = [0] * self.ps
        for segment in self.segments:
            if segment.group != TABLE:
                load[segment.ps] += segment.size * np.dtype(segment.dtype).itemsize
        return max(load) * self.ps / sum(load) if sum(load) else 1.0

    def fingerprint(self, *extra: str) -> int:
        """Return a positive number that two tasks share only if they agree on the layout and on `extra`."""
        digest = hashlib.sha256(repr((self, extra)).encode()).digest()
        return int.from_bytes(digest[:8], "big") >> 2 or 1


def servers_to_use(tensors: Sequence[Tensor], ps: int, min_bytes: int) -> int:
    """Return the number of servers for a model, at most `ps` and at least 1, so that each holds `min_bytes` or more.

    A table with rows by key uses all servers, because its size is not known yet.
    """
    if any(tensor.dynamic for tensor in tensors):
        return ps
    return servers_used(ps, sum(tensor.bytes for tensor in tensors), min_bytes)


def partition(tensors: Sequence[Tensor], ps: int, *, agrees_on_norms: bool = False) -> Layout:
    """Balance tensors over `ps` servers: the largest first, each to the server with the fewest bytes so far.

    Frozen tensors are balanced separately: they need memory, but cause no traffic in a step.

    Args:
        tensors: in the model's order.
        ps: number of servers.
        agrees_on_norms: whether a step knows the norms of tensors that are split; see `Tensor.by_norms`.

    Raises:
        ValueError: there is no server, or two tensors share a path.
    """
    if ps < 1:
        raise ValueError("a layout needs at least one parameter server")
    if len({tensor.path for tensor in tensors}) != len(tensors):
        raise ValueError("two tensors share a path")
    tables = [number for number, tensor in enumerate(tensors) if tensor.group == TABLE]
    whole = {n for n, tensor in enumerate(tensors) if tensor.whole and not (tensor.by_norms and agrees_on_norms)}
    moving, frozen = _cut(tensors, ps, whole, frozen=False), _cut(tensors, ps, whole, frozen=True)
    parts, owner = [*moving, *frozen], {**_balance(moving, ps), **_balance(frozen, ps)}
    segments: list[Segment] = []
    for target in range(ps):
        mine = [(part, nbytes) for part, nbytes in parts if owner[part] == target]
        packed: dict[tuple[str, str], list[Slice]] = {}
        for part, nbytes in mine:
            tensor = tensors[part.tensor]
            if nbytes >= LARGE_BYTES:
                segments.append(Segment(target, tensor.group, tensor.dtype, (part,)))
            else:
                packed.setdefault((tensor.group, tensor.dtype), []).append(part)
        segments += [Segment(target, *key, tuple(pieces)) for key, pieces in sorted(packed.items())]
        for number in tables:
            tensor = tensors[number]
            rows = Slice(number, target, tensor.size, stride=ps, width=tensor.shape[1])
            segments.append(Segment(target, TABLE, tensor.dtype, (rows,)))
    return Layout(tuple(tensors), ps, tuple(segments))


def _balance(parts: Sequence[tuple[Slice, int]], ps: int) -> dict[Slice, int]:
    """Return the server of each slice."""
    load, owner = [0] * ps, {}
    for part, nbytes in sorted(parts, key=lambda item: (-item[1], item[0].tensor, item[0].begin)):
        owner[part] = load.index(min(load))
        load[owner[part]] += nbytes
    return owner


def _cut(tensors: Sequence[Tensor], ps: int, whole: Collection[int], *, frozen: bool) -> list[tuple[Slice, int]]:
    """Return slices with their bytes: one per tensor, several for a tensor of more than half a server's share."""
    mine = [(n, t) for n, t in enumerate(tensors) if t.group != TABLE and (t.group == FROZEN) == frozen]
    half_share = sum(tensor.bytes for _, tensor in mine) / ps / 2
    parts: list[tuple[Slice, int]] = []
    for index, tensor in mine:
        pieces = 1
        if ps > 1 and index not in whole and tensor.bytes >= LARGE_BYTES and tensor.bytes > half_share:
            pieces = min(ps, math.ceil(tensor.bytes / half_share))
        bounds = [tensor.size * number // pieces for number in range(pieces + 1)]
        for begin, end in itertools.pairwise(bounds):
            nbytes = tensor.bytes * (end - begin) // tensor.size if tensor.size else 0
            parts.append((Slice(index, begin, end), nbytes))
    return parts


def pack(layout: Layout, segment: Segment, values: Mapping[str, Array]) -> Array:
    """Return a segment's vector from tensors by path. Shape: [segment.size], or [rows, width] of a table."""
    if segment.group == TABLE:
        (slice_,) = segment.slices
        return np.ascontiguousarray(values[layout.tensors[slice_.tensor].path][slice_.begin :: slice_.stride])
    parts = [
        np.reshape(values[layout.tensors[slice_.tensor].path], [-1])[slice_.begin : slice_.end]
        for slice_ in segment.slices
    ]
    return np.ascontiguousarray(np.concatenate(parts)) if len(parts) > 1 else np.ascontiguousarray(parts[0])


def unpack(layout: Layout, vectors: Sequence[tuple[Segment, Array]]) -> dict[str, Array]:
    """Return tensors by path from the vectors of segments."""
    found: dict[int, Array] = {}
    for segment, vector in vectors:
        offset = 0
        for slice_ in segment.slices:
            tensor = layout.tensors[slice_.tensor]
            whole = found.setdefault(slice_.tensor, np.empty([tensor.size], vector.dtype))
            if slice_.stride:
                whole.reshape(tensor.shape)[slice_.begin :: slice_.stride] = vector
                continue
            whole[slice_.begin : slice_.end] = vector[offset : offset + slice_.size]
            offset += slice_.size
    return {
        layout.tensors[index].path: whole.reshape(layout.tensors[index].shape) for index, whole in sorted(found.items())
    }
