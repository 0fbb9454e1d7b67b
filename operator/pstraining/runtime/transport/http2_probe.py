"""Probes a parameter server's process without TensorFlow.

A port that accepts connections proves nothing: the kernel accepts them for a stopped process as well. So a probe opens
HTTP/2 (RFC 9113, section 3.4): it sends the client's preface, and gRPC's threads in the server reply with a SETTINGS
frame. The threads reply during long operations as well; those of a stopped process do not.
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
"""The client's preface: a fixed text and an empty SETTINGS frame."""
HEADER: Final = 9
"""Bytes of a frame's header: 3 of length, then type, flags and 4 of the stream's number."""
SETTINGS: Final = 4
"""The type of a server's first frame."""
PROBE_TIMEOUT_SECONDS: Final = 2.0
"""Seconds for a reply. Measured: 1 to 4 ms from an idle server, at most 43 ms from one whose cores are all busy."""
REPLICATED_PROBE_TIMEOUT_SECONDS: Final = 1.0
"""Seconds for a reply of a server with standbys: a false suspicion costs seconds, and no step."""
RETRY_PROBE_TIMEOUT_SECONDS: Final = 0.3
"""Seconds for a reply of a server that did not answer a moment ago, and may have returned."""

GRACE: Final = 0.1
"""Seconds that a probe's thread may take beyond the probe's timeout."""
SLICE: Final = 0.1
"""Seconds of one wait for probes. It counts as SLICE + GRACE at most: a longer one shows that this process did not run,
and that replies may already be there."""


class ProbeResult(Enum):
    """The result of a probe."""

    ANSWERS = "the process answers"
    REFUSES = "the host refuses the connection: the process has ended"
    NOTHING = "no reply, or not that of a server"


def probe(endpoint: sockets.Endpoint, patience: float = PROBE_TIMEOUT_SECONDS) -> ProbeResult:
    """Probe an endpoint: `patience` seconds for the connection, and again for the reply.

    The kernel accepts a connection at once, so neither a stopped server nor an absent host takes both. The look-up of a
    new name may take longer.
    """
    try:
        with sockets.dial(endpoint, patience) as asked:
            asked.sendall(PREFACE)
            until = time.monotonic() + patience  # this process may have been late with its request
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
        addresses: host:port of each server.
        patience: seconds for a reply.
        suspects: addresses that did not answer a moment ago; their timeout is `RETRY_PROBE_TIMEOUT_SECONDS` at most.
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
    """Probes servers in a thread while the process does something else.

    Args:
        addresses: host:port of each server.
        patience: seconds for a reply.
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
    """Return the addresses whose `answered` is not true within their patience, in order.

    Each has a thread of its own, which is abandoned at the timeout: a name server can block it for longer. Time in
    which this process did not run does not count.
    """
    results: queue.SimpleQueue[tuple[Address, bool]] = queue.SimpleQueue()
    for one in asked:
        threading.Thread(target=lambda peer: results.put((peer, answered(peer))), args=(one,), daemon=True).start()
    left, open_, spent = set(asked), set(asked), 0.0
    while open_:
        rest = max(map(patience, open_)) + GRACE - spent
        began = time.monotonic()
        try:
            peer, is_present = results.get(timeout=max(0.0, min(SLICE, rest)))
        except queue.Empty:
            if rest <= 0:
                break
        else:
            open_.discard(peer)
            if is_present:
                left.discard(peer)
        spent += min(time.monotonic() - began, SLICE + GRACE)
    return [one for one in asked if one in left]
