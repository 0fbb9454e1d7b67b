"""The chief's saves: their interval, their retries, and the last one.

A full disk does not stop training. The chief reports the failed save, keeps the earlier checkpoints, and retries. Only
a failure of the last save is an error.
"""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Final

from pstraining.runtime.checkpoint import interval as intervals
from pstraining.runtime.checkpoint.arrays import StoredState
from pstraining.runtime.checkpoint.checksums import FindDamaged, find_damaged
from pstraining.runtime.checkpoint.errors import CorruptCheckpointError, NotSavedError, UnreadableCheckpointsError
from pstraining.runtime.checkpoint.fencing import Writer
from pstraining.runtime.checkpoint.objects.choice import storage_at
from pstraining.runtime.checkpoint.parts import WritesParts
from pstraining.runtime.checkpoint.ports.checkpoint_storage import RemoteStorage
from pstraining.runtime.checkpoint.state import SavePlan, StateBlocks, StateOfServers, StateParts
from pstraining.runtime.config.settings import CheckpointSettings
from pstraining.runtime.model.partition import Layout
from pstraining.runtime.telemetry.counters import ChiefCounters
from pstraining.runtime.telemetry.events import event

FIRST_RETRY: Final = 10.0
LONGEST_RETRY: Final = 300.0
"""Seconds until a failed save is retried. They double with each failure, up to LONGEST_RETRY."""


class Saver:
    """Saves a job's state to its folder.

    Args:
        settings: the settings of the checkpoints, with a path.
        layout: the layout of the state on the servers.
        term: returns the chief's term, which may change while it establishes its term on the servers.
        writer: the chief, as the folder's markers name it.
        counters: count the saves and the failures.
        clock: returns a monotonic time in seconds.
        damaged: see `Checkpoints`.

    Raises:
        SettingsError: the folder cannot hold checkpoints.
        SupersededError: the folder belongs to a later chief.
    """

    def __init__(
        self,
        settings: CheckpointSettings,
        layout: Layout,
        *,
        term: Callable[[], int],
        writer: Writer | None = None,
        counters: ChiefCounters | None = None,
        clock: Callable[[], float] = time.monotonic,
        damaged: FindDamaged = find_damaged,
    ) -> None:
        assert settings.path is not None  # noqa: S101 - a job without a folder has no saver
        self.checkpoints = storage_at(
            settings.path, keep=settings.keep, full_every=settings.full_every, writer=writer, damaged=damaged
        )
        self.checkpoints.open()
        self._full_every, self._incremental = settings.full_every, 0
        self._explicit, self.layout, self._term, self._clock = settings.interval_seconds, layout, term, clock
        self._counters = counters or ChiefCounters()
        self._began = self._last = clock()
        self._losses, self._failures = 0, 0
        self._cost: float | None = None
        self._reported: float | None = None
        self._kept: int | None = 0  # step of the newest checkpoint; 0 for the initial state, which needs no checkpoint
        self._kept_as_ended = False  # whether that checkpoint has the mark `ended_early`
        self._kept_apart: tuple[int, ...] = ()  # the updates in it on each server, if their numbers differ

    def interval(self) -> float:
        """Return the seconds from the end of one save to the start of the next, as configured or by Young's rule."""
        if self._failures:
            doublings = min(self._failures - 1, 30)  # a float ends at 2 to the power of 1,024
            return min(FIRST_RETRY * 2.0**doublings, LONGEST_RETRY)
        if self._explicit is not None:
            return self._explicit
        mean_time = intervals.mean_time_between_losses(
            servers=self.layout.ps, watched=self._clock() - self._began, losses=self._losses
        )
        found = intervals.young(save_seconds=self._cost, mean_time=mean_time)
        if self._cost is not None and intervals.is_worth_reporting(self._reported, found):
            self._reported = found
            event(
                "checkpoint_interval",
                seconds=round(found, 1),
                save_seconds=round(self._cost, 3),
                hours_between_losses=round(mean_time / 3600, 2),
                losses=self._losses,
            )
        return found

    def is_due(self) -> bool:
        """Return whether the interval since the last save has passed, and count the interval."""
        interval = self._counters.checkpoint_interval = self.interval()
        return self._clock() - self._last >= interval

    def newest_step(self) -> int:
        """Return the step of the newest readable checkpoint, and report the unreadable ones; -1 without a readable one.

        Raises:
            UnusableCheckpointsError: a later version wrote one.
            OSError: the storage does not answer at present.
        """
        with suppress(UnreadableCheckpointsError):  # the state that the servers hold is then the newest
            if newest := self.checkpoints.newest():
                return newest.step
        return -1

    def plan(self) -> SavePlan:
        """Return what the next save needs of a copy: the changed rows of tables, or everything."""
        base = self.checkpoints.base if self._incremental + 1 < self._full_every else None
        return SavePlan(base, recorded=self._full_every > 1)

    def restored(self, state: StateParts | None, *, lost: bool) -> None:
        """Note that the servers were restored.

        Args:
            state: the state that the servers hold now; None for the initial one.
            lost: whether a server had lost its state.
        """
        self._kept, self._last = state.step if state else 0, self._clock()
        self._kept_as_ended, self._kept_apart = state is not None and state.ended_early, ()
        self._losses += lost

    def try_to_save(self, state: StateBlocks) -> None:
        """Save; report a failure, and when the save is retried.

        Raises:
            SupersededError: the folder belongs to a later chief now. All methods that save raise this error.
        """
        try:
            self._save(state)
        except OSError as error:
            self._failures += 1
            self._counters.checkpoint_failures += 1
            self._last = self._clock()
            event(
                "checkpoint_failed",
                step=state.step,
                reason=str(error),
                newest=self._newest()[0],
                retry_seconds=self.interval(),
                help=f"training continues, and earlier checkpoints are kept. {self.checkpoints.remedy(error)}",
            )

    def try_increment(self, state: StateBlocks) -> bool:
        """Save the last state incrementally; return whether that succeeded. It needs the checkpoint before."""
        try:
            self._save(state)
        except OSError as error:
            help_ = "the last save is repeated with all rows, because the checkpoint before it may be gone"
            event("checkpoint_failed", step=state.step, reason=str(error), newest=self._newest()[0], help=help_)
            return False
        return True

    def hurry(self, seconds: float) -> None:
        """Let the last save end, or fail, within some seconds if its storage is silent."""
        if isinstance(self.checkpoints, RemoteStorage):
            self.checkpoints.hurry(seconds)

    def save_last(self, state: StateBlocks) -> None:
        """Save the final state.

        Raises:
            NotSavedError: the state could not be saved. Earlier checkpoints are kept.
        """
        try:
            self._save(state)
        except OSError as error:
            newest, before = self._newest()
            event("not_saved", step=state.step, reason=str(error), newest=newest, help=self.checkpoints.remedy(error))
            raise NotSavedError(
                f"the state at step {state.step} could not be saved in {self.checkpoints.location} ({error}); "
                f"{before}. {self.checkpoints.remedy(error)}; while the parameter servers run, a restarted chief saves "
                "their state"
            ) from None

    def replace_last(self, state: StateBlocks) -> None:
        """Replace the last checkpoint by another state of the same step.

        Raises:
            NotSavedError: the state could not be saved. The former checkpoint is kept.
        """
        self._kept = None
        self.save_last(state)

    def read_back(self, state: StateBlocks) -> StoredState:
        """Return the last checkpoint as it is stored; one that cannot be read is saved again first.

        Args:
            state: the state that was saved last.

        Raises:
            CorruptCheckpointError: the second checkpoint cannot be read either.
            NotSavedError: the state could not be saved again.
        """
        try:
            return self.checkpoints.load(state.step)
        except CorruptCheckpointError as error:
            event("checkpoint_unreadable", step=state.step, reason=str(error), path=self.checkpoints.location)
        self._kept = None
        self.save_last(state)
        return self.checkpoints.load(state.step)

    @contextmanager
    def exporting(self) -> Iterator[None]:
        """Report errors of the body, which writes results beside the checkpoints.

        Raises:
            NotSavedError: a result could not be written. The checkpoints are kept.
        """
        try:
            yield
        except OSError as error:
            event("not_saved", step=self._kept, reason=str(error), newest=self._kept)
            raise NotSavedError(
                f"the result could not be written to {self.checkpoints.location} ({error}); the checkpoint of step "
                f"{self._kept} is kept. {self.checkpoints.remedy(error)}, and start the program again"
            ) from None

    def _newest(self) -> tuple[int | None, str]:
        """Return the newest checkpoint's step after a failed save, and what is known of it, in words."""
        try:
            newest = next(reversed(self.checkpoints.steps()), None)
        except OSError:  # what has kept the state from being saved may also keep checkpoints from being listed
            return None, "earlier checkpoints cannot be listed at present"
        if newest is None:
            return None, "there is no earlier checkpoint"
        return newest, f"the newest checkpoint has step {newest}"

    def _size(self, step: int) -> int | None:
        """Return the bytes of a checkpoint that is saved; None if they cannot be read at present."""
        try:
            return self.checkpoints.size(step)
        except (OSError, CorruptCheckpointError):  # a later chief may have deleted it: the next save reports that
            return None

    def _save(self, state: StateBlocks) -> None:
        kept, apart = (self._kept, self._kept_as_ended, self._kept_apart), _apart(state)
        if (state.step, state.ended_early, apart) != kept:
            began = self._clock()
            path = self.checkpoints.save(state, term=self._term(), layout=self.layout)
            self._cost = self._clock() - began
            self._kept, self._kept_as_ended, self._kept_apart = state.step, state.ended_early, apart
            is_full = not isinstance(state, WritesParts) or state.base is None
            self._incremental = 0 if is_full else self._incremental + 1
            self._counters.saved(state.step, self._cost, self._size(state.step))
            how = {"full": is_full} if self._full_every > 1 else {}
            event("checkpoint", step=state.step, path=str(path), seconds=round(self._cost, 3), **how)
        self._last, self._failures = self._clock(), 0


def _apart(state: StateBlocks) -> tuple[int, ...]:
    """Return the number of updates on each server if they differ: some updates were under way to the others."""
    updates = state.updates if isinstance(state, StateOfServers) else ()
    return updates if len(set(updates)) > 1 else ()
