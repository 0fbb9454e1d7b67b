"""Takes the objects out of kopf's watches, tells of those that were deleted while nobody watched, and says how the
watches are.

When a watch cannot go on where it was (410, after an outage or a restart of the API server), kopf lists again, and
objects that are missing from the new list get no DELETED event: they would stay in every cache for ever, and a ghost
job would have its children created again and again. kopf has no hook for this, so its generator of watch events is
wrapped while the operator runs: what an earlier listing or event had shown and a later listing does not is told as
deleted. Objects end here: kopf itself is given nothing but its own marks (registration.py says why).

Nor is a list believed that is older than what is known: than anything that its stream has shown, or than the write that
made the Lease ours, which followed all that an earlier operator has done. An API server promises newer ones; should one
that lags behind the others answer all the same, it is asked again, as what such a list does not hold would be taken for
lost: pods, and the chief's terms. Versions are compared as numbers of one store, which they are in all practice.
"""

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import aclosing, contextmanager
from typing import Any, Final

from kopf._cogs.clients import fetching, watching

logger = logging.getLogger(__name__)

BREATH = 100
"""Objects after which others get their turn: a listing comes in thousands."""
CATCH_UP: Final = 10.0
"""Seconds for which an old list is asked for again; then it is taken: Leases may have a store of their own."""
AGAIN: Final = 0.2
"""Seconds between two such lists."""
OWN_STORE: Final = ("events",)
"""Kinds that are often kept apart, with numbers of their own."""
NO_BOOKMARKS: Final = ("events",)
"""Kinds that an API server does not keep in its watch cache, which is what sends bookmarks: their streams may rightly
be silent for as long as nothing happens. kopf opens a stream anew that is silent for 70 s."""
Receiver = Callable[[dict[str, Any]], None]
"""Takes an event with its type (None while listing) and object."""
Stream = tuple[str, str | None]
"""A kind's plural and the namespace watched, None for all."""


class Watches:
    """The streams that kopf holds open."""

    def __init__(
        self,
        expected: int,
        clock: Callable[[], float] = time.monotonic,
        fence: Callable[[], int] = lambda: 0,
    ) -> None:
        """Watch nothing yet.

        Args:
            expected: streams, one for every kind and namespace.
            clock: seconds.
            fence: the version of the write that made the Lease ours; 0 if it is not known.
        """
        self._expected = expected
        self._clock = clock
        self._fence = fence
        self._newest: dict[Stream, int] = {}
        self._taken_as_they_are: set[Stream] = set()
        self._listed: set[Stream] = set()
        self._last: dict[Stream, float] = {}

    @property
    def synced(self) -> bool:
        """Whether every stream has listed what there is."""
        return len(self._listed) >= self._expected

    def silent_for(self) -> float:
        """Seconds for which the quietest of those streams has brought nothing that get bookmarks."""
        heard = [last for (plural, _), last in self._last.items() if plural not in NO_BOOKMARKS]
        return self._clock() - min(heard) if heard else 0.0

    @contextmanager
    def taken(self, receive: Receiver, synced: Callable[[], None] = lambda: None) -> Iterator[None]:
        """Wrap kopf's generator of watch events.

        Args:
            receive: is given every event.
            synced: is called whenever a listing ends and every stream has listed what there is.
        """
        watch, fetch = watching.infinite_watch, fetching.fetch_objs

        async def infinite_watch(**kwargs: Any) -> AsyncIterator[Any]:
            stream = (kwargs["resource"].plural, kwargs["namespace"])
            async for mark in self._take(stream, watch(**kwargs), receive, synced):
                yield mark

        async def fetch_objs(**kwargs: Any) -> AsyncIterator[Any]:
            stream = (kwargs["resource"].plural, kwargs["namespace"])
            async for chunk in self._believed(stream, lambda: fetch(**kwargs)):
                yield chunk

        watching.infinite_watch, fetching.fetch_objs = infinite_watch, fetch_objs
        try:
            yield
        finally:
            watching.infinite_watch, fetching.fetch_objs = watch, fetch

    async def _believed(self, stream: Stream, fetch: Callable[[], Any]) -> AsyncIterator[Any]:
        """The chunks of a list, each with the version of the whole, once it is not older than what is known."""
        end = self._clock() + CATCH_UP
        while True:
            async with aclosing(fetch()) as chunks:
                async for objects, version in chunks:
                    if self._is_old(stream, version):
                        if self._clock() < end:
                            break
                        logger.warning(
                            "The API server's list of %s is older than what is known, and stays so", stream[0]
                        )
                        self._taken_as_they_are.add(stream)
                    self._seen(stream, version)
                    yield objects, version
                else:
                    return
            logger.info("The API server's list of %s is older than what is known: asked again", stream[0])
            await asyncio.sleep(AGAIN)

    def _is_old(self, stream: Stream, version: str) -> bool:
        if stream in self._taken_as_they_are or not str(version).isdigit():
            return False
        fence = 0 if stream[0] in OWN_STORE else self._fence()
        return int(version) < max(fence, self._newest.get(stream, 0))

    def _seen(self, stream: Stream, version: str | None) -> None:
        if str(version).isdigit():
            self._newest[stream] = max(self._newest.get(stream, 0), int(str(version)))

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
            if not isinstance(event, watching.Bookmark):
                self._seen(stream, event["object"].get("metadata", {}).get("resourceVersion"))
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
