"""One raw TCP stream, which shows the capacity of a link with the kernel's cost only.

    python -m bench.training.raw HOST PORT      the other end: sends or receives the requested number of bytes

A request has 9 bytes: `S` (send) or `T` (take), and a number of bytes, big-endian.
"""

import socket
import struct
import sys
import time
from typing import Final

PIECE: Final = 1 << 20
REQUEST: Final = struct.Struct(">cQ")
SEND, TAKE, DONE = b"S", b"T", b"!"


class Stream:
    """A connection to the other end."""

    def __init__(self, host: str, port: int) -> None:
        self._socket = socket.create_connection((host, port), timeout=60)
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def pull(self, size: int) -> float:
        """Return the seconds until a number of bytes are received."""
        started = time.monotonic()
        self._socket.sendall(REQUEST.pack(SEND, size))
        _take(self._socket, size)
        return time.monotonic() - started

    def push(self, size: int) -> float:
        """Return the seconds until the other end has received a number of bytes."""
        started = time.monotonic()
        self._socket.sendall(REQUEST.pack(TAKE, size))
        _send(self._socket, size)
        _take(self._socket, len(DONE))
        return time.monotonic() - started


def serve(host: str, port: int) -> None:
    """Run the other end, for one connection at a time."""
    with socket.create_server((host, port)) as server:
        while True:
            connection, _ = server.accept()
            with connection:
                _answer(connection)


def _answer(connection: socket.socket) -> None:
    while request := connection.recv(REQUEST.size, socket.MSG_WAITALL):
        what, size = REQUEST.unpack(request)
        if what == SEND:
            _send(connection, size)
        else:
            _take(connection, size)
            connection.sendall(DONE)


def _send(connection: socket.socket, size: int) -> None:
    piece = memoryview(bytes(PIECE))
    while size:
        size -= connection.send(piece[: min(size, PIECE)])


def _take(connection: socket.socket, size: int) -> None:
    room = bytearray(PIECE)
    while size:
        got = connection.recv_into(room, min(size, PIECE))
        if not got:
            raise ConnectionError("the other end is gone")
        size -= got


if __name__ == "__main__":
    serve(sys.argv[1], int(sys.argv[2]))
