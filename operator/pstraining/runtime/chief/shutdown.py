"""SIGTERM on the chief: it ends the process at once, unless the state has to be saved first."""

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Final

EXIT_CODE: Final = 128 + signal.SIGTERM
"""The process's exit code, equal to that of a process without a signal handler."""

HELD_BACK: Final = frozenset({signal.SIGTERM})
"""Signals blocked while the chief's process is renewed, see `replication.renewal`; they would end it at once."""


class StoppedError(Exception):
    """The process received SIGTERM; the deferring block may save its state now."""


class GracefulStop:
    """Receives SIGTERM, and defers the exit while the state is being saved."""

    def __init__(self) -> None:
        self._asked = self._deferred = False

    def install(self) -> None:
        """Handle SIGTERM from now on, including one blocked during a renewal; only possible in a main thread."""
        if threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGTERM, self._received)
            signal.pthread_sigmask(signal.SIG_UNBLOCK, HELD_BACK)

    @contextmanager
    def deferred(self) -> Iterator[None]:
        """Defer the exit until `check`; a process that received the signal exits when the block ends."""
        self._deferred = True
        try:
            yield
        finally:
            self._deferred = False
            if self._asked:
                raise SystemExit(EXIT_CODE)

    def check(self) -> None:
        """Raise StoppedError once the process has received SIGTERM."""
        if self._asked:
            raise StoppedError

    def _received(self, _: int, __: FrameType | None) -> None:
        self._asked = True
        if not self._deferred:
            raise SystemExit(EXIT_CODE)
