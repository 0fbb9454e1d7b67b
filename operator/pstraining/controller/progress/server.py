"""The HTTPS endpoint for reports of progress, in the format of Kubeflow's KEP-2779: POST, with a pod's bearer token.

The launcher in the same pod reports the resource usage of the job's pods. The pod may GET its job, and the logs of the
job's pods, for the job's history.

Any pod can reach the port, so it is served by `launcher.listener`, like all such ports. The number of connections is
bounded, silent ones are closed, and none of them is handled by the event loop that runs the operator.
"""

import asyncio
import gzip
import re
import socket
import ssl
from collections.abc import Callable, Coroutine
from datetime import UTC, datetime
from functools import partial
from http.server import BaseHTTPRequestHandler
from typing import Any, Final
from urllib.parse import parse_qs, unquote

import orjson

from pstraining.api.numbers import number
from pstraining.api.summary import HEADER_WHOLE, LogEnd
from pstraining.controller.informer_cache import Key
from pstraining.controller.metrics import OperatorMetrics
from pstraining.controller.progress.authentication import AcceptedPod, Authenticator, Refusal, Unreviewed
from pstraining.controller.progress.board import ProgressBoard
from pstraining.controller.progress.history import HistoryAnswers
from pstraining.controller.progress.usage_board import UsageBoard
from pstraining.core.progress import TrainerStatus, read_report
from pstraining.kube.errors import ApiError
from pstraining.launcher.listener import Listener
from pstraining.resources.installation import history_path, progress_path, usage_path

Answer = bytes | LogEnd | Refusal
"""JSON, the end of a log, or the refusal of the request."""
BODY_MAX: Final = 128 * 1024
"""Maximum bytes of a report."""
CONNECTIONS: Final = 256
"""Maximum number of connections at a time; a further one closes the oldest."""
ANSWER_SECONDS: Final = 15.0
"""Time limit for an answer in seconds, including the review of the token."""
COMPRESS_MIN: Final = 4096
"""Bytes of JSON from which an answer is compressed for a client that accepts it; descriptions of pods are similar."""
COMPRESS_LEVEL: Final = 1
"""Compression level of gzip. Higher levels take several times as long."""
_JOB: Final = ("(?P<namespace>[^/]+)", "(?P<name>[^/]+)")
PATH: Final = re.compile(progress_path(*_JOB))
USAGE_PATH: Final = re.compile(usage_path(*_JOB))
HISTORY_PATH: Final = re.compile(history_path(*_JOB) + "(?:/logs/(?P<pod>[^/]+))?")


class ProgressServer:
    """Serves the endpoint."""

    def __init__(
        self,
        authenticator: Authenticator,
        board: ProgressBoard,
        usage: UsageBoard,
        history: HistoryAnswers,
        metrics: OperatorMetrics,
    ) -> None:
        """Create a server.

        Args:
            authenticator: authenticates requests.
            board: receives the reports of progress.
            usage: receives the reports of the pods' resource usage.
            history: answers the requests of chiefs.
            metrics: counts reports.
        """
        self._authenticator, self._board, self._usage = authenticator, board, usage
        self._history, self._metrics = history, metrics

    async def read(self, key: Key, authorization: str, pod: str, previous: bool) -> Answer:
        """Return the job as JSON or, if a pod is named, the end of its log."""
        try:
            found = await self._authenticator.authenticate(key, authorization, reads=True)
            if isinstance(found, Refusal):
                return found
            return await self._history.log(key, pod, previous) if pod else orjson.dumps(self._history.job(key))
        except ApiError as error:
            return Refusal(502, f"the API server does not return the log: {error.message}")

    async def answer(self, key: Key, authorization: str, body: bytes) -> bytes | Refusal:
        """Process one report of progress; return the answer's body, or the refusal."""
        found = await self._reporter(key, authorization)
        return self._taken(key, found, body, self._board.note)

    def answer_known(
        self, key: Key, authorization: str, body: bytes, loop: asyncio.AbstractEventLoop
    ) -> bytes | Refusal | None:
        """Process one report of progress in its connection's thread, if its token need not be reviewed.

        Of each report, the event loop, which runs the operator, then only receives the content.

        Args:
            key: the job.
            authorization: the request's header.
            body: the report.
            loop: the event loop.

        Returns:
            The answer's body or the refusal; None if the token has to be reviewed.
        """
        found = self._authenticator.known(key, authorization)
        if isinstance(found, Unreviewed):
            return None

        def note(key: Key, sender: AcceptedPod, report: TrainerStatus) -> None:
            loop.call_soon_threadsafe(self._board.note, key, sender, report)

        return self._taken(key, found, body, note)

    async def answer_usage(self, key: Key, authorization: str, body: bytes) -> bytes | Refusal:
        """Process one report of the pods' resource usage; return the answer's body, or the refusal."""
        found = await self._reporter(key, authorization)
        if isinstance(found, Refusal):
            return found
        try:
            refused = self._usage.note(key, found.uid, orjson.loads(body))
        except ValueError:
            return Refusal(400, "the body is not JSON")
        return Refusal(422, refused) if refused else b"{}"

    async def _reporter(self, key: Key, authorization: str) -> AcceptedPod | Refusal:
        """Return the pod that may report for its job."""
        try:
            return await self._authenticator.authenticate(key, authorization)
        except ApiError as error:
            return Refusal(503, f"the token could not be reviewed: {error.message}")

    def _taken(
        self,
        key: Key,
        found: AcceptedPod | Refusal,
        body: bytes,
        note: Callable[[Key, AcceptedPod, TrainerStatus], object],
    ) -> bytes | Refusal:
        """Count and note a report; return the answer's body, or the refusal.

        Args:
            key: the job.
            found: the pod that may report for its job.
            body: the report.
            note: notes the report.
        """
        refusal = found if isinstance(found, Refusal) else _noted(body, partial(note, key, found))
        self._metrics.reported("accepted" if refusal is None else "refused")
        return refusal or b"{}"

    def serve(self, port: int, context: ssl.SSLContext) -> Callable[[], None]:
        """Serve from threads; return the function that stops serving.

        The answers are computed in the event loop that runs now.

        Raises:
            OSError: the port is taken.
        """
        return _TlsListener(port, self._handler(asyncio.get_running_loop()), context).start("progress")

    def _handler(self, loop: asyncio.AbstractEventLoop) -> type[BaseHTTPRequestHandler]:
        server = self

        class ProgressHandler(BaseHTTPRequestHandler):
            wbufsize = -1  # buffered, so that an answer is one TLS record and one packet

            def setup(self) -> None:
                self.request.do_handshake()  # not where connections are accepted, because it waits for the client
                super().setup()

            def do_POST(self) -> None:
                self._send(self._report())

            def do_GET(self) -> None:
                self._send(self._read())

            def _report(self) -> Answer:
                progress, usage = PATH.fullmatch(self.path), USAGE_PATH.fullmatch(self.path)
                found = progress or usage
                if found is None:
                    return Refusal(404, "progress is reported at the path in KUBEFLOW_TRAINER_SERVER_URL")
                length = number(self.headers.get("Content-Length"))
                if length is None or length > BODY_MAX:
                    return Refusal(413, f"the report needs a Content-Length of at most {BODY_MAX} bytes")
                key, body = _key(found), self.rfile.read(length)
                if not progress:
                    return self._decided(server.answer_usage(key, self._authorization, body))
                known = server.answer_known(key, self._authorization, body, loop)
                return self._decided(server.answer(key, self._authorization, body)) if known is None else known

            def _read(self) -> Answer:
                path, _, query = self.path.partition("?")
                found = HISTORY_PATH.fullmatch(path)
                if found is None:
                    return Refusal(404, "only a job's history can be read")
                previous = parse_qs(query).get("previous") == ["true"]
                pod = unquote(found["pod"] or "")
                return self._decided(server.read(_key(found), self._authorization, pod, previous))

            @property
            def _authorization(self) -> str:
                return self.headers.get("Authorization", "")

            def _decided(self, answer: Coroutine[Any, Any, Answer]) -> Answer:
                decision = asyncio.run_coroutine_threadsafe(answer, loop)
                try:
                    return decision.result(ANSWER_SECONDS)
                except TimeoutError:
                    decision.cancel()
                    return Refusal(503, "the operator is busy")

            def _send(self, answer: Answer) -> None:
                # Compressed here, in the connection's thread, and not in the event loop that runs the operator.
                status, body, headers = _response(answer, self.headers.get("Accept-Encoding", ""))
                self.send_response(status)
                for name, value in {**headers, "Content-Length": str(len(body))}.items():
                    self.send_header(name, value)
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, format: str, *args: object) -> None:
                """Log nothing: the client gets the answer."""

        return ProgressHandler


def _noted(body: bytes, note: Callable[[TrainerStatus], object]) -> Refusal | None:
    """Note the content of a report, with the present time if it has none; return the refusal of an invalid one."""
    try:
        report = read_report(orjson.loads(body))
    except ValueError:
        return Refusal(400, "the body is not JSON")
    if isinstance(report, str):
        return Refusal(422, report)
    if report.last_updated_time is None:
        report = report.model_copy(update={"last_updated_time": datetime.now(UTC)})
    note(report)
    return None


def _response(answer: Answer, encodings: str) -> tuple[int, bytes, dict[str, str]]:
    """Return the status, the body and the headers of an answer to a client that accepts these encodings."""
    if isinstance(answer, LogEnd):
        whole = "true" if answer.whole else "false"
        return 200, answer.content, {"Content-Type": "text/plain", HEADER_WHOLE: whole}
    json = {"Content-Type": "application/json"}
    if isinstance(answer, Refusal):
        return answer.status, orjson.dumps({"message": answer.message}), json
    if len(answer) >= COMPRESS_MIN and "gzip" in encodings:
        return 200, gzip.compress(answer, COMPRESS_LEVEL), {**json, "Content-Encoding": "gzip"}
    return 200, answer, json


def _key(found: re.Match[str]) -> Key:
    return unquote(found["namespace"]), unquote(found["name"])


class _TlsListener(Listener):
    """A listener whose connections are encrypted."""

    def __init__(self, port: int, handler: Callable[..., Any], context: ssl.SSLContext) -> None:
        self._context = context
        super().__init__(port, handler, CONNECTIONS)

    def secured(self, connection: socket.socket) -> socket.socket:
        """Return the connection with TLS; its handler makes the handshake."""
        return self._context.wrap_socket(connection, server_side=True, do_handshake_on_connect=False)
