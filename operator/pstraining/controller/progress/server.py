"""The HTTPS endpoint for reports of progress, in the form of Kubeflow's KEP-2779: POST, with a pod's bearer token.

Any pod can reach the port, so it is served like the others of that kind (`launcher.listener`): connections are bounded,
silent ones are closed, and none of them is handled by the event loop that runs the operator.
"""

import asyncio
import re
import socket
import ssl
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime
from http.server import BaseHTTPRequestHandler
from typing import Any, Final
from urllib.parse import unquote

import orjson

from pstraining.controller.informer_cache import Key
from pstraining.controller.metrics import OperatorMetrics
from pstraining.controller.progress.authentication import Refusal
from pstraining.controller.progress.board import ProgressBoard
from pstraining.core.progress import read_report
from pstraining.kube.errors import ApiError
from pstraining.launcher.listener import Listener
from pstraining.resources.installation import progress_path

BODY_MAX: Final = 128 * 1024
"""Bytes of a report."""
CONNECTIONS: Final = 256
"""Connections at a time; one more closes the oldest."""
ANSWER_SECONDS: Final = 15.0
"""Seconds for an answer, with the review of the token."""
PATH: Final = re.compile(progress_path("(?P<namespace>[^/]+)", "(?P<name>[^/]+)"))

Authenticate = Callable[[Key, str], Awaitable[str | Refusal]]


class ProgressServer:
    """Serves the endpoint."""

    def __init__(self, authenticate: Authenticate, board: ProgressBoard, metrics: OperatorMetrics) -> None:
        """Create a server.

        Args:
            authenticate: returns the uid of the job whose progress a request with this header may report.
            board: receives the reports.
            metrics: counts them.
        """
        self._authenticate, self._board, self._metrics = authenticate, board, metrics

    async def answer(self, key: Key, authorization: str, body: bytes) -> Refusal | None:
        """Take one report; return why it is refused, if it is."""
        refusal = await self._take(key, authorization, body)
        self._metrics.reported("accepted" if refusal is None else "refused")
        return refusal

    async def _take(self, key: Key, authorization: str, body: bytes) -> Refusal | None:
        try:
            found = await self._authenticate(key, authorization)
        except ApiError as error:
            return Refusal(503, f"the token could not be reviewed: {error.message}")
        if isinstance(found, Refusal):
            return found
        try:
            report = read_report(orjson.loads(body))
        except ValueError:
            return Refusal(400, "the body is not JSON")
        if isinstance(report, str):
            return Refusal(422, report)
        if report.last_updated_time is None:
            report = report.model_copy(update={"last_updated_time": datetime.now(UTC)})
        self._board.note(key, found, report)
        return None

    def serve(self, port: int, context: ssl.SSLContext) -> Callable[[], None]:
        """Serve from threads; return the function that stops serving.

        The decisions are made in the event loop that runs now.

        Raises:
            OSError: the port is taken.
        """
        return _TlsListener(port, self._handler(asyncio.get_running_loop()), context).start("progress")

    def _handler(self, loop: asyncio.AbstractEventLoop) -> type[BaseHTTPRequestHandler]:
        server = self

        class ProgressHandler(BaseHTTPRequestHandler):
            def setup(self) -> None:
                self.request.do_handshake()  # here, and not where connections are accepted: it waits for the client
                super().setup()

            def do_POST(self) -> None:
                refusal = self._refusal()
                body = orjson.dumps({} if refusal is None else {"message": refusal.message})
                self.send_response(200 if refusal is None else refusal.status)
                self.send_header("Content-Type", "application/json")
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def _refusal(self) -> Refusal | None:
                found = PATH.fullmatch(self.path)
                if found is None:
                    return Refusal(404, "progress is reported at the path in KUBEFLOW_TRAINER_SERVER_URL")
                length = self.headers.get("Content-Length", "")
                if not length.isdecimal() or int(length) > BODY_MAX:
                    return Refusal(413, f"the report needs a Content-Length of at most {BODY_MAX} bytes")
                key = unquote(found["namespace"]), unquote(found["name"])
                answer = server.answer(key, self.headers.get("Authorization", ""), self.rfile.read(int(length)))
                try:
                    return asyncio.run_coroutine_threadsafe(answer, loop).result(ANSWER_SECONDS)
                except TimeoutError:
                    return Refusal(503, "the operator is busy")

            def log_message(self, format: str, *args: object) -> None:
                """Log nothing: the client gets the answer."""

        return ProgressHandler


class _TlsListener(Listener):
    """A listener whose connections are encrypted."""

    def __init__(self, port: int, handler: Callable[..., Any], context: ssl.SSLContext) -> None:
        self._context = context
        super().__init__(port, handler, CONNECTIONS)

    def secured(self, connection: socket.socket) -> socket.socket:
        """Return the connection with TLS; its handler makes the handshake."""
        return self._context.wrap_socket(connection, server_side=True, do_handshake_on_connect=False)
