"""Defers status writes that only report the start of a job while other jobs' children are being created.

A job's first statuses and events need half as many requests as its children. Sent between the creations, they delay the
last of many jobs by half. They therefore wait, except for one job at a time. A status that reports a problem, or on
which a decision depends, never waits (rate_limit.py decides). No status waits longer than WAIT_SECONDS_MAX. A status
that is lost in a crash is written by the next pass over the job.
"""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final

from pstraining.controller.informer_cache import Key

HUNG_SECONDS: Final = 5.0
"""Seconds after which creations no longer count, because their requests hang."""
RECHECK_SECONDS: Final = 5.0
"""Seconds until a waiting job gets a pass in any case."""
WAIT_SECONDS_MAX: Final = 30.0
"""Upper bound of a job's wait in seconds."""


class StatusQueue:
    """Jobs whose status waits, in order of arrival."""

    def __init__(self, enqueue: Callable[[Key], None], clock: Callable[[], float] = time.monotonic) -> None:
        """Create an empty queue.

        Args:
            enqueue: requests a pass over a job whose status may be written now.
            clock: monotonic seconds.
        """
        self._enqueue = enqueue
        self._clock = clock
        self._creating: dict[object, float] = {}
        self._waiting: dict[Key, float] = {}
        self._current: Key | None = None
        """The one job whose status may be written although children are being created."""

    @contextmanager
    def creating(self) -> Iterator[None]:
        """Mark that children of a job are being created."""
        mark = object()
        self._creating[mark] = self._clock()
        try:
            yield
        finally:
            del self._creating[mark]
            if not self.is_busy():
                self._enqueue_all()

    def may_write(self, key: Key) -> bool:
        """Whether a job's status may be written now; otherwise the job waits and is enqueued later."""
        now = self._clock()
        since = self._waiting.setdefault(key, now)
        if self._current is None or self._current == key or not self.is_busy() or now - since >= WAIT_SECONDS_MAX:
            del self._waiting[key]
            self._current = self._current or key
            return True
        return False

    def done(self, key: Key) -> None:
        """Record the end of a pass. If this job was the current one, the next waiting job becomes current."""
        if self._current != key:
            return
        self._current = None
        if not self.is_busy():
            self._enqueue_all()
        elif self._waiting:
            self._current = next(iter(self._waiting))
            self._enqueue(self._current)

    def forget(self, key: Key) -> None:
        """Drop a deleted job."""
        self._waiting.pop(key, None)
        self.done(key)

    def is_busy(self) -> bool:
        """Whether creations are in progress whose requests do not hang."""
        # The dict keeps insertion order, so the last entry is the newest.
        newest = next(reversed(self._creating.values()), None)
        return newest is not None and self._clock() - newest < HUNG_SECONDS

    def _enqueue_all(self) -> None:
        for key in list(self._waiting):
            self._enqueue(key)
