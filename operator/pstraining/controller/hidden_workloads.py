"""Restores the labels of Workloads, without which the watch does not deliver them.

For the watch, an object that has lost these labels is deleted. A running job without its Workload would stop, as after
an eviction. A Workload that vanishes is therefore read once, before the next pass decides. It may also have lost them
while no operator ran. The Workloads of a running job without quota are therefore looked for by their controller. Other
objects get their labels back when the operator creates them again (kube/executor.py), and no pod stops meanwhile.
"""

from collections.abc import Awaitable, Callable, Mapping
from typing import Any

from pstraining.api import names
from pstraining.controller.watch_state import WatchState
from pstraining.core.actions import Kind
from pstraining.core.facts import recorded_end
from pstraining.core.observe import controller_uid
from pstraining.core.policies import admission, teardown
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
            return _lacks_quota(snapshot) and await self._search(snapshot)
        while vanished:  # others may vanish meanwhile
            name, uid = next(iter(vanished.items()))
            await self._look(snapshot, name, uid)
            if vanished.get(name) == uid:
                del vanished[name]
        self._watch_state.hidden_workloads.pop(key, None)
        return True

    async def _search(self, snapshot: Snapshot) -> bool:
        """Restore the labels of the job's Workloads that the watch has not delivered; return whether there are any."""
        try:
            found = await self._port.owned(Kind.WORKLOAD, snapshot.namespace, snapshot.uid)
        except (NotFound, Refused):
            return False
        sought = sorted(str(workload["metadata"]["name"]) for workload in found)
        unknown = [name for name in sought if snapshot.child(Kind.WORKLOAD, name) is None]
        return any([await self._look(snapshot, name) for name in unknown])

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


def _lacks_quota(snapshot: Snapshot) -> bool:
    """Whether a job in a queue runs, and the watch has delivered no Workload with quota of it."""
    labels = snapshot.job["metadata"].get("labels") or {}
    has_queue = snapshot.installation.kueue is KueueSupport.ON and labels.get(kueue.LABEL_QUEUE)
    if not has_queue or not teardown.workloads(snapshot):
        return False
    job, status = snapshot.typed_job, snapshot.typed_status
    if isinstance(job, str) or recorded_end(status):
        return False
    return not any(workload.has_quota for workload in admission.observed(job, snapshot, status).live)
