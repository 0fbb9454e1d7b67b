"""A proxy in front of a real API server that records an operator's requests and can act between any two writes.

It speaks plain HTTP on the loopback and adds the credentials itself. So it records the requests of kopf as well as
those of the product's client.
"""

import asyncio
import json
import threading
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import aiohttp
from aiohttp import web
from kubernetes.aio.client import ApiClient, Configuration

from pstraining.kube.connection import CONTEXT, KUBECONFIG, load_configuration
from tests.support.kube import Kube, Target

GONE = {"type": "ERROR", "object": {"kind": "Status", "code": 410, "reason": "Expired", "message": "too old"}}


@dataclass(frozen=True)
class Seen:
    """A request that the proxy has passed on."""

    method: str
    path: str
    query: dict[str, str]
    status: int

    @property
    def watch(self) -> bool:
        return self.query.get("watch") == "true"

    @property
    def writes(self) -> bool:
        """Whether the request changes an object; writes of Leases do not count."""
        return self.method != "GET" and "/leases" not in self.path


@dataclass
class ApiProxy:
    """The proxy's state, for tests to read and change."""

    configuration: Configuration
    url: str = ""
    seen: list[Seen] = field(default_factory=list)
    delay: Callable[[str, dict[str, str]], float] = lambda path, query: 0.0
    """Seconds by which a GET request of this path and query is delayed."""
    down: bool = False
    """Whether every request is answered with status 503."""
    after_write: Callable[[int], bool] = lambda number: False
    """Called with a write's number, from 1, before its response is passed on. If it returns True, the response is lost.
    """
    held: asyncio.Event | None = None
    """While set, new watches wait for the event and then end with status 410 Gone."""
    _streams: set[asyncio.Task[Any]] = field(default_factory=set)

    def writes(self) -> list[Seen]:
        """Return the requests that change an object other than a Lease."""
        return [s for s in self.seen if s.writes]

    def cut_watches(self) -> None:
        """End all watches. If `held` is set, they resume only after it, and have to list the objects again."""
        self.held = asyncio.Event()
        for stream in list(self._streams):
            stream.cancel()

    def kubeconfig(self) -> dict[str, Any]:
        """Return a kubeconfig whose context `proxy` leads to this proxy."""
        return {
            "apiVersion": "v1",
            "kind": "Config",
            "current-context": "proxy",
            "clusters": [{"name": "proxy", "cluster": {"server": self.url}}],
            "users": [{"name": "proxy", "user": {}}],
            "contexts": [{"name": "proxy", "context": {"cluster": "proxy", "user": "proxy"}}],
        }


@asynccontextmanager
async def serving(configuration: Configuration) -> AsyncIterator[ApiProxy]:
    """Run a proxy."""
    proxy, client = ApiProxy(configuration), ApiClient(configuration)
    context = client.rest_client.ssl_context
    session = aiohttp.ClientSession(connector=aiohttp.TCPConnector(ssl=context, limit=0), read_bufsize=2**21)

    async def handle(request: web.Request) -> web.StreamResponse:
        return await _handle(proxy, client, session, request)

    app = web.Application(client_max_size=2**24)
    app.router.add_route("*", "/{path:.*}", handle)
    runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.1)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    proxy.url = f"http://127.0.0.1:{runner.addresses[0][1]}"
    try:
        yield proxy
    finally:
        for stream in list(proxy._streams):
            stream.cancel()
        await runner.cleanup()
        await session.close()
        await client.close()  # type: ignore[no-untyped-call]


async def _handle(
    proxy: ApiProxy, client: ApiClient, session: aiohttp.ClientSession, request: web.Request
) -> web.StreamResponse:
    query = dict(request.query)
    if proxy.down:
        return web.json_response({"kind": "Status", "code": 503, "message": "down"}, status=503)
    if query.get("watch") == "true" and proxy.held is not None and "resourceVersion" in query:
        await proxy.held.wait()
        return web.Response(text=json.dumps(GONE) + "\n", content_type="application/json")
    if request.method == "GET":
        await asyncio.sleep(proxy.delay(request.path, query))
    headers = {k: v for k, v in request.headers.items() if k in ("Accept", "Content-Type", "User-Agent")}
    await client.update_params_for_auth(headers, [], ["BearerToken"], request.path, request.method, None)
    url = f"{proxy.configuration.host}{request.path_qs}"
    # An empty body must not be sent: it would get a content type, which some paths reject.
    data = await request.read() or None
    async with session.request(
        request.method, url, headers=headers, data=data, timeout=aiohttp.ClientTimeout(total=None)
    ) as answer:
        proxy.seen.append(seen := Seen(request.method, request.path, query, answer.status))
        if seen.writes and proxy.after_write(len(proxy.writes())):
            raise web.HTTPBadGateway
        kept = {k: v for k, v in answer.headers.items() if k in ("Content-Type", "Retry-After")}
        if query.get("watch") != "true":
            return web.Response(status=answer.status, body=await answer.read(), headers=kept)
        response = web.StreamResponse(status=answer.status, headers=kept)
        await response.prepare(request)
        copying = asyncio.create_task(_copy(answer, response))
        proxy._streams.add(copying)
        try:
            await asyncio.wait({copying})
        finally:
            proxy._streams.discard(copying)
            copying.cancel()
        return response


async def _copy(answer: aiohttp.ClientResponse, response: web.StreamResponse) -> None:
    async for chunk in answer.content.iter_any():
        await response.write(chunk)


class ThreadedProxy:
    """A proxy that runs in its own thread, for tests that are not coroutines."""

    def __init__(self, kube: Kube, folder: Path) -> None:
        self._environment = {KUBECONFIG: kube.target.kubeconfig, CONTEXT: kube.target.context}
        self._kubeconfig = folder / "proxy.kubeconfig"
        self._thread = threading.Thread(target=lambda: asyncio.run(self._serve()), daemon=True)
        self._started = threading.Event()
        self._loop: asyncio.AbstractEventLoop
        self._stop: asyncio.Event
        self._proxy: ApiProxy

    def __enter__(self) -> "ThreadedProxy":
        self._thread.start()
        assert self._started.wait(60), "the proxy does not start"
        return self

    def __exit__(self, *_: object) -> None:
        self._loop.call_soon_threadsafe(self._stop.set)
        self._thread.join(10)

    @property
    def target(self) -> Target:
        """Return the cluster, reached through this proxy."""
        self._kubeconfig.write_text(json.dumps(self._proxy.kubeconfig()))
        return Target(str(self._kubeconfig), "proxy")

    @property
    def writes(self) -> list[tuple[str, str]]:
        """Return the method and path of every write so far."""
        return [(s.method, s.path) for s in self._proxy.writes()]

    def call_after_writes(self, act: Callable[[int], bool]) -> None:
        """Set `ApiProxy.after_write`, which is called after each write."""
        self._proxy.after_write = act

    async def _serve(self) -> None:
        self._loop, self._stop = asyncio.get_running_loop(), asyncio.Event()
        async with serving(await load_configuration(self._environment)) as self._proxy:
            self._started.set()
            await self._stop.wait()
