"""Answers of a proxy in front of the API server after which the watches continue: delays, and pages of its own."""

import asyncio
from typing import Any

import pytest
from aiohttp import web
from kopf._cogs.clients import api, watching

from pstraining.controller import watch
from tests.support.watch_server import jobs_of

pytestmark = pytest.mark.asyncio


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
    async with jobs_of(answer, retries=9) as (_, stream), asyncio.timeout(20):
        async for mark in stream:
            if mark is watching.Bookmark.LISTED:
                return delays
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
