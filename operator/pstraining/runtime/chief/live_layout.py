"""The chief leads training to another layout of the servers between two steps, without a restart.

The servers of the next layout are connected, and have all variables, before training stops. The workers prepare their
functions meanwhile, and register with the next layout once they are ready. Training then stops for the time of one copy
of the state: see `replication.view_decisions` for the decisions, and decision 0023 for the protocol.
"""

import math
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Final, NoReturn

import tensorflow as tf

from pstraining.api import contract
from pstraining.runtime.chief.layout_transfer import LayoutTransfer
from pstraining.runtime.chief.shutdown import StoppedError
from pstraining.runtime.chief.store_admin import StoreAdmin
from pstraining.runtime.config import cluster as clusters
from pstraining.runtime.config.cluster import Cluster
from pstraining.runtime.ps import carried_state
from pstraining.runtime.ps.record import Assignment
from pstraining.runtime.ps.saving.parts import ShardParts
from pstraining.runtime.ps.store import ParameterStore
from pstraining.runtime.replication import encoding
from pstraining.runtime.replication.view import Ballot, Founded, LayoutOverError, LayoutPostponedError
from pstraining.runtime.replication.view_change import ViewChanger
from pstraining.runtime.telemetry.events import event
from pstraining.runtime.transport import http2_probe
from pstraining.runtime.transport.client import PSClient, ShardLostError
from pstraining.runtime.transport.layout_servers import LayoutServers

LOOK_SECONDS: Final = 1.0
"""Seconds until the cluster file is read again if it does not list a layout that is in use."""
READY_SECONDS: Final = 120.0
"""Seconds for which the chief waits for workers to prepare their functions; a worker that has not, does it later."""
FREEZE_SECONDS: Final = 10.0
"""Seconds in which the next layout must have the state; otherwise training continues in the current layout."""
RETRY_SECONDS: Final = 30.0
"""Seconds until an attempt that failed is repeated."""
MOST_ATTEMPTS: Final = 3
"""Number of attempts that may be postponed before the programs restart from a checkpoint."""
MOST_LOSSES: Final = 10
"""The same number of attempts that lost a server: with a server that is lost again and again, none may succeed."""
MOST_BYTES: Final = 512 << 20
"""Maximum size of the state that passes through the chief's memory while no step is applied: all but large tables."""


def _too_large(size: int) -> str:
    if size <= MOST_BYTES:
        return ""
    return f"the state without its large tables has {size >> 20} MiB, more than {MOST_BYTES >> 20}"


def _bytes_without_tables(store: ParameterStore) -> int:
    shards = map(ShardParts, store.shards)
    return sum(part.bytes for own in shards for number, part in enumerate(own.parts) if number not in own.table_parts)


@dataclass(frozen=True)
class _Next:
    """The next layout during its preparation."""

    servers: LayoutServers
    store: ParameterStore
    admin: StoreAdmin
    changer: ViewChanger
    since: float
    transfer: LayoutTransfer | None = None
    """None once the layout is in use."""

    def admin_of(self, assignment: Assignment) -> StoreAdmin:
        """Return the administration of some members."""
        if all(len(own) == self.servers.cluster.members for own in assignment):
            return self.admin
        return StoreAdmin(self.store.for_assignment(assignment))


class LayoutChanger:
    """Prepares the next layout beside training, and leads training to it.

    Args:
        client: the connection to the servers.
        store: the store of the current layout, with all members.
        make: returns the view changer for a store, from its restore function.
        restore: restores the newest checkpoint, as a view changer's restore function.
        hold: renews the current view; called between the steps of the preparation.
    """

    def __init__(
        self,
        client: PSClient,
        store: ParameterStore,
        *,
        make: Callable[[ParameterStore, Callable[[Assignment, int], None]], ViewChanger],
        restore: Callable[[Assignment, int], None],
        hold: Callable[[], None],
    ) -> None:
        self._client, self._store, self._make, self._hold = client, store, make, hold
        self._restore_checkpoint = restore
        self._never = self._why_not = _too_large(_bytes_without_tables(store))
        self._not_before, self._reported = -math.inf, ""
        self._postponed = self._lost = 0
        self._counted = (0, 0)
        """Layout and shards to which the failed attempts belong."""
        self._wanted: Cluster | None = None
        self._next: _Next | None = None
        self.moved = 0
        """Bytes of tables that have moved from server to server during the last attempt."""

    @property
    def is_wanted(self) -> bool:
        """Return whether another layout is wanted that training can be led to without a restart."""
        self._wanted = clusters.next_layout(self._client.cluster)
        if self._wanted and self._counted != (wanted := (self._wanted.layout, self._wanted.shards)):
            self._counted, self._why_not, self._not_before = wanted, self._never, -math.inf
            self._postponed = self._lost = 0
        if self._wanted and self._why_not:
            self._report(f"the programs restart from a checkpoint, because {self._why_not}")
        return self._wanted is not None and not self._why_not

    def is_ready(self, former: ViewChanger, admin: StoreAdmin, fence: int) -> bool:
        """Prepare the next layout if it is wanted; return whether training can be led to it now.

        Args:
            former: the view changer of the current layout.
            admin: the administration of the current members.
            fence: the current fence.

        Raises:
            ShardLostError: a server is lost.
            FencedError: a chief of a later term leads.
        """
        if not self.is_wanted or self._wanted is None:
            self._drop()
            return False
        if time.monotonic() < self._not_before:
            return False
        if self._next is None or self._next.servers.cluster != self._wanted:
            self._next, self._not_before = None, time.monotonic() + RETRY_SECONDS
            try:
                self._prepare(self._wanted, former, admin, fence)
            except ShardLostError as error:
                self._give_up(error)
                raise
            self._not_before = -math.inf
        following = self._next
        if following is None or following.transfer is None:
            return False
        try:
            is_near = following.transfer.advance(admin, fence)
        except LayoutPostponedError as error:
            self._give_up(error)
            return False
        except Exception as error:
            self._give_up(error)
            raise
        return is_near and self._are_workers_ready(admin, following)

    def lead(
        self,
        former: ViewChanger,
        form: Callable[[Assignment], StoreAdmin],
        admin: StoreAdmin,
        fence: int,
        check_stop: Callable[[], None] = lambda: None,
    ) -> NoReturn:
        """Stop training, found the next layout with the state, and end the current one.

        Args:
            former: the view changer of the current layout.
            admin: the administration of the current members.
            fence: the current fence.
            form: returns the administration of some members of the current layout.
            check_stop: called while workers complete their updates; raises StoppedError to give the change up.

        Raises:
            LayoutOverError: the next layout has the state, and `enter` leads it.
            LayoutPostponedError: training continues in the current layout.
            ShardLostError: a server is lost; training continues in the current layout.
            StoppedError: the chief ends, and saves the state of the current layout.
        """
        following = self._next
        if following is None or following.transfer is None:
            raise LayoutPostponedError("the next layout is not prepared")
        # The ballot under which training stops must be higher than any that the next layout knows.
        former.skip_epochs(1 + encoding.ballot(following.changer.fence).epoch)

        def between() -> None:
            check_stop()
            self._hold()

        try:
            following.transfer.complete_updates(admin, fence, between)
            until = time.monotonic() + FREEZE_SECONDS
            source = form(former.assignment(former.freeze(until)))
            under = encoding.ballot(former.fence)
            following.transfer.copy(source, former.fence)
            founded = following.changer.found(under, until)
            self.moved = following.transfer.moved
            former.close(Founded(under, founded))
        except LayoutOverError:
            raise
        except StoppedError:
            self._drop()
            raise
        except Exception as error:
            self._give_up(error)
            former.skip_epochs(1 + encoding.ballot(following.changer.fence).epoch)
            raise

    def enter(self, founded: Ballot) -> tuple[ParameterStore, ViewChanger]:
        """Return the store of the next layout, which is founded, and its view changer; use its servers.

        Raises:
            ShardLostError: the servers of the next layout are not known yet.
        """
        if self._next is None:
            wanted = clusters.later_layout(self._client.cluster)
            if wanted is None:
                time.sleep(LOOK_SECONDS)
                raise ShardLostError("the cluster file does not list the next layout yet", self._client.connection)
            self._next = self._connect(wanted)
        self._next.changer.follow(founded)
        self._next = replace(self._next, transfer=None)
        self._client.use(self._next.servers)
        return self._next.store, self._next.changer

    def delete_former(self) -> None:
        """Delete the state of the former layout on the servers that stay.

        Raises:
            ShardLostError: a server is lost.
        """
        own, shards = self._store.servers, range(self._store.layout.ps)
        numbers = dict(zip(own.devices, own.numbers, strict=True))
        members = [self._store.member(shard, m) for shard in shards for m in range(own.cluster.members)]
        there = [member for member in members if numbers[member.device] in self._client.connected]
        delete = tf.function(lambda: [self._client.to_local(carried_state.delete(m)) for m in there], autograph=False)
        self._client.call(delete)

    def _prepare(self, wanted: Cluster, former: ViewChanger, admin: StoreAdmin, fence: int) -> None:
        """Connect to the servers of the next layout, and prepare the transfer of the state."""
        if missing := http2_probe.unresponsive(wanted.ps):
            self._report(f"waiting for {', '.join(missing)}")
            return
        if too_large := _too_large(_bytes_without_tables(self._store) + admin.copies.bytes_by_key()):
            self._why_not = too_large
            return
        found, file = self._connect(wanted), f"{contract.RUN_DIR}/{contract.LAYOUT_FILE}"
        if wanted.in_pod and not (admin.have_file(file) and found.admin.have_file(file)):
            self._why_not = "a launcher of a former version would restart its server"
            return
        self._hold()
        before = encoding.number(found.changer.claim(encoding.ballot(fence - 1)))
        self._hold()
        transfer = LayoutTransfer(admin, found.admin, before)
        transfer.prepare(fence, self._hold)
        # The servers know no function over the new connection, and training would stand still while they receive it.
        for changer in (found.changer, former):
            for _ in changer.warm_up():
                self._hold()
        self._next = replace(found, transfer=transfer)
        seconds = round(time.monotonic() - found.since, 3)
        event("layout_prepared", layout=wanted.layout, shards=wanted.shards, seconds=seconds)

    def _connect(self, wanted: Cluster) -> _Next:
        since, servers = time.monotonic(), self._client.connect_to(wanted)
        store = self._store.on(servers, encoding.size(wanted.shards, wanted.members))
        return _Next(servers, store, StoreAdmin(store), self._make(store, self._restore), since)

    def _restore(self, assignment: Assignment, fence: int) -> None:
        """Give the state to members of the next layout, which have promised, and keep them inactive."""
        if self._next is None or self._next.transfer is None:  # the next layout is in use
            self._restore_checkpoint(assignment, fence)
        else:
            self._next.transfer.write(self._next.admin_of(assignment), fence)

    def _give_up(self, error: Exception) -> None:
        """Let training continue in the current layout; another attempt follows, or a restart from a checkpoint."""
        self._drop()
        self._not_before = time.monotonic() + RETRY_SECONDS
        self._report(f"training continues with the current servers: {error}")
        self._postponed += isinstance(error, LayoutPostponedError)
        self._lost += isinstance(error, ShardLostError)
        if self._postponed == MOST_ATTEMPTS or self._lost == MOST_LOSSES:
            number = self._postponed + self._lost
            self._why_not = f"{number} attempts without a restart have failed; the last one: {error}"

    def _drop(self) -> None:
        """End the preparation of the next layout."""
        if self._next and self._next.transfer:
            self._next.transfer.end()
        self._next = None

    def _are_workers_ready(self, admin: StoreAdmin, following: _Next) -> bool:
        """Return whether all workers that train have registered with the next layout, or have had the time for it."""
        if time.monotonic() - following.since > READY_SECONDS:
            return True
        here, there = admin.registered(), following.admin.registered()
        return all(here[worker] == there[worker] for worker in admin.workers_present())

    def _report(self, reason: str) -> None:
        if reason != self._reported:
            self._reported = reason
            event("layout_waits", reason=reason)
