"""One ring of workers: sums of vectors, and state that is passed on. Plain TCP and numpy; knows no TensorFlow."""

import select
import time
from collections.abc import Callable, Sequence
from typing import Final

import numpy as np

from pstraining.runtime.allreduce.streams import PIECE, Array, GreetingError, Relay, Stream, Sum
from pstraining.runtime.allreduce.topology import BrokenRingError, Card
from pstraining.runtime.allreduce.transport import Neighbours

AT_ONCE: Final = 1024 * 1024
"""Bytes that are handed to the system at a time."""
WAIT_SECONDS: Final = 0.2
"""Seconds of waiting after which it is asked whether to go on."""
VERDICT_SECONDS: Final = 1.0
"""Seconds to wait for the word of a neighbour, or its silence, after its data has ended."""


class Ring:
    """A ring that has come to be. With one member nothing is sent.

    Args:
        members: their cards, in order.
        place: this worker's.
        links: to the neighbours; None for one member.
    """

    def __init__(self, number: int, members: Sequence[Card], place: int, links: Neighbours | None) -> None:
        self.number, self.members, self.place = number, tuple(members), place
        self.carried = 0
        """Bytes sent so far, without headers."""
        self._links, self._room = links, bytearray(PIECE)

    @property
    def broken(self) -> BrokenRingError | None:
        """Why it is no more."""
        return self._links.broken if self._links else None

    def sum(self, arrays: Sequence[Array], *, greeting: bytes, going_on: Callable[[], bool] = lambda: True) -> None:
        """Replace vectors by the sum of all members' vectors.

        Args:
            arrays: contiguous vectors, of the same sizes and types on all members.
            greeting: what it is about; the same on all members.
            going_on: asked now and then, while others are waited for.

        Raises:
            BrokenRingError: a member is gone, or has left; the vectors are spoilt.
            GreetingError: the left neighbour's is another one.
        """
        size, place = len(self.members), self.place
        self._run(Sum(arrays, members=size, place=place, greeting=greeting, room=self._room), going_on)

    def tell(self, number: int, *, greeting: bytes, going_on: Callable[[], bool] = lambda: True) -> list[int]:
        """Tell all members a number; everybody's, in order."""
        told = np.zeros([len(self.members)], np.int64)
        told[self.place] = number
        self.sum([told], greeting=greeting, going_on=going_on)
        return [int(value) for value in told]

    def relay(self, arrays: Sequence[Array], *, source: int, last: int) -> None:
        """Bring the arrays of the member at `source` to those after it, up to the one at `last`."""
        self._run(Relay(arrays, members=len(self.members), place=self.place, source=source, last=last), lambda: True)

    def leave(self) -> None:
        """Be part of it no longer."""
        if self._links:
            self._links.close()

    def _run(self, stream: Stream, going_on: Callable[[], bool]) -> None:
        links = self._links
        if links is None or stream.done:
            return
        left, right = links.left, links.right
        assert left is not None and right is not None  # noqa: S101, PT018 - the ring has come to be
        try:
            while not stream.done:
                out, into = stream.outgoing(), stream.incoming()
                moved = False
                if len(out):
                    try:
                        count = right.send(out[:AT_ONCE])
                        self.carried += count
                        stream.sent(count)
                        moved = True
                    except BlockingIOError:
                        pass
                if len(into):
                    try:
                        count = left.recv_into(into)
                    except BlockingIOError:
                        count = -1
                    if count == 0:
                        raise OSError("the left neighbour's data has ended")
                    if count > 0:
                        stream.came(count)
                        moved = True
                if not moved and not self._wait(bool(len(out)), bool(len(into))) and not going_on():
                    links.leave()
                if links.broken:
                    raise links.broken
        except OSError:
            raise self._verdict(links) from None
        except GreetingError:
            links.leave()
            raise

    def _wait(self, sends: bool, takes: bool) -> bool:
        """Until something can be sent or taken; False if nothing could for a while."""
        links, poll = self._links, select.poll()
        assert links and links.left and links.right  # noqa: S101, PT018 - the ring has come to be
        if sends:
            poll.register(links.right, select.POLLOUT)
        if takes:
            poll.register(links.left, select.POLLIN)
        return bool(poll.poll(WAIT_SECONDS * 1000))

    @staticmethod
    def _verdict(links: Neighbours) -> BrokenRingError:
        """Why data has ended: the connections for signs of life know."""
        until = time.monotonic() + VERDICT_SECONDS
        while links.broken is None and time.monotonic() < until:
            time.sleep(0.001)
        links.leave()
        return links.broken or BrokenRingError()
