"""The read-only HTTP server of a parameter server's launcher.

It is one of the launcher's files: it lies beside launch.py in the pod and imports only Python 3.8's standard library.
"""

from __future__ import annotations

import json
from http.server import BaseHTTPRequestHandler
from typing import TYPE_CHECKING, Callable  # noqa: UP035 - Python 3.8

if TYPE_CHECKING or __package__:
    from .listener import Listener
else:
    from listener import Listener


def serve_status(
    port: int, report: Callable[[], dict[str, object]], is_ready: Callable[[dict[str, object]], bool]
) -> None:
    """Answer GET on a port from background threads.

    Args:
        port: the TCP port.
        report: returns the status, the body of every answer.
        is_ready: whether /readyz answers 200 for a status.
    """

    class StatusHandler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            status = report()
            code = 200 if self.path in ("/v1/status", "/healthz") else 404
            if self.path == "/readyz":
                code = 200 if is_ready(status) else 503
            body = json.dumps(status).encode()
            self.send_response(code)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: object) -> None:
            """Log nothing: probes are frequent."""

    Listener(port, StatusHandler).start("status", poll_seconds=3600)
