"""Logs a job to one run of a tracker of experiments, in a separate thread: an unavailable tracker delays no task.

The queue of points for the tracker is bounded. Points that do not fit are dropped, counted and reported.
"""

import queue
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Protocol

from pstraining.runtime.telemetry.events import event

WAITING: Final = 2000
"""Maximum number of queued points: more than an hour of the chief's reports."""
RETRY_SECONDS: Final = 10.0
"""Seconds from a failed attempt to the next."""
STOP_SECONDS: Final = 5.0
"""Seconds for queued points when the chief is stopped or has failed."""
END_SECONDS: Final = 60.0
"""Seconds for queued points and the artifacts when the job has ended."""


@dataclass(frozen=True)
class TrackedPoint:
    """Metrics of one step."""

    step: int
    time: float
    """Time of the step in seconds since 1970."""
    metrics: Mapping[str, float]


class Run(Protocol):
    """A run of a tracker; every method may raise."""

    def log(self, points: Sequence[TrackedPoint]) -> None:
        """Log the metrics that the run does not have yet."""

    def finish(self, artifacts: Sequence[Path]) -> None:
        """Log files, and end the run."""

    def fail(self) -> None:
        """End the run as failed; a later chief may continue it."""

    def stop(self) -> None:
        """End the run as stopped from outside; a later chief may continue it."""


class TrackerMissingError(Exception):
    """The tracker's package is missing; the message names it."""


def newer(point: TrackedPoint, last: Mapping[str, int]) -> dict[str, float]:
    """Return the metrics of a point that a run lacks, from the last step that the run has of each metric.

    A chief that continues from a checkpoint reports some steps a second time.
    """
    return {name: value for name, value in point.metrics.items() if point.step > last.get(name, -1)}


class Tracker:
    """Sends points to a run, in the order of their steps.

    Args:
        connect: finds or creates the run of this job; called in the tracker's thread, and again after a failure.
        retry: seconds from a failed attempt to the next.
    """

    def __init__(self, connect: Callable[[], Run], retry: float = RETRY_SECONDS) -> None:
        self._connect, self._retry = connect, retry
        self._points: queue.Queue[TrackedPoint] = queue.Queue(WAITING)
        self._dropped = 0
        self._is_missing = False
        self._end: Callable[[Run], None] | None = None  # None: another chief continues the run
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._work, name="pstraining-tracker", daemon=True)
        self._thread.start()

    def write(self, step: int, metrics: Mapping[str, float]) -> None:
        """Queue the metrics of a step; never waits."""
        if self._is_missing:  # an event has reported it
            return
        try:
            self._points.put_nowait(TrackedPoint(step, time.time(), dict(metrics)))
        except queue.Full:
            self._dropped += 1

    def finish(self, artifacts: Sequence[Path], seconds: float = END_SECONDS) -> None:
        """Log queued points and these files, end the run, and return within this number of seconds."""
        self._end = lambda run: run.finish(artifacts)
        self.close(seconds)

    def fail(self, seconds: float = END_SECONDS) -> None:
        """Log queued points, end the run as failed, and return within this number of seconds."""
        self._end = lambda run: run.fail()
        self.close(seconds)

    def stop(self) -> None:
        """Log queued points, end the run as stopped from outside, and return within STOP_SECONDS."""
        self._end = lambda run: run.stop()
        self.close()

    def close(self, seconds: float = STOP_SECONDS) -> None:
        """Log queued points, and return within this number of seconds; another chief continues the run."""
        self._closing.set()
        self._thread.join(seconds)
        if self._is_missing:
            return
        left = self._dropped + self._points.qsize() + self._thread.is_alive()
        if left:
            event(
                "tracker_incomplete",
                dropped=left,
                help="the tracker was unavailable or slow; training is not affected",
            )

    def _work(self) -> None:
        run: Run | None = None
        batch: list[TrackedPoint] = []
        reported = set[str]()  # since points were logged: each attempt may meet the same error
        while True:
            try:
                run = run or self._connect()
                batch = batch or self._next()
                if batch:
                    run.log(batch)
                    batch = []
                    reported.clear()
                elif self._closing.is_set():
                    if self._end is not None:
                        self._end(run)
                    return
            except TrackerMissingError as error:
                event("no_tracker", reason=str(error))
                self._is_missing = True
                return
            except Exception as error:  # noqa: BLE001 - any error of the tracker's client
                reason = f"{type(error).__name__}: {error}".partition("\n")[0]
                if reason not in reported:
                    event("tracker_failed", reason=reason)
                    reported.add(reason)
                run = None  # the run may have stored the batch: the next connection reads its last steps
                if self._closing.wait(self._retry):
                    time.sleep(min(1.0, self._retry))

    def _next(self) -> list[TrackedPoint]:
        """Return all queued points, after a short wait for the first one; empty if there is none."""
        found: list[TrackedPoint] = []
        with suppress(queue.Empty):
            found.append(self._points.get(timeout=0.01 if self._closing.is_set() else 0.2))
            while True:
                found.append(self._points.get_nowait())
        return found
