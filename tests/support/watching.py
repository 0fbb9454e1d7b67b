"""A watch's events with their times, for tests of how fast one write follows another."""

import json
import threading
import time
from collections.abc import Callable

from tests.support.kube import Kube, Object, wait_for


class Watch:
    """Receives every version of a kind's objects in a namespace, from now on."""

    def __init__(self, kube: Kube, kind: str, namespace: str) -> None:
        self.seen: list[tuple[float, str, Object]] = []
        """Events: monotonic time; ADDED, MODIFIED or DELETED; the object."""
        query = "?watch=1&timeoutSeconds=900"
        self._answer = kube._pool.request(
            "GET", kube.host + kube.path(kind, namespace) + query, preload_content=False, timeout=900
        )
        threading.Thread(target=self._read, daemon=True).start()

    def _read(self) -> None:
        rest = b""
        for chunk in self._answer.stream(65536):
            moment, (*lines, rest) = time.monotonic(), (rest + chunk).split(b"\n")
            for line in lines:
                event = json.loads(line)
                self.seen.append((moment, event["type"], event["object"]))

    def wait(
        self, holds: Callable[[str, Object], bool], what: str, *, since: float = 0.0, seconds: float = 60
    ) -> float:
        """Wait for a matching event, and return the time of the first one."""

        def find() -> float:
            return next((at for at, kind, found in list(self.seen) if at >= since and holds(kind, found)), 0.0)

        return wait_for(find, what, seconds, every=0.02)
