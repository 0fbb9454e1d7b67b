"""TCP keepalive for TensorFlow's connections, which wait forever for a peer whose node or network is gone.

gRPC's own keepalive is no substitute. Its servers close a connection on which they send nothing while the client sends
requests and four pings (`too_many_pings`). A busy server or worker does that, and its calls fail without a fault.

The runtime imports this module. In a pod it is beside launch.py, and it imports only Python 3.8's standard library.
"""

from __future__ import annotations

import os
import socket
import stat
import threading
from contextlib import suppress
from typing import Collection, Iterator, Set, Tuple  # noqa: UP035 - Python 3.8

Option = Tuple[int, int, int]  # noqa: UP006
"""The level, name and value of a socket's option."""

PROBES = (
    (socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1),
    (socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, 1),
    (socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, 1),
    (socket.IPPROTO_TCP, socket.TCP_KEEPCNT, 2),
)
"""An idle connection is probed once a second, and ends after 3 seconds without an acknowledgement.

A client's connections have no TCP_USER_TIMEOUT: Linux applies it to a full receive window, too, and a server that reads
nothing is only busy. While bytes wait for an acknowledgement, the client's watchdog notices a lost network.
"""
SERVER_OPTIONS = (*PROBES, (socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, 10_000))
"""A server's connections end after 10 seconds without an acknowledgement, also to a worker that reads nothing."""
SEARCH_SECONDS = 1.0
"""Seconds between two searches for new connections."""


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


def peers() -> Set[str]:  # noqa: UP006
    """Return the addresses of all peers that this process is connected to."""
    found = set()
    for connection in connections():
        with suppress(OSError):  # it listens, or has ended
            found.add(str(connection.getpeername()))
    return found


def set_options(connection: socket.socket, options: Collection[Option]) -> None:
    """Set options of a connection, as far as it still exists and the kernel knows them."""
    for option in options:
        with suppress(OSError):
            connection.setsockopt(*option)


def keep_all_alive() -> None:
    """Set SERVER_OPTIONS for all connections of this process from a thread that ends with the process."""
    waiting = threading.Event()

    def keep() -> None:
        while not waiting.wait(SEARCH_SECONDS):
            for connection in connections():
                set_options(connection, SERVER_OPTIONS)

    threading.Thread(target=keep, name="pstraining-keepalive", daemon=True).start()
