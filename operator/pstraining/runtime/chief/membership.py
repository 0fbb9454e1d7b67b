"""The members that a chief leads: those of the view in a job with hot standbys, and the layout that they belong to."""

import math
import time
from collections.abc import Callable, Iterator
from typing import Final

from pstraining.api import contract
from pstraining.runtime.chief.errors import FencedError
from pstraining.runtime.chief.live_layout import LayoutChanger
from pstraining.runtime.chief.store_admin import StoreAdmin
from pstraining.runtime.config import cluster as clusters
from pstraining.runtime.ps.record import Assignment
from pstraining.runtime.ps.store import ParameterStore
from pstraining.runtime.replication import encoding
from pstraining.runtime.replication.view import LayoutOverError, LayoutPostponedError
from pstraining.runtime.replication.view_change import ViewChanger
from pstraining.runtime.telemetry.counters import ChiefCounters
from pstraining.runtime.telemetry.events import event
from pstraining.runtime.transport.client import PSClient

RENEW_SECONDS: Final = 1.0
"""Seconds between the chief's polls of all members of all shards."""


class Membership:
    """The members, and the chief's authority over them.

    Args:
        client: the connection to the servers.
        store: the job's store, with all members.
        restore: restores the newest checkpoint on some members under a fence, and keeps them inactive.
        on_layout: called when another layout is in use.
        check_abort: called in every loop; may raise to end it.
        counters: counts lost members.
        epoch: see `ViewChanger`.
    """

    def __init__(
        self,
        client: PSClient,
        store: ParameterStore,
        *,
        restore: Callable[[Assignment, int], None],
        on_layout: Callable[[], None] = lambda: None,
        check_abort: Callable[[], None],
        counters: ChiefCounters,
        epoch: int = 0,
    ) -> None:
        self._client, self._restore, self._on_layout = client, restore, on_layout
        self._check_abort, self._counters = check_abort, counters
        self.whole, self.admin = store, StoreAdmin(store)
        """The store of all members, and the administration of those in use."""
        self.saved_step: Callable[[], int] = lambda: -1
        """Returns the step of the newest checkpoint; -1 without one."""
        self.term = self.fence = client.cluster.term
        self.joins = client.cluster.task.type == "worker"
        """Whether this task is worker 0 of a job without a chief, and has not taken a term yet."""
        self._admins: dict[tuple[Assignment, tuple[int, ...]], StoreAdmin] = {}
        """By the members in use, and the number of learners of each shard."""
        self._renewed = -math.inf
        self._former: LayoutChanger | None = None
        """Of the former layout, until the layout in use is known to all launchers, and the former state is deleted."""
        self._warming_up: Iterator[None] = iter(())
        self.view_changer: ViewChanger | None = None
        """None in a job without hot standbys."""
        if client.cluster.members > 1:
            term = None if self.joins else self.term  # worker 0 takes the next one
            self.view_changer = self._changer_of(store, restore, term, epoch)
            self._warming_up = self.view_changer.warm_up()
        self._layouts = self._layouts_of(store)

    @property
    def is_layout_wanted(self) -> bool:
        """Return whether training is to be led to another layout without a restart."""
        return self._layouts is not None and self._layouts.is_wanted

    @property
    def is_due(self) -> bool:
        """Return whether the view is to be renewed now."""
        return self.view_changer is not None and time.monotonic() - self._renewed > RENEW_SECONDS

    def is_own(self, fence: int) -> bool:
        """Return whether a fence is the number of a ballot of this chief's term, in a job with hot standbys."""
        return self.view_changer is not None and encoding.ballot(fence).term == self.term

    def warm_up_next(self) -> None:
        """Trace the next function that a failover needs."""
        next(self._warming_up, None)

    def establish(self, *, readmit: bool = False) -> None:
        """Establish or renew the view, and use its members; `readmit`: see `ViewChanger.establish`.

        Training that another chief has led to the next layout continues there.
        """
        if (changer := self.view_changer) is None:
            return
        try:
            view = changer.establish(readmit=readmit)
        except LayoutOverError as over:
            self._enter(over)
            self.establish(readmit=readmit)
            return
        self.term, self._renewed = view.ballot.term, time.monotonic()
        self.fence = encoding.number(view.ballot)  # of its members, though an attempt may have used higher ballots
        used = changer.assignment(view)
        self.form(used, tuple(len(own) - len(in_sync) for own, in_sync in zip(used, view.shards, strict=True)))
        if self._former is not None:
            self._settle(self._former)
            self._former = None

    def hold(self) -> None:
        """Renew the view while waiting: without its leases no step is applied, and no ring can form.

        Raises:
            FencedError: other members are in sync.
        """
        if self.is_due:
            admin = self.admin
            self.establish()
            if self.admin is not admin:
                raise FencedError("other members are in sync")

    def form(self, assignment: Assignment, learners: tuple[int, ...] = ()) -> StoreAdmin:
        """Use these members of the shards; functions are traced once for each assignment.

        Args:
            assignment: the members, learners behind those in sync.
            learners: the number of learners of each shard; empty: there are none.
        """
        key = assignment, learners or (0,) * len(assignment)
        if key not in self._admins:
            self._admins[key] = StoreAdmin(self.whole.for_assignment(assignment), key[1])
        self.admin = self._admins[key]
        return self.admin

    def restore_on(self, assignment: Assignment, fence: int) -> None:
        """Use these members under this fence, before a restore."""
        self.form(assignment)
        self.fence = fence

    def follow_layout(self, check_stop: Callable[[], None]) -> None:
        """Prepare the next layout if it is wanted, and lead training to it once it is ready.

        Args:
            check_stop: raises StoppedError once the chief is to end; called while training waits for workers.
        """
        layouts, former = self._layouts, self.view_changer
        if layouts is None or former is None or not layouts.is_ready(former, self.admin, self.fence):
            return
        began = time.monotonic()
        try:
            layouts.lead(former, self.form, self.admin, self.fence, check_stop)
        except LayoutPostponedError:
            self.establish()
            return
        except LayoutOverError as over:
            self._enter(over)
        self.establish()
        cluster, seconds = self._client.cluster, round(self._renewed - began, 3)
        led = {"layout": cluster.layout, "shards": cluster.shards, "term": self.term}
        event("layout", **led, seconds=seconds, moved=layouts.moved)

    def _enter(self, over: LayoutOverError) -> None:
        """Lead the next layout from now on."""
        if self._layouts is None:
            raise over
        self.whole, self.view_changer = self._layouts.enter(over.founded)
        self._former = self._layouts
        self._admins.clear()
        self._layouts, self._warming_up = self._layouts_of(self.whole), self.view_changer.warm_up()
        self._on_layout()

    def _settle(self, former: LayoutChanger) -> None:
        """Let the launchers know the layout in use, and delete the state of the former one.

        Raises:
            ShardLostError: a server is lost; the next call of `establish` repeats it.
        """
        if (cluster := self._client.cluster).in_pod:
            self.admin.mark(f"{contract.RUN_DIR}/{contract.LAYOUT_FILE}", contents=str(cluster.layout))
            clusters.note_layout(cluster)
        former.delete_former()

    def _layouts_of(self, store: ParameterStore) -> LayoutChanger | None:
        if self.view_changer is None:
            return None
        return LayoutChanger(
            self._client,
            store,
            make=lambda store, restore: self._changer_of(store, restore, self.term),
            restore=self._restore,
            hold=self.hold,
        )

    def _changer_of(
        self, store: ParameterStore, restore: Callable[[Assignment, int], None], term: int | None, epoch: int = 0
    ) -> ViewChanger:
        return ViewChanger(
            store,
            term=term,
            epoch=epoch,
            restore=restore,
            saved_step=lambda: self.saved_step(),  # noqa: PLW0108 - the chief sets it later
            check_abort=self._check_abort,
            counters=self._counters,
        )
