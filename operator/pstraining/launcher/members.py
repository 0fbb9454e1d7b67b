"""Parameter servers (PSs) with hot standbys: each member of a shard is a separate task, and is ready while in sync.

With n shards, task i + m n is member m of shard i. This is one of the launcher's files. In a pod it is beside
launch.py, and it imports only Python 3.8's standard library.
"""

from __future__ import annotations

import os
import time
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Callable, Collection, Iterable, List, Mapping  # noqa: UP035 - Python 3.8

if TYPE_CHECKING or __package__:
    from .contract import DRAINING_MARKERS, ENV_NODE, EXIT_BAD_CONTRACT, NODE_FILE, NotAMemberError, log, mark
    from .probe import PsProbe, View, is_open, probe_all, to_view
else:
    from contract import DRAINING_MARKERS, ENV_NODE, EXIT_BAD_CONTRACT, NODE_FILE, NotAMemberError, log, mark
    from probe import PsProbe, View, is_open, probe_all, to_view

DRAINING_SECONDS = 5.0
"""Upper bound of the time for which a server in sync keeps running after the signal to stop, unless it has the only
copy of its shard's state. The chief polls every second, and then continues without this member."""
PROBE_SECONDS = 0.5
"""Seconds between two probes of the other members by a server that has the only copy."""
LINGER_SECONDS = 1.5
"""Seconds for which a stopped pod stays without its server. Refused connections meanwhile show the other members that
the server has ended; an address without a pod would only be silent."""
NOT_READY_SECONDS = 2.5
"""Seconds for which a restarted server is not ready, so that the kubelet, which probes every second, notices the
restart."""
STARTED = "started"
"""File of the run folder: a container of this pod has started a server."""
FAILOVER_SECONDS = 3.0
"""Seconds for which a warm member does not start its server in a container that replaces another one. Until the
Service leads to the other member on every node (kube-proxy writes its rules at most once a second), some clients would
connect to this server, and stay with it."""


class ShardMembers:
    """The members of each shard, from the cluster map.

    Args:
        cluster_map: the map's document.

    Raises:
        ValueError: the number of members does not divide the number of parameter servers.
    """

    def __init__(self, cluster_map: Mapping[str, Any]) -> None:
        self._servers: List[str] = cluster_map["cluster"].get("ps", [])  # noqa: UP006 - Python 3.8
        self._each = cluster_map.get("members", 1)
        if not isinstance(self._each, int) or self._each < 1 or len(self._servers) % self._each:
            raise ValueError(f"'members' is {self._each!r}, with {len(self._servers)} parameter servers")
        self._shards = len(self._servers) // self._each
        self.hot = self._each > 1
        """Whether shards have hot standbys."""

    def task(self, shard: int, member: str) -> int:
        """Return the task index of a shard's member.

        Raises:
            NotAMemberError: the cluster does not have the shard.
        """
        if shard >= self._shards:
            message = f"the cluster map has {self._shards} shards of parameter servers, and no shard {shard}"
            raise NotAMemberError(EXIT_BAD_CONTRACT, message)
        return shard + int(member or 0) * self._shards if self.hot else shard

    def peers(self, task: int) -> list[str]:
        """Return the addresses of the other members of a task's shard."""
        return [self._servers[i] for i in range(task % self._shards, len(self._servers), self._shards) if i != task]

    def required(self, unavailable: Collection[str]) -> list[str]:
        """Return the unavailable PSs without which a program cannot start: all members of shards without a server."""
        shards = [self._servers[shard :: self._shards] for shard in range(self._shards)]
        return [ps for shard in shards if all(ps in unavailable for ps in shard) for ps in shard]


def write_node(folder: str, env: Mapping[str, str]) -> None:
    """Write the node's name, if it is known, to the file that workers read."""
    if env.get(ENV_NODE):
        mark(os.path.join(folder, NODE_FILE), env[ENV_NODE])


class Draining:
    """Announces that a member's pod is being terminated.

    Args:
        folder: the folder of the marker files that the chief and the launcher exchange.
        in_sync_marker: path of the chief's marker that shows whether the member is in sync.
    """

    def __init__(self, folder: str, in_sync_marker: str) -> None:
        self._draining_markers = [os.path.join(folder, name) for name in DRAINING_MARKERS]
        self._in_sync_marker = in_sync_marker

    def reset(self) -> None:
        """Remove the markers: a started server is neither in sync nor draining."""
        for marker in (self._in_sync_marker, *self._draining_markers):
            with suppress(FileNotFoundError):
                os.unlink(marker)

    def announce(self, port: int, shard_members: ShardMembers, task: int) -> None:
        """Write the draining markers, and wait until the chief continues without this member or the time is over.

        While this member has the only copy of its shard's state, the pod's grace period is the only bound.

        Args:
            port: the server's.
            shard_members: the members of each shard.
            task: this member's task index.
        """
        until = time.monotonic() + DRAINING_SECONDS
        if view_in_sync(self._in_sync_marker):
            for marker in self._draining_markers:
                mark(marker)
        is_logged = False
        while view := view_in_sync(self._in_sync_marker):
            if time.monotonic() < until:
                time.sleep(0.05)
                continue
            others = probe_all(shard_members.peers(task)).values()
            if not is_open("127.0.0.1", port) or not is_only_copy(view, others):
                return
            if not is_logged:
                log("no other member has this shard's state: the server runs until one has it")
            is_logged = True
            time.sleep(PROBE_SECONDS)


def await_failover(started_marker: str, wait: Callable[[float], object]) -> None:
    """Wait for the failover to the other warm member, if an earlier container of this pod has served."""
    if os.path.exists(started_marker):
        wait(FAILOVER_SECONDS)
    mark(started_marker)


def view_in_sync(marker: str) -> View:
    """Return the view in the chief's marker; empty if the member is not in sync."""
    try:
        with open(marker, encoding="utf-8") as file:
            return to_view(file.read())
    except (OSError, ValueError):
        return ()


def sync_status(marker: str) -> dict[str, object]:
    """Return the fields of the launcher's status that depend on the chief's marker."""
    view = view_in_sync(marker)
    return {"inSync": bool(view), "view": ".".join(map(str, view))}


def is_only_copy(view: View, peers: Collection[PsProbe]) -> bool:
    """Whether no other member has the state of a member that is in sync in `view`, and one can still get it.

    A peer that is in sync in an earlier view lacks updates: the chief could not reach it to empty its marker.
    """
    in_sync = [peer for peer in peers if peer.boot_id and peer.in_sync]
    if any(not peer.view or peer.view >= view for peer in in_sync):  # the launcher of 0.2.0 reports no view
        return False
    return any(peer.boot_id and peer.state != "Terminating" for peer in peers)


def may_start_first(peers: Iterable[PsProbe]) -> bool:
    """Whether a member that is not in sync may be ready: all its peers answer, and none of them is in sync either."""
    return all(probe.boot_id and not probe.in_sync for probe in peers)
