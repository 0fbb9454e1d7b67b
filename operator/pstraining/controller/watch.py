"""Takes the objects out of kopf's watches, tells of those that were deleted while nobody watched, and says how the
watches are.

When a watch cannot go on where it was (410, after an outage or a restart of the API server), kopf lists again, and
objects that are missing from the new list get no DELETED event: they would stay in every cache for ever, and a ghost
job would have its children created again and again. kopf has no hook for this, so its generator of watch events is
wrapped while the operator runs: what an earlier listing or event had shown and a later listing does not is told as
deleted. Objects end here: kopf itself is given nothing but its own marks (registration.py says why).
"""

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import contextmanager
from typing import Any

from kopf._cogs.clients import watching

logger = logging.getLogger(__name__)

BREATH = 100
"""Objects after which others get their turn: a listing comes in thousands."""
Receiver = Callable[[dict[str, Any]], None]
"""Takes an event with its type (None while listing) and object."""
Stream = tuple[str, str | None]
"""A kind's plural and the namespace watched, None for all."""


class Watches:
    """The streams that kopf holds open."""

    def __init__(self, expected: int, clock: Callable[[], float] = time.monotonic) -> None:
        """Expect so many streams: one for every kind and namespace."""
        self._expected = expected
        self._clock = clock
        self._listed: set[Stream] = set()
        self._last: dict[Stream, float] = {}

    @property
    def synced(self) -> bool:
        """Whether every stream has listed what there is."""
        return len(self._listed) >= self._expected

    def silent_for(self) -> float:
        """Seconds for which the quietest stream has brought nothing, not even a bookmark."""
        return self._clock() - min(self._last.values()) if self._last else 0.0

    @contextmanager
    def taken(self, receive: Receiver, synced: Callable[[], None] = lambda: None) -> Iterator[None]:
        """Wrap kopf's generator of watch events.

        Args:
            receive: is given every event.
            synced: is called whenever a listing ends and every stream has listed what there is.
        """
        original = watching.infinite_watch

        async def infinite_watch(**kwargs: Any) -> AsyncIterator[Any]:
            stream = (kwargs["resource"].plural, kwargs["namespace"])
            async for mark in self._take(stream, original(**kwargs), receive, synced):
                yield mark

        watching.infinite_watch = infinite_watch
        try:
            yield
        finally:
            watching.infinite_watch = original

    async def _take(
        self, stream: Stream, events: AsyncIterator[Any], receive: Receiver, synced: Callable[[], None]
    ) -> AsyncIterator[Any]:
        known: dict[str, dict[str, Any]] = {}
        listed: set[str] = set()
        self._last[stream] = self._clock()
        async for event in events:
            self._last[stream] = self._clock()
            if event is watching.Bookmark.LISTED:
                for uid in known.keys() - listed:
                    _give(receive, {"type": "DELETED", "object": known.pop(uid)})
                listed = set()
                self._listed.add(stream)
                if self.synced:
                    synced()
            if isinstance(event, watching.Bookmark) or event["type"] == "BOOKMARK":
                yield event
                continue
            uid = event["object"].get("metadata", {}).get("uid", "")
            if event["type"] == "DELETED":
                known.pop(uid, None)
            else:
                known[uid] = _identity(event["object"])
            if event["type"] is None:
                listed.add(uid)
                if len(listed) % BREATH == 0:
                    await asyncio.sleep(0)
            _give(receive, event)


def _give(receive: Receiver, event: dict[str, Any]) -> None:
    try:
        receive(event)
    except Exception:
        # One odd object must not end the watch of all others.
        logger.exception("An object from the watch could not be taken in: %s", _identity(event["object"]))


def _identity(found: dict[str, Any]) -> dict[str, Any]:
    """As much of an object as a DELETED event needs."""
    kept = ("name", "namespace", "uid")
    return {
        "apiVersion": found.get("apiVersion"),
        "kind": found.get("kind"),
        "metadata": {k: v for k, v in found.get("metadata", {}).items() if k in kept},
    }
