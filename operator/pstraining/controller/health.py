"""Serves /livez and /readyz from a separate thread, which also answers while the event loop is blocked.

Live: the event loop runs, queued work makes progress, and every watch delivers something every few minutes. (The API
server sends bookmarks for all kinds except events, so a silent watch while our Lease is renewed is a dead stream.)
Ready: every cache is filled and this process holds the Lease. A standby operator is live but not ready.
"""

import asyncio
import time
from collections.abc import Callable, Iterable, Mapping
from http.server import BaseHTTPRequestHandler

from pstraining.launcher.listener import Listener

Check = Callable[[], str | None]
"""Returns the problem, or None."""

BEAT_SECONDS = 1.0
"""Seconds between two beats."""


class Heartbeat:
    """Records when the event loop last ran."""

    def __init__(self, limit: float = 20.0) -> None:
        """Create a heartbeat that counts as stopped after `limit` seconds without a beat."""
        self._limit = limit
        self._last = time.monotonic()

    async def beat(self) -> None:
        """Beat until cancelled."""
        while True:
            self._last = time.monotonic()
            await asyncio.sleep(BEAT_SECONDS)

    def check(self) -> str | None:
        """Return the event loop's problem; None if it runs."""
        silent = time.monotonic() - self._last
        return f"the event loop has been blocked for {silent:.0f} s" if silent > self._limit else None


class Health:
    """Serves the two endpoints."""

    def __init__(
        self,
        live: Mapping[str, Check],
        ready: Mapping[str, Check],
        notes: Callable[[], Iterable[str]] = lambda: (),
    ) -> None:
        """Create endpoints that pass while all their checks pass.

        Args:
            live: checks of /livez.
            ready: checks of /readyz.
            notes: returns lines that /readyz shows in addition to its result.
        """
        self._checks = {"/livez": dict(live), "/readyz": dict(ready)}
        self._notes = notes

    def answer(self, path: str) -> tuple[int, str]:
        """Return the status code and text for a path."""
        path = path.split("?", 1)[0]
        checks = self._checks.get(path)
        if checks is None:
            return 404, "not found: the paths are /livez and /readyz\n"
        problems = [f"{name}: {problem}" for name, check in checks.items() if (problem := check()) is not None]
        notes = self._notes() if path == "/readyz" else ()
        return 503 if problems else 200, "\n".join((*(problems or ["ok"]), *notes)) + "\n"

    def serve(self, port: int) -> Callable[[], None]:
        """Serve from a thread; return a function that stops serving."""
        return Listener(port, self.handler()).start("health")

    def handler(self) -> type[BaseHTTPRequestHandler]:
        """Return the class that answers one request."""
        health = self

        class HealthHandler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                status, text = health.answer(self.path)
                body = text.encode()
                self.send_response(status)
                self.send_header("Content-Type", "text/plain; charset=utf-8")
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, format: str, *args: object) -> None:
                """Log nothing: probes are frequent."""

        return HealthHandler
