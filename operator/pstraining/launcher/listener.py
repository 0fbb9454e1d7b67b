"""A TCP server for short requests on a port that any pod can reach: idle connections exhaust nothing.

It listens on IPv4 and IPv6, holds a bounded number of connections, and closes those that stay silent. The operator, the
tasks' metrics and the witnesses import it; the launcher's files load it beside them in the pod. It stands on Python
3.8's standard library alone.
"""

from __future__ import annotations

import contextlib
import errno
import socket
import socketserver
import sys
import threading
import time
from collections import OrderedDict
from typing import Any, Callable  # noqa: UP035 - Python 3.8

CONNECTIONS = 64
"""Connections held at a time. The oldest is closed for one more: a request takes milliseconds, an idle one stays."""
SILENCE_SECONDS = 5.0
"""Seconds without a byte after which a connection is closed."""
PAUSE_SECONDS = 0.1
"""Pause while the process has no descriptor left: without it, accepting fails as fast as a core can try."""


class Listener(socketserver.ThreadingMixIn, socketserver.TCPServer):
    """Answers each connection in a thread of its own.

    Args:
        port: 0 for any free one.
        handler: class of the handlers, such as a `BaseHTTPRequestHandler`.
        connections: the most that are held at a time.

    Raises:
        OSError: the port is taken.
    """

    allow_reuse_address = daemon_threads = True
    block_on_close = False
    request_queue_size = 128

    def __init__(self, port: int, handler: Callable[..., Any], connections: int = CONNECTIONS) -> None:
        self._limit = connections
        self._held: OrderedDict[socket.socket, None] = OrderedDict()
        self._lock = threading.Lock()
        try:
            self.address_family = socket.AF_INET6
            super().__init__(("", port), handler)
        except OSError:
            # A node without IPv6; a port that is taken fails here, too.
            self.address_family = socket.AF_INET
            super().__init__(("", port), handler)

    @property
    def port(self) -> int:
        """The port that it listens on."""
        return int(self.server_address[1])

    def start(self, name: str, poll_seconds: float = 0.5) -> Callable[[], None]:
        """Serve from a thread that ends with the process; returns the function that stops it.

        Args:
            name: of the thread.
            poll_seconds: how often the thread looks for a request to stop.
        """
        thread = threading.Thread(target=self.serve_forever, args=(poll_seconds,), name=name, daemon=True)
        thread.start()

        def stop() -> None:
            # Wakes the thread at once; a kernel other than Linux's refuses it, and the thread looks after poll_seconds.
            with contextlib.suppress(OSError):
                self.socket.shutdown(socket.SHUT_RDWR)
            self.shutdown()
            self.server_close()
            thread.join(timeout=1)

        return stop

    def server_bind(self) -> None:
        """Bind to the addresses of both families where the socket's family allows it."""
        if self.address_family == socket.AF_INET6:
            self.socket.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
        super().server_bind()

    def get_request(self) -> tuple[socket.socket, Any]:
        """Accept a connection, and close the oldest one beyond the limit."""
        try:
            connection, address = super().get_request()
        except OSError as error:
            if error.errno in (errno.EMFILE, errno.ENFILE):
                self._close_oldest()
                time.sleep(PAUSE_SECONDS)
            raise
        connection.settimeout(SILENCE_SECONDS)
        connection = self.secured(connection)
        with self._lock:
            self._held[connection] = None
            full = len(self._held) > self._limit
        if full:
            self._close_oldest()
        return connection, address

    def secured(self, connection: socket.socket) -> socket.socket:
        """Return the connection as it is held; a subclass may wrap it, without waiting for its peer."""
        return connection

    def shutdown_request(self, request: Any) -> None:
        """Close a connection that was answered, or whose handler failed."""
        with self._lock:
            self._held.pop(request, None)
        super().shutdown_request(request)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Log what a handler raises, except for connections that were closed."""
        if not isinstance(sys.exc_info()[1], OSError):
            super().handle_error(request, client_address)

    def _close_oldest(self) -> None:
        with self._lock:
            oldest = self._held.popitem(last=False)[0] if self._held else None
        if oldest is not None:
            # Its handler reads the end of the stream, and closes it; one that was closed meanwhile raises here.
            with contextlib.suppress(OSError):
                oldest.shutdown(socket.SHUT_RDWR)
