"""A worker's choice of members: its functions for each formation, and which one is in force."""

import threading
import time
from collections.abc import Callable, Sequence
from typing import Any, Final, Protocol, runtime_checkable

from pstraining.runtime.ps.record import Assignment
from pstraining.runtime.ps.store import ParameterStore
from pstraining.runtime.replication import chunks
from pstraining.runtime.replication.monitor import Lookout
from pstraining.runtime.replication.view import in_force, likely_losses
from pstraining.runtime.telemetry.events import event
from pstraining.runtime.transport.client import ShardLostError
from pstraining.runtime.updates.base import Updates

SETTLED_SECONDS: Final = 2.0
"""How long nothing may have changed before something is made ready for the next loss."""
AGAIN_SECONDS: Final = 5.0
"""Until what could not be made ready is tried again."""


class Whereabouts(Protocol):
    """Where a worker finds the parameters."""

    @property
    def first(self) -> tuple[ParameterStore, Updates]:
        """Where it looks at first."""

    @property
    def whole(self) -> bool:
        """Whether no member of any shard is missing, or yet to be in sync."""

    def find(self) -> tuple[ParameterStore, Updates] | None:
        """The servers to work with now, and this worker's functions on them; None: ask again a little later.

        Raises:
            ShardLostError: a server is gone.
        """

    def prepare(self, sample: Callable[[], Sequence[Any]]) -> None:
        """Make the next step as quick as the others, before anybody waits for it."""


@runtime_checkable
class Movable(Updates, Protocol):
    """A worker's side of updates that can go to any members of the shards."""

    def on(self, store: ParameterStore) -> "Movable":
        """The same worker with other members; what it remembers, and owes the servers, is shared."""

    def trace(self, batches: Sequence[Any]) -> None:
        """Make the functions of a usual step, and run none of them: another thread may train meanwhile."""

    def rehearse(self, batches: Sequence[Any]) -> None:
        """Run them, without an effect: another thread may train meanwhile.

        Raises:
            ShardLostError: a server is gone.
        """


class OneFormation:
    """Every shard is on one server."""

    def __init__(self, store: ParameterStore, updates: Updates) -> None:
        self.first, self.whole = (store, updates), True
        self._prepared = False

    def find(self) -> tuple[ParameterStore, Updates] | None:
        """Always the same."""
        return self.first

    def prepare(self, sample: Callable[[], Sequence[Any]]) -> None:
        """Once."""
        if not self._prepared:
            self.first[1].prepare(sample())
            self._prepared = True


class Formations:
    """Shards have several members, and a roster says which of them are in sync."""

    def __init__(self, store: ParameterStore, updates: Movable) -> None:
        self.first = store, updates
        self._store, self._updates, self._lookout = store, updates, Lookout(store)
        self._made: dict[Assignment, tuple[ParameterStore, Movable]] = {}
        self._lock = threading.Lock()
        self._ready: set[Assignment] = set()
        self._current: Assignment = ()
        self._learns = False
        """Whether somebody in it is not in sync yet."""
        self._batches: Sequence[Any] = ()
        self._changed = threading.Event()
        """Set when there may be something to make ready."""

    @property
    def whole(self) -> bool:
        """Whether the one in force is of all members, and nobody learns."""
        return not self._learns and not self._is_someone_missing()

    def find(self) -> tuple[ParameterStore, Updates] | None:
        """Those of the roster that is in force."""
        view = self._lookout.look_at_members(suspicious=True)
        roster = in_force(view)
        if roster is None:
            if self._lookout.strangers:
                self._store.client.reach()
            return None
        self._current, self._learns = self._lookout.formation(roster), bool(roster.learners)
        self._changed.set()
        return self._on(self._current)

    def prepare(self, sample: Callable[[], Sequence[Any]]) -> None:
        """Once for each formation; beside training, those that may be left after the next loss."""
        if self._current in self._ready:
            return
        is_first, self._batches = not self._ready, sample()
        self._on(self._current)[1].prepare(self._batches)
        self._ready.add(self._current)
        if is_first:
            threading.Thread(target=self._keep_ready, name="pstraining-ahead", daemon=True).start()

    def _keep_ready(self) -> None:
        """As long as the process lives: whatever comes next, have it traced and known to the servers.

        TensorFlow sends a function's parts to the servers when it is first run, and forgets that with every new
        connection; both take seconds of processor time, which are not taken while somebody is missing.
        """
        rehearsed: dict[Assignment, int] = {}
        while True:
            while self._changed.wait(SETTLED_SECONDS):
                self._changed.clear()
            connection, learns = self._store.client.connection, self._learns
            try:
                due = [f for f in self._next() if rehearsed.get(f) != connection]
                back = [] if learns or not chunks.is_incremental(self._store) else [self._with_all(f) for f in due]
                for formation in [*due, *(f for f in back if f not in self._ready)]:
                    began = time.monotonic()
                    if formation in due:
                        self._make_ready(formation)
                        rehearsed[formation] = connection
                    else:  # servers know it no more once its learner is connected to
                        self._trace(formation)
                    if self._changed.wait(time.monotonic() - began):  # half of the time is training's alone
                        break
                else:
                    if due and not learns:
                        event("prepared", losses=len(due))
                    self._changed.wait()
            except ShardLostError:
                # The training thread finds it, too, and then what is left; unless it was this thread's call alone.
                self._changed.wait(AGAIN_SECONDS)

    def _next(self) -> list[Assignment]:
        """What may come next: what a loss leaves; or that those who learn are in sync; nothing while somebody is
        missing."""
        if self._is_someone_missing():
            return []
        if self._learns:
            return [tuple(tuple(sorted(own)) for own in self._current)]
        return likely_losses(self._current, self._lookout.nodes())

    def _is_someone_missing(self) -> bool:
        return any(len(own) < self._store.client.cluster.members for own in self._current)

    def _with_all(self, formation: Assignment) -> Assignment:
        """With the others as learners, who stand behind those in sync."""
        members = range(self._store.client.cluster.members)
        return tuple((*own, *(member for member in members if member not in own)) for own in formation)

    def _trace(self, formation: Assignment) -> tuple[ParameterStore, Movable]:
        store, updates = self._on(formation)
        updates.trace(self._batches)
        self._ready.add(formation)
        return store, updates

    def _make_ready(self, formation: Assignment) -> None:
        store, updates = self._trace(formation)
        updates.rehearse(self._batches)
        store.read()

    def _on(self, formation: Assignment) -> tuple[ParameterStore, Movable]:
        with self._lock:
            if formation not in self._made:
                store = self._store.formed(formation)
                self._made[formation] = store, self._updates.on(store)
            return self._made[formation]


def whereabouts(store: ParameterStore, updates: Updates) -> Whereabouts:
    """Where a worker of this job finds the parameters."""
    if store.updates.paired and isinstance(updates, Movable):
        return Formations(store, updates)
    return OneFormation(store, updates)
