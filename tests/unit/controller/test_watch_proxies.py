"""Answers of a proxy in front of the API server after which the watches continue: delays, and pages of its own."""

import asyncio
from typing import Any

import kopf
import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer
from kopf._cogs.clients import api, auth, watching
from kopf._cogs.structs.credentials import Vault, VaultKey
from kopf._cogs.structs.references import NamespaceName, Resource

from pstraining.controller import watch
from pstraining.controller.registration import build_settings
from pstraining.controller.watch import Watches

pytestmark = pytest.mark.asyncio
JOBS = Resource(group="pstraining.dev", version="v1alpha1", plural="pstrainingjobs", namespaced=True)


async def delays_after(monkeypatch: pytest.MonkeyPatch, **first: Any) -> list[float]:
    """Return the delays of kopf's requests until a list is complete, the first of which has this answer."""
    answers, delays = iter([web.Response(**first)]), list[float]()

    async def answer(_request: web.Request) -> web.Response:
        return next(answers, None) or web.json_response({"items": [], "metadata": {"resourceVersion": "9"}})

    class Clock:
        """The clock of kopf's requests alone: records delays, and waits for none."""

        def __getattr__(self, name: str) -> Any:
            return getattr(asyncio, name)

        @staticmethod
        async def sleep(seconds: float) -> None:
            delays.append(seconds)

    monkeypatch.setattr(api, "asyncio", Clock())
    monkeypatch.setattr(watch, "RESTART_SECONDS", 0.0)
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
                            return delays
        finally:
            await auth.vault_var.get().close()
    pytest.fail("the stream has ended")


@pytest.mark.parametrize(
    ("asked", "waited"), [("Wed, 21 Oct 2099 07:28:00 GMT", 0.0), ("soon", 0.0), ("7", 7), ("86400", 120)]
)
async def test_a_busy_api_server_is_asked_again(monkeypatch: pytest.MonkeyPatch, asked: str, waited: float) -> None:
    assert await delays_after(monkeypatch, status=429, headers={"Retry-After": asked}) == [waited]


@pytest.mark.parametrize(
    "page",
    [
        {"status": 200, "text": "Please log in.", "content_type": "text/html"},
        {"status": 200, "text": "{", "content_type": "application/json"},
        {"status": 502, "body": "Nicht verf\u00fcgbar".encode("latin-1"), "content_type": "text/html"},
    ],
    ids=["no JSON", "broken JSON", "no UTF-8"],
)
async def test_a_page_of_a_proxy_does_not_end_a_watch(monkeypatch: pytest.MonkeyPatch, page: dict[str, Any]) -> None:
    assert await delays_after(monkeypatch, **page) == []
