"""Writes the status of jobs; where the API server refuses a status, writes a reduced one and reports the refusal.

A refused status stays refused until the job, the CRD or a limit changes, so the whole status is sent again only after
RETRY_SECONDS. If a status is forbidden (403), the error is raised to the queue like other errors of the cluster.
"""

import logging
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Final, Protocol

from pstraining.api import names
from pstraining.api.conditions import Reason
from pstraining.controller.informer_cache import InformerCache, Key
from pstraining.controller.logs import about
from pstraining.controller.metrics import NO_CAUSES, OperatorMetrics
from pstraining.core.actions import Event, Kind
from pstraining.core.snapshot import RATES, Snapshot
from pstraining.kube.errors import NotFound, Refused
from pstraining.kube.port import ApiPort

logger = logging.getLogger(__name__)

RETRY_SECONDS: Final = 60.0
"""Seconds from a refusal until the whole status is sent again."""


class Reduce(Protocol):
    """Returns the reduced form of a refused status, as core's `reduced_status` does."""

    def __call__(
        self, snapshot: Snapshot, status: dict[str, Any], message: str, now: datetime, *, too_large: bool
    ) -> dict[str, Any]:
        """See `pstraining.core.reduced_status`."""


@dataclass(frozen=True)
class Written:
    """The result of a write."""

    status: dict[str, Any] | None
    """The stored status; None if no status was stored."""
    events: tuple[Event, ...] = field(default=())
    """The report of a refusal that the stored status cannot report."""


@dataclass
class _Refusal:
    uid: str
    message: str
    too_large: bool
    retry_at: float
    reduced_too: bool = False
    """Whether the API server refuses the reduced status as well."""


class StatusWriter:
    """Writes statuses through a port."""

    def __init__(
        self,
        port: ApiPort,
        cache: InformerCache,
        metrics: OperatorMetrics,
        reduce: Reduce,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Create a writer.

        Args:
            port: the API server.
            cache: receives every written job.
            metrics: counts writes and refusals.
            reduce: returns the reduced form of a refused status.
            clock: monotonic seconds.
        """
        self._port = port
        self._cache = cache
        self._metrics = metrics
        self._reduce = reduce
        self._clock = clock
        self._refusals: dict[Key, _Refusal] = {}

    def retry_delay(self, key: Key) -> float:
        """Return the seconds until a refused status is sent again; 0 if none was refused."""
        refusal = self._refusals.get(key)
        return 0.0 if refusal is None else max(0.0, refusal.retry_at - self._clock())

    def forget(self, key: Key) -> None:
        """Drop the refusal of a deleted job."""
        self._refusals.pop(key, None)

    async def write(
        self,
        key: Key,
        snapshot: Snapshot,
        status: dict[str, Any],
        now: datetime,
        uncounted: Mapping[str, str] = NO_CAUSES,
    ) -> Written:
        """Write a status that differs from the stored one.

        Args:
            key: the job.
            snapshot: the observed state.
            status: the new status.
            now: the time of the pass.
            uncounted: for the metrics, see `metrics.restarts`.

        Raises:
            Refused: the write is forbidden.
            Conflict: the job has changed since the snapshot.
            NotFound: the answer is not about the job.
            Transient: the write failed temporarily.
        """
        refusal = self._refusals.get(key)
        if refusal is None or refusal.uid != snapshot.uid or self._clock() >= refusal.retry_at:
            try:
                done = await self._patch(key, snapshot, status, uncounted)
            except Refused as error:
                refusal = self._refused(key, snapshot, error)
            else:
                self.forget(key)
                return Written(status if done else None)
        return await self._write_reduced(key, snapshot, status, refusal, now)

    async def remove_rates(self, key: Key, uid: str) -> None:
        """Remove the rate and the estimate from the progress of a job that does not train.

        Raises:
            ApiError: the write failed.
        """
        version = self._cache.job_version(key, uid)
        if version is not None:
            self._cache.wrote(*key, await self._port.patch_progress(*key, version, dict.fromkeys(RATES)))
            self._metrics.wrote("PSTrainingJobProgress", "patch")

    async def _write_reduced(
        self, key: Key, snapshot: Snapshot, status: dict[str, Any], refusal: _Refusal, now: datetime
    ) -> Written:
        reduced = self._reduce(snapshot, status, refusal.message, now, too_large=refusal.too_large)
        if refusal.reduced_too or reduced == snapshot.status:
            return Written(None)
        try:
            return Written(reduced if await self._patch(key, snapshot, reduced) else None)
        except Refused as error:
            self._refused(key, snapshot, error).reduced_too = True
            text = f"The API server refuses even a status without new counters: {error.message}"
            return Written(None, (Event("Warning", Reason.STATUS_REFUSED, text),))

    def _refused(self, key: Key, snapshot: Snapshot, error: Refused) -> _Refusal:
        if not error.invalid:
            raise error
        self._metrics.failed(error, retried=False)
        extra = about(dict(snapshot.job), *key)
        logger.error("The status was refused; next attempt in %.0f s: %s", RETRY_SECONDS, error.message, extra=extra)
        refusal = _Refusal(snapshot.uid, error.message, error.too_large, self._clock() + RETRY_SECONDS)
        self._refusals[key] = refusal
        return refusal

    async def _patch(
        self, key: Key, snapshot: Snapshot, status: dict[str, Any], uncounted: Mapping[str, str] = NO_CAUSES
    ) -> bool:
        """Send a status; return False if the job no longer exists."""
        metadata = snapshot.job["metadata"]
        body = {
            "apiVersion": names.API_VERSION,
            "kind": names.KIND,
            "metadata": {f: metadata[f] for f in ("name", "namespace", "uid", "resourceVersion")},
            "status": status,
        }
        try:
            written = await self._port.patch_status(snapshot.namespace, snapshot.name, body)
        except NotFound as error:
            if error.unserved:
                raise  # a proxy's answer, or the CRD is being replaced
            # The job was deleted during the pass. The watch may have missed it; this answer is certain.
            self._cache.deleted(Kind.PS_TRAINING_JOB, snapshot.namespace, snapshot.name, snapshot.uid)
            return False
        self._cache.wrote(snapshot.namespace, snapshot.name, written)
        self._metrics.wrote("PSTrainingJobStatus", "apply")
        self._metrics.status_changed(key, snapshot.status, status, uncounted)
        return True
