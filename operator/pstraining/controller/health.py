"""/livez and /readyz, from a thread of their own: they answer also when the event loop does not, and say so.

Alive: the event loop turns, there is progress where there is work, and the watches bring something every few minutes
(the API server sends bookmarks of all kinds but events, so silence while our Lease is renewed means a dead stream).
Ready: every cache is filled and the Lease is ours; a standby operator is alive and not ready.
"""

import asyncio
import time
from collections.abc import Callable, Mapping
from http.server import BaseHTTPRequestHandler

from pstraining.launcher.listener import Listener

Check = Callable[[], str | None]
"""Returns what is wrong, None if nothing is."""

BEAT = 1.0
"""Seconds between two signs of life of the event loop."""


class Heartbeat:
    """Knows when the event loop last turned."""

    def __init__(self, limit: float = 20.0) -> None:
        """Make a heartbeat that counts as stopped after `limit` seconds."""
        self._limit = limit
        self._last = time.monotonic()

    async def beat(self) -> None:
        """Beat for ever."""
        while True:
            self._last = time.monotonic()
            await asyncio.sleep(BEAT)

    def check(self) -> str | None:
        """What is wrong with the event loop."""
        silent = time.monotonic() - self._last
        return f"the event loop has stood still for {silent:.0f} s" if silent > self._limit else None


class Health:
    """The two endpoints."""

    def __init__(self, live: Mapping[str, Check], ready: Mapping[str, Check]) -> None:
        """Make endpoints that pass while every check of theirs does."""
        self._checks = {"/livez": dict(live), "/readyz": dict(ready)}

    def answer(self, path: str) -> tuple[int, str]:
        """Status code and text for a path."""
        checks = self._checks.get(path.split("?", 1)[0])
        if checks is None:
            return 404, "there are /livez and /readyz\n"
        problems = [f"{name}: {problem}" for name, check in checks.items() if (problem := check()) is not None]
        return (503, "\n".join(problems) + "\n") if problems else (200, "ok\n")

    def serve(self, port: int) -> Callable[[], None]:
        """Serve from a thread; returns what stops it."""
        return Listener(port, self.handler()).start("health")

    def handler(self) -> type[BaseHTTPRequestHandler]:
        """The class that answers one request."""
        health = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                status, text = health.answer(self.path)
                body = text.encode()
                self.send_response(status)
                self.send_header("Content-Type", "text/plain; charset=utf-8")
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, format: str, *args: object) -> None:
                """Probes are not worth a line."""

        return Handler
