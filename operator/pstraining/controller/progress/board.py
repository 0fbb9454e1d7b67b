"""The newest progress of every job, and its writes to the status.

A job's progress is written at most once a minute, at once at milestones (core/progress.py decides), and never while
nothing changes. The period begins when a write is due, not when it is answered. Otherwise each write would be later
after its report than the one before. All jobs together get WRITES_PER_SECOND. What is lost in a crash is reported again
within a minute.
"""

import asyncio
import contextlib
import heapq
import logging
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

from pstraining.controller.informer_cache import InformerCache, Key
from pstraining.controller.logs import about
from pstraining.controller.metrics import OperatorMetrics
from pstraining.core import progress
from pstraining.core.progress import TrainerStatus
from pstraining.kube.errors import ApiError, Conflict, NotFound
from pstraining.kube.port import ApiPort

logger = logging.getLogger(__name__)

WRITES_PER_SECOND: Final = 17.0
"""Writes of all jobs together, in the long run."""
BURST: Final = 68
"""Writes that may be made at once after a quiet time: the reports of 1,000 jobs are not evenly spread over a minute."""
LATE_SECONDS: Final = 1.0
"""Seconds by which a write may begin late without delaying the next one of its job."""
IN_FLIGHT: Final = 4
"""Concurrent writes."""
RETRY_SECONDS: Final = 10.0
"""Seconds from a failed write to the next."""
CONFLICT_SECONDS: Final = 0.5
"""Seconds until the next attempt if the job has changed meanwhile."""


@dataclass
class _Job:
    uid: str
    newest: dict[str, Any]
    stall: str | None = None
    """Why the job makes no steps; empty while it makes some, None before its first report to this process."""
    written: dict[str, Any] | None = None
    written_at: float = 0.0
    """When the last write was due; at most LATE_SECONDS before it began."""
    due: float | None = None
    """When the newest progress is written; None if it is not, or while a write is under way."""
    not_before: float = 0.0
    """When the next write may be tried, after a failed one."""
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
            cache: the jobs; receives every written one.
            metrics: counts writes.
            enqueue: requests a pass over a job whose training has stopped making steps, or resumed.
            clock: monotonic seconds.
        """
        self._port, self._cache, self._metrics, self._enqueue, self._clock = port, cache, metrics, enqueue, clock
        self._jobs: dict[Key, _Job] = {}
        self._queue: list[tuple[float, Key]] = []  # a heap; an entry whose time is not its job's `due` is void
        self._slots = asyncio.Semaphore(IN_FLIGHT)
        self._changed = asyncio.Event()
        self._paced_until = 0.0
        """When the writes so far would be done at WRITES_PER_SECOND."""

    def note(self, key: Key, uid: str, report: TrainerStatus) -> None:
        """Receive a report for a job with this uid."""
        job = self._jobs.get(key)
        newest = progress.progress_of(report)
        if job is None or job.uid != uid:
            job = self._jobs[key] = _Job(uid, newest)
        job.newest = newest
        self._schedule(key, job)
        if job.stall != report.stalled:
            job.stall = report.stalled
            self._enqueue(key)

    def stall(self, key: Key, uid: str) -> str | None:
        """Return why the job with this uid makes no steps, empty while it makes some; None without a report of it."""
        job = self._jobs.get(key)
        return job.stall if job is not None and job.uid == uid else None

    def forget(self, key: Key) -> None:
        """Drop a deleted job."""
        self._jobs.pop(key, None)

    async def run(self) -> None:
        """Write progress when it is due, until cancelled."""
        async with asyncio.TaskGroup() as writes:
            while True:
                await self._slots.acquire()
                due, key = await self._next()
                writes.create_task(self._write(key, self._jobs[key], due))
                await asyncio.sleep(self._pause())

    def _pause(self) -> float:
        """Return the seconds after a write for which no other one may begin."""
        now = self._clock()
        self._paced_until = max(self._paced_until, now) + 1 / WRITES_PER_SECOND
        return max(0.0, self._paced_until - now - BURST / WRITES_PER_SECOND)

    async def _next(self) -> tuple[float, Key]:
        """Wait until a job's progress is due; return when it was due, and the job, which is then being written."""
        while True:
            self._changed.clear()
            while self._queue and not self._is_valid(*self._queue[0]):
                heapq.heappop(self._queue)
            wait = self._queue[0][0] - self._clock() if self._queue else None
            if wait is not None and wait <= 0:
                due, key = heapq.heappop(self._queue)
                self._jobs[key].due, self._jobs[key].is_writing = None, True
                return due, key
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(wait):
                    await self._changed.wait()

    def _is_valid(self, due: float, key: Key) -> bool:
        job = self._jobs.get(key)
        return job is not None and job.due == due

    def _schedule(self, key: Key, job: _Job) -> None:
        if job.is_writing:
            return  # the end of the write schedules the next one
        now = self._clock()
        delay = progress.write_delay(job.written, job.newest, now - job.written_at)
        job.due = None if delay is None else max(now + delay, job.not_before)
        if job.due is not None:
            heapq.heappush(self._queue, (job.due, key))
            self._changed.set()

    async def _write(self, key: Key, job: _Job, due: float) -> None:
        newest, begun = job.newest, self._clock()
        try:
            version = self._cache.job_version(key, job.uid)
            if version is None:
                raise NotFound("the job is not there any more")
            written = await self._port.patch_progress(*key, version, newest)
        except NotFound:
            if self._jobs.get(key) is job:
                self.forget(key)
        except ApiError as error:
            self._metrics.failed(error, retried=True)
            logger.info("Progress was not written: %s", error.message, extra=about(None, *key))
            job.not_before = self._clock() + (CONFLICT_SECONDS if isinstance(error, Conflict) else RETRY_SECONDS)
        else:
            job.written, job.written_at = newest, max(due, begun - LATE_SECONDS)
            self._cache.wrote(*key, written)
            self._metrics.wrote("PSTrainingJobProgress", "patch")
        finally:
            job.is_writing = False
            self._slots.release()
        if self._jobs.get(key) is job:
            self._schedule(key, job)
