"""Watches by namespace: a namespace that forbids the operator does not stop the others."""

import asyncio
import contextlib
import tracemalloc
from collections.abc import AsyncIterator
from typing import Any

import aiohttp
import pytest
from aiohttp import web
from kopf._cogs.clients import fetching, watching
from kopf._cogs.clients.errors import APIClientError
from kopf._cogs.structs.references import NamespaceName, Resource

from pstraining.controller import watch
from pstraining.controller.health import Health
from pstraining.controller.main import notes
from pstraining.controller.metrics import OperatorMetrics
from pstraining.controller.registration import build_settings
from pstraining.controller.watch import ListForbiddenError, Watches
from tests.support.watch_server import JOBS, followed_until_forbidden, jobs_of

pytestmark = pytest.mark.asyncio
PODS = Resource(group="", version="v1", plural="pods", namespaced=True)


def pod(name: str, namespace: str) -> dict[str, Any]:
    metadata = {"name": name, "namespace": namespace, "uid": name, "resourceVersion": "1"}
    return {"kind": "Pod", "metadata": metadata}


class Cluster:
    """Has two namespaces, a and b, of which b may forbid everything; `break_streams` ends all watches."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *, forbids: bool) -> None:
        self.forbids = forbids
        self.pods = {"a": ["pod-a"], "b": ["pod-b"]}
        self.lists: list[tuple[str, str, int]] = []
        self.received: list[tuple[str | None, str]] = []
        self.synced: list[str | None] = []
        self.seconds = 0.0
        self.watches = Watches(2, ("a", "b"), clock=lambda: self.seconds)
        self._broken = asyncio.Event()
        monkeypatch.setattr(watch, "FORBIDDEN_SECONDS", 0.01)
        monkeypatch.setattr(fetching, "fetch_objs", self._list)
        monkeypatch.setattr(watching, "watch_objs", self._watch)

    async def _list(self, *, settings: Any, resource: Resource, namespace: str, **_: Any) -> AsyncIterator[Any]:
        if self.forbids and namespace == "b":
            raise ListForbiddenError("pods is forbidden")
        self.lists.append((resource.plural, namespace, settings.watching.chunk_size))
        names = self.pods[namespace] if resource is PODS else []
        yield [pod(name, namespace) for name in names], "9"

    async def _watch(self, *, namespace: str, **_: Any) -> AsyncIterator[Any]:
        await self._broken.wait()
        if self.forbids and namespace == "b":
            raise ListForbiddenError("pods is forbidden")
        await asyncio.Event().wait()
        yield {}

    def break_streams(self) -> None:
        self._broken.set()

    @contextlib.asynccontextmanager
    async def run(self) -> AsyncIterator[None]:
        def receive(event: dict[str, Any]) -> None:
            self.received.append((event["type"], event["object"]["metadata"]["name"]))

        async def follow(resource: Resource, namespace: str) -> None:
            async for _ in watching.infinite_watch(
                settings=build_settings(), resource=resource, namespace=NamespaceName(namespace)
            ):
                pass

        with self.watches.taken(receive, self.synced.append):
            # Pods are requested first, as happens when many streams begin at once.
            tasks = [asyncio.create_task(follow(r, n)) for r in (PODS, JOBS) for n in ("a", "b")]
            try:
                yield
            finally:
                for task in tasks:
                    task.cancel()
                await asyncio.gather(*tasks, return_exceptions=True)

    async def until(self, condition: Any) -> None:
        async with asyncio.timeout(20):
            while not condition():  # noqa: ASYNC110 - several things change
                await asyncio.sleep(0.005)


async def test_a_forbidden_namespace_does_not_stop_others(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    cluster = Cluster(monkeypatch, forbids=True)
    watches = cluster.watches
    metrics = OperatorMetrics(lambda: 0, lambda: 0)
    metrics.count_forbidden(("a", "b"), watches.forbidden)
    value = metrics.registry.get_sample_value
    async with cluster.run():
        await cluster.until(lambda: cluster.synced and watches.forbidden())
        assert cluster.synced == ["a"]
        assert (watches.is_ready("a"), watches.is_ready("b"), watches.synced) == (True, False, True)
        assert value("pstraining_watch_forbidden", {"watched_namespace": "a"}) == 0
        assert value("pstraining_watch_forbidden", {"watched_namespace": "b"}) == 1
        health = Health({}, {"caches": lambda: None if watches.synced else "not filled yet"}, lambda: notes(watches))
        status, text = health.answer("/readyz")
        assert status == 200
        assert "forbidden: b: " in text
        assert caplog.text.count("may not be listed in b") == 1, "once, not for every kind and attempt"
        cluster.forbids = False
        await cluster.until(lambda: "b" in cluster.synced)
        assert watches.is_ready("b")
        assert watches.forbidden() == {}
    assert cluster.synced == ["a", "b"]


async def test_a_namespace_forbidden_later_is_skipped_until_permitted(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    cluster = Cluster(monkeypatch, forbids=False)
    watches = cluster.watches
    async with cluster.run():
        await cluster.until(lambda: len(cluster.synced) == 2)
        cluster.forbids = True
        cluster.break_streams()
        await cluster.until(lambda: not watches.is_ready("b"))
        assert watches.is_ready("a")
        cluster.pods["b"] = []
        cluster.forbids = False
        await cluster.until(lambda: cluster.synced.count("b") == 2)
        assert ("DELETED", "pod-b") in cluster.received, "deleted while the watch was down"


async def test_a_forbidden_list_is_reported_soon_and_not_retried_as_an_outage() -> None:
    """kopf itself retries 403 as it retries an API server that is away: for twenty minutes."""
    attempts = []

    async def forbid(request: web.Request) -> web.Response:
        attempts.append(request.path)
        status = {"kind": "Status", "code": 403, "message": "pstrainingjobs is forbidden: no RoleBinding"}
        return web.json_response(status, status=403)

    async with (
        jobs_of(forbid, retries=604) as (watches, stream),
        followed_until_forbidden(watches, stream),
    ):
        pass
    assert watches.forbidden() == {"b": "pstrainingjobs is forbidden: no RoleBinding"}
    assert len(attempts) == watch.FORBIDDEN_ATTEMPTS, "an API server that starts forbids everything for a moment"


async def test_streams_that_wait_for_a_forbidden_list_of_jobs_are_not_silent(monkeypatch: pytest.MonkeyPatch) -> None:
    """The liveness probe would restart the operator, and with it the work in all other namespaces."""
    cluster = Cluster(monkeypatch, forbids=True)
    async with cluster.run():
        await cluster.until(lambda: cluster.synced and cluster.watches.forbidden())
        assert ("pods", "b") not in cluster.watches._last
        await cluster.until(lambda: ("pstrainingjobs", "b") not in cluster.watches._last)
        cluster.forbids = False
        cluster.seconds = 1000.0
        await cluster.until(lambda: "b" in cluster.synced)
        assert cluster.watches._last["pods", "b"] == 1000


async def test_an_operator_that_is_forbidden_everywhere_is_not_ready(monkeypatch: pytest.MonkeyPatch) -> None:
    cluster = Cluster(monkeypatch, forbids=True)
    cluster.watches = Watches(2, ("b",))
    async with cluster.run():
        await cluster.until(cluster.watches.forbidden)
        assert not cluster.watches.synced


async def test_jobs_are_listed_before_their_children_and_large_objects_by_few(monkeypatch: pytest.MonkeyPatch) -> None:
    cluster = Cluster(monkeypatch, forbids=False)
    async with cluster.run():
        await cluster.until(lambda: len(cluster.synced) == 2)
    for namespace in ("a", "b"):
        assert [plural for plural, n, _ in cluster.lists if n == namespace] == ["pstrainingjobs", "pods"]
    assert {plural: size for plural, _, size in cluster.lists} == {"pstrainingjobs": 50, "pods": 250}
    assert watch.PAGE["events"] * 1_572_864 < 32 << 20, "a page of the largest events that etcd takes"


async def test_a_store_that_was_restored_is_reported_before_its_first_list_is_passed_on(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The cache would ignore its objects, whose versions are lower."""
    seconds, restored = iter(range(1000)), list[tuple[str, str | None]]()

    async def older(**_: Any) -> AsyncIterator[Any]:
        yield [], "7"

    monkeypatch.setattr(fetching, "fetch_objs", older)
    monkeypatch.setattr(watch, "RELIST_SECONDS", 0.0)
    watches = Watches(1, clock=lambda: float(next(seconds)), fence=lambda: 50)
    with watches.taken(lambda event: None, restored=lambda *stream: restored.append(stream)):
        request: dict[str, Any] = {"resource": JOBS, "namespace": None, "settings": build_settings()}
        async for _ in fetching.fetch_objs(**request):
            assert restored == [("pstrainingjobs", None)]
    assert restored


async def test_an_object_that_a_list_lacks_is_absent_at_the_version_of_the_list() -> None:
    """An object that only lost its label is cached again once a later version of it has the label."""
    watches, received = Watches(1), list[dict[str, Any]]()

    async def lists() -> AsyncIterator[Any]:
        yield {"type": None, "object": pod("gone", "a")}
        yield watching.Bookmark.LISTED
        watches._record_version(("pods", None), "7")
        yield watching.Bookmark.LISTED

    async for _ in watches._take(("pods", None), lists(), received.append, lambda namespace: None):
        pass
    assert received[-1]["type"] == "DELETED"
    assert received[-1]["object"]["metadata"] == {**pod("gone", "a")["metadata"], "resourceVersion": "7"}


async def test_an_object_without_a_namespace_is_absent_without_one() -> None:
    node = {"apiVersion": "v1", "kind": "Node", "metadata": {"name": "gone", "uid": "n", "resourceVersion": "1"}}
    watches, received = Watches(1), list[dict[str, Any]]()

    async def lists() -> AsyncIterator[Any]:
        yield {"type": None, "object": node}
        yield watching.Bookmark.LISTED
        yield watching.Bookmark.LISTED

    async for _ in watches._take(("nodes", None), lists(), received.append, lambda namespace: None):
        pass
    assert received[-1] == {"type": "DELETED", "object": node}


async def test_a_watch_keeps_little_of_each_object() -> None:
    """A user may create many objects with a job's labels, which are in no cache."""
    number, watches = 1_000, Watches(1)

    async def lists() -> AsyncIterator[Any]:
        for index in range(number):
            yield {"type": None, "object": pod(f"pod-{index:036}", "".join(["name", "space"]))}
        yield watching.Bookmark.LISTED

    tracemalloc.start()
    try:
        async for _ in watches._take(("pods", None), lists(), lambda event: None, lambda namespace: None):
            pass
        kept, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert kept / number < 400


class BrokenLists:
    """Pods whose first list breaks off after a page; `deleted` is deleted before the next one."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, error: Exception) -> None:
        self.error, self.lists, self.received = error, 0, list[tuple[str | None, str]]()
        self.watches = Watches(1)
        self.watch_error: dict[str, Any] | None = None
        monkeypatch.setattr(watch, "RESTART_SECONDS", 0.0)
        monkeypatch.setattr(fetching, "fetch_objs", self._list)
        monkeypatch.setattr(watching, "watch_objs", self._watch)

    async def _list(self, **_: Any) -> AsyncIterator[Any]:
        self.lists += 1
        if self.lists == 1:
            yield [pod("deleted", "a")], "9"
            raise self.error
        yield [pod("kept", "a")], "10"

    async def _watch(self, **_: Any) -> AsyncIterator[Any]:
        if self.watch_error is not None:
            error, self.watch_error = self.watch_error, None
            yield {"type": "ERROR", "object": error}
        await asyncio.Event().wait()

    async def until_listed(self, lists: int) -> None:
        def receive(event: dict[str, Any]) -> None:
            self.received.append((event["type"], event["object"]["metadata"]["name"]))

        settings = build_settings()
        settings.watching.reconnect_backoff = 0
        with self.watches.taken(receive):
            self.watches._jobs_listed[None].set()
            async with asyncio.timeout(20):
                async for mark in watching.infinite_watch(settings=settings, resource=PODS, namespace=None):
                    if mark is watching.Bookmark.LISTED and self.lists == lists:
                        return


async def test_an_object_of_a_list_that_broke_off_is_missing_from_the_next_list(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It was deleted between the two lists, so that no watch reports it."""
    lists = BrokenLists(monkeypatch, aiohttp.ClientPayloadError("the API server restarts"))
    await lists.until_listed(2)
    assert lists.received == [(None, "deleted"), (None, "kept"), ("DELETED", "deleted")]


async def test_a_list_whose_next_page_is_compacted_is_requested_again(monkeypatch: pytest.MonkeyPatch) -> None:
    lists = BrokenLists(monkeypatch, APIClientError("continue parameter is too old", status=410, headers={}))
    await lists.until_listed(2)
    assert lists.received[-1] == ("DELETED", "deleted")


async def test_a_list_that_the_api_server_does_not_serve_ends_the_stream(monkeypatch: pytest.MonkeyPatch) -> None:
    lists = BrokenLists(monkeypatch, APIClientError("there is no such kind", status=404, headers={}))
    with pytest.raises(APIClientError):
        await lists.until_listed(2)


async def test_an_error_in_a_watch_lists_again(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Events are watched in etcd itself, which ends their watches whenever it loses its leader."""
    lists = BrokenLists(monkeypatch, aiohttp.ClientPayloadError())
    lists.watch_error = {"code": 500, "reason": "InternalError", "message": "etcdserver: no leader"}
    await lists.until_listed(3)
    assert "etcdserver: no leader" in caplog.text
