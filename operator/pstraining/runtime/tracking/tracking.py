"""A job's tracking, from the chief's start to its end; inactive if the environment names no tracker."""

from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Final

from pstraining.api.summary import SUMMARY_FILE
from pstraining.runtime.config.cluster import Cluster
from pstraining.runtime.tracking.mlflow_run import tracker_of
from pstraining.runtime.tracking.tracker import Tracker

ARTIFACTS: Final = ("final.keras", "final.weights.h5", "result.json", SUMMARY_FILE)
"""Files beside the checkpoints that become artifacts of the run."""
LEAVE_SECONDS: Final = 0.5


class Tracking:
    """Sends the chief's scalars to a tracker; a context manager that ends the run, or leaves it to the next chief.

    Args:
        cluster: this task's view of the job.
        folder: the folder of checkpoints, whose results become artifacts; None without one.
    """

    def __init__(self, cluster: Cluster, folder: str | None) -> None:
        self._cluster, self._folder = cluster, folder
        self._tracker: Tracker | None = None

    def start(self, settings: Mapping[str, object]) -> None:
        """Start or continue the run of this job; the settings become its parameters."""
        self._tracker = tracker_of(self._cluster, settings)

    def write(self, step: int, scalars: Mapping[str, float]) -> None:
        """Log numbers at a global step; never waits."""
        if self._tracker is not None:
            self._tracker.write(step, scalars)

    def leave(self) -> None:
        """Log queued points before the process is renewed, within LEAVE_SECONDS: members' leases expire meanwhile."""
        if self._tracker is not None:
            self._tracker.close(LEAVE_SECONDS)

    def __enter__(self) -> "Tracking":
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        if self._tracker is None:
            return
        if error is not None:
            self._tracker.close()
        else:
            self._tracker.finish([Path(self._folder) / name for name in ARTIFACTS] if self._folder else [])
