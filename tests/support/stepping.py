"""Threads that pause before each of their file-system calls, and continue on request."""

import io
import os
import threading
from collections.abc import Callable
from typing import Any, Final

import pytest

from pstraining.runtime.checkpoint import files

OF_OS: Final = (
    "mkdir",
    "rename",
    "replace",
    "unlink",
    "rmdir",
    "listdir",
    "scandir",
    "open",
    "fsync",
    "link",
    "stat",
    "lstat",
)
_own = threading.local()


class Killed(BaseException):
    """Ends a thread at a file-system call, as SIGKILL would."""


class Stepped:
    """A thread that makes one file-system call at a time."""

    def __init__(self, work: Callable[[], Any]) -> None:
        self._work, self._go, self._there = work, threading.Semaphore(0), threading.Semaphore(0)
        self._killed = False
        self.is_over = False
        self.calls = 0
        self.error: BaseException | None = None
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def step(self) -> None:
        """Let the thread make its next call, and pause before the one after that."""
        self._go.release()
        self._there.acquire()

    def finish(self) -> None:
        """Let the thread continue to its end."""
        while not self.is_over:
            self.step()

    def kill(self) -> None:
        """End the thread before its next call."""
        self._killed = True
        self.finish()

    def pause(self) -> None:
        """Pause the calling thread."""
        self.calls += 1
        self._there.release()
        self._go.acquire()
        if self._killed:
            raise Killed

    def _run(self) -> None:
        _own.stepped = self
        self._go.acquire()
        try:
            self._work()
        except BaseException as error:  # noqa: BLE001 - the test looks at it
            self.error = error
        self.is_over = True
        self._there.release()


def install(monkeypatch: pytest.MonkeyPatch, *, can_exchange: bool) -> None:
    """Pause stepped threads at their file-system calls; `can_exchange` is whether RENAME_EXCHANGE is supported."""

    def stopping(call: Callable[..., Any]) -> Callable[..., Any]:
        def stopped(*arguments: Any, **options: Any) -> Any:
            stepped: Stepped | None = getattr(_own, "stepped", None)
            if stepped is not None:
                stepped.pause()
            return call(*arguments, **options)

        return stopped

    for name in OF_OS:
        monkeypatch.setattr(os, name, stopping((lambda _: None) if name == "fsync" else getattr(os, name)))
    monkeypatch.setattr(io, "open", stopping(io.open))
    monkeypatch.setattr(files, "exchange", stopping(files.exchange if can_exchange else lambda _, __: False))
