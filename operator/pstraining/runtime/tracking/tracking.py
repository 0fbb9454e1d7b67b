"""A job's tracking, from the chief's start to its end; inactive if the environment names no tracker."""

from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from tempfile import TemporaryDirectory
from types import TracebackType
from typing import Final

from pstraining.api import contract
from pstraining.api.summary import SUMMARY_FILE
from pstraining.runtime.config.cluster import Cluster
from pstraining.runtime.errors import final_error
from pstraining.runtime.telemetry.events import event
from pstraining.runtime.tracking.mlflow_run import tracker_of
from pstraining.runtime.tracking.tracker import STOP_SECONDS, Tracker

ARTIFACTS: Final = ("final.keras", "final.weights.h5", "result.json", SUMMARY_FILE)
"""Files beside the checkpoints that become artifacts of the run."""
LEAVE_SECONDS: Final = 0.5


class Tracking:
    """Sends the chief's scalars to a tracker; a context manager that ends the run, or leaves it to another chief.

    The chief does not know whether its job continues without it. So a run ends with every chief that another one has
    not replaced, and the next chief continues it.

    Args:
        cluster: this task's view of the job.
        results: returns the files of these names beside the checkpoints that exist, as local paths; it may copy them
            to a folder, and raise OSError. They become artifacts.
    """

    def __init__(self, cluster: Cluster, results: Callable[[Sequence[str], Path], Sequence[Path]]) -> None:
        self._cluster, self._results = cluster, results
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
        if error is None:
            with ExitStack() as held:
                self._tracker.finish(self._artifacts(held))
        elif final_error(error) is not None:  # no chief follows
            self._tracker.fail()
        elif _continues(error):
            self._tracker.close()
        elif isinstance(error, SystemExit | KeyboardInterrupt):  # after a signal
            self._tracker.stop()
        else:
            self._tracker.fail(STOP_SECONDS)

    def _artifacts(self, held: ExitStack) -> Sequence[Path]:
        """Return the job's results as local files until `held` closes; none if they cannot be copied to a folder."""
        try:
            return self._results(ARTIFACTS, Path(held.enter_context(TemporaryDirectory(prefix="pstraining-"))))
        except OSError as error:
            event("tracker_failed", reason=f"the job's results cannot be read: {error}")
            return []


def _continues(error: BaseException) -> bool:
    """Return whether another chief leads the job, or this program starts again at once for another layout."""
    from pstraining.runtime.checkpoint.state import SupersededError  # NumPy, which no parameter server loads

    return isinstance(error, SupersededError) or getattr(error, "code", None) == contract.EXIT_SAVED
