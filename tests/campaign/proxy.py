"""The proxy between one operator and the API server, which records every write and causes the faults of a plan.

Each operator has its own proxy. Requests for Leases pass unchanged, because leader election is not tested here.
"""

import asyncio
import json
import random
import re
from collections import Counter
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import aiohttp
from aiohttp import web

from pstraining.api import names
from tests.campaign.api import Api
from tests.campaign.faults import OnWatch, OnWrite, Plan, Point
from tests.campaign.streams import delayed, disturb, with_bookmarks

RETRY_AFTER = 1
"""Seconds of Retry-After in a response 429."""
STALE_SECONDS = 1.0
"""Seconds by which the watches lag for an operator that got outdated lists."""
GENERATED = re.compile(r"(-[a-z0-9]{6,10})?-[bcdfghjklmnpqrstvwxz2456789]{5}$")
"""The suffix that Kubernetes generates for the names of pods."""
HASHED = re.compile(r"-[0-9a-f]{5}$")
"""The suffix of a Workload's name: a hash of the job's uid."""
PATH = re.compile(r"^/(?:api|apis/[^/]+)/[^/]+/namespaces/[^/]+/(?P<kind>[^/]+)(?:/(?P<name>[^/]+))?(?P<sub>/status)?$")
ANSWERS = {
    OnWrite.CONFLICT: (
        409,
        "Conflict",
        "the object has been modified; please apply your changes to the latest version",
    ),
    OnWrite.TOO_MANY: (429, "TooManyRequests", "too many requests"),
    OnWrite.BROKEN: (500, "InternalError", "Internal error occurred: the campaign says so"),
    OnWrite.AWAY: (503, "ServiceUnavailable", "the server is currently unable to handle the request"),
}


@dataclass
class Attempt:
    """One write that the operator attempted."""

    point: Point
    at: float
    """The time of its arrival, by the event loop's clock."""
    status: int = 0
    """The API server's status; 0 if the request did not reach it."""
    disturbed: bool = False

    @property
    def done(self) -> bool:
        """Whether the write changed an object."""
        return 200 <= self.status < 300


@dataclass
class FaultProxy:
    """The proxy of one operator."""

    api: Api
    plan: Plan
    crash: Callable[[], None]
    """Kills the operator."""
    url: str = ""
    attempts: list[Attempt] = field(default_factory=list)
    fired: bool = False
    """Whether the plan's fault has happened."""
    late: list[tuple[str, str, dict[str, str], bytes]] = field(default_factory=list)
    """Requests that have not arrived yet."""
    first_lists: dict[str, bytes] = field(default_factory=dict)
    generation: int = 0
    """The number of operators that were started behind this proxy."""
    seen: Counter[tuple[str, str, str]] = field(default_factory=Counter)
    disturbed_events: int = 0
    _again: bool = False
    _over: asyncio.Event = field(default_factory=asyncio.Event)

    async def deliver_late(self) -> None:
        """Deliver the late requests."""
        for method, path, headers, body in self.late:
            answer = await self.api.send(method, path, headers, body)
            next(a for a in self.attempts if a.disturbed).status = answer.status
        self.late.clear()

    async def handle(self, request: web.Request) -> web.StreamResponse:
        """Handle a request."""
        headers = {k: v for k, v in request.headers.items() if k in ("Accept", "Content-Type", "User-Agent")}
        body = await request.read()
        if request.query.get("watch") == "true":
            return await self._watch(request, headers)
        if request.method != "GET" and "/leases" not in request.path:
            return await self._write(request, headers, body)
        stale = self._stale(request.path)
        if stale is not None:
            return web.Response(body=stale, content_type="application/json")
        answer = await self.api.send(request.method, request.path_qs, headers, body)
        kind = _kind_of_list(request.path)
        if kind and self.generation == 1:
            self.first_lists.setdefault(kind, answer.body)
        return web.Response(status=answer.status, body=answer.body, headers=answer.headers)

    async def _write(self, request: web.Request, headers: dict[str, str], body: bytes) -> web.Response:
        attempt = self._note(request, body)
        method, path = request.method, request.path_qs
        fault = self._strikes(attempt)
        if fault is None:
            return await self._forward(attempt, method, path, headers, body)
        attempt.disturbed = True
        if fault in ANSWERS:
            status, reason, message = ANSWERS[fault]
            reported = {"kind": "Status", "status": "Failure", "code": status, "reason": reason, "message": message}
            extra = {"Retry-After": str(RETRY_AFTER)} if fault is OnWrite.TOO_MANY else {}
            return web.json_response(reported, status=status, headers=extra)
        if fault is OnWrite.LATE:
            self.late.append((method, path, headers, body))
        if fault in (OnWrite.LATE, OnWrite.HANGS):
            await self._over.wait()
        elif fault in (OnWrite.CRASH_BEFORE, OnWrite.CRASH_TWICE):
            self.crash()
        elif fault in (OnWrite.CRASH_AFTER, OnWrite.STALE):
            await self._forward(attempt, method, path, headers, body)
            self.crash()
        else:
            await self._forward(attempt, method, path, headers, body)
        return _broken(request)

    def _strikes(self, attempt: Attempt) -> OnWrite | None:
        """Return the fault for this write, or None."""
        if not self.fired and self.plan.at == attempt.point:
            self.fired = True
            return self.plan.on_write
        if self.plan.on_write is OnWrite.CRASH_TWICE and self.generation == 2 and not self._again:
            self._again = True
            return OnWrite.CRASH_AFTER
        return None

    async def _forward(
        self, attempt: Attempt, method: str, path: str, headers: dict[str, str], body: bytes
    ) -> web.Response:
        answer = await self.api.send(method, path, headers, body)
        attempt.status = answer.status
        return web.Response(status=answer.status, body=answer.body, headers=answer.headers)

    async def _watch(self, request: web.Request, headers: dict[str, str]) -> web.StreamResponse:
        kind = request.path.rsplit("/", 1)[-1]
        struck = kind in self.plan.kinds
        async with self.api.stream("GET", request.path_qs, headers) as answer:
            response = web.StreamResponse(status=answer.status, headers={"Content-Type": "application/json"})
            await response.prepare(request)
            with_end = asyncio.create_task(self._copy(kind, struck, answer, response, request.query))
            over = asyncio.create_task(self._over.wait())
            try:
                await asyncio.wait({with_end, over}, return_when=asyncio.FIRST_COMPLETED)
            finally:
                with_end.cancel()
                over.cancel()
            return response

    async def _copy(
        self,
        kind: str,
        struck: bool,
        answer: aiohttp.ClientResponse,
        response: web.StreamResponse,
        query: Any,
    ) -> None:
        async def events() -> AsyncIterator[bytes]:
            async for line in answer.content:
                self.disturbed_events += struck
                yield line

        fault = self.plan.on_watch
        if fault is OnWatch.SILENT and (not struck or self.generation > 1):
            await with_bookmarks(events(), response.write, "Any", query.get("resourceVersion", "0"))
        elif struck and fault is not None:
            await disturb(fault, events(), response.write, random.Random(f"{self.plan.seed} {kind}"))
        elif struck and self.generation > 1:
            # The job comes first, because the test is about an operator that knows the job and not yet its children.
            late = STALE_SECONDS / 3 if kind == names.PLURAL else STALE_SECONDS
            await delayed(events(), response.write, lambda: late)
        else:
            async for line in events():
                await response.write(line)

    def _stale(self, path: str) -> bytes | None:
        """Return an outdated list for the first list request of an operator after a crash."""
        kind = _kind_of_list(path)
        if self.plan.on_write is not OnWrite.STALE or self.generation < 2 or kind not in self.plan.kinds:
            return None
        return self.first_lists.pop(kind, None)

    def _note(self, request: web.Request, body: bytes) -> Attempt:
        found = PATH.match(request.path)
        assert found is not None, request.path
        kind, name = found["kind"], found["name"] or ""
        sent = json.loads(body) if body else {}
        verb = {"POST": "create", "DELETE": "delete"}.get(request.method, "status" if found["sub"] else "apply")
        if kind == "events":
            name = sent.get("reason", "")
        elif verb == "create":
            name = sent["metadata"].get("name", "")
        name = stable_name(kind, name)
        self.seen[verb, kind, name] += 1
        point = Point(verb, kind, name, self.seen[verb, kind, name])
        self.attempts.append(attempt := Attempt(point, asyncio.get_running_loop().time()))
        return attempt


def stable_name(plural: str, name: str) -> str:
    """Return a name without parts that differ from run to run."""
    pattern = {"pods": GENERATED, "workloads": HASHED}.get(plural)
    return name if pattern is None else pattern.sub("", name)


def _kind_of_list(path: str) -> str:
    found = PATH.match(path)
    return found["kind"] if found is not None and not found["name"] else ""


def _broken(request: web.Request) -> web.Response:
    if request.transport is not None:
        request.transport.abort()
    return web.Response()


@asynccontextmanager
async def serving(proxy: FaultProxy) -> AsyncIterator[FaultProxy]:
    """Run a proxy."""
    app = web.Application(client_max_size=2**24)
    app.router.add_route("*", "/{path:.*}", proxy.handle)
    runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.1)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    proxy.url = f"http://127.0.0.1:{runner.addresses[0][1]}"
    try:
        yield proxy
    finally:
        proxy._over.set()
        await runner.cleanup()
