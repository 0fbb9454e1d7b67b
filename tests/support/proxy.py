"""A proxy between an operator and the API server that counts writes and can act between any two of them.

Plain HTTP on loopback towards the operator; the client certificate of the kubeconfig towards the API server. Watches
are passed through as they come. Leases are not counted: they are nobody's business here.
"""

import asyncio
import ssl
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import aiohttp
import yaml
from aiohttp import web

from tests.support.kube import Kube, Target

WRITES = {"POST", "PUT", "PATCH", "DELETE"}
_HOP = {"host", "connection", "transfer-encoding", "content-length", "content-encoding"}


class Proxy:
    """One proxy, in a thread of its own."""

    def __init__(self, kube: Kube, folder: Path) -> None:
        self.kube = kube
        self.writes: list[tuple[str, str]] = []
        """Method and path of every write that the API server has answered, Leases aside."""
        self.after_write: Callable[[int], bool] = lambda _: False
        """Called with the number of the write before its answer is passed on; True swallows the answer."""
        self.port = 0
        self._folder = folder
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._ready = threading.Event()
        self._stop: asyncio.Event | None = None

    def __enter__(self) -> "Proxy":
        self._thread.start()
        assert self._ready.wait(10), "the proxy does not start"
        return self

    def __exit__(self, *_: object) -> None:
        if self._stop is not None:
            self._loop.call_soon_threadsafe(self._stop.set)
        self._thread.join(10)

    @property
    def target(self) -> Target:
        """A kubeconfig that leads here."""
        path = self._folder / "proxy.kubeconfig"
        name = "proxied"
        content: dict[str, Any] = {
            "apiVersion": "v1",
            "kind": "Config",
            "current-context": name,
            "clusters": [{"name": name, "cluster": {"server": f"http://127.0.0.1:{self.port}"}}],
            "users": [{"name": name, "user": {}}],
            "contexts": [{"name": name, "context": {"cluster": name, "user": name}}],
        }
        path.write_text(yaml.safe_dump(content))
        return Target(str(path), name)

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        self._loop.run_until_complete(self._serve())

    async def _serve(self) -> None:
        self._stop = asyncio.Event()
        configuration = self.kube.configuration
        context = ssl.create_default_context(cafile=configuration.ssl_ca_cert)
        assert configuration.cert_file is not None, "the proxy needs a client certificate"
        context.load_cert_chain(configuration.cert_file, configuration.key_file)
        timeout = aiohttp.ClientTimeout(total=None)
        connector = aiohttp.TCPConnector(ssl=context, limit=0)
        async with aiohttp.ClientSession(connector=connector, timeout=timeout, auto_decompress=False) as session:
            self._session = session
            application = web.Application(client_max_size=64 * 2**20)
            application.router.add_route("*", "/{path:.*}", self._pass_on)
            runner = web.AppRunner(application, shutdown_timeout=1)
            await runner.setup()
            site = web.TCPSite(runner, "127.0.0.1", 0)
            await site.start()
            self.port = runner.addresses[0][1]
            self._ready.set()
            await self._stop.wait()
            await runner.cleanup()

    async def _pass_on(self, request: web.Request) -> web.StreamResponse:
        headers = {k: v for k, v in request.headers.items() if k.lower() not in _HOP}
        body = await request.read()
        async with self._session.request(
            request.method, self.kube.host + request.raw_path, headers=headers, data=body or None
        ) as answer:
            counted = request.method in WRITES and "/leases" not in request.path
            if counted:
                self.writes.append((request.method, request.path))
                if self.after_write(len(self.writes)):
                    raise web.HTTPBadGateway
            passed = web.StreamResponse(status=answer.status)
            for name, value in answer.headers.items():
                if name.lower() not in _HOP:
                    passed.headers[name] = value
            await passed.prepare(request)
            async for chunk in answer.content.iter_any():
                await passed.write(chunk)
            await passed.write_eof()
            return passed
