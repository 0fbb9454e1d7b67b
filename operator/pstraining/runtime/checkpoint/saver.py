"""When the chief saves, and what it does when that fails.

A disk that is full stops no training: the chief says so, keeps what was saved before, and tries again later. Only at
the end, when there is no later, is it an error.
"""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from pstraining.runtime.checkpoint import interval as intervals
from pstraining.runtime.checkpoint.arrays import StoredState
from pstraining.runtime.checkpoint.checksums import FindDamaged, find_damaged
from pstraining.runtime.checkpoint.errors import CorruptCheckpointError
from pstraining.runtime.checkpoint.fencing import Writer
from pstraining.runtime.checkpoint.state import StateBlocks, StateParts
from pstraining.runtime.checkpoint.storage import Checkpoints
from pstraining.runtime.config.settings import CheckpointSettings
from pstraining.runtime.model.partition import Layout
from pstraining.runtime.telemetry.counters import ChiefCounters
from pstraining.runtime.telemetry.events import event

FIRST_RETRY: Final = 10.0
LONGEST_RETRY: Final = 300.0
"""Seconds until a save that failed is tried again; doubled from the first to the longest."""


class NotSavedError(OSError):
    """The last state could not be saved."""


class Saver:
    """Saves a job's state to its folder.

    Args:
        settings: of the checkpoints; they have a path.
        layout: of the state on the servers.
        term: the chief's; it may change while it takes over.
        writer: the chief, as the folder's markers name it.
        counters: counts what is saved and what is not.
        clock: seconds.
        damaged: see `Checkpoints`.

    Raises:
        SettingsError: the folder cannot hold checkpoints.
        SupersededError: it is a later chief's.
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
        self.checkpoints = Checkpoints(Path(settings.path), keep=settings.keep, writer=writer, damaged=damaged)
        self.checkpoints.open()
        self._explicit, self._layout, self._term, self._clock = settings.interval_seconds, layout, term, clock
        self._counters = counters or ChiefCounters()
        self._servers = layout.ps
        self._began = self._last = clock()
        self._losses, self._failures = 0, 0
        self._cost: float | None = None
        self._reported: float | None = None
        self._kept: int | None = 0  # up to here the state on the servers is in a checkpoint, or is the initial one
        self._kept_as_ended = False  # it says that training was ended before its time

    def interval(self) -> float:
        """Seconds from the end of one save to the start of the next: as set, or by Young's rule."""
        if self._failures:
            return min(FIRST_RETRY * 2.0 ** (self._failures - 1), LONGEST_RETRY)
        if self._explicit is not None:
            return self._explicit
        mean_time = intervals.mean_time_between_losses(
            servers=self._servers, watched=self._clock() - self._began, losses=self._losses
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
        """Whether it is time to save."""
        interval = self._counters.checkpoint_interval = self.interval()
        return self._clock() - self._last >= interval

    def restored(self, state: StateParts | None, *, lost: bool) -> None:
        """The servers hold this state now, None: the initial one; `lost`: because one had lost what it held."""
        self._kept, self._last = state.step if state else 0, self._clock()
        self._kept_as_ended = state is not None and state.ended_early
        self._losses += lost

    def try_to_save(self, state: StateBlocks) -> None:
        """Save, or report why not and when it is tried again.

        Raises:
            SupersededError: the folder is a later chief's by now; so of all that save.
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
                newest=self._newest_step(),
                retry_seconds=self.interval(),
                help=f"training continues; make room in {self.checkpoints.folder}: what was saved before is kept",
            )

    def save_last(self, state: StateBlocks) -> None:
        """Save, because there will be no later.

        Raises:
            NotSavedError: it could not be saved; what was saved before is there.
        """
        try:
            self._save(state)
        except OSError as error:
            newest = self._newest_step()
            event("not_saved", step=state.step, reason=str(error), newest=newest)
            before = "nothing was saved before" if newest is None else f"the newest checkpoint is of step {newest}"
            raise NotSavedError(
                f"the state at step {state.step} could not be saved in {self.checkpoints.folder} ({error}); {before}. "
                "Make room there; while the parameter servers run, a chief that is started again saves what they hold"
            ) from None

    def replace_last(self, state: StateBlocks) -> None:
        """Save another state of the last step in the place of the one that was saved.

        Raises:
            NotSavedError: it could not be saved; the one before is there.
        """
        self._kept = None
        self.save_last(state)

    def read_back(self, state: StateBlocks) -> StoredState:
        """What was saved last, as it is on disk; saved once more if it cannot be read.

        Raises:
            CorruptCheckpointError: nor can that.
            NotSavedError: it could not be saved again.
        """
        try:
            return self.checkpoints.load(state.step)
        except CorruptCheckpointError as error:
            event("checkpoint_unreadable", step=state.step, reason=str(error), path=str(self.checkpoints.folder))
        self._kept = None
        self.save_last(state)
        return self.checkpoints.load(state.step)

    @contextmanager
    def exporting(self) -> Iterator[None]:
        """Inside, what is written beside the checkpoints may find no room.

        Raises:
            NotSavedError: it found none; what was saved before is there.
        """
        try:
            yield
        except OSError as error:
            event("not_saved", step=self._kept, reason=str(error), newest=self._kept)
            raise NotSavedError(
                f"the result could not be written to {self.checkpoints.folder} ({error}); the checkpoint of step "
                f"{self._kept} is there: make room, and start the program again"
            ) from None

    def _newest_step(self) -> int | None:
        return next(reversed(self.checkpoints.steps()), None)

    def _save(self, state: StateBlocks) -> None:
        if (state.step, state.ended_early) != (self._kept, self._kept_as_ended):
            began = self._clock()
            path = self.checkpoints.save(state, term=self._term(), layout=self._layout)
            self._kept, self._cost, self._kept_as_ended = state.step, self._clock() - began, state.ended_early
            self._counters.saved(state.step, self._cost, path)
            event("checkpoint", step=state.step, path=str(path), seconds=round(self._cost, 3))
        self._last, self._failures = self._clock(), 0
