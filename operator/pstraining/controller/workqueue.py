"""Which job to look at next, and when: a set of keys with deadlines and a memory of failures.

A key is queued once however often it is added; added while a pass over it runs, it is queued again afterwards. A pass
starts with a clean slate: it names the next deadline itself, so an older one is dropped when the pass begins. Only this
queue retries: a pass that raises is repeated with exponential back-off and jitter. All time is the event loop's, so
that tests run on a virtual clock.
"""

import asyncio
import logging
import random
from collections.abc import Awaitable, Callable

from pstraining.controller.cache import Key
from pstraining.kube.places import Places

logger = logging.getLogger(__name__)

BASE_DELAY = 0.05
"""Seconds, before jitter, after the first failure: about what the watch needs to catch up with a write."""
MAX_DELAY = 120.0
"""Seconds between two tries of what never works."""
CLOSED_POLL = 0.1
"""Seconds between two looks at whether passes are allowed again."""

Handler = Callable[[Key], Awaitable[float | None]]
"""One pass; returns the seconds after which to look again, None for never."""
OnError = Callable[[Key, Exception, float], None]
"""Is told of a pass that raised, and the seconds until it is repeated."""


def backoff(failures: int, luck: float) -> float:
    """Seconds to wait after so many failures in a row.

    Args:
        failures: 1 after the first.
        luck: 0 to 1; spreads the retries of many jobs that failed together over half of the delay.
    """
    return float(min(MAX_DELAY, BASE_DELAY * 2 ** min(failures - 1, 20))) * (0.5 + 0.5 * luck)


class WorkQueue:
    """Keys to be worked on."""

    def __init__(
        self,
        *,
        may_act: Callable[[], bool] = lambda: True,
        luck: Callable[[], float] = random.random,
    ) -> None:
        """Make an empty, closed queue.

        Args:
            may_act: asked before every pass; no pass starts while it says no.
            luck: random numbers from 0 to 1.
        """
        # Kept, as probes and scrapes ask from threads of their own.
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
        """Keys that wait for a pass now; deadlines in the future don't count."""
        return len(self._ready)

    @property
    def opened(self) -> bool:
        """Whether `open` was called."""
        return self._opened

    def oldest_age(self) -> float:
        """Seconds that the longest-waiting key has waited."""
        now = self._now()
        return now - next(iter(self._ready.values()), now)

    def stuck_for(self) -> float:
        """Seconds for which there has been work and no progress: the longest running pass, or none begun at all."""
        now = self._now()
        running = max((now - since for since in list(self._running.values())), default=0.0)
        waiting = 0.0
        if self._ready and self._opened and self._may_act():
            waiting = now - max(self._progress or 0.0, next(iter(self._ready.values()), now))
        return max(running, waiting)

    def open(self) -> None:
        """Let passes begin: every cache is filled."""
        self._opened = True
        self._wakeup.set()

    def add(self, key: Key) -> None:
        """Look at a key as soon as possible, but not before a time that the API server asked for."""
        now = self._now()
        if self._not_before.get(key, now) > now:
            self.add_after(key, self._not_before[key] - now)
        elif key in self._running:
            self._again.setdefault(key, now)
        else:
            self._ready.setdefault(key, now)
            self._wakeup.set()

    def add_after(self, key: Key, seconds: float) -> None:
        """Look at a key in a while; the earliest of several deadlines counts."""
        when = self._now() + max(0.0, seconds)
        pending = self._deadlines.get(key)
        if pending is not None:
            if pending.when() <= when:
                return
            pending.cancel()
        self._deadlines[key] = self._loop.call_at(when, self._due, key)

    def failures(self, key: Key) -> int:
        """How often in a row passes over a key have failed."""
        return self._failures.get(key, 0)

    def forget(self, key: Key) -> None:
        """Drop what is remembered of a key that is gone: failures and deadline."""
        self._failures.pop(key, None)
        self._not_before.pop(key, None)
        self._cancel_deadline(key)

    async def run(self, handler: Handler, workers: int, on_error: OnError = lambda key, error, delay: None) -> None:
        """Work until `stop` is called; the passes that run then are finished.

        A pass that takes long waits for an API server that does not answer: it gives its place to another key, so that
        jobs whose requests hang do not hold up the others (places.py).

        Args:
            handler: makes one pass.
            workers: passes at a time, each over another key; those that take long are not counted.
            on_error: is told of failed passes.
        """
        places = Places(workers)
        async with asyncio.TaskGroup() as group:
            while await self._due_now():
                key = next(iter(self._ready))
                leave = await places.take(key)
                if self._stopping or not self._may_act():
                    leave()
                else:
                    self._take(key)
                    group.create_task(self._work(key, handler, on_error, leave), name="pass")

    def stop(self) -> None:
        """Start no further pass."""
        self._stopping = True
        self._wakeup.set()

    async def _work(self, key: Key, handler: Handler, on_error: OnError, leave: Callable[[], None]) -> None:
        try:
            again = await handler(key)
        except Exception as error:  # noqa: BLE001 - whatever a pass dies of must neither stop the others nor be lost
            on_error(key, error, self._retry(key, error))
        else:
            self._failures.pop(key, None)
            self._not_before.pop(key, None)
            if again is not None:
                self.add_after(key, again)
        finally:
            leave()
            self._done(key)

    async def _due_now(self) -> bool:
        """Wait until a pass may begin; False if none ever will."""
        while not self._stopping:
            if self._ready and self._opened:
                if self._may_act():
                    return True
                await asyncio.sleep(CLOSED_POLL)
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
        asked = getattr(error, "retry_after", None)
        if asked:
            delay = max(delay, asked)
            self._not_before[key] = self._now() + asked
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
