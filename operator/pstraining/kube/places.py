"""A bound on what goes on at a time that does not count what hangs.

An API server that leaves some requests without an answer, those of one webhook say, must not stop all others: whoever
holds a place while many others come and go gives it to the next, and goes on without one. An API server that is merely
slow is slow for all, and keeps the bound: more requests would only make it slower.
"""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

PATIENCE: Final = 1.0
"""Seconds between two looks at whoever holds a place."""
OVERTAKEN: Final = 4
"""Whoever was overtaken by so many times the number of places hangs."""
MAX_PATIENCE: Final = 5.0
"""Seconds after which a place is given away in any case; half of what a request may take, so that a server that
answers nothing has no more than about twice the bound in hand."""
MAX_WITHOUT: Final = 500
"""So many may go on without a place; each holds a connection."""


@dataclass
class _Holder:
    """Who holds a place, or held one."""

    done: int
    """How many had gone when it came."""
    gave_way: bool = False
    timer: asyncio.TimerHandle | None = None


class Places:
    """So many at a time."""

    def __init__(self, count: int, *, most_without: int = MAX_WITHOUT) -> None:
        """Make places, all free."""
        self._count = count
        self._free = asyncio.Semaphore(count)
        self._most_without = most_without
        self._without = 0
        self._done = 0

    async def take(self) -> Callable[[], None]:
        """Wait for a place; returns what gives it back, to be called once."""
        await self._free.acquire()
        loop, holder = asyncio.get_running_loop(), _Holder(self._done)
        since = loop.time()

        def look() -> None:
            overtaken = self._done - holder.done >= OVERTAKEN * self._count
            if (overtaken or loop.time() - since >= MAX_PATIENCE) and self._without < self._most_without:
                holder.gave_way = True
                self._without += 1
                self._free.release()
            else:
                holder.timer = loop.call_later(PATIENCE, look)

        holder.timer = loop.call_later(PATIENCE, look)

        def give_back() -> None:
            if holder.timer is not None:
                holder.timer.cancel()
            self._done += 1
            if holder.gave_way:
                self._without -= 1
            else:
                self._free.release()

        return give_back
