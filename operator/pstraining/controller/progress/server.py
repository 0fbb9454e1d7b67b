"""The HTTPS endpoint for reports of progress, in the form of Kubeflow's KEP-2779: POST, with a pod's bearer token."""

import logging
import ssl
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime
from typing import Final

import orjson
from aiohttp import web

from pstraining.controller.informer_cache import Key
from pstraining.controller.metrics import OperatorMetrics
from pstraining.controller.progress.authentication import Refusal
from pstraining.controller.progress.board import ProgressBoard
from pstraining.core.progress import read_report
from pstraining.kube.errors import ApiError
from pstraining.resources.installation import progress_path

logger = logging.getLogger(__name__)

BODY_MAX: Final = 128 * 1024
"""Bytes of a report."""
KEEP_ALIVE_SECONDS: Final = 75.0
"""Seconds for which an idle connection is kept; a report a minute then needs no new handshake."""

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

    async def answer(self, request: web.Request) -> web.Response:
        """Answer one report."""
        key = request.match_info["namespace"], request.match_info["name"]
        try:
            found = await self._authenticate(key, request.headers.get("Authorization", ""))
        except ApiError as error:
            return self._refused(503, f"the token could not be reviewed: {error.message}")
        if isinstance(found, Refusal):
            return self._refused(found.status, found.message)
        try:
            report = read_report(orjson.loads(await request.read()))
        except ValueError:
            return self._refused(400, "the body is not JSON")
        except web.HTTPRequestEntityTooLarge:
            return self._refused(413, f"the report is larger than {BODY_MAX} bytes")
        if isinstance(report, str):
            return self._refused(422, report)
        if report.last_updated_time is None:
            report = report.model_copy(update={"last_updated_time": datetime.now(UTC)})
        self._board.note(key, found, report)
        self._metrics.reported("accepted")
        return web.json_response({})

    def _refused(self, status: int, message: str) -> web.Response:
        self._metrics.reported("refused")
        return web.json_response({"message": message}, status=status)

    async def serve(self, port: int, context: ssl.SSLContext) -> Callable[[], Awaitable[None]]:
        """Serve until the returned function is called.

        Raises:
            OSError: the port is taken.
        """
        application = web.Application(client_max_size=BODY_MAX)
        application.router.add_post(progress_path("{namespace}", "{name}"), self.answer)
        runner = web.AppRunner(application, access_log=None, keepalive_timeout=KEEP_ALIVE_SECONDS)
        await runner.setup()
        site = web.TCPSite(runner, port=port, ssl_context=context, backlog=512)
        await site.start()
        return runner.cleanup
