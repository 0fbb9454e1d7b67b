"""Who makes up a ring of workers, and how each is reached. Knows no TensorFlow."""

import ipaddress
import socket
import struct
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

_MAPPED: Final = bytes(10) + b"\xff\xff"
"""An IPv4 address as one of IPv6 begins so (RFC 4291, 2.5.5.2)."""


@dataclass(frozen=True)
class Card:
    """How a worker's process is reached by the others of its ring."""

    worker: int
    incarnation: int
    host: str
    port: int
    token: int
    """Only who has read it from the servers may connect. 62 bits."""

    def numbers(self) -> list[int]:
        """As the servers keep it: the incarnation, two halves of the address, port, token. int64[5]."""
        packed = ipaddress.ip_address(socket.getaddrinfo(self.host, None)[0][4][0]).packed
        packed = packed if len(packed) == 16 else _MAPPED + packed
        return [self.incarnation, *struct.unpack("!qq", packed), self.port, self.token]

    @staticmethod
    def of(worker: int, numbers: Sequence[int]) -> "Card":
        """The card from what the servers keep."""
        incarnation, high, low, port, token = map(int, numbers)
        packed = struct.pack("!qq", high, low)
        address = packed.removeprefix(_MAPPED)
        return Card(worker, incarnation, str(ipaddress.ip_address(address)), port, token)


CARD_SIZE: Final = 5


@dataclass(frozen=True)
class RingPlan:
    """Who makes up a ring, in its order."""

    generation: int
    number: int
    members: tuple[Card, ...]
    place: int
    """This worker's."""

    @property
    def right(self) -> Card:
        """Whom this worker sends to."""
        return self.members[(self.place + 1) % len(self.members)]

    @property
    def left(self) -> Card:
        """From whom it takes."""
        return self.members[self.place - 1]


class BrokenRingError(Exception):
    """The ring is no more; it carries the cards of neighbours that are suspected to be dead."""

    def __init__(self, suspects: Sequence[Card] = ()) -> None:
        super().__init__(f"the ring is broken; suspected: {[card.worker for card in suspects]}")
        self.suspects = tuple(suspects)
