"""Starts and stops the acceptance of progress: the authority, the server and the board.

The certificates' library is only imported at the start: it takes 7 MB, which an operator without progress saves.
"""

import asyncio
import logging
from collections.abc import Callable
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Final

from pstraining.controller.asking import answered
from pstraining.controller.informer_cache import InformerCache
from pstraining.controller.metrics import OperatorMetrics
from pstraining.controller.progress.authentication import Authenticator
from pstraining.controller.progress.board import ProgressBoard
from pstraining.controller.progress.history import HistoryAnswers
from pstraining.controller.progress.server import ProgressServer
from pstraining.controller.progress.usage_board import UsageBoard
from pstraining.controller.settings import Settings
from pstraining.kube.client import KubeClient
from pstraining.kube.errors import Refused
from pstraining.resources.installation import ProgressEndpoint

if TYPE_CHECKING:
    from pstraining.controller.progress.certificates import Pair

logger = logging.getLogger(__name__)

REMEDY: Final = "Delete it, and restart the operator."
MISSING_RIGHT: Final = (
    "Progress is not accepted: the operator cannot review tokens (%s). Set progress.enabled=true in the chart, which "
    "grants `create` for tokenreviews in a ClusterRole, or set it to false."
)
INVALID: Final = "pstraining-asks-for-the-right"
"""An invalid token and audience: the API server answers that it is invalid, if the operator may review tokens."""


class ProgressReceiver:
    """Accepts progress while it runs."""

    def __init__(
        self,
        settings: Settings,
        client: KubeClient,
        cache: InformerCache,
        board: ProgressBoard,
        usage: UsageBoard,
        metrics: OperatorMetrics,
    ) -> None:
        """Create a receiver that does not run yet.

        Args:
            settings: the endpoint's URL and port.
            client: reads the authority and logs, and reviews tokens.
            cache: the jobs and their pods.
            board: receives the reports of progress.
            usage: receives the reports of the pods' resource usage.
            metrics: counts the reports.
        """
        self._settings, self._client = settings, client
        self._secret = f"{settings.lease_name}-progress"
        authenticator = Authenticator(client, cache)
        self._server = ProgressServer(authenticator, board, usage, HistoryAnswers(client, cache), metrics)
        self._stop: Callable[[], None] | None = None

    async def start(self) -> ProgressEndpoint | None:
        """Serve, and return the endpoint; None if the settings or the API server do not allow it.

        Raises:
            OSError: the port is taken.
        """
        if not self._settings.progress_url:
            return None
        from pstraining.controller.progress import certificates

        authority = await self._authority()
        if authority is None or not await self._may_review_tokens():
            return None
        url = self._settings.progress_url.rstrip("/")
        try:
            certificate = authority.certificate.decode("ascii")
            signed = certificates.sign_server(authority, certificates.host_of(url), datetime.now(UTC))
        except ValueError as error:
            logger.warning("Progress is not accepted: Secret %s is unusable (%s). %s", self._secret, error, REMEDY)
            return None
        context = certificates.server_context(signed)
        self._stop = self._server.serve(self._settings.progress_port, context)
        return ProgressEndpoint(url, certificate)

    async def stop(self) -> None:
        """Stop serving, without blocking the event loop, in which the last answers are computed."""
        if self._stop is not None:
            await asyncio.to_thread(self._stop)

    async def _may_review_tokens(self) -> bool:
        """Whether the operator may review tokens, which requires rights in the whole cluster."""
        try:
            await answered(
                lambda: self._client.review_token(INVALID, INVALID), "The API server cannot be asked to review tokens"
            )
        except Refused as error:
            logger.warning(MISSING_RIGHT, error.message)
            return False
        return True

    async def _authority(self) -> "Pair | None":
        from pstraining.controller.progress import certificates

        try:
            return await answered(
                lambda: certificates.load_authority(self._client, self._settings.lease_namespace, self._secret),
                "The authority for progress cannot be read",
            )
        except (Refused, ValueError) as error:
            logger.warning("Progress is not accepted: %s", error)
            return None
