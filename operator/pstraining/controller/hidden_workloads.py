"""Restores the labels of Workloads, without which the watch does not deliver them.

For the watch, an object that has lost these labels is deleted. A running job without its Workload would stop, as after
an eviction. A Workload that vanishes is therefore read once, before the next pass decides. It may also have lost them
while no operator ran: the first Workload of a running job without any is read by its name. (The name of a slice is not
known. Such a job stops, and its Workload gets the labels back when it is created again.) Other objects get their labels
back when the operator creates them again (kube/executor.py), and no pod stops meanwhile.
"""

from collections.abc import Awaitable, Callable, Mapping
from typing import Any

from pstraining.api import names
from pstraining.controller.watch_state import WatchState
from pstraining.core.actions import Kind
from pstraining.core.facts import recorded_end
from pstraining.core.observe import controller_uid
from pstraining.core.policies import teardown
from pstraining.core.snapshot import Snapshot
from pstraining.kube.errors import NotFound, Refused
from pstraining.kube.port import ApiPort
from pstraining.resources import kueue
from pstraining.resources.installation import KueueSupport

Restore = Callable[[Kind, str, dict[str, Any], Mapping[str, str]], Awaitable[dict[str, Any]]]
"""Restores labels of an object, as `Executor.with_labels` does."""


class HiddenWorkloads:
    """Looks for the Workloads that have vanished."""

    def __init__(self, port: ApiPort, watch_state: WatchState, restore: Restore) -> None:
        """Create a reader.

        Args:
            port: the API server.
            watch_state: knows the Workloads that have vanished; its cache receives those that exist.
            restore: restores labels.
        """
        self._port = port
        self._watch_state = watch_state
        self._restore = restore

    async def read(self, snapshot: Snapshot) -> bool:
        """Restore the labels of a job's Workloads that exist.

        Returns:
            Whether the cache may have changed.

        Raises:
            Conflict: a Workload has changed since it was read.
            Transient: a request failed and is worth a retry.
        """
        key = snapshot.namespace, snapshot.name
        vanished = self._watch_state.hidden_workloads.get(key)
        if vanished is None:
            name = _sought(snapshot)
            return name is not None and await self._look(snapshot, name)
        while vanished:  # others may vanish meanwhile
            name, uid = next(iter(vanished.items()))
            await self._look(snapshot, name, uid)
            if vanished.get(name) == uid:
                del vanished[name]
        self._watch_state.hidden_workloads.pop(key, None)
        return True

    async def _look(self, snapshot: Snapshot, name: str, uid: str | None = None) -> bool:
        """Restore the labels of a Workload, if it exists and is the job's; return whether it is now cached."""
        labels = {names.LABEL_JOB: snapshot.name, names.LABEL_JOB_UID: snapshot.uid}
        try:
            found = await self._port.get(Kind.WORKLOAD, snapshot.namespace, name)
            if uid not in (None, found["metadata"]["uid"]) or controller_uid(found) != snapshot.uid:
                return False
            written = await self._restore(Kind.WORKLOAD, snapshot.namespace, found, labels)
        except (NotFound, Refused):
            return False  # it is deleted, or may not be changed
        self._watch_state.cache.wrote(snapshot.namespace, snapshot.name, written)
        return True


def _sought(snapshot: Snapshot) -> str | None:
    """Return the name of the Workload by which a job runs, if the watch has delivered none of its Workloads."""
    labels = snapshot.job["metadata"].get("labels") or {}
    has_queue = snapshot.installation.kueue is KueueSupport.ON and labels.get(kueue.LABEL_QUEUE)
    if not has_queue or snapshot.of_kind(Kind.WORKLOAD) or not teardown.workloads(snapshot):
        return None
    job = snapshot.typed_job
    return None if isinstance(job, str) or recorded_end(snapshot.typed_status) else kueue.workload_name(job)
