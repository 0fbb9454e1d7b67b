"""Routes a worker to the layout in use, and prepares the next one beside training."""

import threading
from collections.abc import Callable, Sequence
from typing import Final

import tensorflow as tf

from pstraining.runtime.config import cluster as clusters
from pstraining.runtime.config.cluster import Cluster
from pstraining.runtime.model.own_state import with_settings
from pstraining.runtime.model.tensor import Batch
from pstraining.runtime.ps.store import ParameterStore
from pstraining.runtime.replication import encoding
from pstraining.runtime.telemetry.events import event
from pstraining.runtime.transport import http2_probe
from pstraining.runtime.transport.client import ShardLostError
from pstraining.runtime.updates.base import Identity, Updates
from pstraining.runtime.worker.router import (
    AGAIN_SECONDS,
    CLOSE_SECONDS,
    FailoverRouter,
    Rebindable,
    Router,
    StaticRouter,
)

LOOK_SECONDS: Final = 1.0
"""Seconds between two reads of the cluster file."""


class LayoutRouter:
    """Routes to the members of the active view in the layout in use.

    Args:
        current: the router of the layout that this process has started with.
        identity: this worker.
        later_layout: returns the next layout, or the one in use if the current one is over; None if it stays.
    """

    def __init__(
        self, current: FailoverRouter, identity: Identity, later_layout: Callable[[Cluster], Cluster | None]
    ) -> None:
        self._current, self._identity, self._later_layout = current, identity, later_layout
        self._following: FailoverRouter | None = None
        self._lock = threading.Lock()
        self._watching: threading.Thread | None = None
        self._closed = threading.Event()

    @property
    def first(self) -> tuple[ParameterStore, Updates]:
        """Return the first store and updates of the layout in use."""
        return self._current.first

    @property
    def settled(self) -> bool:
        """Return whether the current assignment has all members in sync, and the next failure is prepared for."""
        return self._current.settled

    def find(self) -> tuple[ParameterStore, Updates] | None:
        """Return the store and the updates for the active view, if there is one, of the next layout as well."""
        if found := self._current.find():
            return found
        with self._lock:
            following = self._following or self._connect()
            if following is None or (found := following.find()) is None:
                return None
            self._current.stop()
            self._current, self._following = following, None
            store = following.first[0]
            store.client.use(store.servers)
            clusters.note_layout(store.servers.cluster)
        event("layout_followed", worker=self._identity.worker, layout=store.servers.cluster.layout)
        return found

    def warm_up(self, sample: Callable[[], Sequence[Batch]]) -> None:
        """Prepare as `FailoverRouter` does; a thread prepares for the next layout."""
        self._current.warm_up(sample)
        if self._watching is None:
            run = with_settings(self._watch, draws=True)  # it traces steps
            self._watching = threading.Thread(target=run, name="pstraining-next-layout", daemon=True)
            self._watching.start()

    def close(self) -> None:
        """End the preparation for failures and for the next layout, and wait for the function that is prepared."""
        self._closed.set()
        self._current.close()
        if self._watching:
            self._watching.join(CLOSE_SECONDS)

    def _watch(self) -> None:
        """Prepare the functions for the next layout once it is listed, while the process lives."""
        prepared_on: tuple[FailoverRouter, int] | None = None
        while not self._closed.wait(LOOK_SECONDS):
            try:
                with self._lock:
                    following = self._following or self._connect()
                if following is None:
                    continue
                store = following.first[0]
                connection = store.client.connection
                # The chief notes the layout once every variable has a value.
                if any(record.layout != store.fingerprint for record in store.read()):
                    continue
                if prepared_on != (following, connection):
                    following.prepare(self._current.batches)
                    prepared_on = following, connection
                # Again and again: servers forget it if the chief prepares them for another attempt.
                store.register(self._identity.worker, self._identity.incarnation)
            except ShardLostError:  # the training thread notices it as well, if it is a server of the current layout
                if following := self._following:
                    following.reconnect()
            except tf.errors.OpError as error:  # the training thread prepares the functions once they are needed
                event("layout_unprepared", worker=self._identity.worker, reason=str(error).partition("\n")[0])
                self._closed.wait(AGAIN_SECONDS)

    def _connect(self) -> FailoverRouter | None:
        """Return the router of the next layout, connected to its servers; None if there is none yet."""
        store = self._current.first[0]
        wanted = self._later_layout(store.servers.cluster)
        if wanted is None or http2_probe.unresponsive(wanted.ps):
            return None
        following = store.on(store.client.connect_to(wanted), encoding.size(wanted.shards, wanted.members))
        self._following = FailoverRouter(following, self._current.bound(following))
        return self._following


def make_router(store: ParameterStore, updates: Updates, identity: Identity) -> Router:
    """Return the router for a worker of this job."""
    if not (store.updates.paired and isinstance(updates, Rebindable)):
        return StaticRouter(store, updates)
    return LayoutRouter(FailoverRouter(store, updates), identity, clusters.later_layout)
