"""The members of a ring of workers, and their addresses. Imports no TensorFlow."""

import ipaddress
import socket
import struct
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

_MAPPED: Final = bytes(10) + b"\xff\xff"
"""Prefix of an IPv4-mapped IPv6 address (RFC 4291, 2.5.5.2)."""


@dataclass(frozen=True)
class Peer:
    """A member of a ring: a worker's process and its address."""

    worker: int
    incarnation: int
    host: str
    port: int
    token: int
    """A secret that callers read from the servers; without it a connection is rejected. 62 bits."""

    def numbers(self) -> list[int]:
        """Return the servers' form: incarnation, two halves of the address, port, token. int64[5]."""
        packed = ipaddress.ip_address(socket.getaddrinfo(self.host, None)[0][4][0]).packed
        packed = packed if len(packed) == 16 else _MAPPED + packed
        return [self.incarnation, *struct.unpack("!qq", packed), self.port, self.token]

    @staticmethod
    def of(worker: int, numbers: Sequence[int]) -> "Peer":
        """Return the peer from the servers' form."""
        incarnation, high, low, port, token = map(int, numbers)
        packed = struct.pack("!qq", high, low)
        address = packed.removeprefix(_MAPPED)
        return Peer(worker, incarnation, str(ipaddress.ip_address(address)), port, token)


PEER_SIZE: Final = 5


@dataclass(frozen=True)
class RingTopology:
    """The members of a ring, in its order."""

    generation: int
    number: int
    members: tuple[Peer, ...]
    place: int
    """This worker's index in `members`."""

    @property
    def right(self) -> Peer:
        """Return the peer that this worker sends to."""
        return self.members[(self.place + 1) % len(self.members)]

    @property
    def left(self) -> Peer:
        """Return the peer that this worker receives from."""
        return self.members[self.place - 1]


class BrokenRingError(Exception):
    """The ring is broken; the exception carries the suspected neighbors."""

    def __init__(self, suspects: Sequence[Peer] = ()) -> None:
        super().__init__(f"the ring is broken; suspected: {[card.worker for card in suspects]}")
        self.suspects = tuple(suspects)
