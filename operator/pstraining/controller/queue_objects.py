"""Reads Kueue's objects that jobs refer to: ResourceFlavors, priority classes and the default queues of namespaces.

They are few, rarely change and concern a job only when it is created or admitted. They are therefore read then, and not
watched. All jobs share the objects that were read.
"""

import logging
import time
from collections.abc import Callable, Mapping
from typing import Any, Final

from pstraining.core.actions import Kind
from pstraining.core.facts import recorded_end
from pstraining.core.policies import admission, teardown
from pstraining.core.snapshot import QueueObjects, Snapshot
from pstraining.kube.errors import NotFound, Refused, Transient
from pstraining.kube.port import ApiPort, Object
from pstraining.resources import kueue
from pstraining.resources.installation import KueueSupport

logger = logging.getLogger(__name__)

_CLASSES: Final = (Kind.WORKLOAD_PRIORITY_CLASS, Kind.PRIORITY_CLASS)
REREAD_SECONDS: Final = 10.0
"""Seconds after which an object is read again for a job that does not run yet."""
_Ref = tuple[Kind, str]
"""A kind and a name; for a default queue, its namespace."""


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
        self._found: dict[_Ref, tuple[float, Object | None]] = {}

    def objects(self) -> QueueObjects:
        """Return the objects that have been read."""
        present = {ref: found for ref, (_, found) in self._found.items() if found is not None}
        return QueueObjects(
            {name: found for (kind, name), found in present.items() if kind is Kind.RESOURCE_FLAVOR},
            {ref: _value(found) for ref, found in present.items() if ref[0] in _CLASSES},
            frozenset(name for kind, name in present if kind is Kind.LOCAL_QUEUE),
        )

    async def read(self, snapshot: Snapshot) -> bool:
        """Read the objects that a job needs, if they are unknown or may have changed since they were read.

        Returns:
            Whether an object was read.

        Raises:
            Transient: the read failed and is worth a retry.
        """
        runs = bool(teardown.workloads(snapshot))
        due = [ref for ref in _needed(snapshot) if self._is_due(ref, runs=runs)]
        for kind, name in due:
            self._found[kind, name] = self._clock(), await self._read(kind, name, runs=runs)
        return bool(due)

    def _is_due(self, ref: _Ref, *, runs: bool) -> bool:
        if ref not in self._found:
            return True
        since, found = self._found[ref]
        return (found is None or not runs) and self._clock() >= since + REREAD_SECONDS

    async def _read(self, kind: Kind, name: str, *, runs: bool) -> Object | None:
        place = (name, kueue.DEFAULT_QUEUE) if kind is Kind.LOCAL_QUEUE else ("", name)
        try:
            return await self._port.get(kind, *place)
        except NotFound:
            return None
        except (Refused, Transient) as error:
            # A running job is looked after meanwhile.
            if isinstance(error, Transient) and not (runs and error.of_webhook):
                raise
            logger.warning("%s %s cannot be read: %s", kind, name, error.message)
            return None


def _needed(snapshot: Snapshot) -> list[_Ref]:
    """Return the objects on which the next decision about a job depends."""
    labels = snapshot.job["metadata"].get("labels") or {}
    if snapshot.installation.kueue is not KueueSupport.ON:
        return []
    job = snapshot.typed_job
    if isinstance(job, str):
        return []
    if not labels.get(kueue.LABEL_QUEUE):
        is_held = job.spec.run_policy.suspend or recorded_end(snapshot.typed_status) is not None
        may_start = not (is_held or teardown.workloads(snapshot))
        return [(Kind.LOCAL_QUEUE, snapshot.namespace)] if may_start else []
    state = admission.observed(job, snapshot, snapshot.typed_status)
    # The class is needed for each Workload that may be created, and a running job may get another slice.
    classes = [] if state.priority_class is None else [state.priority_class]
    flavors = frozenset() if state.granted is None or not state.granted.has_quota else state.granted.flavors
    return [*classes, *((Kind.RESOURCE_FLAVOR, name) for name in sorted(flavors))]


def _value(found: Mapping[str, Any]) -> int:
    value = found.get("value", 0)
    return value if isinstance(value, int) else 0
