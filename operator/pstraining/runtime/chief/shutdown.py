"""SIGTERM on the chief: it ends the process at once, unless the state has to be saved first.

If a job with hot standbys changes its layout, the chief also ends, but only after the whole state is saved.
"""

import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Final

from pstraining.api import contract
from pstraining.runtime.checkpoint.errors import NotSavedError
from pstraining.runtime.chief.errors import FencedError
from pstraining.runtime.replication.renewal import RenewalDueError
from pstraining.runtime.telemetry.events import event

EXIT_CODE: Final = 128 + signal.SIGTERM
"""The process's exit code, equal to that of a process without a signal handler."""

HELD_BACK: Final = frozenset({signal.SIGTERM, signal.SIGINT, signal.SIGQUIT})
"""Signals that stop a container, as its image has them. They are blocked while the chief's process is renewed, see
`replication.renewal`; they would end it at once."""

RECOVERY_SECONDS: Final = 5.0
"""Seconds after SIGTERM in which a lost connection to the servers may return, so that the state can be saved."""

REPORT_SECONDS: Final = 3.0
"""Seconds of the grace period that stay for the report of a save that has failed, and for the end of the process."""

AGAIN_SECONDS: Final = 30.0
"""Seconds between a failed save for another layout and the next try; training continues meanwhile."""


class StoppedError(Exception):
    """The process received SIGTERM, or its layout ends; the block that defers the exit may save the state now."""


class _ExpiredError(Exception):
    """RECOVERY_SECONDS are over."""


class GracefulStop:
    """Receives SIGTERM, and defers the exit while the state is being saved.

    Args:
        is_layout_ending: whether the job waits for the state to be saved for another layout.
        clock: returns seconds on a monotonic clock.
        grace: the seconds after SIGTERM after which the process is killed.
    """

    def __init__(
        self,
        is_layout_ending: Callable[[], bool] = lambda: False,
        clock: Callable[[], float] = time.monotonic,
        *,
        grace: float = contract.GRACE_SECONDS,
    ) -> None:
        self._grace, self._asked_at = grace, 0.0
        self._is_layout_ending, self._clock, self._postponed_until = is_layout_ending, clock, clock()
        self.is_switching = False
        """Whether the process ends for another layout, and only if the whole state is saved."""
        self._asked = self._deferred = self._recovers = self._is_installed = False
        self._former_timer: tuple[float, float] | None = None

    def install(self, *, in_pod: bool = False) -> None:
        """Handle SIGTERM from now on, including one blocked during a renewal; only possible in a main thread.

        Args:
            in_pod: whether other signals may stop the container, too. A terminal sends them to a local job.
        """
        if threading.current_thread() is threading.main_thread():
            handled = HELD_BACK if in_pod else {signal.SIGTERM}
            for number in handled:
                signal.signal(number, self._received)
            signal.signal(signal.SIGALRM, self._expired)
            self._is_installed = True
            signal.pthread_sigmask(signal.SIG_UNBLOCK, handled)

    @contextmanager
    def deferred(self) -> Iterator[None]:
        """Defer the exit until `check`; a process that received the signal exits when the block ends.

        Errors of the block are raised, because they are the reason why the state is not saved.
        """
        self._deferred = True
        try:
            yield
        except StoppedError:
            if self.is_switching and not self._asked:
                raise SystemExit(contract.EXIT_SAVED) from None
        except RenewalDueError:  # the state has just been saved
            if not self._asked:
                raise
        finally:
            self._deferred = False
        if self._asked:
            raise SystemExit(EXIT_CODE)

    @contextmanager
    def recovering(self) -> Iterator[None]:
        """Limit the deferral to RECOVERY_SECONDS while the block connects to the servers again.

        A lost connection returns within that time. Servers that were deleted with the whole job do not return.
        """
        self._recovers = True
        try:
            if self._asked:
                self._limit()
            yield
        except _ExpiredError:
            self.exit_unsaved(f"the parameter servers did not recover within {RECOVERY_SECONDS:g} s")
        finally:
            self._recovers = False
            if self._former_timer:
                signal.setitimer(signal.ITIMER_REAL, *self._former_timer)
                self._former_timer = None

    def check(self) -> None:
        """Raise StoppedError once the process has received SIGTERM."""
        if self._asked:
            raise StoppedError

    def check_layout(self, *, can_save: bool) -> None:
        """Raise StoppedError if the job waits for the state to be saved for another layout, and it can be saved."""
        self.is_switching = can_save and self._clock() >= self._postponed_until and self._is_layout_ending()
        if self.is_switching:
            raise StoppedError

    @contextmanager
    def saving(self, hurry: Callable[[float], None] | None = None) -> Iterator[None]:
        """Let a block save the state; the saver reports why it cannot, and earlier checkpoints are kept.

        Args:
            hurry: called with the seconds that the process has left, if it has received SIGTERM.

        Raises:
            FencedError: the state is not saved, the process has not received SIGTERM, and training continues.
        """
        if self._asked and hurry is not None:
            hurry(max(2.0, self._grace - REPORT_SECONDS - (self._clock() - self._asked_at)))
        try:
            yield
        except NotSavedError:
            if self.is_switching and not self._asked:
                self._postponed_until = self._clock() + AGAIN_SECONDS
                raise FencedError("the state is not saved, and training continues") from None

    def exit_unsaved(self, reason: str) -> None:
        """Report that the state cannot be saved and exit, once the process has received SIGTERM."""
        if self._asked:
            event("stopped_unsaved", reason=reason)
            raise SystemExit(EXIT_CODE)

    def _limit(self) -> None:
        if self._is_installed and not self._former_timer:
            self._former_timer = signal.setitimer(signal.ITIMER_REAL, RECOVERY_SECONDS)

    def _received(self, _: int, __: FrameType | None) -> None:
        self._asked_at = self._asked_at if self._asked else self._clock()
        self._asked = True
        if not self._deferred:
            raise SystemExit(EXIT_CODE)
        if self._recovers:
            self._limit()

    def _expired(self, _: int, __: FrameType | None) -> None:
        if self._recovers:
            raise _ExpiredError
