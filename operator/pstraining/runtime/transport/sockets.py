"""Ports, sockets and TensorFlow's network settings. Knows no TensorFlow.

TensorFlow waits forever on a peer that does not answer and on a server that is down. This module prevents that: it
enables keepalive on TensorFlow's sockets, lists their peers, and shuts connections down.
"""

import os
import socket
import threading
from collections.abc import Collection, Iterator, Sequence
from contextlib import suppress
from typing import Final

from pstraining.launcher import keepalive
from pstraining.launcher.contract import BACK_OFF, OPTIONS, drop_grpc_keepalive

ENVIRONMENT: Final = {
    # A call to a server that is down fails at once instead of waiting for it.
    "GRPC_FAIL_FAST": "true",
    # A returned server is dialled within half a second instead of up to two minutes.
    OPTIONS: BACK_OFF,
    "TF_CPP_MIN_LOG_LEVEL": "2",
}
"""Variables that are set before TensorFlow is imported, unless the pod sets them."""

Endpoint = tuple[str, int]
"""Host, or numeric address, and port."""


def set_environment() -> None:
    """Set ENVIRONMENT, except variables that the pod's template sets.

    The launcher's options, which are for any program, contain gRPC's keepalive, see `launcher.keepalive`.
    """
    drop_grpc_keepalive(os.environ)
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


def sockets_to(addresses: Sequence[str]) -> Iterator[socket.socket]:
    """Yield all TCP connections of this process to the ports of `addresses`; each is valid until the next one."""
    ports = {split(address)[1] for address in addresses}
    for found in keepalive.connections():
        with suppress(OSError):
            if found.getpeername()[1] in ports:
                yield found


def keep_alive(addresses: Sequence[str]) -> None:
    """Enable keepalive on the connections to `addresses`."""
    for found in sockets_to(addresses):
        keepalive.set_options(found, keepalive.PROBES)


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
