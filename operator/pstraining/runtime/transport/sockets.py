"""Ports, sockets and TensorFlow's network settings. Knows no TensorFlow.

TensorFlow waits for ever on a peer that is silent and on a server that is down; what is here keeps that from
happening: keepalive on TensorFlow's own sockets, who is at their other ends, and a way to cut them.
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
    # A server that came back is dialled again within half a second instead of up to two minutes.
    "TF_GRPC_DEFAULT_OPTIONS": (
        "grpc.min_reconnect_backoff_ms=100,grpc.initial_reconnect_backoff_ms=100,grpc.max_reconnect_backoff_ms=500"
    ),
    "TF_CPP_MIN_LOG_LEVEL": "2",
}
"""Set before TensorFlow is imported, unless the pod has its own values."""

KEEPALIVE: Final = (
    (socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1),
    (socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, 1),
    (socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, 1),
    (socket.IPPROTO_TCP, socket.TCP_KEEPCNT, 3),
    (socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, 3000),
)
"""A silent peer is given up after 3 seconds: measured 2.3 to 3.6 until the call fails, idle or active."""

Endpoint = tuple[str, int]
"""Host, or numeric address, and port."""


def set_environment() -> None:
    """Give TensorFlow the settings above where the environment does not say otherwise."""
    for name, value in ENVIRONMENT.items():
        os.environ.setdefault(name, value)


def split(address: str) -> Endpoint:
    """Host and port of host:port or [v6]:port."""
    host, _, port = address.rpartition(":")
    return host.strip("[]"), int(port)


def joined(endpoint: Endpoint) -> str:
    """host:port or [v6]:port."""
    host, port = endpoint
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def dial(endpoint: Endpoint, patience: float) -> socket.socket:
    """Connect within `patience` seconds to an address, or to a name that has been reached before.

    Looking a name up has no limit, and whoever is cut off from others may be cut off from the name server, too. So a
    name keeps the address that it was reached by; when that fails, the name is looked up beside all else, and if there
    is an answer, the next call asks anew.

    Raises:
        OSError: it cannot be reached; ConnectionRefusedError: nobody listens there.
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
"""By what address each name was reached."""
_looking_up: Final[set[str]] = set()


def _look_up(host: str) -> None:
    try:
        with suppress(OSError):
            socket.getaddrinfo(host, None)
            _reached.pop(host, None)
    finally:
        _looking_up.discard(host)


def connections() -> Iterator[socket.socket]:
    """This process's TCP sockets, whoever opened them; each is valid until the next."""
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
    """This process's TCP connections to the ports of `addresses`, whoever opened them; each is valid until the next."""
    ports = {split(address)[1] for address in addresses}
    for found in connections():
        with suppress(OSError):
            if found.getpeername()[1] in ports:
                yield found


def keep_alive(addresses: Sequence[str]) -> None:
    """Turn on keepalive on the connections to `addresses`."""
    for found in sockets_to(addresses):
        for option in KEEPALIVE:
            with suppress(OSError):
                found.setsockopt(*option)


def peers(addresses: Sequence[str]) -> set[Endpoint]:
    """Numeric addresses at the other ends of this process's connections to the ports of `addresses`."""
    found = set()
    for connection in sockets_to(addresses):
        with suppress(OSError):
            found.add(_peer(connection))
    return found


def cut_peers(peers: Collection[Endpoint]) -> int:
    """Shut down the connections to `peers`, so that calls that hang on them fail; returns how many."""
    number = 0
    for connection in sockets_to([joined(peer) for peer in peers]):
        with suppress(OSError):
            if _peer(connection) in peers:
                connection.shutdown(socket.SHUT_RDWR)
                number += 1
    return number


def _peer(connection: socket.socket) -> Endpoint:
    host, port = connection.getpeername()[:2]
    return str(host).removeprefix("::ffff:"), int(port)  # gRPC's sockets are of IPv6 also where it speaks IPv4
