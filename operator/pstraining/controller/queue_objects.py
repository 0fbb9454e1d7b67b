"""Reads Kueue's objects that jobs refer to: ResourceFlavors, priority classes and the default queues of namespaces.

They are few, rarely change and concern a job only when it is created or admitted. They are therefore read then, and not
watched. All jobs share the objects that were read.
"""

import logging
import time
from collections.abc import Callable
from typing import Final

from pstraining.core.actions import Kind
from pstraining.core.policies import queue_objects, teardown
from pstraining.core.policies.queue_objects import Ref
from pstraining.core.snapshot import QueueObjects, Snapshot
from pstraining.kube.errors import NotFound, Refused, Transient
from pstraining.kube.port import ApiPort, Object

logger = logging.getLogger(__name__)

REREAD_SECONDS: Final = 10.0
"""Seconds after which an object is read again for a job that does not run yet."""


class QueueObjectReader:
    """Holds the flavors and priority classes that jobs need."""

    def __init__(self, port: ApiPort, clock: Callable[[], float] = time.monotonic) -> None:
        """Create a reader.

        Args:
            port: the API server.
            clock: monotonic seconds.
        """
        self._port = port
        self._clock = clock
        self._found: dict[Ref, tuple[float, Object | None]] = {}

    def objects(self) -> QueueObjects:
        """Return the objects that have been read."""
        return queue_objects.collected({ref: found for ref, (_, found) in self._found.items() if found is not None})

    async def read(self, snapshot: Snapshot) -> bool:
        """Read the objects that a job needs, if they are unknown or may have changed since they were read.

        Returns:
            Whether an object was read.

        Raises:
            Transient: the read failed and is worth a retry.
        """
        runs = bool(teardown.workloads(snapshot))
        due = [ref for ref in queue_objects.needed(snapshot) if self._is_due(ref, runs=runs)]
        for kind, name in due:
            self._found[kind, name] = self._clock(), await self._read(kind, name, runs=runs)
        return bool(due)

    def _is_due(self, ref: Ref, *, runs: bool) -> bool:
        if ref not in self._found:
            return True
        since, found = self._found[ref]
        return (found is None or not runs) and self._clock() >= since + REREAD_SECONDS

    async def _read(self, kind: Kind, name: str, *, runs: bool) -> Object | None:
        try:
            return await self._port.get(kind, *queue_objects.place((kind, name)))
        except NotFound:
            return None
        except (Refused, Transient) as error:
            # A running job is looked after meanwhile.
            if isinstance(error, Transient) and not (runs and error.of_webhook):
                raise
            logger.warning("%s %s cannot be read: %s", kind, name, error.message)
            return None
