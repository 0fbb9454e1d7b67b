"""The read-only HTTP server of a parameter server's launcher.

launch.py, beside it in the pod, imports this file; it stands on Python 3.8's standard library alone.
"""

from __future__ import annotations

import json
import socket
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Callable  # noqa: UP035 - Python 3.8


def serve_status(
    port: int, report: Callable[[], dict[str, object]], is_ready: Callable[[dict[str, object]], bool]
) -> None:
    """Answer GET on a port, from other threads and for both IP families where the node has both."""

    class Handler(BaseHTTPRequestHandler):
        timeout = 5

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

    server = ThreadingHTTPServer(("", port), Handler, bind_and_activate=False)
    server.handle_error = Handler.log_message = lambda *_: None  # type: ignore[method-assign, assignment]
    try:
        server.socket = socket.create_server(("", port), family=socket.AF_INET6, dualstack_ipv6=True)
    except (OSError, ValueError):
        server.socket = socket.create_server(("", port))
    threading.Thread(target=server.serve_forever, args=(3600,), daemon=True).start()
