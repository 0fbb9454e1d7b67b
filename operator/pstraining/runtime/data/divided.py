"""Data that is divided by the number of workers, which changes when the job is scaled. Imports no TensorFlow."""

import time
from collections.abc import Callable
from typing import Final

from pstraining.runtime.model.tensor import Dataset
from pstraining.runtime.telemetry.events import event

LOOK_SECONDS: Final = 2.0
"""Seconds between two reads of the number of workers."""


class DividedData:
    """The program's function of (worker, workers), called with the number of workers that the job has now.

    Args:
        make: the program's function.
        worker: this worker's index.
        count: returns the job's number of workers.
        clock: returns seconds on a monotonic clock.
    """

    def __init__(
        self,
        make: Callable[[int, int], Dataset],
        worker: int,
        count: Callable[[], int],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._make, self._worker, self._count, self._clock = make, worker, count, clock
        self._workers, self._looked_at = count(), clock()

    def __call__(self) -> Dataset:
        """Return the worker's dataset."""
        return self._make(self._worker, self._workers)

    def has_changed(self) -> bool:
        """Read the number of workers, at most every `LOOK_SECONDS`; return whether the dataset has changed.

        A worker that was removed keeps its part until it is stopped, because the function does not accept its index.
        """
        if self._clock() - self._looked_at < LOOK_SECONDS:
            return False
        self._looked_at, workers = self._clock(), self._count()
        if workers in (self._workers, 0) or workers <= self._worker:
            return False
        event("workers_changed", worker=self._worker, former=self._workers, workers=workers)
        self._workers = workers
        return True
