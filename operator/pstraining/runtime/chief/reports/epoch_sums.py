"""The sums from which the logs of an epoch follow, without the steps that a restore takes back.

Pure; importing it imports no TensorFlow.
"""

from typing import Final

from pstraining.runtime.data.epochs import Ends
from pstraining.runtime.telemetry.aggregation import CounterAggregate, Sums, Window

SAVED: Final = 8
"""Number of checkpoints whose sums are kept. Older ones are only restored if all of these are damaged."""


class EpochSums:
    """The sums of the steps since the end of the last reported epoch.

    Args:
        aggregate: the counters of all workers.
    """

    def __init__(self, aggregate: CounterAggregate) -> None:
        self._aggregate = aggregate
        self.window = Window(aggregate)
        self._saved: dict[int, Sums] = {0: Sums()}  # by the step of each checkpoint since then
        self._missing_before: int | None = None  # the step of a restore without sums, until the first report after it
        self._repeats = False  # whether steps of reported epochs are trained again

    def begin(self) -> None:
        """Begin with the epochs that are reported next."""
        self.window, self._saved = Window(self._aggregate), {}
        self._repeats, self._missing_before = False, None

    def saved(self, step: int) -> None:
        """Note that a checkpoint of this step has been copied just now."""
        self._saved[step] = self.window.sums()
        for old in sorted(self._saved)[:-SAVED]:
            del self._saved[old]

    def restored(self, step: int) -> None:
        """Return to the sums at a step. Steps after it are trained again."""
        self._saved = {own: sums for own, sums in self._saved.items() if own <= step}
        self._missing_before = None if step in self._saved else step
        self.window = Window(self._aggregate, self._saved.get(step))

    def has_caught_up(self, ends: Ends, done: int) -> bool:
        """Return whether steps of reported epochs were trained again, and are complete with `done` steps or splits."""
        is_behind = ends.begun(done) < 0
        caught_up = self._repeats and not is_behind
        self._repeats = is_behind
        return caught_up

    def missing_before(self, ends: Ends, done: int, *, by_splits: bool) -> int | None:
        """Return once after a restore the step before which the sums of the epoch are unknown; None: they are known.

        Args:
            ends: the ends of epochs.
            done: the steps or splits that are done at the first report after the restore.
            by_splits: whether these are splits.
        """
        step, self._missing_before = self._missing_before, None
        return step if step is not None and ends.begun(done if by_splits else step) > 0 else None
