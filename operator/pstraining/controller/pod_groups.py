"""Reads the PodGroups of gangs into the cache; they are never watched.

The kind may not be installed, and kopf cannot start to watch a kind later. Jobs without a gang must cost nothing. A
PodGroup matters only while a pod waits for a node. It is read when this operator first sees the job, and again while
pods wait, so that a changed or deleted PodGroup is noticed. Our own writes are cached like all others.
"""

import time
from collections.abc import Callable
from typing import Final

from pstraining.api import names
from pstraining.controller.informer_cache import InformerCache, Key
from pstraining.core.observe import controller_uid
from pstraining.core.policies.gang import kind_of_group
from pstraining.core.snapshot import Snapshot
from pstraining.kube.errors import NotFound, Refused
from pstraining.kube.port import ApiPort

REREAD_SECONDS: Final = 10.0
"""Minimum seconds between two reads of one PodGroup while pods wait."""


class PodGroups:
    """Reads PodGroups into the cache."""

    def __init__(self, port: ApiPort, cache: InformerCache, clock: Callable[[], float] = time.monotonic) -> None:
        """Create a reader.

        Args:
            port: the API server.
            cache: receives every PodGroup that was read.
            clock: monotonic seconds, because the time of day may be set back.
        """
        self._port = port
        self._cache = cache
        self._clock = clock
        self._last_reads: dict[Key, tuple[str, float]] = {}
        """Uid of each job, and the time of the last read of its PodGroup in seconds of `clock`."""

    def forget(self, key: Key) -> None:
        """Let the next pass over the job, if there is one, read the PodGroup."""
        self._last_reads.pop(key, None)

    async def read(self, snapshot: Snapshot) -> bool:
        """Read a job's PodGroup if a read is due.

        Returns:
            Whether the PodGroup was read; the cache may have changed then.

        Raises:
            Transient: the read failed and is worth a retry.
        """
        kind = kind_of_group(snapshot.job)
        if kind is None or not self._is_due(snapshot):
            return False
        name = names.pod_group(snapshot.name)
        try:
            group = await self._port.get(kind, snapshot.namespace, name)
        except NotFound:
            if (cached := snapshot.child(kind, name)) is not None:
                self._cache.deleted(kind, snapshot.namespace, name, cached.uid)
        except Refused:
            pass  # reported when the PodGroup is created
        else:
            if controller_uid(group) == snapshot.uid:
                self._cache.wrote(snapshot.namespace, snapshot.name, group)
        self._last_reads[snapshot.namespace, snapshot.name] = (snapshot.uid, self._clock())
        return True

    def _is_due(self, snapshot: Snapshot) -> bool:
        uid, last = self._last_reads.get((snapshot.namespace, snapshot.name), ("", 0.0))
        is_waiting = any(not (p.node or p.over or p.deleting) for p in snapshot.pods)
        return uid != snapshot.uid or (is_waiting and self._clock() >= last + REREAD_SECONDS)
