"""The HTTP server of a launcher: its status, and in a parameter server's pod the start of a transfer.

This is one of the launcher's files. In a pod it is beside launch.py, and it imports only Python 3.8's standard library.
"""

from __future__ import annotations

import json
from http.server import BaseHTTPRequestHandler
from typing import TYPE_CHECKING, Callable, Tuple  # noqa: UP035 - Python 3.8

if TYPE_CHECKING or __package__:
    from .contract import TRANSFERS_PATH
    from .listener import Listener
else:
    from contract import TRANSFERS_PATH
    from listener import Listener

USAGE_PATH = "/v1/usage"
Transfer = Callable[[str], Tuple[int, "dict[str, object]"]]  # noqa: UP006
"""Carries out the transfer of the file of this name; returns the answer's status and content."""


def serve_status(
    port: int,
    report: Callable[[], dict[str, object]],
    is_ready: Callable[[dict[str, object]], bool],
    usage: Callable[[], dict[str, object]] = dict,
    transfer: Transfer | None = None,
) -> None:
    """Answer requests on a port from background threads.

    Args:
        port: the TCP port.
        report: returns the status, the body of all answers except those to /v1/usage.
        is_ready: returns whether /readyz answers 200 for a status.
        usage: returns the container's resource usage, the answer to /v1/usage.
        transfer: see `transfers.transfer`; None in a pod that is not a parameter server.
    """

    class StatusHandler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            if self.path == USAGE_PATH:
                self._answer(200, usage())
                return
            status = report()
            code = 200 if self.path in ("/v1/status", "/healthz") else 404
            if self.path == "/readyz":
                code = 200 if is_ready(status) else 503
            self._answer(code, status)

        def do_POST(self) -> None:
            if transfer is None or not self.path.startswith(TRANSFERS_PATH):
                self._answer(501, {})
            else:
                self._answer(*transfer(self.path[len(TRANSFERS_PATH) :]))

        def _answer(self, code: int, content: dict[str, object]) -> None:
            body = json.dumps(content).encode()
            self.send_response(code)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: object) -> None:
            """Log nothing: probes are frequent."""

    Listener(port, StatusHandler).start("status", poll_seconds=3600)
