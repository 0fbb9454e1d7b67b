"""Decides which job gets the next pass, and when: a set of keys with deadlines and counts of failures.

A key is queued only once, even if it is added several times. A key that is added during its pass is queued again
afterwards. A pass returns the next deadline, so an older deadline is dropped when the pass starts. Only this queue
retries: a failed pass is repeated with exponential back-off and jitter. All times are the event loop's, so that tests
can use a virtual clock.
"""

import asyncio
import random
from collections.abc import Awaitable, Callable
from contextvars import ContextVar
from typing import Final

from pstraining.controller.informer_cache import Key
from pstraining.kube.slots import AdaptiveLimiter

BASE_DELAY_SECONDS = 0.05
"""Back-off after the first failure, before jitter: about the time in which the watch catches up with a write."""
DELAY_SECONDS_MAX = 120.0
"""Upper bound of the back-off, and of the time that the API server requests."""
CLOSED_POLL_SECONDS = 0.1
"""Seconds between two checks whether passes are allowed again."""

_PASS: Final = ContextVar[Key | None]("_PASS", default=None)
"""The key of the current task's pass; None outside of passes."""

Handler = Callable[[Key], Awaitable[float | None]]
"""Makes one pass over a key; returns the seconds until the next pass, or None."""
OnError = Callable[[Key, Exception, float], None]
"""Receives the key of a failed pass, its error, and the seconds until it is repeated."""


def backoff(failures: int, luck: float) -> float:
    """Return the seconds until the next attempt.

    Args:
        failures: consecutive failures, at least 1.
        luck: a random number from 0 to 1. It spreads the retries of jobs that failed together over half of the delay.
    """
    return float(min(DELAY_SECONDS_MAX, BASE_DELAY_SECONDS * 2 ** min(failures - 1, 20))) * (0.5 + 0.5 * luck)


class WorkQueue:
    """Keys that need a pass."""

    def __init__(
        self,
        *,
        may_act: Callable[[], bool] = lambda: True,
        luck: Callable[[], float] = random.random,
    ) -> None:
        """Create an empty, closed queue.

        Args:
            may_act: called before every pass; no pass starts while it returns False.
            luck: returns random numbers from 0 to 1.
        """
        # The loop is stored, because probes and scrapes read the queue from other threads.
        self._loop = asyncio.get_running_loop()
        self._may_act = may_act
        self._luck = luck
        self._opened = False
        self._stopping = False
        self._wakeup = asyncio.Event()
        self._ready: dict[Key, float] = {}
        self._running: dict[Key, float] = {}
        self._again: dict[Key, float] = {}
        self._deadlines: dict[Key, asyncio.TimerHandle] = {}
        self._failures: dict[Key, int] = {}
        self._not_before: dict[Key, float] = {}
        self._progress: float | None = None

    @property
    def depth(self) -> int:
        """Number of keys that wait for a pass now, without those whose deadline is in the future."""
        return len(self._ready)

    def oldest_age(self) -> float:
        """Return the seconds that the longest-waiting key has waited."""
        # Copied in one operation, here and below: other threads read what the event loop changes.
        waiting, now = list(self._ready.values()), self._now()
        return now - min(waiting, default=now)

    def stuck_for(self) -> float:
        """Return the seconds without progress while there is work.

        They are the longest time of a pass since its start or its last write, or the time without a start.
        """
        now, ready = self._now(), list(self._ready.values())
        running = max((now - since for since in list(self._running.values())), default=0.0)
        waiting = 0.0
        if ready and self._opened and self._may_act():
            waiting = now - max(self._progress or 0.0, ready[0])
        return max(running, waiting)

    def moved(self) -> None:
        """Record that the pass of the current task makes progress."""
        key = _PASS.get()
        if key is not None and key in self._running:
            self._running[key] = self._now()

    def open(self) -> None:
        """Allow passes to start, once every cache is filled."""
        self._opened = True
        self._wakeup.set()

    def add(self, key: Key) -> None:
        """Queue a key for a pass, not before the time that the API server requested."""
        now = self._now()
        if self._not_before.get(key, now) > now:
            self.add_after(key, self._not_before[key] - now)
        elif key in self._running:
            self._again.setdefault(key, now)
        else:
            self._ready.setdefault(key, now)
            self._wakeup.set()

    def add_after(self, key: Key, seconds: float) -> None:
        """Queue a key after a delay; the earliest of several deadlines counts, as far as the API server allows it."""
        when = max(self._now() + max(0.0, seconds), self._not_before.get(key, 0.0))
        pending = self._deadlines.get(key)
        if pending is not None:
            if pending.when() <= when:
                return
            pending.cancel()
        self._deadlines[key] = self._loop.call_at(when, self._due, key)

    def failures(self, key: Key) -> int:
        """Return the number of consecutive failed passes over a key."""
        return self._failures.get(key, 0)

    def forget(self, key: Key) -> None:
        """Drop the failures and the deadline of a removed key."""
        self._failures.pop(key, None)
        self._not_before.pop(key, None)
        self._cancel_deadline(key)

    async def run(self, handler: Handler, workers: int, on_error: OnError = lambda key, error, delay: None) -> None:
        """Make passes until `stop` is called, then finish the running ones.

        A long pass waits for an API server that does not answer. It gives its slot to another key, so that jobs whose
        requests hang do not delay the others (slots.py).

        Args:
            handler: makes one pass.
            workers: maximum number of concurrent passes, each over another key, without hung passes.
            on_error: called for failed passes.
        """
        slots = AdaptiveLimiter(workers)
        async with asyncio.TaskGroup() as group:
            while await self._due_now():
                key = next(iter(self._ready))
                release = await slots.acquire(key)
                if self._stopping or not self._may_act():
                    release()
                else:
                    self._take(key)
                    group.create_task(self._work(key, handler, on_error, release), name="pass")

    def stop(self) -> None:
        """Prevent further passes from starting."""
        self._stopping = True
        self._wakeup.set()

    async def _work(self, key: Key, handler: Handler, on_error: OnError, release: Callable[[], None]) -> None:
        _PASS.set(key)
        try:
            delay = await handler(key)
        except Exception as error:  # noqa: BLE001 - no error may stop the other passes or go unreported
            on_error(key, error, self._retry(key, error))
        else:
            self._failures.pop(key, None)
            self._not_before.pop(key, None)
            if delay is not None:
                self.add_after(key, delay)
        finally:
            release()
            self._done(key)

    async def _due_now(self) -> bool:
        """Wait until a pass may start; return False if the queue stops first."""
        while not self._stopping:
            if self._ready and self._opened:
                if self._may_act():
                    return True
                await asyncio.sleep(CLOSED_POLL_SECONDS)
                continue
            self._wakeup.clear()
            await self._wakeup.wait()
        return False

    def _take(self, key: Key) -> None:
        del self._ready[key]
        self._running[key] = self._progress = self._now()
        self._cancel_deadline(key)

    def _done(self, key: Key) -> None:
        del self._running[key]
        self._progress = self._now()
        since = self._again.pop(key, None)
        if since is not None:
            if self._not_before.get(key, 0.0) > self._now():
                self.add(key)
            else:
                self._ready.setdefault(key, since)
                self._wakeup.set()

    def _retry(self, key: Key, error: Exception) -> float:
        self._failures[key] = self._failures.get(key, 0) + 1
        delay = backoff(self._failures[key], self._luck())
        # A page of a load balancer may ask for hours, which the API server never does.
        retry_after = min(getattr(error, "retry_after", None) or 0.0, DELAY_SECONDS_MAX)
        if retry_after:
            delay = max(delay, retry_after)
            self._not_before[key] = self._now() + retry_after
            self._cancel_deadline(key)
        self.add_after(key, delay)
        return delay

    def _due(self, key: Key) -> None:
        self._deadlines.pop(key, None)
        self._not_before.pop(key, None)
        self.add(key)

    def _cancel_deadline(self, key: Key) -> None:
        pending = self._deadlines.pop(key, None)
        if pending is not None:
            pending.cancel()

    def _now(self) -> float:
        return self._loop.time()
