"""Routes a worker to the members of the active view: traced functions for each assignment, and the choice."""

import threading
import time
from collections.abc import Callable, Sequence
from typing import Final, Protocol, runtime_checkable

import tensorflow as tf

from pstraining.runtime.model.own_state import with_settings
from pstraining.runtime.model.tensor import Batch
from pstraining.runtime.ps.record import Assignment
from pstraining.runtime.ps.store import ParameterStore
from pstraining.runtime.replication.monitor import MemberMonitor
from pstraining.runtime.replication.transfer import chunks
from pstraining.runtime.telemetry.events import event
from pstraining.runtime.transport.client import ShardLostError
from pstraining.runtime.updates.base import Updates
from pstraining.runtime.worker.assignments import active_view, anticipated_failures

SETTLED_SECONDS: Final = 2.0
"""Seconds without a change after which a worker prepares for the next failure."""
AGAIN_SECONDS: Final = 5.0
"""Seconds until a failed preparation is retried."""
CLOSE_SECONDS: Final = 30.0
"""Maximum of seconds that a worker that ends waits for a function that is being prepared."""


class Router(Protocol):
    """Provides the store and the updates that a worker currently trains with."""

    @property
    def first(self) -> tuple[ParameterStore, Updates]:
        """Return the first store and updates."""

    @property
    def settled(self) -> bool:
        """Return whether every member of every shard is in sync, and no function is left to be prepared."""

    def find(self) -> tuple[ParameterStore, Updates] | None:
        """Return the current store and updates; None if there are none yet, and the caller retries later.

        Raises:
            ShardLostError: a server is lost.
        """

    def warm_up(self, sample: Callable[[], Sequence[Batch]]) -> None:
        """Trace and send the functions of the next step before it is due."""

    def close(self) -> None:
        """End the preparation of functions: a thread inside TensorFlow could crash a process that ends."""


@runtime_checkable
class Rebindable(Updates, Protocol):
    """A worker's side of updates that can be bound to any members of the shards."""

    def bind(self, store: ParameterStore) -> "Rebindable":
        """Return the same worker with other members; both share its state and its residuals."""

    def trace(self, batches: Sequence[Batch]) -> None:
        """Trace the functions of a usual step without running them; another thread may train meanwhile."""

    def dry_run(self, batches: Sequence[Batch]) -> None:
        """Run the functions without an effect; another thread may train meanwhile.

        Raises:
            ShardLostError: a server is lost.
        """


class StaticRouter:
    """Routes to the only member of each shard."""

    def __init__(self, store: ParameterStore, updates: Updates) -> None:
        self.first, self.settled = (store, updates), True
        self._warmed_up = False

    def find(self) -> tuple[ParameterStore, Updates] | None:
        """Return the same store and updates always."""
        return self.first

    def warm_up(self, sample: Callable[[], Sequence[Batch]]) -> None:
        """Prepare the updates at the first call."""
        if not self._warmed_up:
            self.first[1].warm_up(sample())
            self._warmed_up = True

    def close(self) -> None:
        """Do nothing: there is no thread."""


class FailoverRouter:
    """Routes to the members of the active view."""

    def __init__(self, store: ParameterStore, updates: Rebindable) -> None:
        self.first = store, updates
        self._store, self._updates, self._monitor = store, updates, MemberMonitor(store)
        self._bound: dict[Assignment, tuple[ParameterStore, Rebindable]] = {}
        self._lock = threading.Lock()
        self._ready: set[Assignment] = set()
        self._current: Assignment = ()
        self._has_learners = False
        """Whether the current assignment contains learners."""
        self._batches: Sequence[Batch] = ()
        self._prepared: tuple[Assignment, int] | None = None
        """The assignment and the connection with the functions for each anticipated failure."""
        self._changed = threading.Event()
        """Set when there may be functions to prepare."""
        self._closed = threading.Event()
        self._preparation: threading.Thread | None = None

    @property
    def batches(self) -> Sequence[Batch]:
        """Return the batches with which functions are prepared."""
        return self._batches

    def bound(self, store: ParameterStore) -> Rebindable:
        """Return the worker's updates with the servers of another layout."""
        return self._updates.bind(store)

    def prepare(self, batches: Sequence[Batch]) -> None:
        """Prepare the functions for all members, before the layout is in use.

        Raises:
            ShardLostError: a server is lost, or has no variables yet.
        """
        self._batches = batches
        self._monitor.poll_members()
        self._make_ready(tuple(tuple(range(self._store.servers.cluster.members)) for _ in self._store.shards))

    def reconnect(self) -> None:
        """Connect to processes of this layout that have replaced others; no worker trains there yet."""
        self._monitor.poll_members()
        if self._monitor.has_unconnected:
            self._store.client.reconnect_available()

    def stop(self) -> None:
        """Let the preparation for failures end soon: another layout is in use."""
        self._closed.set()
        self._changed.set()

    def close(self) -> None:
        """End the preparation for failures, and wait for the function that is being prepared."""
        self.stop()
        if self._preparation:
            self._preparation.join(CLOSE_SECONDS)

    @property
    def settled(self) -> bool:
        """Return whether the current assignment has all members in sync, and the next failure is prepared for."""
        is_whole = not self._has_learners and not self._is_member_missing()
        return is_whole and self._prepared == (self._current, self._store.client.connection)

    def find(self) -> tuple[ParameterStore, Updates] | None:
        """Return the store and the updates for the active view, if there is one."""
        observation = self._monitor.poll_members(probe_first=True)
        view = active_view(observation)
        if view is None:
            if self._monitor.has_unconnected:
                self._store.client.reconnect_available()
            return None
        self._current, self._has_learners = self._monitor.assignment(view), bool(view.learners)
        self._changed.set()
        return self._bind(self._current)

    def warm_up(self, sample: Callable[[], Sequence[Batch]]) -> None:
        """Prepare once for each assignment; a thread prepares for the assignments that may remain after a failure."""
        if self._current not in self._ready:
            self._batches = sample()
            self._bind(self._current)[1].warm_up(self._batches)
            self._ready.add(self._current)
        if self._preparation is None:
            run = with_settings(self._keep_ready, draws=True)  # it traces steps
            self._preparation = threading.Thread(target=run, name="pstraining-ahead", daemon=True)
            self._preparation.start()

    def _keep_ready(self) -> None:
        """Keep the functions for each anticipated assignment traced and known to the servers, while the process lives.

        TensorFlow sends a function's parts to the servers at the function's first run over each connection. Tracing and
        sending take seconds of processor time, and are deferred while a member is missing.
        """
        dry_run_on: dict[Assignment, int] = {}
        reported = ""
        while not self._closed.is_set():
            while self._changed.wait(SETTLED_SECONDS) and not self._closed.is_set():
                self._changed.clear()
            if self._closed.is_set():
                return
            connection, has_learners = self._store.client.connection, self._has_learners
            current = self._current
            try:
                anticipated = self._next(has_learners=has_learners)
                due = [f for f in anticipated if dry_run_on.get(f) != connection]
                incremental = not has_learners and chunks.is_incremental(self._store)
                back = [self._with_all(f) for f in anticipated] if incremental else []
                for assignment in [*due, *(f for f in back if f not in self._ready)]:
                    began = time.monotonic()
                    if assignment in due:
                        self._make_ready(assignment)
                        dry_run_on[assignment] = connection
                    else:  # servers forget it once this task connects to its learner
                        self._trace(assignment)
                    half = time.monotonic() - began  # the other half of the time is for training
                    if self._closed.is_set() or self._changed.wait(half):
                        break
                else:
                    self._prepared = current, connection
                    # Also after an interruption that has left nothing to prepare: it is reported after each of them.
                    if anticipated and not has_learners:
                        event("failover_ready", losses=len(anticipated))
                    self._changed.wait()
            except ShardLostError:
                # The training thread notices it as well, unless only this thread's call failed.
                self._changed.wait(AGAIN_SECONDS)
            except tf.errors.OpError as error:  # the training thread prepares the functions once they are needed
                if (reason := str(error).partition("\n")[0]) != reported:
                    reported = reason
                    event("failover_unprepared", reason=reason)
                self._changed.wait(AGAIN_SECONDS)

    def _next(self, *, has_learners: bool) -> list[Assignment]:
        """Return the assignments that may come next: after a failure, or once learners are in sync.

        There are none while a member is missing.
        """
        if self._is_member_missing():
            return []
        if has_learners:
            return [tuple(tuple(sorted(own)) for own in self._current)]
        return anticipated_failures(self._current, self._monitor.nodes())

    def _is_member_missing(self) -> bool:
        return any(len(own) < self._store.servers.cluster.members for own in self._current)

    def _with_all(self, assignment: Assignment) -> Assignment:
        """Return the assignment with all other members as learners, behind those in sync."""
        members = range(self._store.servers.cluster.members)
        return tuple((*own, *(member for member in members if member not in own)) for own in assignment)

    def _trace(self, assignment: Assignment) -> tuple[ParameterStore, Rebindable]:
        store, updates = self._bind(assignment)
        updates.trace(self._batches)
        self._ready.add(assignment)
        return store, updates

    def _make_ready(self, assignment: Assignment) -> None:
        store, updates = self._trace(assignment)
        updates.dry_run(self._batches)
        store.read()

    def _bind(self, assignment: Assignment) -> tuple[ParameterStore, Rebindable]:
        with self._lock:
            if assignment not in self._bound:
                store = self._store.for_assignment(assignment)
                self._bound[assignment] = store, self._updates.bind(store)
            return self._bound[assignment]
