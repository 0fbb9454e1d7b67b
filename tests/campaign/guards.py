"""The operator's guards against faults, each of which can be switched off, so that the campaign can show that it
detects the fault.

Guards are only ever switched off inside the process of an operator under test.
"""

import asyncio
import functools
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from datetime import datetime
from typing import Any
from unittest import mock

from kopf._cogs.clients import watching

from pstraining.api import names
from pstraining.controller import informer_cache, main
from pstraining.controller.informer_cache import InformerCache
from pstraining.controller.watch import Receiver, Watches
from pstraining.controller.workqueue import WorkQueue
from pstraining.core.actions import Kind
from pstraining.core.policies import attempts
from pstraining.core.snapshot import Snapshot
from pstraining.kube import client, errors, executor
from pstraining.kube.client import KubeClient
from pstraining.kube.paths import RESOURCES

TIMEOUT = 3.0
"""Seconds that a request may take; ten in production."""
SILENT_SECONDS = 3.0
"""Seconds of silence after which a watch counts as dead; five minutes in production."""


def hurry() -> None:
    """Shorten an operator's delays for the campaign."""
    mock.patch.object(main, "KubeClient", functools.partial(KubeClient, timeout=TIMEOUT)).start()
    mock.patch.object(main, "SILENT_SECONDS", SILENT_SECONDS).start()


@dataclass(frozen=True)
class Guard:
    """A guard that can be switched off."""

    what: str
    switch_off: Callable[[], None]


def _patched(owner: Any, name: str, new: Any) -> Callable[[], None]:
    def switch_off() -> None:
        assert hasattr(owner, name), f"{owner} has no {name} any more: change this guard with it"
        mock.patch.object(owner, name, new).start()

    return switch_off


def _nothing(*_: Any, **__: Any) -> None:
    return None


def _unrecorded(
    observed: attempts.Attempts, snapshot: Snapshot, now: datetime, *, failures_recorded: bool
) -> attempts.Step:
    """Treat every failure as recorded."""
    return _next_step(observed, snapshot, now, failures_recorded=True)


async def _delete_by_name(
    port: KubeClient, kind: Kind, namespace: str, name: str, uid: str, grace_seconds: int | None = None
) -> Any:
    answer = await port._request("DELETE", RESOURCES[kind].path(namespace, name))
    return answer if (answer.get("metadata") or {}).get("deletionTimestamp") else None


async def _unrepaired(
    watches: Watches, stream: Any, events: AsyncIterator[Any], receive: Receiver, synced: Callable[[str | None], None]
) -> AsyncIterator[Any]:
    """Ignore that an object is missing from a list."""

    def take(event: dict[str, Any]) -> None:
        # An event of the API server has the whole object.
        concluded = event["type"] == "DELETED" and "creationTimestamp" not in event["object"]["metadata"]
        if not concluded:
            receive(event)

    async for mark in _take(watches, stream, events, take, synced):
        yield mark


async def _news_only(
    watches: Watches, stream: Any, events: AsyncIterator[Any], receive: Receiver, synced: Callable[[str | None], None]
) -> AsyncIterator[Any]:
    """Learn of jobs from events alone, as an edge-triggered operator does."""

    def take(event: dict[str, Any]) -> None:
        if not (event["type"] is None and stream[0] == names.PLURAL):
            receive(event)

    async for mark in _take(watches, stream, events, take, synced):
        yield mark


async def _once(**kwargs: Any) -> AsyncIterator[Any]:
    """Do not resume a watch that has ended."""
    async for event in _watch_objs(**kwargs):
        yield event
    await asyncio.sleep(1e6)


async def _never_again(**kwargs: Any) -> AsyncIterator[Any]:
    """Do not restart a watch that cannot continue."""
    async for event in _continuous_watch(**kwargs):
        yield event
    await asyncio.sleep(1e6)


_next_step, _take = attempts.next_step, Watches._take
_watch_objs, _continuous_watch = watching.watch_objs, watching.continuous_watch

GUARDS: dict[str, Guard] = {
    "evidence": Guard("an old attempt goes when its end is on record", _patched(attempts, "next_step", _unrecorded)),
    "lists": Guard("what exists at the start is looked at", _patched(Watches, "_take", _news_only)),
    "relist": Guard("what a new list does not hold is gone", _patched(Watches, "_take", _unrepaired)),
    "reconnect": Guard("a watch that ends is taken up again", _patched(watching, "watch_objs", _once)),
    "list-again": Guard(
        "a watch that cannot continue starts again", _patched(watching, "continuous_watch", _never_again)
    ),
    "memory": Guard("own writes are known before the watch delivers them", _patched(InformerCache, "wrote", _nothing)),
    "versions": Guard(
        "an older object never replaces a newer", _patched(informer_cache, "_supersedes", lambda new, old: True)
    ),
    "tombstones": Guard("what is gone stays gone", _patched(InformerCache, "_add_tombstone", _nothing)),
    "fence": Guard("a list older than our Lease is not believed", _patched(Watches, "_is_old", lambda *_: False)),
    "ownership": Guard(
        "a name that is taken is looked at before it is called a conflict",
        _patched(executor, "controller_uid", lambda found: None),
    ),
    "uid": Guard("a deletion means one object, not its name", _patched(KubeClient, "delete", _delete_by_name)),
    "retry": Guard("a pass that failed is repeated", _patched(WorkQueue, "_retry", lambda *_: 0.0)),
    "retry-after": Guard("the API server is left alone when it asks", _patched(errors, "_retry_after", _nothing)),
    "no-answer": Guard(
        "a request without an answer is tried again",
        _patched(client, "from_exception", lambda error: errors.Refused(str(error), status=400)),
    ),
    "time-out": Guard(
        "a request that hangs counts as failed",
        _patched(main, "KubeClient", functools.partial(KubeClient, timeout=1e6)),
    ),
    "liveness": Guard("a silent watch ends the process", _patched(main, "SILENT_SECONDS", 1e9)),
}
