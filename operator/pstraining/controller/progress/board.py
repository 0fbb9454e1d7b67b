"""The newest progress of every job, and its writes to the status.

A job's progress is written at most once a minute, at milestones sooner (core/progress.py decides), and never while it
does not change. The period begins when a write is due, not when it begins or is answered: programs report once per
period, and one late write would delay all later ones. All jobs together have WRITES_PER_SECOND. Progress that is lost
in a crash is reported again within a minute.
"""

import asyncio
import contextlib
import heapq
import logging
import time
from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import Any, Final

from pstraining.api.conditions import WITHOUT_TRAINING
from pstraining.controller.informer_cache import InformerCache, Key
from pstraining.controller.logs import about
from pstraining.controller.metrics import OperatorMetrics
from pstraining.controller.progress.authentication import AcceptedPod
from pstraining.core import progress
from pstraining.core.progress import TrainerStatus
from pstraining.kube.errors import ApiError, Conflict, NotFound
from pstraining.kube.port import ApiPort
from pstraining.progress import PERIOD_SECONDS

logger = logging.getLogger(__name__)

WRITES_PER_SECOND: Final = 17.0
"""Writes per second of all jobs together, in the long run."""
BURST: Final = 1000
"""Writes that may be sent at once after a time with fewer writes than the limit allows: those of a minute. The reports
of 1,000 jobs come at nearly that rate. Without a burst, writes that an outage delays would stay late for hours."""
LATE_SECONDS: Final = PERIOD_SECONDS / 2
"""Seconds by which a write may begin late without delaying the next one of its job."""
IN_FLIGHT: Final = 4
"""Maximum number of concurrent writes."""
RETRY_SECONDS: Final = 10.0
"""Seconds from a failed write to the next."""
CONFLICT_SECONDS: Final = 0.5
"""Seconds until the next attempt if the job has changed meanwhile."""


@dataclass
class _Job:
    uid: str
    newest: dict[str, Any]
    newest_at: float = 0.0
    """When the newest progress was reported."""
    stall: str | None = None
    """Why the job makes no steps; empty while it makes steps, None before its first report to this process."""
    pod_uid: str = ""
    """The uid of the pod that has sent the newest report."""
    written: dict[str, Any] | None = None
    written_at: float = 0.0
    """When the last write was due, in seconds of the clock; at most LATE_SECONDS before it began."""
    due: float = 0.0
    """When the next write is due, also if a failed write delays it."""
    next_at: float | None = None
    """When the newest progress will be written; None if it will not be, or while a write is in progress."""
    not_before: float = 0.0
    """Earliest time of the next attempt after a failed write."""
    is_writing: bool = False


class ProgressBoard:
    """Receives reports and writes them."""

    def __init__(
        self,
        port: ApiPort,
        cache: InformerCache,
        metrics: OperatorMetrics,
        enqueue: Callable[[Key], None],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Create an empty board.

        Args:
            port: the API server.
            cache: the jobs; receives every written job.
            metrics: counts writes.
            enqueue: requests a pass over a job whose training has stopped making steps, has resumed, or uses another
                layout, or a job with progress that does not run.
            clock: monotonic seconds.
        """
        self._port, self._cache, self._metrics, self._enqueue, self._clock = port, cache, metrics, enqueue, clock
        self._jobs: dict[Key, _Job] = {}
        self._queue: list[tuple[float, Key]] = []  # a heap; an entry is invalid if its time is not its job's `next_at`
        self._slots = asyncio.Semaphore(IN_FLIGHT)
        self._changed = asyncio.Event()
        self._paced_until = 0.0
        """When all writes so far would have been sent at WRITES_PER_SECOND."""

    def note(self, key: Key, sender: AcceptedPod, report: TrainerStatus) -> None:
        """Receive a report of a pod for its job."""
        job = self._jobs.get(key)
        newest = progress.progress_of(report)
        if job is None or job.uid != sender.uid:
            job = self._jobs[key] = _Job(sender.uid, newest)
        job.newest, job.newest_at = newest, self._clock()
        self._schedule(key, job)
        if (job.stall, job.pod_uid) != (report.stalled, sender.pod_uid):
            job.stall, job.pod_uid = report.stalled, sender.pod_uid
            self._enqueue(key)

    def stall(self, key: Key, uid: str, pods: Collection[str]) -> str | None:
        """Return why the job with this uid makes no steps; empty while it makes steps, None without a report.

        Args:
            key: the job.
            uid: the job's uid.
            pods: the uids of its pods. A report of an earlier pod says nothing about the attempt that replaces it.
        """
        job = self._jobs.get(key)
        return job.stall if job is not None and job.uid == uid and job.pod_uid in pods else None

    def forget(self, key: Key) -> None:
        """Drop a deleted job."""
        self._jobs.pop(key, None)

    async def run(self) -> None:
        """Write progress when it is due, until cancelled."""
        async with asyncio.TaskGroup() as writes:
            while True:
                await self._slots.acquire()
                key = await self._next()
                writes.create_task(self._write(key, self._jobs[key]))
                await asyncio.sleep(self._pause())

    def _pause(self) -> float:
        """Return the seconds after a write during which no other write may begin."""
        now = self._clock()
        self._paced_until = max(self._paced_until, now) + 1 / WRITES_PER_SECOND
        return max(0.0, self._paced_until - now - BURST / WRITES_PER_SECOND)

    async def _next(self) -> Key:
        """Wait until a job's progress is due, and return the job, which is then being written."""
        while True:
            self._changed.clear()
            while self._queue and not self._is_valid(*self._queue[0]):
                heapq.heappop(self._queue)
            wait = self._queue[0][0] - self._clock() if self._queue else None
            if wait is not None and wait <= 0:
                _, key = heapq.heappop(self._queue)
                self._jobs[key].next_at, self._jobs[key].is_writing = None, True
                return key
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(wait):
                    await self._changed.wait()

    def _is_valid(self, at: float, key: Key) -> bool:
        job = self._jobs.get(key)
        return job is not None and job.next_at == at

    def _schedule(self, key: Key, job: _Job) -> None:
        if job.is_writing:
            return  # the end of the write schedules the next one
        delay = progress.write_delay(job.written, job.newest, job.newest_at - job.written_at)
        if delay is None:
            job.next_at = None
            return
        job.due = job.newest_at + delay
        job.next_at = max(job.due, job.not_before)
        heapq.heappush(self._queue, (job.next_at, key))
        self._changed.set()

    async def _write(self, key: Key, job: _Job) -> None:
        newest, due, begun = job.newest, job.due, self._clock()
        try:
            version = self._cache.job_version(key, job.uid)
            if version is None:
                raise NotFound("the job no longer exists")
            written = await self._port.patch_progress(*key, version, newest)
        except NotFound:
            if self._jobs.get(key) is job:
                self.forget(key)
        except ApiError as error:
            self._metrics.failed(error, retried=True)
            logger.info("Progress was not written: %s", error.message, extra=about(None, *key))
            job.not_before = self._clock() + (CONFLICT_SECONDS if isinstance(error, Conflict) else RETRY_SECONDS)
        else:
            is_other_layout = _layout(job.written) != _layout(newest)
            job.written, job.written_at = newest, max(due, begun - LATE_SECONDS)
            self._cache.wrote(*key, written)
            if is_other_layout or (written.get("status") or {}).get("phase") in WITHOUT_TRAINING:
                self._enqueue(key)
            self._metrics.wrote("PSTrainingJobProgress", "patch")
        finally:
            job.is_writing = False
            self._slots.release()
        if self._jobs.get(key) is job:
            self._schedule(key, job)


def _layout(written: dict[str, Any] | None) -> int:
    """Return the layout in a job's progress; the first one if the program reports none."""
    return (written or {}).get("layout") or 1
