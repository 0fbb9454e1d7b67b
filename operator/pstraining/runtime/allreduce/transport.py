"""A worker's connections to its neighbors in the ring: authentication of peers, and failure detection.

Each member opens two connections to its right neighbor: one for data, and one for heartbeats in both directions. A
member that leaves a ring sends a leave message. A neighbor is suspected if its connection ends without that message, or
if its heartbeats stop.

A thread beside the training thread sends and receives heartbeats, also during a long computation. The timeout is
counted in this process's own heartbeats: on a busy machine, where they are late, the timeout is longer as well. Imports
no TensorFlow.
"""

import errno
import hashlib
import secrets
import selectors
import socket
import struct
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Final

from pstraining.runtime.allreduce.topology import BrokenRingError, Peer, RingTopology

BEAT_SECONDS: Final = 0.1
"""Seconds between heartbeats."""
SILENT_BEATS: Final = 7
"""Heartbeats that a neighbor may miss before it is suspected."""
DIAL_SECONDS: Final = 1.0
"""Seconds after which a neighbor that does not accept a connection is suspected."""
ASK_SECONDS: Final = 0.05
"""Seconds between calls of `still` while this process waits for a neighbor."""
HELLO_BEATS: Final = 20
"""Heartbeats within which a caller must identify itself."""
BUFFER: Final = 4 * 1024 * 1024
"""Bytes of the system's buffer for a data connection, in each direction."""
UNASKED: Final = 64
"""Maximum number of connections that no ring of this process uses yet."""

_HELLO: Final = struct.Struct("!8sQqqqqQB")
_MAGIC: Final = b"psring01"
_DATA, _HEARTBEAT = 0, 1
_BEAT, _LEAVE = b".", b"X"


@dataclass(eq=False)
class HeartbeatLink:
    """A connection that carries heartbeats."""

    sock: socket.socket
    peer: Peer | None = None
    silent: int = 0
    """Number of own heartbeats since the neighbor's last message."""
    ended: bool = False
    dead: bool = False
    """Whether the connection ended without a leave message."""
    on_end: Callable[["HeartbeatLink"], None] | None = None


@dataclass(eq=False)
class _Caller:
    """A connection whose other side has not identified itself yet."""

    sock: socket.socket
    received: bytearray = field(default_factory=bytearray)
    beats: int = 0


_Key = tuple[int, int, int, int, int]


class RingTransport:
    """A process's connections in the rings that it joins in sequence.

    Args:
        job: the job's name; connections of other jobs are rejected.
        host: this process's address.
        ports: ports of which the first free one is used; empty: any free port.

    Raises:
        OSError: none of the ports is free.
    """

    def __init__(self, job: str, host: str, ports: Iterable[int] = ()) -> None:
        self._job = int.from_bytes(hashlib.sha256(job.encode()).digest()[:8], "big")
        self._host, self._token = host, secrets.randbits(62)
        self._listener = _listen(host, ports)
        self._selector = selectors.DefaultSelector()
        self._selector.register(self._listener, selectors.EVENT_READ, self._accept)
        self._callers: list[_Caller] = []
        self._heartbeats: list[HeartbeatLink] = []
        self._came: dict[_Key, socket.socket | HeartbeatLink] = {}
        self._changed = threading.Condition()
        self._closed = False
        threading.Thread(target=self._run, name="pstraining-ring", daemon=True).start()

    def peer(self, worker: int, incarnation: int) -> Peer:
        """Return this process as a peer."""
        return Peer(worker, incarnation, self._host, self._listener.getsockname()[1], self._token)

    def connect(self, topology: RingTopology, *, still: Callable[[], bool]) -> "NeighborLinks":
        """Return the connections of a ring of two or more members.

        Args:
            topology: the ring.
            still: called regularly; returns whether the ring is still needed.

        Raises:
            BrokenRingError: the ring cannot form, or is no longer needed.
        """
        self._forget_before(topology)
        links = NeighborLinks()
        try:
            data, heartbeat = (self._dial(topology, kind) for kind in (_DATA, _HEARTBEAT))
        except OSError:
            raise BrokenRingError([topology.right]) from None
        with self._changed:
            mine = HeartbeatLink(heartbeat)
            self._heartbeats.append(mine)
            links.watch(mine, topology.right)
            self._selector.register(heartbeat, selectors.EVENT_READ, lambda: self._hear(mine))
        links.right = data
        left = topology.left
        keys = [
            (topology.generation, topology.number, left.worker, left.incarnation, kind) for kind in (_DATA, _HEARTBEAT)
        ]
        try:
            while not (found := self._arrived(keys)):
                if links.broken is not None or not still():
                    raise links.broken or BrokenRingError()
        except BaseException:
            links.close()
            raise
        links.left = found[0]  # type: ignore[assignment]
        links.watch(found[1], left)  # type: ignore[arg-type]
        return links

    def _arrived(self, keys: Sequence["_Key"]) -> list[socket.socket | HeartbeatLink]:
        """Return both connections of the left neighbor; empty if they are not open after ASK_SECONDS."""
        with self._changed:
            if not all(key in self._came for key in keys):
                self._changed.wait(ASK_SECONDS)
            return [self._came.pop(key) for key in keys] if all(key in self._came for key in keys) else []

    def close(self) -> None:
        """End the thread, and close all connections."""
        self._closed = True

    def _dial(self, topology: RingTopology, kind: int) -> socket.socket:
        me, right = topology.members[topology.place], topology.right
        found = socket.create_connection((right.host, right.port), timeout=DIAL_SECONDS)
        found.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        number = (topology.generation, topology.number, me.worker, me.incarnation, right.token, kind)
        found.sendall(_HELLO.pack(_MAGIC, self._job, *number))
        return _ready(found, kind)

    def _forget_before(self, topology: RingTopology) -> None:
        with self._changed:
            old = [key for key in self._came if key[0] != topology.generation or key[1] < topology.number]
            for key in old:
                _close(self._came.pop(key))

    # The methods below run in the thread.

    def _run(self) -> None:
        beat = time.monotonic() + BEAT_SECONDS
        while not self._closed:
            for key, _ in self._selector.select(max(0.0, beat - time.monotonic())):
                key.data()
            if time.monotonic() >= beat:
                beat = time.monotonic() + BEAT_SECONDS
                self._beat()
        with self._changed:
            for found in [
                *(caller.sock for caller in self._callers),
                *(heartbeat.sock for heartbeat in self._heartbeats),
            ]:
                found.close()
            for waiting in self._came.values():
                _close(waiting)
        self._selector.close()
        self._listener.close()

    def _beat(self) -> None:
        with self._changed:
            heartbeats = list(self._heartbeats)
        for heartbeat in heartbeats:
            heartbeat.silent += 1
            with suppress(OSError):  # a read of the connection reports the error
                heartbeat.sock.send(_BEAT)
            if heartbeat.ended or heartbeat.silent > SILENT_BEATS:
                self._end(heartbeat, dead=not heartbeat.ended)
        for caller in list(self._callers):
            caller.beats += 1
            if caller.beats > HELLO_BEATS:
                self._drop(caller)

    def _accept(self) -> None:
        try:
            found, _ = self._listener.accept()
            found.setblocking(False)
            caller = _Caller(found)
            self._callers.append(caller)
            self._selector.register(found, selectors.EVENT_READ, lambda: self._listen_to(caller))
            if len(self._callers) > UNASKED:
                self._drop(self._callers[0])
        except OSError as error:
            if error.errno in (errno.EMFILE, errno.ENFILE):  # the caller still waits, so `select` would return at once
                time.sleep(BEAT_SECONDS)

    def _drop(self, caller: _Caller, *, close: bool = True) -> None:
        self._callers.remove(caller)
        self._selector.unregister(caller.sock)
        if close:
            caller.sock.close()

    def _listen_to(self, caller: _Caller) -> None:
        try:
            received = caller.sock.recv(_HELLO.size - len(caller.received))
        except BlockingIOError:
            return
        except OSError:
            received = b""
        caller.received += received
        if not received:
            self._drop(caller)
        elif len(caller.received) == _HELLO.size:
            magic, job, generation, number, worker, incarnation, token, kind = _HELLO.unpack(caller.received)
            known = (magic, job) == (_MAGIC, self._job) and secrets.compare_digest(
                token.to_bytes(8, "big"), self._token.to_bytes(8, "big")
            )
            self._drop(caller, close=not known)
            if known:
                self._take((generation, number, worker, incarnation, kind), _ready(caller.sock, kind))

    def _take(self, key: _Key, sock: socket.socket) -> None:
        with self._changed:
            heartbeat = HeartbeatLink(sock) if key[-1] == _HEARTBEAT else None
            if heartbeat:
                self._heartbeats.append(heartbeat)
                self._selector.register(sock, selectors.EVENT_READ, lambda: self._hear(heartbeat))
            if key in self._came:
                _close(self._came.pop(key))
            self._came[key] = heartbeat or sock
            while len(self._came) > UNASKED:
                _close(self._came.pop(next(iter(self._came))))
            self._changed.notify_all()

    def _hear(self, heartbeat: HeartbeatLink) -> None:
        try:
            received = heartbeat.sock.recv(256)
        except BlockingIOError:
            return
        except OSError:
            received = b""
        heartbeat.silent = 0
        if not received or _LEAVE in received:
            self._end(heartbeat, dead=not received and not heartbeat.ended)

    def _end(self, heartbeat: HeartbeatLink, *, dead: bool) -> None:
        with self._changed:
            if heartbeat not in self._heartbeats:
                return
            self._heartbeats.remove(heartbeat)
            self._selector.unregister(heartbeat.sock)
            heartbeat.dead, heartbeat.ended = dead, True
            on_end = heartbeat.on_end
            self._changed.notify_all()
        if on_end:
            on_end(heartbeat)
        heartbeat.sock.close()


class NeighborLinks:
    """The connections to both neighbors in one ring, until it is left or breaks."""

    def __init__(self) -> None:
        self.left: socket.socket | None = None
        self.right: socket.socket | None = None
        self.broken: BrokenRingError | None = None
        self._heartbeats: list[HeartbeatLink] = []
        self._lock = threading.Lock()

    @property
    def data(self) -> tuple[socket.socket, socket.socket]:
        """Return the data connections to the left and to the right neighbor.

        Raises:
            BrokenRingError: the ring is not connected.
        """
        if self.left is None or self.right is None:
            raise self.broken or BrokenRingError()
        return self.left, self.right

    def watch(self, heartbeat: HeartbeatLink, peer: Peer) -> None:
        """Leave the ring when this connection ends, and suspect its peer if no leave message was received."""
        heartbeat.peer, heartbeat.on_end = peer, self._on_end
        self._heartbeats.append(heartbeat)
        if heartbeat.ended:
            self._on_end(heartbeat)

    def _on_end(self, heartbeat: HeartbeatLink) -> None:
        self.leave([heartbeat.peer] if heartbeat.dead and heartbeat.peer else [])

    def leave(self, suspects: Sequence[Peer] = ()) -> None:
        """Notify the neighbors, and shut down all connections; reads and writes of their data fail at once."""
        with self._lock:
            if self.broken is not None:
                return
            self.broken = BrokenRingError(suspects)
            for heartbeat in self._heartbeats:
                heartbeat.ended = True  # the thread closes it
                with suppress(OSError):
                    heartbeat.sock.send(_LEAVE)
                    heartbeat.sock.shutdown(socket.SHUT_WR)
            for found in (self.left, self.right):
                if found is not None:
                    with suppress(OSError):
                        found.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        """Leave the ring and close the data connections, which no thread may use any more."""
        self.leave()
        for found in (self.left, self.right):
            if found is not None:
                found.close()


def _ready(sock: socket.socket, kind: int) -> socket.socket:
    """Set the options of an identified connection."""
    sock.setblocking(False)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    if kind == _DATA:
        for buffer in (socket.SO_SNDBUF, socket.SO_RCVBUF):
            sock.setsockopt(socket.SOL_SOCKET, buffer, BUFFER)
    return sock


def _close(waiting: socket.socket | HeartbeatLink) -> None:
    """End a connection that no ring of this process waits for."""
    if isinstance(waiting, HeartbeatLink):
        waiting.ended = True
        with suppress(OSError):
            waiting.sock.send(_LEAVE)
            waiting.sock.shutdown(socket.SHUT_WR)
    else:
        waiting.close()


def _listen(host: str, ports: Iterable[int]) -> socket.socket:
    """Return a listening socket at this address, on the first free port.

    Raises:
        OSError: none of the ports is free.
    """
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    for port in ports or [0]:
        found = socket.socket(family)
        try:
            found.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            found.bind((host, port))
            found.listen()
            found.setblocking(False)
        except OSError:
            found.close()
            continue
        return found
    raise OSError(f"none of the ports {list(ports)} of {host} is free")
