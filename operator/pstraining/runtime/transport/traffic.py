"""Counts the bytes of each of this task's links, by the kernel's counters. Imports no TensorFlow.

TensorFlow has two kinds of connections to a parameter server: those that this task opened, and those that the server
opened to fetch tensors. The kernel counts acknowledged and received bytes of each (TCP_INFO), without headers and
retransmissions. A closed connection keeps its last count, so sums outlive reconnects. Bytes between the last count and
the end of a connection are missing.
"""

import os
import re
import socket
import struct
import threading
from collections.abc import Iterator, Sequence
from contextlib import suppress
from typing import Final

from pstraining.launcher import keepalive
from pstraining.runtime.telemetry.counters import Traffic
from pstraining.runtime.transport import sockets

_Connection = tuple[int, tuple[str, int], tuple[str, int]]
"""A socket: its inode, and the addresses of both ends."""
_INFO_BYTES: Final = 136
_ACKED: Final = 120
"""Offset of tcpi_bytes_acked in Linux's struct tcp_info; tcpi_bytes_received follows it. uint64 each."""
ALL: Final = "ps"
"""The peer of a connection from a parameter server that its address does not identify."""
_TASK: Final = re.compile(r"-((?:ps|standby(?:-\d+)?)-\d+)$")
"""The end of the hostname of a parameter server in a cluster: its task, by which the plugin names it."""


class Links:
    """The byte counts of one process's links.

    Args:
        servers: host:port of every parameter server, in order; the caller may append some.
        own_port: the port of this task's own TensorFlow server.
    """

    def __init__(self, servers: Sequence[str], own_port: int) -> None:
        self._servers, self._own_port = servers, own_port
        self._lock = threading.Lock()
        self._counted: dict[_Connection, Traffic] = {}
        """The last counts of the connections that exist."""
        self._totals: dict[str, Traffic] = {}
        """The bytes by peer. A connection that is identified later, or no longer, moves none that were counted."""
        self._dialled: dict[tuple[str, int], str] = {}
        self._hosts: dict[str, str] = {}

    def name(self, number: int) -> str:
        """Return the name of a server, such as ps-0 or standby-0, the same in each task of a job in a cluster.

        Numbers differ: a task that trains on while servers are added appends their addresses.
        """
        host, _ = sockets.split(self._servers[number])
        found = _TASK.search(host.partition(".")[0])
        return f"ps-{number}" if found is None else found[1]

    def look(self) -> dict[str, Traffic]:
        """Return the bytes so far by peer, see `name`."""
        with self._lock:
            seen = dict(self._found())
            for connection, (peer, moved) in seen.items():
                gained = moved - self._counted.get(connection, Traffic())
                self._totals[peer] = self._totals.get(peer, Traffic()) + gained
            self._counted = {connection: moved for connection, (_, moved) in seen.items()}
            return dict(self._totals)

    def _found(self) -> Iterator[tuple[_Connection, tuple[str, Traffic]]]:
        for found in keepalive.connections():
            with suppress(OSError):  # not connected, or closed meanwhile
                own, other = found.getsockname()[:2], found.getpeername()[:2]
                if peer := self._peer(own, other):
                    yield (os.fstat(found.fileno()).st_ino, own, other), (peer, counted(found))

    def _peer(self, own: tuple[str, int], other: tuple[str, int]) -> str | None:
        """Return the task at the other end; None if it is not a parameter server."""
        if own[1] != self._own_port and other[1] not in {sockets.split(address)[1] for address in self._servers}:
            return None
        other = (other[0].removeprefix("::ffff:"), other[1])  # IPv4 on a socket for both
        if own[1] == self._own_port:
            if not self._hosts:
                self._resolve()
            return self._hosts.get(other[0], ALL)
        if other not in self._dialled:  # the name may have another address by now
            self._resolve()
        return self._dialled.setdefault(other, ALL)

    def _resolve(self) -> None:
        """Look the servers' addresses up. A host that several servers share identifies none of them."""
        by_host: dict[str, set[str]] = {}
        for index, address in enumerate(self._servers):
            host, port = sockets.split(address)
            peer = self.name(index)
            with suppress(OSError):
                for *_, found in socket.getaddrinfo(host, port, type=socket.SOCK_STREAM):
                    self._dialled[str(found[0]), port] = peer
                    by_host.setdefault(str(found[0]), set()).add(peer)
        self._hosts = {host: peers.pop() for host, peers in by_host.items() if len(peers) == 1}


def counted(connection: socket.socket) -> Traffic:
    """Return the kernel's byte counts of a connection.

    Raises:
        OSError: the socket is not a TCP connection, or the kernel is older than 4.2.
    """
    info = connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _INFO_BYTES)
    if len(info) < _INFO_BYTES:
        raise OSError("the kernel's TCP_INFO has no byte counts")
    return Traffic(*struct.unpack_from("=QQ", info, _ACKED))
