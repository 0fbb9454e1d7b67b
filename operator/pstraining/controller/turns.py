"""Who may tell that a job comes up, while the children of other jobs are being created.

A job's first statuses and events are half as many requests as its children: sent in between, they make the last of many
jobs wait for half as long again. So they wait, but for one job at a time. What is bad news, and what lets something
else go on, never waits (pace.py says which status may); nothing waits for longer than MAX_WAIT, and a lost word, as
after a crash, is told by the next pass over the job.
"""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final

from pstraining.controller.cache import Key

HANGING: Final = 5.0
"""Seconds after which creations count no more: they hang."""
LOOK_AGAIN: Final = 5.0
"""Seconds until a job that waits is looked at in any case."""
MAX_WAIT: Final = 30.0
"""Seconds that a job waits at most."""


class Turns:
    """The jobs that wait to be told, the first one first."""

    def __init__(self, look: Callable[[Key], None], clock: Callable[[], float] = time.monotonic) -> None:
        """Nobody waits.

        Args:
            look: asks for a pass over a job whose turn has come.
            clock: seconds.
        """
        self._look = look
        self._clock = clock
        self._creating: dict[object, float] = {}
        self._waiting: dict[Key, float] = {}
        self._turn: Key | None = None

    @contextmanager
    def creating(self) -> Iterator[None]:
        """The children of some job are being created."""
        mark = object()
        self._creating[mark] = self._clock()
        try:
            yield
        finally:
            del self._creating[mark]
            if not self.busy():
                self._all()

    def may_tell(self, key: Key) -> bool:
        """Whether this job may be told now; if not, its turn will come."""
        now = self._clock()
        since = self._waiting.setdefault(key, now)
        if self._turn is None or self._turn == key or not self.busy() or now - since >= MAX_WAIT:
            del self._waiting[key]
            self._turn = self._turn or key
            return True
        return False

    def done(self, key: Key) -> None:
        """A pass over this job has ended: if it had the turn, the next one has it."""
        if self._turn != key:
            return
        self._turn = None
        if not self.busy():
            self._all()
        elif self._waiting:
            self._turn = next(iter(self._waiting))
            self._look(self._turn)

    def forget(self, key: Key) -> None:
        """The job is gone."""
        self._waiting.pop(key, None)
        self.done(key)

    def busy(self) -> bool:
        """Whether creations are under way; each began after those before it in the dict."""
        newest = next(reversed(self._creating.values()), None)
        return newest is not None and self._clock() - newest < HANGING

    def _all(self) -> None:
        for key in list(self._waiting):
            self._look(key)
