"""The proxy between one operator and the API server: notes every write, and disturbs what its plan says.

Each operator has one of its own. Leases are passed on untouched: who may act is another question.
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
"""Seconds that a 429 asks for."""
STALE_SECONDS = 1.0
"""How far behind the watches of an operator are that was shown old lists."""
GENERATED = re.compile(r"(-[a-z0-9]{6,10})?-[bcdfghjklmnpqrstvwxz2456789]{5}$")
"""What Kubernetes puts behind the names of pods."""
HASHED = re.compile(r"-[0-9a-f]{5}$")
"""What the name of a Workload ends with: a hash of the job's uid."""
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
    """One write that the operator tried."""

    point: Point
    at: float
    """When it came, by the event loop's clock."""
    status: int = 0
    """What the API server said; 0 if it was never asked."""
    disturbed: bool = False

    @property
    def done(self) -> bool:
        """It changed something."""
        return 200 <= self.status < 300


@dataclass
class FaultProxy:
    """One proxy."""

    api: Api
    plan: Plan
    crash: Callable[[], None]
    """Kills the operator."""
    url: str = ""
    attempts: list[Attempt] = field(default_factory=list)
    fired: bool = False
    """What the plan says has happened."""
    late: list[tuple[str, str, dict[str, str], bytes]] = field(default_factory=list)
    """Requests that are still under way."""
    first_lists: dict[str, bytes] = field(default_factory=dict)
    generation: int = 0
    """Counts the operators that were started behind this proxy."""
    seen: Counter[tuple[str, str, str]] = field(default_factory=Counter)
    disturbed_events: int = 0
    _again: bool = False
    _over: asyncio.Event = field(default_factory=asyncio.Event)

    async def deliver_late(self) -> None:
        """Let what was under way arrive."""
        for method, path, headers, body in self.late:
            answer = await self.api.send(method, path, headers, body)
            next(a for a in self.attempts if a.disturbed).status = answer.status
        self.late.clear()

    async def handle(self, request: web.Request) -> web.StreamResponse:
        """Any request."""
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
        """The fault for this write; None for no fault."""
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
            # The job comes first: an operator that knows it and not yet its children is what this is about.
            late = STALE_SECONDS / 3 if kind == names.PLURAL else STALE_SECONDS
            await delayed(events(), response.write, lambda: late)
        else:
            async for line in events():
                await response.write(line)

    def _stale(self, path: str) -> bytes | None:
        """The list of long ago, for an operator that comes after a crash and asks for the first time."""
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
    """A name without what differs from run to run."""
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
