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

from pstraining.runtime.transport import sockets

Address = TypeVar("Address", str, sockets.Endpoint)

PREFACE: Final = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes([0, 0, 0, 4, 0, 0, 0, 0, 0])
"""What a client begins with: a fixed text and an empty SETTINGS frame."""
HEADER: Final = 9
"""Bytes of a frame's header: 3 of length, then type, flags and 4 of the stream's number."""
SETTINGS: Final = 4
"""The type of the frame that a server begins with."""
PROBE_TIMEOUT_SECONDS: Final = 2.0
"""Seconds for an answer. Measured: 1 to 4 ms from an idle server, 43 ms at most from one whose cores are all in use."""
REPLICATED_PROBE_TIMEOUT_SECONDS: Final = 1.0
"""The same where another server has the same state, and leaving one by mistake costs seconds and no step."""
RETRY_PROBE_TIMEOUT_SECONDS: Final = 0.3
"""The same for a server that was silent a moment ago, which is asked again only as it may have come back."""

GRACE: Final = 0.1
"""Seconds for the threads that ask, beyond the patience of what they ask."""


class ProbeResult(Enum):
    """The result of a probe."""

    ANSWERS = "a server's process"
    REFUSES = "the host answers that nobody listens: the process that did is gone"
    NOTHING = "nothing is known"


def probe(endpoint: sockets.Endpoint, patience: float = PROBE_TIMEOUT_SECONDS) -> ProbeResult:
    """Probe an endpoint within `patience` seconds; a new name is looked up first."""
    until = time.monotonic() + patience
    try:
        with sockets.dial(endpoint, patience) as asked:
            asked.sendall(PREFACE)
            header = b""
            while len(header) < HEADER:
                asked.settimeout(max(0.001, until - time.monotonic()))
                received = asked.recv(HEADER - len(header))
                if not received:
                    return ProbeResult.NOTHING
                header += received
    except ConnectionRefusedError:
        return ProbeResult.REFUSES
    except OSError:
        return ProbeResult.NOTHING
    return ProbeResult.ANSWERS if header[3] == SETTINGS else ProbeResult.NOTHING


def is_alive(endpoint: sockets.Endpoint, patience: float = PROBE_TIMEOUT_SECONDS) -> bool:
    """Return whether a server's process answers within `patience` seconds."""
    return probe(endpoint, patience) is ProbeResult.ANSWERS


def probe_timeout(members: int) -> float:
    """Return the seconds for an answer in a job with this number of members per shard."""
    return PROBE_TIMEOUT_SECONDS if members == 1 else REPLICATED_PROBE_TIMEOUT_SECONDS


def unresponsive(
    addresses: Sequence[str], patience: float = PROBE_TIMEOUT_SECONDS, suspects: Iterable[str] = ()
) -> list[str]:
    """Return the addresses, host:port, where no server's process answers now; all are probed at once.

    Args:
        addresses: whom to ask.
        patience: seconds for an answer.
        suspects: who was silent a moment ago, for the same patience: they get `RETRY_PROBE_TIMEOUT_SECONDS` now.
    """
    given = dict.fromkeys(addresses, patience) | {
        suspect: min(RETRY_PROBE_TIMEOUT_SECONDS, patience) for suspect in suspects
    }
    return _without(addresses, lambda address: is_alive(sockets.split(address), given[address]), given.__getitem__)


def unresponsive_peers(
    peers: Iterable[sockets.Endpoint], patience: float = PROBE_TIMEOUT_SECONDS
) -> list[sockets.Endpoint]:
    """Return the numeric addresses where no server's process answers now."""
    return _without(sorted(set(peers)), lambda peer: is_alive(peer, patience), lambda _: patience)


class Ahead:
    """Servers are asked while there is something else to do: nobody then stands and waits for those that are gone.

    Args:
        addresses: host:port of each.
        patience: seconds for an answer.
    """

    def __init__(self, addresses: Sequence[str], patience: float) -> None:
        self._found: Sequence[str] = ()
        self._thread = threading.Thread(
            target=self._ask, args=(addresses, patience), name="pstraining-asks-ahead", daemon=True
        )
        self._thread.start()

    def unresponsive(self) -> Sequence[str]:
        """Return the addresses that have not answered."""
        self._thread.join()
        return self._found

    def _ask(self, addresses: Sequence[str], patience: float) -> None:
        self._found = unresponsive(addresses, patience)


def _without(
    asked: Sequence[Address], answered: Callable[[Address], bool], patience: Callable[[Address], float]
) -> list[Address]:
    """Those of `asked` of which `answered` is not true within their patience, in order.

    A thread each, which nobody waits for: a name server can keep one for longer than that.
    """
    told: queue.SimpleQueue[tuple[Address, bool]] = queue.SimpleQueue()
    for one in asked:
        threading.Thread(target=lambda peer: told.put((peer, answered(peer))), args=(one,), daemon=True).start()
    left, open_, began = set(asked), set(asked), time.monotonic()
    while open_:
        until = began + max(map(patience, open_)) + GRACE
        try:
            peer, is_there = told.get(timeout=max(0.0, until - time.monotonic()))
        except queue.Empty:
            break
        open_.discard(peer)
        if is_there:
            left.discard(peer)
    return [one for one in asked if one in left]
