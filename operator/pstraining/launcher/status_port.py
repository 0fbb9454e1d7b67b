"""The read-only HTTP server of a parameter server's launcher.

launch.py, beside it in the pod, imports this file; it stands on Python 3.8's standard library alone.
"""

from __future__ import annotations

import json
from http.server import BaseHTTPRequestHandler
from typing import Any, Callable  # noqa: UP035 - Python 3.8


def serve_status(
    listener: Callable[..., Any],
    port: int,
    report: Callable[[], dict[str, object]],
    is_ready: Callable[[dict[str, object]], bool],
) -> None:
    """Answer GET on a port, from other threads.

    Args:
        listener: `listener.Listener`, of the file beside this one.
        port: to listen on.
        report: returns the status, as JSON holds it.
        is_ready: whether a server of that status is ready.
    """

    class Handler(BaseHTTPRequestHandler):
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
            """Probes are not worth a line."""

    listener(port, Handler).start("status", poll_seconds=3600)
