"""What the watches do with the delay that an API server, or a proxy in front of it, requests with status 429."""

import asyncio
from typing import Any

import kopf
import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer
from kopf._cogs.clients import api, auth, watching
from kopf._cogs.structs.credentials import Vault, VaultKey
from kopf._cogs.structs.references import NamespaceName, Resource

from pstraining.controller.registration import build_settings
from pstraining.controller.watch import Watches

pytestmark = pytest.mark.asyncio
JOBS = Resource(group="pstraining.dev", version="v1alpha1", plural="pstrainingjobs", namespaced=True)


@pytest.mark.parametrize(
    ("asked", "waited"), [("Wed, 21 Oct 2099 07:28:00 GMT", 0.0), ("soon", 0.0), ("7", 7), ("86400", 120)]
)
async def test_a_busy_api_server_is_asked_again(monkeypatch: pytest.MonkeyPatch, asked: str, waited: float) -> None:
    delays = list[float]()

    async def answer(_request: web.Request) -> web.Response:
        if not delays:
            return web.Response(status=429, headers={"Retry-After": asked})
        return web.json_response({"items": [], "metadata": {"resourceVersion": "9"}})

    class Clock:
        """Only the clock of kopf's requests: records delays, and waits for none."""

        def __getattr__(self, name: str) -> Any:
            return getattr(asyncio, name)

        @staticmethod
        async def sleep(seconds: float) -> None:
            delays.append(seconds)

    monkeypatch.setattr(api, "asyncio", Clock())
    app = web.Application()
    app.router.add_get("/{path:.*}", answer)
    async with TestServer(app) as server:
        info = kopf.ConnectionInfo(server=str(server.make_url("")))
        auth.vault_var.set(Vault({VaultKey("test"): info}))
        watches, settings = Watches(1, ("b",)), build_settings()
        settings.networking.error_backoffs = (0.0,) * 9
        try:
            with watches.taken(lambda found: None):
                async with asyncio.timeout(20):
                    stream = watching.infinite_watch(settings=settings, resource=JOBS, namespace=NamespaceName("b"))
                    async for mark in stream:
                        if mark is watching.Bookmark.LISTED:
                            break
        finally:
            await auth.vault_var.get().close()
    assert delays == [waited]
