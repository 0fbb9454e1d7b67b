"""What one member of a ring sends and takes, as streams of bytes: sums of arrays, and arrays that are passed on.

A member sends to the one at its right and takes from the one at its left. A sum is a reduce-scatter and an all-gather
(Patarasuk and Yuan, Bandwidth optimal all-reduce algorithms, 2009): of n members each sends 2(n-1)/n of the bytes, and
all hold the same bits at the end, because each part is added up in one place. What a member sends after its own part is
what it has taken, in the same order, so every piece is forwarded as soon as it is there.

Pure: no sockets and no clock. Knows numpy, not TensorFlow.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final, Protocol

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]

BLOCK_BYTES: Final = 256 * 1024
"""Bytes that are added up at a time."""


class HeaderMismatchError(Exception):
    """The left neighbor sent another header than this member; the exception carries it."""

    def __init__(self, found: bytes) -> None:
        super().__init__("the neighbor in the ring sent another header")
        self.found = found


@dataclass(frozen=True)
class RingStep:
    """One step of a member in an all-reduce: the numbers of the parts that it sends and receives."""

    send: int
    take: int
    adds: bool
    """Whether what is taken is added to what is there; else it replaces it."""


def ring_steps(members: int, place: int) -> list[RingStep]:
    """Return a member's steps: first a reduce-scatter around the ring, then an all-gather of the sums."""
    count = 2 * (members - 1)
    return [RingStep((place - k) % members, (place - k - 1) % members, k < members - 1) for k in range(count)]


def part(array: Array, number: int, members: int) -> Array:
    """One of `members` parts of a vector, alike in size up to one element."""
    return array[array.size * number // members : array.size * (number + 1) // members]


class Stream(Protocol):
    """What a member sends and takes."""

    def outgoing(self) -> memoryview:
        """What can be sent now; empty if nothing can."""

    def sent(self, count: int) -> None:
        """The number of its bytes that were sent."""

    def incoming(self) -> memoryview:
        """Where to put what comes next; empty when everything has come."""

    def came(self, count: int) -> None:
        """The number of bytes that were put there."""

    @property
    def done(self) -> bool:
        """Whether everything was sent, and everything has come."""


class _Sending:
    """Blocks that are sent one after the other, as far as they are free to go."""

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
        members: how many there are.
        place: this member's, from 0.
        header: sent first; the left neighbor must send the same.
        room: of PIECE bytes at least, to take what is added.
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
    """Brings the arrays of one member, the source, to those that come after it in the ring.

    Args:
        arrays: contiguous; those of the source are sent, the others' are overwritten.
        members: how many there are.
        place: this member's.
        source: whose arrays they are.
        last: the last one after the source that wants them; those in between pass them on.
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
