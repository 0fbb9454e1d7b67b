"""Workloads of Kueue that cannot be listed, such as while its conversion webhook is broken: other jobs do not wait."""

import asyncio
from typing import Any, cast

import pytest
from aiohttp import web
from kopf._cogs.clients import watching
from kopf._cogs.structs.references import Resource

from pstraining.controller import watch
from pstraining.controller.informer_cache import Key
from pstraining.controller.main import Operator, build, notes
from pstraining.controller.settings import Settings
from pstraining.resources import kueue
from tests.support.builders import job
from tests.support.fakekube import FakeKube
from tests.support.fakekube_decisions import DECISIONS, LAUNCHER
from tests.support.watch_server import followed_until_forbidden, jobs_of

pytestmark = pytest.mark.asyncio
BROKEN = "conversion webhook for kueue.x-k8s.io/v1beta1, Kind=Workload failed"
JOBS, WORKLOADS = ("pstrainingjobs", None), ("workloads", None)
KIND = Resource(group="kueue.x-k8s.io", version="v1beta2", plural="workloads", namespaced=True)


class QueueBench:
    """An operator that watches jobs and Workloads, with a job without a queue, digits, and one with a queue."""

    def __init__(self) -> None:
        settings = Settings.from_env({"POD_NAME": "operator", "POD_NAMESPACE": "system"})
        kube = FakeKube()
        self.operator: Operator = build(settings, DECISIONS, LAUNCHER, cast(Any, kube), asyncio.Event())
        self.watches = self.operator.watches
        self.watches.expected, self.watches.watches_queues = 1, True
        queued = job("queued")
        queued["metadata"]["labels"] = {kueue.LABEL_QUEUE: "team-a"}
        for made in (job(), queued):
            self.operator.watch_state.receive(kube.put(made), None)
        self.synced: list[str | None] = []

    def listed(self, stream: tuple[str, str | None]) -> None:
        self.watches._note_listed(stream, self.synced.append)

    async def passes(self) -> list[str]:
        """Return the jobs that get a pass now."""
        found: list[str] = []

        async def reconcile(key: Key) -> None:
            found.append(key[1])

        self.operator.reconciler.reconcile = reconcile  # type: ignore[method-assign]
        for key in self.operator.watch_state.cache.jobs():
            await self.operator._reconcile(key)
        return found


async def test_only_jobs_with_a_queue_wait_for_workloads(caplog: pytest.LogCaptureFixture) -> None:
    bench = QueueBench()
    bench.listed(JOBS)
    for _ in range(2):
        bench.watches._forbid(WORKLOADS, BROKEN)
    assert bench.watches.synced
    assert await bench.passes() == ["digits"]
    assert notes(bench.watches) == [f"forbidden: all namespaces: {BROKEN}"]
    assert caplog.text.count("ignores its jobs with a queue") == 1
    bench.listed(WORKLOADS)
    assert bench.synced == [None, None], "the jobs that have waited are queued"
    assert await bench.passes() == ["digits", "queued"]
    assert notes(bench.watches) == []


async def test_jobs_with_a_queue_are_looked_after_while_a_later_list_fails(caplog: pytest.LogCaptureFixture) -> None:
    bench = QueueBench()
    bench.listed(WORKLOADS)
    assert bench.synced == [], "jobs are not listed yet"
    bench.listed(JOBS)
    bench.watches._forbid(WORKLOADS, BROKEN)
    assert await bench.passes() == ["digits", "queued"]
    assert "ignores later decisions of Kueue" in caplog.text


async def test_a_list_of_workloads_that_fails_is_reported_soon_and_not_retried_as_an_outage(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """kopf retries an error of the server for twenty minutes. Then the process would end, again and again."""
    monkeypatch.setattr(watch, "FORBIDDEN_SECONDS", 0.01)
    is_broken, attempts = True, 0

    async def answer(request: web.Request) -> web.Response:
        nonlocal attempts
        attempts += 1
        if is_broken:
            return web.json_response({"kind": "Status", "code": 500, "message": BROKEN}, status=500)
        return web.json_response({"kind": "WorkloadList", "metadata": {"resourceVersion": "9"}, "items": []})

    async with jobs_of(answer, retries=604, kind=KIND) as (watches, stream):
        watches.watches_queues = True
        watches._jobs_listed["b"].set()
        async with followed_until_forbidden(watches, stream, lambda: watches.knows_queues("b")) as task:
            assert watches.forbidden() == {"b": BROKEN}
            assert attempts >= watch.FAILED_ATTEMPTS, "an API server that restarts answers 503 for a moment"
            assert ("workloads", "b") not in watches._last, "the liveness probe does not restart the operator"
            is_broken = False
            await task
    assert watches.forbidden() == {}


async def test_the_operator_goes_on_while_workloads_are_not_served(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The CRDs of Kueue vanish while the operator runs, and return."""
    monkeypatch.setattr(watch, "FORBIDDEN_SECONDS", 0.01)
    answers = [200, 404, 404, 200]

    async def answer(request: web.Request) -> web.Response:
        if "watch" in request.query:
            return web.json_response({"type": "ERROR", "object": {"code": 410}})  # so that kopf lists again
        status = answers.pop(0)
        if status != 200:
            return web.Response(status=status, text="404 page not found")
        return web.json_response({"kind": "WorkloadList", "metadata": {"resourceVersion": "9"}, "items": []})

    async with jobs_of(answer, retries=0, kind=KIND) as (watches, stream):
        watches._jobs_listed["b"].set()
        async with asyncio.timeout(20):
            async for event in stream:
                if event is watching.Bookmark.LISTED and not answers:
                    break
    assert caplog.text.count("does not serve Kueue's Workloads any more") == 1
    assert (watches.queues_are_served, watches.forbidden()) == (True, {})


async def test_jobs_with_a_queue_do_not_wait_for_workloads_that_are_not_served() -> None:
    bench = QueueBench()
    bench.listed(JOBS)
    assert await bench.passes() == ["digits"]
    bench.watches.queues_are_served = False
    assert await bench.passes() == ["digits", "queued"]
