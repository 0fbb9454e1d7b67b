"""A bound on what goes on at a time that does not count what hangs.

An API server that leaves some requests without an answer, those of one webhook say, must not stop all others: whoever
holds a place while many others come and go gives it to the next, and goes on without one; and the next time it begins
without one: what hangs is tried again and again, and fifty jobs of a thousand took a third of the others' speed so. An
API server that is merely slow is slow for all, and keeps the bound: more requests would only make it slower.
"""

import asyncio
from collections.abc import Callable, Hashable
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
    who: Hashable
    gave_way: bool = False
    timer: asyncio.TimerHandle | None = None


class Places:
    """So many at a time."""

    def __init__(self, count: int, *, most_without: int = MAX_WITHOUT) -> None:
        """Make places, all free."""
        self._count = count
        self._free = asyncio.Semaphore(count)
        self._most_without = most_without
        self._hung: dict[Hashable, None] = {}
        """Who hung the last time, the longest known first."""
        self._without = 0
        self._done = 0

    async def take(self, who: Hashable = None) -> Callable[[], None]:
        """Wait for a place, unless `who` hung the last time; returns what gives it back, to be called once."""
        loop = asyncio.get_running_loop()
        if who in self._hung and self._without < self._most_without:
            self._without += 1
            holder = _Holder(self._done, who, gave_way=True)
        else:
            await self._free.acquire()
            holder = _Holder(self._done, who)
        since = loop.time()

        def look() -> None:
            late = loop.time() - since >= MAX_PATIENCE
            if (late or self._is_overtaken(holder)) and self._without < self._most_without:
                holder.gave_way = True
                self._without += 1
                self._free.release()
            else:
                holder.timer = loop.call_later(PATIENCE, look)

        if not holder.gave_way:
            holder.timer = loop.call_later(PATIENCE, look)

        def give_back() -> None:
            if holder.timer is not None:
                holder.timer.cancel()
            self._remember(holder)
            self._done += 1
            if holder.gave_way:
                self._without -= 1
            else:
                self._free.release()

        return give_back

    def _is_overtaken(self, holder: _Holder) -> bool:
        return self._done - holder.done >= OVERTAKEN * self._count

    def _remember(self, holder: _Holder) -> None:
        """Whether this one hung, while others did not."""
        self._hung.pop(holder.who, None)
        if holder.who is not None and holder.gave_way and self._is_overtaken(holder):
            self._hung[holder.who] = None
            if len(self._hung) > self._most_without:
                del self._hung[next(iter(self._hung))]
