"""Takes the objects from kopf's watches, adds the missing DELETED events, and reports the state of the watches.

When a watch cannot continue (410, after an outage or a restart of the API server), kopf lists again. Objects that are
missing from the new list get no DELETED event. They would stay cached forever, and the children of a deleted job would
be created again and again. kopf has no hook for this, so its generator of watch events is wrapped while the operator
runs. An object that an earlier list or event contained and a later list does not is reported as deleted. Objects are
not passed on to kopf, which only receives its own marks (registration.py gives the reason).

A list is rejected if it is older than an object of its stream, or older than the write with which this operator
acquired the Lease. That write followed all writes of earlier operators. An API server guarantees not to return such a
list. If one that lags behind does, the list is requested again, because objects that are missing from it, such as pods
and the chief's terms, would count as lost. Versions are compared as integers of one store, which they are in practice.
"""

import asyncio
import logging
import time
from collections import defaultdict
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import aclosing, contextmanager
from contextvars import ContextVar
from dataclasses import replace
from typing import Any, Final

import aiohttp
from kopf._cogs.clients import errors, fetching, watching
from kopf._cogs.clients.errors import (
    APIClientError,
    APIError,
    APIForbiddenError,
    APINotFoundError,
    APIServerError,
    APITooManyRequestsError,
)

from pstraining.api import names
from pstraining.api.numbers import number
from pstraining.controller.workqueue import DELAY_SECONDS_MAX

logger = logging.getLogger(__name__)

YIELD_EVERY = 100
"""Listed objects after which other tasks run; a list may have thousands of objects."""
CATCH_UP_SECONDS: Final = 10.0
"""Seconds for which an old list is requested again. Then it is accepted, because Leases may have a separate store."""
RELIST_SECONDS: Final = 0.2
"""Seconds between two such requests."""
OWN_STORE: Final = ("events",)
"""Kinds that are often kept in a separate store with its own versions."""
NO_BOOKMARKS: Final = ("events",)
"""Kinds that an API server does not keep in its watch cache, which sends the bookmarks. Their streams are silent while
no object changes. kopf reopens a stream after 70 s of silence."""
RESTART_SECONDS: Final = 2.0
"""Seconds until a stream that an error has ended lists again."""
COMPACTED: Final = 410
"""The HTTP status of a list whose next page the API server has compacted."""
FORBIDDEN_SECONDS: Final = 15.0
"""Seconds between two attempts to list a forbidden kind."""
PAGE: Final = {names.PLURAL: 50, "pods": 250, "events": 20, "configmaps": 20}
"""Objects in one page of a list. A tenant can create events and ConfigMaps of a megabyte."""
PAGE_DEFAULT: Final = 50
FORBIDDEN_ATTEMPTS: Final = 5
"""Requests in a row that must be forbidden: an API server that starts forbids everything for a moment."""
FAILED_ATTEMPTS: Final = 20
"""Requests for Workloads in a row that must fail, in about half a minute: an API server that restarts answers 503."""
QUEUES: Final = "workloads"
"""The kind on which only jobs with a queue depend. Without its conversion webhook, which is Kueue's, a list fails."""
_REFUSALS: Final = ContextVar[list[APIError] | None]("_REFUSALS", default=None)
"""The refusals since the last answer in the stream of the current task; None outside of streams."""
_PLURAL: Final = ContextVar[str]("_PLURAL", default="")
"""The kind of the stream of the current task."""
Receiver = Callable[[dict[str, Any]], None]
"""Receives an event with its type (None from a list) and object."""
Stream = tuple[str, str | None]
"""A kind's plural and the watched namespace; None for all namespaces."""
TYPE: Final = ("apiVersion", "kind")
"""The fields in which all objects of a stream are equal."""


class ListForbiddenError(Exception):
    """The API server forbids a list or a watch, or cannot list Workloads. kopf retries both as in an outage."""


class Watches:
    """The watch streams of kopf."""

    def __init__(
        self,
        expected: int,
        namespaces: Sequence[str] = (),
        clock: Callable[[], float] = time.monotonic,
        fence: Callable[[], int] = lambda: 0,
    ) -> None:
        """Create the watches without a stream.

        Args:
            expected: number of streams that every job depends on, one per kind.
            namespaces: the watched namespaces; empty for all, with one stream per kind.
            clock: monotonic seconds.
            fence: returns the version of the write that acquired the Lease; 0 if it is unknown.
        """
        self.expected = expected
        self._namespaces: tuple[str | None, ...] = tuple(namespaces) or (None,)
        self._clock = clock
        self._fence = fence
        self._newest: dict[Stream, int] = {}
        self._accepted_old: set[Stream] = set()
        self._known: dict[Stream, dict[str, str]] = {}
        """Namespace/name of each object, by uid. Any user may create many objects with a job's labels."""
        self._types: dict[Stream, dict[str, Any]] = {}
        """Fields apiVersion and kind of a stream's objects."""
        self._listing: dict[Stream, set[str]] = defaultdict(set)
        """Uids of the objects in the list that is being read, or was read last."""
        self._listed: set[Stream] = set()
        self._forbidden: dict[Stream, str] = {}
        self._ready: set[str | None] = set()
        self.watches_queues = False
        """Whether Workloads are watched."""
        self.queues_are_served = True
        """Whether the API server serves Workloads, by its last answer: Kueue may be uninstalled."""
        self._with_queues: set[str | None] = set()
        """Namespaces whose Workloads have been listed; None for all. They stay known while a later list fails."""
        self._last: dict[Stream, float] = {}
        self._jobs_listed: dict[str | None, asyncio.Event] = defaultdict(asyncio.Event)

    @property
    def synced(self) -> bool:
        """Whether every namespace has finished its first lists, or forbids them; at least one permits them."""
        return bool(self._ready) and all(n in self._ready or self._forbids(n) for n in self._namespaces)

    def is_ready(self, namespace: str) -> bool:
        """Whether the lists of a namespace are complete, so that passes over its jobs may start."""
        return None in self._ready or namespace in self._ready

    def knows_queues(self, namespace: str) -> bool:
        """Whether passes over the jobs of a namespace that have a queue may start, once `is_ready`."""
        is_listed = not self._with_queues.isdisjoint((None, namespace))
        return is_listed or not (self.watches_queues and self.queues_are_served)

    def forbidden(self) -> dict[str, str]:
        """Return the API server's message for each namespace that forbids a list; "" for all namespaces."""
        # Copied in one operation, here and below: other threads read what the event loop changes.
        return {namespace or "": message for (_, namespace), message in list(self._forbidden.items())}

    def silent_for(self) -> float:
        """Return the longest silence in seconds among the streams that get bookmarks and are not forbidden."""
        last_events = [last for (plural, _), last in list(self._last.items()) if plural not in NO_BOOKMARKS]
        return self._clock() - min(last_events) if last_events else 0.0

    @contextmanager
    def taken(
        self,
        receive: Receiver,
        synced: Callable[[str | None], None] = lambda namespace: None,
        restored: Callable[[str, str | None], None] = lambda plural, namespace: None,
    ) -> Iterator[None]:
        """Wrap kopf's generators of lists and watch events.

        Args:
            receive: called with every event.
            synced: called with a namespace, or None for all, once all of its streams have finished a list. It is called
                again if Workloads are listed later.
            restored: called with a kind's plural and a namespace, or None for all, whose versions have started again.
        """
        watch, fetch, check = watching.infinite_watch, fetching.fetch_objs, errors.check_response

        async def check_response(response: Any) -> None:
            refusals = _REFUSALS.get()
            try:
                await check(response)
            except (APIForbiddenError, APIServerError) as error:
                if refusals is None or not (isinstance(error, APIForbiddenError) or _PLURAL.get() == QUEUES):
                    raise
                limit = FORBIDDEN_ATTEMPTS if isinstance(error, APIForbiddenError) else FAILED_ATTEMPTS
                if len(refusals) < limit - 1:
                    refusals.append(error)
                    raise
                raise ListForbiddenError(error.message or str(error)) from error
            except APITooManyRequestsError as error:
                _bound_delay(error.headers)
                raise
            if refusals:
                refusals.clear()

        async def infinite_watch(**kwargs: Any) -> AsyncIterator[Any]:
            stream = (kwargs["resource"].plural, kwargs["namespace"])
            _REFUSALS.set([])  # every stream has its own task
            _PLURAL.set(stream[0])
            while True:
                try:
                    async for mark in self._take(stream, watch(**kwargs), receive, synced):
                        yield mark
                    return
                except ListForbiddenError as error:
                    self._forbid(stream, str(error))
                    await asyncio.sleep(FORBIDDEN_SECONDS)
                except (watching.WatchingError, APIClientError, aiohttp.ClientResponseError, ValueError) as error:
                    await self._pause(stream, error)

        async def fetch_objs(**kwargs: Any) -> AsyncIterator[Any]:
            stream = (kwargs["resource"].plural, kwargs["namespace"])
            await self._after_jobs(stream)
            watching_settings = replace(kwargs["settings"].watching, chunk_size=PAGE.get(stream[0], PAGE_DEFAULT))
            paged = {**kwargs, "settings": replace(kwargs["settings"], watching=watching_settings)}
            async for chunk in self._fresh_list(stream, lambda: fetch(**paged), restored):
                yield chunk

        watching.infinite_watch, fetching.fetch_objs = infinite_watch, fetch_objs
        errors.check_response = check_response
        try:
            yield
        finally:
            watching.infinite_watch, fetching.fetch_objs, errors.check_response = watch, fetch, check

    async def _after_jobs(self, stream: Stream) -> None:
        """Wait for the list of jobs before other lists of a namespace, because objects without a job are not cached."""
        plural, namespace = stream
        if plural not in (names.PLURAL, "nodes"):
            self._last.pop(stream, None)  # a stream that waits is not silent: jobs may be forbidden for days
            await self._jobs_listed[namespace].wait()
            self._last[stream] = self._clock()

    def _forbid(self, stream: Stream, message: str) -> None:
        plural, namespace = stream
        is_of_queues = plural == QUEUES
        if not (stream in self._forbidden if is_of_queues else self._forbids(namespace)):
            ignored = "its jobs with a queue" if is_of_queues else "its jobs"
            if is_of_queues and namespace in self._with_queues:
                ignored = "later decisions of Kueue"
            logger.error(
                "%s may not be listed in %s: %s. The operator ignores %s, and tries again every %.0f s",
                plural,
                namespace or "all namespaces",
                message,
                ignored,
                FORBIDDEN_SECONDS,
            )
        self._forbidden[stream] = message
        self._last.pop(stream, None)
        if is_of_queues:
            return
        self._listed.discard(stream)
        self._ready.difference_update(n for n in self._namespaces if namespace in (None, n))

    async def _pause(self, stream: Stream, error: Exception) -> None:
        """Wait until a stream that an error has ended lists again, or raise the error."""
        if isinstance(error, APINotFoundError) and stream[0] == QUEUES:
            if self.queues_are_served:
                logger.warning("The API server does not serve Kueue's Workloads any more: they are not watched now")
            self.queues_are_served = False
            self._last.pop(stream, None)
            await asyncio.sleep(FORBIDDEN_SECONDS)
            return
        if isinstance(error, APIClientError) and error.status != COMPACTED:
            raise error
        # A proxy may have answered with a page that is not JSON, or not even UTF-8.
        logger.warning("%s are listed again: %s", stream[0], error)
        await asyncio.sleep(RESTART_SECONDS)

    def _forbids(self, namespace: str | None) -> bool:
        """Whether a namespace forbids a list on which every job depends."""
        return any(n == namespace and plural != QUEUES for plural, n in list(self._forbidden))

    def _permit(self, stream: Stream) -> None:
        if self._forbidden.pop(stream, None) is not None and not self._forbids(stream[1]):
            logger.info(
                "Objects of %s may be listed again", f"namespace {stream[1]}" if stream[1] else "all namespaces"
            )

    def _note_listed(self, stream: Stream, synced: Callable[[str | None], None]) -> None:
        self._permit(stream)
        if stream[0] == QUEUES:
            self.queues_are_served = True
            self._note_queues(stream[1], synced)
            return
        self._listed.add(stream)
        if stream[0] == names.PLURAL:
            self._jobs_listed[stream[1]].set()
        for namespace in self._namespaces:
            listed = sum(1 for _, n in self._listed if n in (None, namespace))
            if namespace not in self._ready and listed >= self.expected:
                self._ready.add(namespace)
                synced(namespace)

    def _note_queues(self, namespace: str | None, synced: Callable[[str | None], None]) -> None:
        if namespace in self._with_queues:
            return
        self._with_queues.add(namespace)
        for known in self._namespaces:
            if namespace in (None, known) and known in self._ready:
                synced(known)  # its jobs with a queue have waited

    async def _fresh_list(
        self,
        stream: Stream,
        fetch: Callable[[], Any],
        restored: Callable[[str, str | None], None] = lambda plural, namespace: None,
    ) -> AsyncIterator[Any]:
        """Yield the pages of a list, each with the list's version, once it is not too old."""
        deadline = self._clock() + CATCH_UP_SECONDS
        while True:
            self._listing[stream].clear()  # the list before may have broken off between two pages
            async with aclosing(fetch()) as chunks:
                async for objects, version in chunks:
                    if self._is_old(stream, version):
                        if self._clock() < deadline:
                            break
                        logger.warning(
                            "The API server's list of %s is older than known objects and is accepted", stream[0]
                        )
                        self._accepted_old.add(stream)
                        restored(*stream)
                    self._record_version(stream, version)
                    yield objects, version
                else:
                    return
            logger.info("The API server's list of %s is older than known objects: requesting it again", stream[0])
            await asyncio.sleep(RELIST_SECONDS)

    def _is_old(self, stream: Stream, version: str) -> bool:
        if stream in self._accepted_old or not str(version).isdigit():
            return False
        fence = 0 if stream[0] in OWN_STORE else self._fence()
        return int(version) < max(fence, self._newest.get(stream, 0))

    def _record_version(self, stream: Stream, version: str | None) -> None:
        if str(version).isdigit():
            self._newest[stream] = max(self._newest.get(stream, 0), int(str(version)))

    def _absent(self, stream: Stream, identity: dict[str, Any]) -> dict[str, Any]:
        """Return an object that the newest list lacks, with the version at which it is known to be absent."""
        if stream in self._accepted_old or stream not in self._newest:
            return identity
        return {**identity, "metadata": {**identity["metadata"], "resourceVersion": str(self._newest[stream])}}

    async def _take(
        self, stream: Stream, events: AsyncIterator[Any], receive: Receiver, synced: Callable[[str | None], None]
    ) -> AsyncIterator[Any]:
        known = self._known.setdefault(stream, {})
        listed = self._listing[stream]
        self._last[stream] = self._clock()
        async for event in events:
            self._last[stream] = self._clock()
            if event is watching.Bookmark.LISTED:
                for uid in known.keys() - listed:
                    identity = _identity_of(self._types[stream], known.pop(uid), uid)
                    _give(receive, {"type": "DELETED", "object": self._absent(stream, identity)})
                listed.clear()
                self._note_listed(stream, synced)
            if not isinstance(event, watching.Bookmark):
                self._record_version(stream, event["object"].get("metadata", {}).get("resourceVersion"))
            if isinstance(event, watching.Bookmark) or event["type"] == "BOOKMARK":
                yield event
                continue
            uid = event["object"].get("metadata", {}).get("uid", "")
            if event["type"] == "DELETED":
                known.pop(uid, None)
            else:
                if stream not in self._types:
                    self._types[stream] = {field: event["object"].get(field) for field in TYPE}
                known[uid] = _place(event["object"])
            if event["type"] is None:
                listed.add(uid)
                if len(listed) % YIELD_EVERY == 0:
                    await asyncio.sleep(0)
            _give(receive, event)


def _bound_delay(headers: dict[str, str]) -> None:
    """Let kopf wait as long as our own queue would: a date in `Retry-After` (RFC 9110) would end its stream."""
    seconds = number(headers.pop("Retry-After", None))
    if seconds is not None:
        headers["Retry-After"] = str(min(seconds, int(DELAY_SECONDS_MAX)))


def _give(receive: Receiver, event: dict[str, Any]) -> None:
    try:
        receive(event)
    except Exception:
        # One malformed object must not end the watch.
        logger.exception("An object from the watch could not be processed: %s", _identity(event["object"]))


def _identity(raw: dict[str, Any]) -> dict[str, Any]:
    """Return the fields of an object that a DELETED event needs."""
    kept = ("name", "namespace", "uid")
    metadata = {k: v for k, v in raw.get("metadata", {}).items() if k in kept}
    return {field: raw.get(field) for field in TYPE} | {"metadata": metadata}


def _place(raw: dict[str, Any]) -> str:
    """Return an object's namespace/name; the namespace is empty for an object without one."""
    metadata = raw.get("metadata", {})
    return f"{metadata.get('namespace', '')}/{metadata.get('name', '')}"


def _identity_of(types: dict[str, Any], place: str, uid: str) -> dict[str, Any]:
    """Return the same fields from the apiVersion and kind of a stream's objects, and an object's `_place`."""
    namespace, _, name = place.partition("/")
    return types | {"metadata": {"name": name} | ({"namespace": namespace} if namespace else {}) | {"uid": uid}}
