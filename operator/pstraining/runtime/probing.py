"""Whether a parameter server's process answers, found out without TensorFlow.

That a port accepts connections proves nothing: the kernel does it for a process that is stopped or stuck. So a question
is HTTP/2's own opening (RFC 9113, section 3.4): we send the client's preface, and gRPC's threads in the server send
their SETTINGS frame back. They do so while operations run as long as they like; a process that is stopped does not.
"""

import queue
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from enum import Enum
from typing import Final, TypeVar

from pstraining.runtime import network

Peer = TypeVar("Peer", str, network.Endpoint)

PREFACE: Final = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes([0, 0, 0, 4, 0, 0, 0, 0, 0])
"""What a client begins with: a fixed text and an empty SETTINGS frame."""
HEADER: Final = 9
"""Bytes of a frame's header: 3 of length, then type, flags and 4 of the stream's number."""
SETTINGS: Final = 4
"""The type of the frame that a server begins with."""
PATIENCE: Final = 2.0
"""Seconds for an answer. Measured: 1 to 4 ms from an idle server, 43 ms at most from one whose cores are all in use."""
BRISK: Final = 1.0
"""The same where another server has the same state, and leaving one by mistake costs seconds and no step."""

GRACE: Final = 0.1
"""Seconds for the threads that ask, beyond the patience of what they ask."""


class Found(Enum):
    """What a question has shown."""

    ANSWERS = "a server's process"
    REFUSES = "the host answers that nobody listens: the process that did is gone"
    NOTHING = "nothing is known"


def find(endpoint: network.Endpoint, patience: float = PATIENCE) -> Found:
    """What is there, as far as it shows within `patience` seconds; a new name is looked up first."""
    until = time.monotonic() + patience
    try:
        with network.dial(endpoint, patience) as asked:
            asked.sendall(PREFACE)
            header = b""
            while len(header) < HEADER:
                asked.settimeout(max(0.001, until - time.monotonic()))
                received = asked.recv(HEADER - len(header))
                if not received:
                    return Found.NOTHING
                header += received
    except ConnectionRefusedError:
        return Found.REFUSES
    except OSError:
        return Found.NOTHING
    return Found.ANSWERS if header[3] == SETTINGS else Found.NOTHING


def answers(endpoint: network.Endpoint, patience: float = PATIENCE) -> bool:
    """Whether a server's process answers there within `patience` seconds."""
    return find(endpoint, patience) is Found.ANSWERS


def silent(addresses: Sequence[str], patience: float = PATIENCE) -> list[str]:
    """The addresses, host:port, where no server's process answers now; all are asked at once."""
    return _without(addresses, lambda address: answers(network.split(address), patience), patience)


def silent_peers(peers: Iterable[network.Endpoint], patience: float = PATIENCE) -> list[network.Endpoint]:
    """The same of numeric addresses, which need no name to be looked up."""
    return _without(sorted(set(peers)), lambda peer: answers(peer, patience), patience)


def _without(asked: Sequence[Peer], answered: Callable[[Peer], bool], patience: float) -> list[Peer]:
    """Those of `asked` of which `answered` is not true in time, in order.

    A thread each, which nobody waits for: a name server can keep one for longer than `patience`.
    """
    told: queue.SimpleQueue[tuple[Peer, bool]] = queue.SimpleQueue()
    for one in asked:
        threading.Thread(target=lambda peer: told.put((peer, answered(peer))), args=(one,), daemon=True).start()
    left, until = set(asked), time.monotonic() + patience + GRACE
    for _ in asked:
        try:
            peer, is_there = told.get(timeout=max(0.0, until - time.monotonic()))
        except queue.Empty:
            break
        if is_there:
            left.discard(peer)
    return [one for one in asked if one in left]
