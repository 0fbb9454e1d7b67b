"""Samples of jobs' metrics, taken on the page's requests: while no page is open, no pod is scraped."""

import threading
import time
from collections import OrderedDict, deque
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any, Final

from pstraining.cli.client import ClusterClient, Object
from pstraining.cli.dashboard.history import Curve, Point, measured_point, reported_point, unknown_point
from pstraining.cli.errors import DeniedError
from pstraining.cli.metrics.measurement import describe
from pstraining.cli.metrics.rates import Scrape
from pstraining.cli.metrics.scraping import AT_ONCE, scraped, trains
from pstraining.cli.tasks import TaskPod

EVERY: Final = 5.0
"""Minimum seconds between two samples of a job."""
PER_SECOND: Final = 8
"""Maximum number of tasks scraped per second. Jobs with hundreds of tasks are sampled less often."""
ROUNDS: Final = 4
"""Number of samples over which rates are computed."""
DENIED: Final = 60.0
"""Seconds until denied metrics are requested again."""
JOBS: Final = 16
"""Maximum number of jobs whose curves are kept: the most recently shown ones."""


@dataclass
class _Watched:
    """The samples of one job."""

    lock: threading.Lock = field(default_factory=threading.Lock)
    curve: Curve = field(default_factory=Curve)
    rounds: deque[dict[str, Scrape]] = field(default_factory=lambda: deque(maxlen=ROUNDS))
    """Scrapes by the pod's uid."""
    measured: bool = False
    """Whether metrics have reported a step. The curves then use only metrics, and not the status."""
    rates: dict[str, Any] | None = None
    denied: str = ""
    due: float = 0.0


class Sampler:
    """Samples the metrics of jobs.

    Args:
        cluster: the jobs' cluster.
        clock: a monotonic clock, in seconds.
        now: the time, in seconds since 1970.
    """

    def __init__(
        self,
        cluster: ClusterClient,
        clock: Callable[[], float] = time.monotonic,
        now: Callable[[], float] = time.time,
    ) -> None:
        self._cluster, self._clock, self._now = cluster, clock, now
        self._watched: OrderedDict[str, _Watched] = OrderedDict()
        self._lock = threading.Lock()

    def look(self, job: Object, tasks: Sequence[TaskPod]) -> dict[str, Any]:
        """Return the curves and newest rates of a job, after a new sample if one is due.

        Args:
            job: the job.
            tasks: the job's tasks that have pods.
        """
        watched = self._of(job)
        # A second page neither samples twice nor waits for slow tasks.
        if watched.lock.acquire(blocking=False):
            try:
                if self._clock() >= watched.due:
                    self._sample(watched, job, [task for task in tasks if trains(task)])
            finally:
                watched.lock.release()
        return {"points": watched.curve.columns(), "rates": watched.rates, "denied": watched.denied}

    def _of(self, job: Object) -> _Watched:
        with self._lock:
            found = self._watched.setdefault(job["metadata"]["uid"], _Watched())
            self._watched.move_to_end(job["metadata"]["uid"])
            while len(self._watched) > JOBS:
                self._watched.popitem(last=False)
        return found

    def _sample(self, watched: _Watched, job: Object, tasks: Sequence[TaskPod]) -> None:
        watched.due = self._clock() + max(EVERY, len(tasks) / PER_SECOND)
        rates, denied = None, ""
        try:
            rates = self._rates(watched, job, tasks)
        except DeniedError as error:
            denied, watched.due = str(error), self._clock() + DENIED
        watched.rates, watched.denied = rates, denied
        if point := self._point(watched, job):
            watched.curve.add(point)

    def _point(self, watched: _Watched, job: Object) -> Point | None:
        if watched.rates and (measured := measured_point(job, watched.rates, self._now())):
            watched.measured = True
            return measured
        if not watched.measured:
            return reported_point(job)
        return unknown_point(job, self._now()) if watched.rates else None

    def _rates(self, watched: _Watched, job: Object, tasks: Sequence[TaskPod]) -> dict[str, Any] | None:
        if not tasks:
            return None
        with ThreadPoolExecutor(AT_ONCE) as pool:
            after = list(pool.map(lambda task: scraped(self._cluster, job, task, self._clock), tasks))
        pairs = zip(tasks, after, strict=True)
        watched.rounds.append({task.pod.uid: found for task, found in pairs if isinstance(found, Scrape)})
        # A task's first scrape is compared with itself and has no rates.
        before = [
            next((r[task.pod.uid] for r in watched.rounds if task.pod.uid in r), found)
            for task, found in zip(tasks, after, strict=True)
        ]
        return describe(job, tasks, before, after)
