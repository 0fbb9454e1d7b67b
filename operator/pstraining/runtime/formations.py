"""A worker's choice of members: its functions for each formation, and which one is in force."""

from collections.abc import Callable, Sequence
from typing import Any, Protocol

from pstraining.runtime.lookout import Lookout
from pstraining.runtime.modes.base import Updates
from pstraining.runtime.modes.sync import SyncUpdates
from pstraining.runtime.store import Formation, ParameterStore


class Whereabouts(Protocol):
    """Where a worker finds the parameters."""

    @property
    def first(self) -> tuple[ParameterStore, Updates]:
        """Where it looks at first."""

    def find(self) -> tuple[ParameterStore, Updates] | None:
        """The servers to work with now, and this worker's functions on them; None: ask again a little later.

        Raises:
            ShardLostError: a server is gone.
        """

    def prepare(self, sample: Callable[[], Sequence[Any]]) -> None:
        """Make the next step as quick as the others, before anybody waits for it."""


class OneFormation:
    """Every shard is on one server."""

    def __init__(self, store: ParameterStore, updates: Updates) -> None:
        self.first = store, updates
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

    def __init__(self, store: ParameterStore, updates: SyncUpdates) -> None:
        self.first = store, updates
        self._store, self._updates, self._lookout = store, updates, Lookout(store)
        self._made: dict[Formation, tuple[ParameterStore, Updates]] = {}
        self._prepared: set[Formation] = set()
        self._current: Formation = ()

    def find(self) -> tuple[ParameterStore, Updates] | None:
        """Those of the roster that is in force."""
        view = self._lookout.look()
        roster = self._lookout.in_force(view)
        if roster is None:
            if self._lookout.strangers:
                self._store.client.reach()
            return None
        self._current = self._lookout.formation(roster)
        return self._on(self._current)

    def prepare(self, sample: Callable[[], Sequence[Any]]) -> None:
        """Once for each formation; at first also for those that are left when any one member is lost.

        A worker does it before it takes part: a model's own variables change while its functions are tried, and a
        take-over then costs no tracing.
        """
        wanted = [self._current] if self._prepared else [self._current, *one_less(self._current)]
        for formation in wanted:
            if formation not in self._prepared:
                self._on(formation)[1].prepare(sample())
                self._prepared.add(formation)

    def _on(self, formation: Formation) -> tuple[ParameterStore, Updates]:
        if formation not in self._made:
            store = self._store.formed(formation)
            self._made[formation] = store, self._updates.on(store)
        return self._made[formation]


def one_less(formation: Formation) -> list[Formation]:
    """What is left when any one member is lost, of a shard that has others."""
    return [
        tuple(tuple(m for m in own if (number, m) != (shard, lost)) for number, own in enumerate(formation))
        for shard, members in enumerate(formation)
        if len(members) > 1
        for lost in members
    ]


def whereabouts(store: ParameterStore, updates: Updates) -> Whereabouts:
    """Where a worker of this job finds the parameters."""
    if isinstance(updates, SyncUpdates) and store.updates.paired:
        return Formations(store, updates)
    return OneFormation(store, updates)
