"""Finds out why a running job has no Workload: it has lost its labels, or Kueue is being uninstalled.

For the watch, an object that has lost these labels is deleted. A running job without its Workload would stop, as after
an eviction. A Workload that vanishes is therefore read once, before the next pass decides. It may also have lost them
while no operator ran. The Workloads of a running job without quota are therefore looked for by their controller. Other
objects get their labels back when the operator creates them again (kube/executor.py), and no pod stops meanwhile.

The API server deletes all Workloads when Kueue's CRD is deleted. This is no eviction: their jobs run on as without
Kueue (policies/admission.py).
"""

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import replace
from typing import Any, Final

from pstraining.api import names
from pstraining.controller.informer_cache import Key
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

logger = logging.getLogger(__name__)

SETTLE_SECONDS: Final = 1.0
"""Seconds after which every API server knows that a CRD is being deleted, and not only the one that deletes it."""
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
        """Restore the labels of a job's Workloads that exist, and note it if Kueue is being uninstalled.

        Returns:
            Whether the cache may have changed.

        Raises:
            Conflict: a Workload has changed since it was read.
            Transient: a request failed and is worth a retry.
        """
        key = snapshot.namespace, snapshot.name
        vanished = self._watch_state.hidden_workloads.get(key)
        has_vanished = vanished is not None
        while vanished:  # others may vanish meanwhile
            name, uid = next(iter(vanished.items()))
            await self._look(snapshot, name, uid)
            if vanished.get(name) == uid:
                del vanished[name]
        self._watch_state.hidden_workloads.pop(key, None)
        if not self._lacks_quota(key):
            return has_vanished
        await self._search(snapshot)
        if self._lacks_quota(key):
            await self._ask_for_kueue()
        return True

    async def _search(self, snapshot: Snapshot) -> None:
        """Restore the labels of the job's Workloads that the watch has not delivered."""
        try:
            found = await self._port.owned(Kind.WORKLOAD, snapshot.namespace, snapshot.uid)
        except (NotFound, Refused):
            return
        for name in sorted(str(workload["metadata"]["name"]) for workload in found):
            if snapshot.child(Kind.WORKLOAD, name) is None:
                await self._look(snapshot, name)

    async def _look(self, snapshot: Snapshot, name: str, uid: str | None = None) -> None:
        """Restore the labels of a Workload, if it exists and is the job's."""
        labels = {names.LABEL_JOB: snapshot.name, names.LABEL_JOB_UID: snapshot.uid}
        try:
            found = await self._port.get(Kind.WORKLOAD, snapshot.namespace, name)
            if uid not in (None, found["metadata"]["uid"]) or controller_uid(found) != snapshot.uid:
                return
            written = await self._restore(Kind.WORKLOAD, snapshot.namespace, found, labels)
        except (NotFound, Refused):
            return  # it is deleted, or may not be changed
        self._watch_state.cache.wrote(snapshot.namespace, snapshot.name, written)

    async def _ask_for_kueue(self) -> None:
        """Note it if Kueue is being uninstalled. main.py restarts the operator once Kueue is installed again."""
        await asyncio.sleep(SETTLE_SECONDS)
        with contextlib.suppress(Refused):
            if not await self._port.queues_are_served():
                logger.warning("The API server does not serve Kueue's Workloads any more: running jobs run on")
                found = self._watch_state.installation
                self._watch_state.installation = replace(found, kueue=KueueSupport.MISSING)

    def _lacks_quota(self, key: Key) -> bool:
        return self._watch_state.cache.has_job(key) and _lacks_quota(self._watch_state.snapshot(key))


def _lacks_quota(snapshot: Snapshot) -> bool:
    """Whether a job in a queue runs and does not stop yet, and the watch has delivered no Workload with quota of it."""
    labels = snapshot.job["metadata"].get("labels") or {}
    has_queue = snapshot.installation.kueue is KueueSupport.ON and labels.get(kueue.LABEL_QUEUE)
    if not has_queue or not teardown.workloads(snapshot) or admission.is_stopping(snapshot):
        return False
    job, status = snapshot.typed_job, snapshot.typed_status
    if isinstance(job, str) or recorded_end(status):
        return False
    return not any(workload.has_quota for workload in admission.observed(job, snapshot, status).live)
