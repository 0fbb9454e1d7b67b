"""Restarts a parameter server for a new attempt of the chief, and every program for a new layout.

The dead chief of a plain program leaves its variables in the server's memory, so the server restarts. With another
number of servers, the cluster map has another layout; then the server and all programs restart. This is one of the
launcher's files. In a pod it is beside launch.py, and it imports only Python 3.8's standard library.
"""

from __future__ import annotations

import json
import os
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Mapping  # noqa: UP035 - Python 3.8

if TYPE_CHECKING or __package__:
    from .contract import STATUS_PORT, mark
else:
    from contract import STATUS_PORT, mark

if TYPE_CHECKING:
    from .probe import PsProbe


FIRST_LAYOUT = 1
"""The layout of a cluster map that does not name its layout."""


class Terms:
    """The terms of the chief's attempts and the layouts, as one launcher reads them from the cluster map.

    Args:
        cluster_map: path of the cluster map.
        layout_file: path of the file with the number of the layout that the process uses.
        owned_markers: paths of marker files; a runtime's chief writes at least one of them to own the server's state.
    """

    def __init__(self, cluster_map: str, layout_file: str, *owned_markers: str) -> None:
        self._map, self._layout_file, self._owned_markers = cluster_map, layout_file, owned_markers
        self._version: object = None
        """Identity of the file that was read last."""
        self._map_term, self._policy, self._required = 0, "", 0
        self.term = 0
        """The term for which the server runs. Its memory has no state of older attempts that must be removed."""
        self._map_layout: int | None = None
        self.layout: int | None = None
        """The layout for which the server runs; None if the map could not be read."""

    def server_started(self) -> None:
        """Record the start of a server, whose memory is empty."""
        for marker in self._owned_markers:
            with suppress(FileNotFoundError):
                os.unlink(marker)
        self._read()
        self.term, self.layout = self._map_term, self._map_layout
        self.note_layout(self.layout or FIRST_LAYOUT)

    def note_layout(self, layout: int) -> None:
        """Write the layout for which a process is about to start."""
        mark(self._layout_file, str(layout))

    def is_over(self) -> bool:
        """Whether the server must be restarted, by the current cluster map."""
        if self.is_layout_over(self.layout):
            return True
        self.layout = self._map_layout
        if self._map_term <= self.term:
            return False
        is_owned = any(map(os.path.exists, self._owned_markers))
        if self._policy == "Keep" or (not self._policy and is_owned):
            self.term = self._map_term
            return False
        return True

    def is_layout_over(self, layout: int | None) -> bool:
        """Whether a process must be restarted for the layout of the current cluster map.

        A program of the runtime, or its server, may have followed to that layout without a restart, and to later ones
        that this map does not list yet.

        Args:
            layout: the layout with which the process was started.
        """
        self._read()
        listed = self._map_layout
        return listed not in (None, layout) and not (layout or FIRST_LAYOUT) < listed <= self._followed()

    def _followed(self) -> int:
        """Return the layout that the process uses; 0 if that is unknown."""
        with suppress(OSError, ValueError), open(self._layout_file, encoding="utf-8") as file:
            return int(file.read())
        return 0

    def require(self, term: int) -> None:
        """Let the chief's attempt with this term start only with servers that have read the term."""
        self._read()
        self._required = 0 if term == 1 or self._policy == "Keep" else term

    def why_unavailable(self, probe: PsProbe, layout: int = FIRST_LAYOUT) -> str:
        """Return why a program with this layout cannot start with a probed PS; empty if it can."""
        if probe.port != "open":
            return str(probe.why)
        if probe.boot_id is None:  # a service mesh's proxy accepts every connection, even to absent servers
            return f"its port is open, but its launcher does not answer on port {STATUS_PORT}"
        if probe.term is not None and probe.term < self._required:
            return f"it has not read the chief's attempt {self._required} yet"
        if probe.layout is not None and probe.layout != layout:
            return f"it runs for layout {probe.layout}, not {layout}"
        return "Terminating" if probe.state == "Terminating" else ""

    def _read(self) -> None:
        """Read the cluster map if it has changed. A map that cannot be read changes nothing."""
        with suppress(OSError, ValueError, KeyError, TypeError):
            stat = os.stat(self._map)
            version = (stat.st_ino, stat.st_mtime_ns, stat.st_size)
            if version != self._version:
                with open(self._map, encoding="utf-8") as file:
                    content = json.load(file)
                self._map_term, self._map_layout = int(content["term"]), layout_of(content)
                self._policy = content.get("onChiefRestart") or ""
                self._version = version


def layout_of(cluster_map: Mapping[str, Any]) -> int:
    """Return the number of a cluster map's layout."""
    return int(cluster_map.get("layout", FIRST_LAYOUT))


def for_server(cluster_map: str, kind: str, shard: int) -> str:
    """Return the text of a cluster map in which a parameter server of the next layout finds itself.

    The server starts before its layout is in use, so that training can continue on it without a restart.

    Args:
        cluster_map: the text of the map.
        kind: the task's type.
        shard: the number of the shard, for a parameter server.
    """
    if kind != "ps":
        return cluster_map
    content = json.loads(cluster_map)
    each, coming = content.get("members", 1), content.get("nextServers")
    if not coming or shard < len(content["cluster"]["ps"]) // each:
        return cluster_map
    return json.dumps({**content, "cluster": {**content["cluster"], "ps": coming}})
