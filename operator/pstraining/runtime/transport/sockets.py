"""Ports, sockets and TensorFlow's network settings. Knows no TensorFlow.

TensorFlow waits forever on a peer that does not answer and on a server that is down. This module prevents that: it
enables keepalive on TensorFlow's sockets, lists their peers, and shuts connections down.
"""

import os
import socket
import stat
import threading
from collections.abc import Collection, Iterator, Sequence
from contextlib import suppress
from typing import Final

ENVIRONMENT: Final = {
    # A call to a server that is down fails at once instead of waiting for it.
    "GRPC_FAIL_FAST": "true",
    # A returned server is dialled within half a second instead of up to two minutes.
    "TF_GRPC_DEFAULT_OPTIONS": (
        "grpc.min_reconnect_backoff_ms=100,grpc.initial_reconnect_backoff_ms=100,grpc.max_reconnect_backoff_ms=500"
    ),
    "TF_CPP_MIN_LOG_LEVEL": "2",
}
"""Variables that are set before TensorFlow is imported, unless the pod sets them."""

KEEPALIVE: Final = (
    (socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1),
    (socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, 1),
    (socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, 1),
    (socket.IPPROTO_TCP, socket.TCP_KEEPCNT, 3),
    (socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, 3000),
)
"""A connection to a peer that does not answer ends after 3 seconds. Measured: the call fails after 2.3 to 3.6 s."""

Endpoint = tuple[str, int]
"""Host, or numeric address, and port."""


def set_environment() -> None:
    """Set ENVIRONMENT, except variables that are set already."""
    for name, value in ENVIRONMENT.items():
        os.environ.setdefault(name, value)


def split(address: str) -> Endpoint:
    """Return host and port of host:port or [v6]:port."""
    host, _, port = address.rpartition(":")
    return host.strip("[]"), int(port)


def joined(endpoint: Endpoint) -> str:
    """Return host:port or [v6]:port."""
    host, port = endpoint
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def dial(endpoint: Endpoint, patience: float) -> socket.socket:
    """Connect within `patience` seconds to an address, or to a name that was reached before.

    A name look-up has no time limit, and a partition may cut off the name server as well. The last address of a name is
    therefore kept. After a failure, a thread looks up the name, and the next call uses the new address.

    Raises:
        OSError: the host is unreachable.
        ConnectionRefusedError: no process listens on the port.
    """
    host, port = endpoint
    known = _reached.get(host)
    try:
        found = socket.create_connection((known or host, port), timeout=patience)
    except OSError:
        if known and host not in _looking_up:
            _looking_up.add(host)
            threading.Thread(target=_look_up, args=(host,), name="pstraining-names", daemon=True).start()
        raise
    _reached[host] = found.getpeername()[0]
    return found


_reached: Final[dict[str, str]] = {}
"""The last address at which each name was reached."""
_looking_up: Final[set[str]] = set()


def _look_up(host: str) -> None:
    try:
        with suppress(OSError):
            socket.getaddrinfo(host, None)
            _reached.pop(host, None)
    finally:
        _looking_up.discard(host)


def connections() -> Iterator[socket.socket]:
    """Yield all TCP sockets of this process; each is valid until the next one is requested."""
    for name in os.listdir("/proc/self/fd"):
        try:
            if not stat.S_ISSOCK(os.fstat(int(name)).st_mode):
                continue
            duplicate = os.dup(int(name))
        except OSError:
            continue  # closed meanwhile
        with socket.socket(fileno=duplicate) as found:
            if found.type == socket.SOCK_STREAM and found.family in (socket.AF_INET, socket.AF_INET6):
                yield found


def sockets_to(addresses: Sequence[str]) -> Iterator[socket.socket]:
    """Yield all TCP connections of this process to the ports of `addresses`; each is valid until the next one."""
    ports = {split(address)[1] for address in addresses}
    for found in connections():
        with suppress(OSError):
            if found.getpeername()[1] in ports:
                yield found


def keep_alive(addresses: Sequence[str]) -> None:
    """Enable keepalive on the connections to `addresses`."""
    for found in sockets_to(addresses):
        for option in KEEPALIVE:
            with suppress(OSError):
                found.setsockopt(*option)


def peers(addresses: Sequence[str]) -> set[Endpoint]:
    """Return the numeric addresses of the peers of this process's connections to the ports of `addresses`."""
    found = set()
    for connection in sockets_to(addresses):
        with suppress(OSError):
            found.add(_peer(connection))
    return found


def cut_peers(peers: Collection[Endpoint]) -> int:
    """Shut down the connections to `peers`, so that hanging calls fail; return their number."""
    number = 0
    for connection in sockets_to([joined(peer) for peer in peers]):
        with suppress(OSError):
            if _peer(connection) in peers:
                connection.shutdown(socket.SHUT_RDWR)
                number += 1
    return number


def _peer(connection: socket.socket) -> Endpoint:
    host, port = connection.getpeername()[:2]
    return str(host).removeprefix("::ffff:"), int(port)  # gRPC uses IPv6 sockets for IPv4 peers
