"""Parameter servers (PSs) with hot standbys: every member of a shard is a task of its own, and is ready while in sync.

Of n shards, task i + m n is member m of shard i. launch.py, beside it in the pod, imports this file; it stands on
Python 3.8's standard library alone.
"""

from __future__ import annotations

import os
import time
from contextlib import suppress
from typing import Any, Collection, Iterable, List, Mapping  # noqa: UP035 - Python 3.8

ENV_NODE, NODE_FILE, DRAINING_MARKERS = "PSTRAINING_NODE", "node", ("draining", "leaving")
LEAVE_SECONDS = 5.0
"""For so long at most a server that is in sync is kept running after its pod was told to end: the chief looks once a
second, and lets the others go on without it."""
LINGER_SECONDS = 1.5
"""For so long a pod that was told to end stays without its server: connections are refused then, which tells the others
that it is gone, as the silence of an address without a pod does not."""
SEEN_SECONDS = 2.5
"""For so long a server that was started again is not ready, so that the kubelet sees it, which asks once a second."""


class Members:
    """Who belongs to which shard, by a job's map.

    Args:
        told: the map's document.

    Raises:
        ValueError: its members do not divide its parameter servers.
    """

    def __init__(self, told: Mapping[str, Any]) -> None:
        self._servers: List[str] = told["cluster"].get("ps", [])  # noqa: UP006
        self._each = told.get("members", 1)
        if not isinstance(self._each, int) or self._each < 1 or len(self._servers) % self._each:
            raise ValueError(f"'members' is {self._each!r}, with {len(self._servers)} parameter servers")
        self._shards = len(self._servers) // self._each
        self.hot = self._each > 1
        """Whether shards have several."""

    def task(self, shard: int, member: str) -> int:
        """The index of a shard's member."""
        return shard + int(member or 0) * self._shards if self.hot else shard

    def others(self, task: int) -> list[str]:
        """Addresses of the other members of a task's shard."""
        return [self._servers[i] for i in range(task % self._shards, len(self._servers), self._shards) if i != task]

    def awaited(self, away: Collection[str]) -> list[str]:
        """Of the PSs that are away, those without which a program cannot start: of shards that nobody serves."""
        shards = [self._servers[shard :: self._shards] for shard in range(self._shards)]
        return [ps for own in shards if all(ps in away for ps in own) for ps in own]


def note_node(folder: str, env: Mapping[str, str]) -> None:
    """Leave the node's name where workers read it, if it is known.

    Raises:
        OSError: it cannot be written.
    """
    if env.get(ENV_NODE):
        with open(os.path.join(folder, NODE_FILE), "w", encoding="utf-8") as file:
            file.write(env[ENV_NODE])


class Leave:
    """A member's leave from its job.

    Args:
        folder: where the chief and the launcher leave word for each other.
        marker: the chief's file in it that says whether the member is in sync.
    """

    def __init__(self, folder: str, marker: str) -> None:
        self._files, self._marker = [os.path.join(folder, name) for name in DRAINING_MARKERS], marker

    def begin_anew(self) -> None:
        """A server that was just started is not in sync, and not draining."""
        for file in (self._marker, *self._files):
            with suppress(FileNotFoundError):
                os.unlink(file)

    def take(self) -> None:
        """Say so, and return when the others do without this member, or have not in time.

        Raises:
            OSError: it cannot be said.
        """
        until = time.monotonic() + LEAVE_SECONDS
        if is_in_sync(self._marker):
            for file in self._files:
                open(file, "w", encoding="utf-8").close()
        while is_in_sync(self._marker) and time.monotonic() < until:
            time.sleep(0.05)


def is_in_sync(marker: str) -> bool:
    """Whether the chief says so: its word is in the file, which is empty when it takes it back."""
    try:
        return os.path.getsize(marker) > 0
    except OSError:
        return False


def may_be_first(others: Iterable[Any]) -> bool:
    """Whether a member that is not in sync is as good as the others: they all answer, and none has the state either.

    Args:
        others: what a look at each of them showed.
    """
    return all(sight.boot_id and not sight.in_sync for sight in others)
