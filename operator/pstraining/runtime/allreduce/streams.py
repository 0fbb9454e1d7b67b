"""The streams of bytes that a member of a ring sends and receives: sums of arrays, and relayed arrays.

A member sends to its right neighbor and receives from its left neighbor. A sum is a reduce-scatter and an all-gather
(Patarasuk and Yuan, Bandwidth optimal all-reduce algorithms, 2009). Each of n members sends 2(n-1)/n of the bytes. All
results are equal bit for bit, because the sum of each part is computed in one order only. After its own part, a member
sends the parts that it has received, in the same order, and forwards each block as soon as it is complete.

Pure: no sockets and no clock. Imports NumPy, no TensorFlow.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final, Protocol

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]

BLOCK_BYTES: Final = 256 * 1024
"""Bytes that are added in one operation."""


class HeaderMismatchError(Exception):
    """The left neighbor sent another header than this member; the exception carries the neighbor's header."""

    def __init__(self, found: bytes) -> None:
        super().__init__("the neighbor in the ring sent another header")
        self.found = found


@dataclass(frozen=True)
class RingStep:
    """One step of a member in an all-reduce: the numbers of the parts that it sends and receives."""

    send: int
    take: int
    adds: bool
    """Whether the received part is added to the member's own; otherwise the received part replaces it."""


def ring_steps(members: int, place: int) -> list[RingStep]:
    """Return a member's steps: first a reduce-scatter around the ring, then an all-gather of the sums."""
    count = 2 * (members - 1)
    return [RingStep((place - k) % members, (place - k - 1) % members, k < members - 1) for k in range(count)]


def part(array: Array, number: int, members: int) -> Array:
    """Return part `number` of a vector that is divided into `members` parts, equal in size up to one element."""
    return array[array.size * number // members : array.size * (number + 1) // members]


class Stream(Protocol):
    """The bytes that a member sends and receives."""

    def outgoing(self) -> memoryview:
        """Return the bytes that can be sent now; empty if there are none."""

    def sent(self, count: int) -> None:
        """Note that the first `count` bytes of `outgoing` were sent."""

    def incoming(self) -> memoryview:
        """Return the buffer for the next bytes; empty when all bytes are received."""

    def came(self, count: int) -> None:
        """Note that `count` bytes were written to `incoming`."""

    @property
    def done(self) -> bool:
        """Return whether all bytes are sent and received."""


class _Sending:
    """Blocks that are sent in sequence; only the first `free` bytes are complete and can be sent now."""

    def __init__(self, blocks: Sequence[memoryview], free: int) -> None:
        self._out, self._free = [view for view in blocks if len(view)], free
        self._sending = self._out_at = 0

    def outgoing(self) -> memoryview:
        """See `Stream`."""
        if self._sending == len(self._out):
            return memoryview(b"")
        return self._out[self._sending][self._out_at : self._out_at + self._free]

    def sent(self, count: int) -> None:
        """See `Stream`."""
        self._out_at += count
        self._free -= count
        if self._out_at == len(self._out[self._sending]):
            self._sending, self._out_at = self._sending + 1, 0


class Sum(_Sending):
    """Replaces vectors by the sum of all members' vectors of the same sizes and types.

    Args:
        arrays: contiguous vectors; changed in place.
        members: number of members.
        place: this member's index in the ring, from 0.
        header: sent first; the left neighbor must send an equal one.
        room: a buffer of at least BLOCK_BYTES for received parts that are added; None: a new one.
    """

    def __init__(
        self, arrays: Sequence[Array], *, members: int, place: int, header: bytes = b"", room: bytearray | None = None
    ) -> None:
        self._header, self._received_header = header, bytearray(len(header))
        self._room = memoryview(room if room is not None else bytearray(BLOCK_BYTES))
        steps = ring_steps(members, place)
        self._header_bytes = 0 if header and steps else -1  # bytes of the header so far; -1: it is complete and matches
        own = [_bytes(part(array, steps[0].send, members)) for array in arrays] if steps else []
        later = [_bytes(part(array, step.send, members)) for step in steps[1:] for array in arrays]
        ahead = [memoryview(header)] if steps else []
        super().__init__([*ahead, *own, *later], free=sum(map(len, [*ahead, *own])))
        take = [(part(array, step.take, members), step.adds) for step in steps for array in arrays]
        self._take = [(target, adds) for target, adds in take if target.size]
        self._taking = self._in_at = self._filled = 0

    def incoming(self) -> memoryview:
        """See `Stream`."""
        if self._header_bytes >= 0:
            return memoryview(self._received_header)[self._header_bytes :]
        if self._taking == len(self._take):
            return memoryview(b"")
        target, adds = self._take[self._taking]
        if adds:
            return self._room[self._filled : min(BLOCK_BYTES, target.nbytes - self._in_at)]
        return _bytes(target)[self._in_at :]

    def came(self, count: int) -> None:
        """See `Stream`.

        Raises:
            HeaderMismatchError: the left neighbor sent another header.
        """
        if self._header_bytes >= 0:
            self._header_bytes += count
            if self._header_bytes == len(self._header):
                self._header_bytes = -1
                if bytes(self._received_header) != self._header:
                    raise HeaderMismatchError(bytes(self._received_header))
            return
        target, adds = self._take[self._taking]
        if adds:
            self._filled += count
            piece = min(BLOCK_BYTES, target.nbytes - self._in_at)
            if self._filled < piece:
                return
            begin, size = self._in_at // target.itemsize, piece // target.itemsize
            here = target[begin : begin + size]
            np.add(here, np.frombuffer(self._room, target.dtype, size), out=here)
            count, self._filled = piece, 0
        self._in_at += count
        self._free += count
        if self._in_at == target.nbytes:
            self._taking, self._in_at = self._taking + 1, 0

    @property
    def done(self) -> bool:
        """See `Stream`."""
        return self._sending == len(self._out) and self._header_bytes < 0 and self._taking == len(self._take)


class Relay(_Sending):
    """Sends the arrays of one member, the source, to members after it in the ring.

    Args:
        arrays: contiguous arrays; the source's are sent, the receivers' are overwritten.
        members: number of members.
        place: this member's index in the ring.
        source: the source's index.
        last: index of the last receiver; receivers before it forward the arrays.
    """

    def __init__(self, arrays: Sequence[Array], *, members: int, place: int, source: int, last: int) -> None:
        views = [_bytes(array) for array in arrays if array.size]
        away, length = (place - source) % members, (last - source) % members
        self._in = views if 0 < away <= length else []
        super().__init__(views if away < length else [], free=sum(map(len, views)) if away == 0 else 0)
        self._taking = self._in_at = 0

    def incoming(self) -> memoryview:
        """See `Stream`."""
        return self._in[self._taking][self._in_at :] if self._taking < len(self._in) else memoryview(b"")

    def came(self, count: int) -> None:
        """See `Stream`."""
        self._in_at += count
        self._free += count
        if self._in_at == len(self._in[self._taking]):
            self._taking, self._in_at = self._taking + 1, 0

    @property
    def done(self) -> bool:
        """See `Stream`."""
        return self._sending == len(self._out) and self._taking == len(self._in)


def _bytes(array: Array) -> memoryview:
    return array.reshape(-1).view(np.uint8).data
