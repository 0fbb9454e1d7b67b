"""A concurrency limit that hung requests do not consume.

An API server may leave some requests without an answer, for example those of one webhook. They must not block all other
requests: a holder that many others overtake gives its slot to the next caller and continues uncounted. Its next request
starts uncounted at once, because a hung request is retried again and again. Otherwise fifty hung jobs of a thousand
reduce the speed of the others by a third. A slow API server is slow for all requests; the limit then stays in force,
because more requests would make the server slower.
"""

import asyncio
from collections.abc import Callable, Hashable
from dataclasses import dataclass
from typing import Final

CHECK_SECONDS: Final = 1.0
"""Seconds between two checks of a holder."""
OVERTAKEN_FACTOR: Final = 4
"""A holder hangs if this many times the limit have finished since it started."""
HOLD_SECONDS_MAX: Final = 5.0
"""Seconds after which every holder gives up its slot: half of a request's timeout, so that a server that never answers
has about twice the limit in flight at most."""
UNCOUNTED_MAX: Final = 500
"""Upper bound of uncounted holders; each of them has a connection."""


@dataclass
class _Slot:
    """One holder, which may be uncounted."""

    finished_before: int
    """Holders that had finished when this one started."""
    key: Hashable
    is_uncounted: bool = False
    timer: asyncio.TimerHandle | None = None


class AdaptiveLimiter:
    """Limits concurrent holders, without those that hang."""

    def __init__(self, limit: int, *, uncounted_max: int = UNCOUNTED_MAX) -> None:
        """Create a limiter for `limit` counted and `uncounted_max` uncounted holders."""
        self._limit = limit
        self._free = asyncio.Semaphore(limit)
        self._uncounted_max = uncounted_max
        self._hung_keys: dict[Hashable, None] = {}
        """Keys whose last holder hung, the oldest first."""
        self._uncounted_count = 0
        self._finished_count = 0

    async def acquire(self, key: Hashable = None) -> Callable[[], None]:
        """Wait for a slot, unless the last holder with this key hung.

        Returns:
            The function that releases the slot, to be called once.
        """
        loop = asyncio.get_running_loop()
        if key in self._hung_keys and self._uncounted_count < self._uncounted_max:
            self._uncounted_count += 1
            slot = _Slot(self._finished_count, key, is_uncounted=True)
        else:
            await self._free.acquire()
            slot = _Slot(self._finished_count, key)
        started = loop.time()

        def check() -> None:
            is_late = loop.time() - started >= HOLD_SECONDS_MAX
            if (is_late or self._is_overtaken(slot)) and self._uncounted_count < self._uncounted_max:
                slot.is_uncounted = True
                self._uncounted_count += 1
                self._free.release()
            else:
                slot.timer = loop.call_later(CHECK_SECONDS, check)

        if not slot.is_uncounted:
            slot.timer = loop.call_later(CHECK_SECONDS, check)

        def release() -> None:
            if slot.timer is not None:
                slot.timer.cancel()
            self._record(slot)
            self._finished_count += 1
            if slot.is_uncounted:
                self._uncounted_count -= 1
            else:
                self._free.release()

        return release

    def _is_overtaken(self, slot: _Slot) -> bool:
        return self._finished_count - slot.finished_before >= OVERTAKEN_FACTOR * self._limit

    def _record(self, slot: _Slot) -> None:
        """Record whether this holder hung while others did not."""
        self._hung_keys.pop(slot.key, None)
        if slot.key is not None and slot.is_uncounted and self._is_overtaken(slot):
            self._hung_keys[slot.key] = None
            if len(self._hung_keys) > self._uncounted_max:
                del self._hung_keys[next(iter(self._hung_keys))]
