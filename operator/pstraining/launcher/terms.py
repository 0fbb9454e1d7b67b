"""What a parameter server does when a new attempt of the chief starts: a plain program's dead chief leaves its
variables behind in the server's memory, so the server is started again.

launch.py, beside it in the pod, imports this file; it stands on Python 3.8's standard library alone.
"""

from __future__ import annotations

import json
import os
from contextlib import suppress
from typing import Any


class Terms:
    """The chief's attempts, as the cluster map reports them to one server.

    Args:
        cluster_map: path of the map.
        owned: files of which the runtime's chief writes at least one if it owns the server's state.
    """

    def __init__(self, cluster_map: str, *owned: str) -> None:
        self._map, self._owned = cluster_map, owned
        self._seen: object = None
        self._told, self._policy, self._awaited = 0, "", 0
        self.term = 0
        """Of this attempt, and older ones, nothing is in the server's memory but what is to stay."""

    def started(self) -> None:
        """A server starts: it holds nothing."""
        for file in self._owned:
            with suppress(FileNotFoundError):
                os.unlink(file)
        self._read()
        self.term = self._told

    def is_over(self) -> bool:
        """Whether the server is to be started again, by the map as it is now."""
        self._read()
        if self._told <= self.term:
            return False
        if self._policy == "Keep" or (not self._policy and any(map(os.path.exists, self._owned))):
            self.term = self._told
            return False
        return True

    def wait_for(self, own: int) -> None:
        """This is the chief's attempt of that number: its program is to meet servers that have heard of it."""
        self._read()
        self._awaited = 0 if own == 1 or self._policy == "Keep" else own

    def why_away(self, sight: Any) -> str:
        """Why a program cannot start with the PS that was seen so; empty if it can."""
        if sight.port != "open":
            return str(sight.why)
        if sight.term is not None and sight.term < self._awaited:
            return f"it has not heard of the chief's attempt {self._awaited} yet"
        return "Terminating" if sight.state == "Terminating" else ""

    def _read(self) -> None:
        with suppress(OSError, ValueError, KeyError, TypeError):
            found = os.stat(self._map)
            seen = (found.st_ino, found.st_mtime_ns, found.st_size)
            if seen != self._seen:
                with open(self._map, encoding="utf-8") as file:
                    told = json.load(file)
                self._told, self._policy, self._seen = int(told["term"]), told.get("onChiefRestart") or "", seen
