"""One ring of workers: all-reduce of vectors and broadcast of state, over TCP. Imports NumPy, no TensorFlow."""

import select
import socket
import time
from collections.abc import Callable, Sequence
from typing import Final

import numpy as np

from pstraining.runtime.allreduce.streams import BLOCK_BYTES, Array, HeaderMismatchError, Relay, Stream, Sum
from pstraining.runtime.allreduce.topology import BrokenRingError, Peer
from pstraining.runtime.allreduce.transport import NeighborLinks

AT_ONCE: Final = 1024 * 1024
"""Maximum bytes in one call of `send`."""
WAIT_SECONDS: Final = 0.2
"""Seconds of waiting after which the caller decides whether to continue."""
VERDICT_SECONDS: Final = 1.0
"""Seconds to wait for a neighbor's leave message, or the end of its heartbeats, after its data has ended."""


class Ring:
    """A connected ring. With one member nothing is sent.

    Args:
        number: the ring's number.
        members: the peers, in the ring's order.
        place: this worker's index in the ring, from 0.
        neighbors: connections to both neighbors; None for one member.
    """

    def __init__(self, number: int, members: Sequence[Peer], place: int, neighbors: NeighborLinks | None) -> None:
        self.number, self.members, self.place = number, tuple(members), place
        self.carried = 0
        """Bytes sent so far, without headers."""
        self._neighbors, self._room = neighbors, bytearray(BLOCK_BYTES)

    @property
    def broken(self) -> BrokenRingError | None:
        """The error that broke the ring; None while the ring is connected."""
        return self._neighbors.broken if self._neighbors else None

    def all_reduce(
        self, arrays: Sequence[Array], *, header: bytes, should_continue: Callable[[], bool] = lambda: True
    ) -> None:
        """Replace vectors by the sum of all members' vectors.

        Args:
            arrays: contiguous vectors, of the same sizes and types on all members. They are changed in place.
            header: identifies the operation; equal on all members.
            should_continue: called regularly while this member waits for others; False leaves the ring.

        Raises:
            BrokenRingError: a member has crashed or left. The vectors' contents are undefined.
            HeaderMismatchError: the left neighbor sent another header.
        """
        size, place = len(self.members), self.place
        self._run(Sum(arrays, members=size, place=place, header=header, room=self._room), should_continue)

    def all_gather(
        self, number: int, *, header: bytes, should_continue: Callable[[], bool] = lambda: True
    ) -> list[int]:
        """Send a number to all members, and return every member's number, in the ring's order.

        Raises:
            BrokenRingError: see `all_reduce`.
            HeaderMismatchError: see `all_reduce`.
        """
        gathered = np.zeros([len(self.members)], np.int64)
        gathered[self.place] = number
        self.all_reduce([gathered], header=header, should_continue=should_continue)
        return [int(value) for value in gathered]

    def broadcast(self, arrays: Sequence[Array], *, source: int, last: int) -> None:
        """Send the arrays of the member at index `source` around the ring, up to the member at index `last`.

        Raises:
            BrokenRingError: a member has crashed or left. The receivers' arrays are undefined.
        """
        self._run(Relay(arrays, members=len(self.members), place=self.place, source=source, last=last), lambda: True)

    def leave(self) -> None:
        """Leave the ring and close its connections."""
        if self._neighbors:
            self._neighbors.close()

    def _run(self, stream: Stream, should_continue: Callable[[], bool]) -> None:
        neighbors = self._neighbors
        if neighbors is None or stream.done:
            return
        left, right = neighbors.data
        try:
            while not stream.done:
                out, into = stream.outgoing(), stream.incoming()
                moved = any([self._send(right, stream, out), self._receive(left, stream, into)])
                if not moved and not self._wait(neighbors, bool(len(out)), bool(len(into))) and not should_continue():
                    neighbors.leave()
                if neighbors.broken:
                    raise neighbors.broken
        except OSError:
            raise self._verdict(neighbors) from None
        except HeaderMismatchError:
            neighbors.leave()
            raise

    def _send(self, right: socket.socket, stream: Stream, out: memoryview) -> bool:
        """Send bytes; return whether the connection took any."""
        if not len(out):
            return False
        try:
            count = right.send(out[:AT_ONCE])
        except BlockingIOError:
            return False
        self.carried += count
        stream.sent(count)
        return True

    @staticmethod
    def _receive(left: socket.socket, stream: Stream, into: memoryview) -> bool:
        """Receive bytes; return whether there were any.

        Raises:
            OSError: the left neighbor has closed its connection.
        """
        if not len(into):
            return False
        try:
            count = left.recv_into(into)
        except BlockingIOError:
            return False
        if not count:
            raise OSError("the left neighbor's data has ended")
        stream.came(count)
        return True

    def _wait(self, neighbors: NeighborLinks, sends: bool, takes: bool) -> bool:
        """Wait until data can be sent or received; return False after WAIT_SECONDS."""
        poll = select.poll()
        left, right = neighbors.data
        if sends:
            poll.register(right, select.POLLOUT)
        if takes:
            poll.register(left, select.POLLIN)
        return bool(poll.poll(WAIT_SECONDS * 1000))

    @staticmethod
    def _verdict(neighbors: NeighborLinks) -> BrokenRingError:
        """Return the error for an end of data, after a wait for its reason on the heartbeat connections."""
        until = time.monotonic() + VERDICT_SECONDS
        while neighbors.broken is None and time.monotonic() < until:
            time.sleep(0.001)
        neighbors.leave()
        return neighbors.broken or BrokenRingError()
