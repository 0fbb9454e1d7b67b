"""A TCP server for short requests on a port that any pod can reach; idle connections do not exhaust it.

It listens on IPv4 and IPv6, keeps a bounded number of connections, and closes silent ones. The operator, the tasks'
metrics and the witnesses import it. In a pod it is beside launch.py, and it imports only Python 3.8's standard library.
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
"""Maximum number of connections. A further one closes the oldest: requests take milliseconds, so that one is idle. Only
a transfer to an object store takes longer, and its client repeats it."""
SILENCE_SECONDS = 5.0
"""Seconds without a byte after which a connection is closed."""
PAUSE_SECONDS = 0.1
"""Pause in seconds while the process has no descriptor left; without it, accepting would fail in a busy loop."""


class Listener(socketserver.ThreadingMixIn, socketserver.TCPServer):
    """Answers each connection in a separate thread.

    Args:
        port: the TCP port; 0 for any free one.
        handler: class of the handlers, such as a `BaseHTTPRequestHandler`.
        connections: maximum number of connections at a time.

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
            # The node has no IPv6. If the port is taken, this call fails as well.
            self.address_family = socket.AF_INET
            super().__init__(("", port), handler)

    @property
    def port(self) -> int:
        """The port on which the server listens."""
        return int(self.server_address[1])

    def start(self, name: str, poll_seconds: float = 0.5) -> Callable[[], None]:
        """Serve from a thread that ends with the process; returns the function that stops it.

        Args:
            name: the thread's name.
            poll_seconds: seconds between two checks whether the thread has to stop.
        """
        thread = threading.Thread(target=self.serve_forever, args=(poll_seconds,), name=name, daemon=True)
        thread.start()

        def stop() -> None:
            # Wakes the thread at once. Kernels other than Linux refuse it, and the thread checks after poll_seconds.
            with contextlib.suppress(OSError):
                self.socket.shutdown(socket.SHUT_RDWR)
            self.shutdown()
            self.server_close()
            thread.join(timeout=1)

        return stop

    def server_bind(self) -> None:
        """Bind to the addresses of both families if the socket's family allows it."""
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
        """Return the connection to keep; a subclass may wrap it, without waiting for its peer."""
        return connection

    def shutdown_request(self, request: Any) -> None:
        """Close a connection that was answered, or whose handler failed."""
        with self._lock:
            self._held.pop(request, None)
        super().shutdown_request(request)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Log a handler's exception, except for connections that were closed."""
        if not isinstance(sys.exc_info()[1], OSError):
            super().handle_error(request, client_address)

    def _close_oldest(self) -> None:
        with self._lock:
            oldest = self._held.popitem(last=False)[0] if self._held else None
        if oldest is not None:
            # The handler reads the end of the stream and closes the connection; if it is already closed, this fails.
            with contextlib.suppress(OSError):
                oldest.shutdown(socket.SHUT_RDWR)
