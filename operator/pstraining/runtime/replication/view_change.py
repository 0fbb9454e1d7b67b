"""The chief's view changes: it polls, takes the action of `replication.view`, and repeats until a view is active."""

import math
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from typing import Final, NoReturn, TypeVar

import tensorflow as tf

from pstraining.runtime.checkpoint.state import SupersededError
from pstraining.runtime.ps import member
from pstraining.runtime.ps.record import Assignment
from pstraining.runtime.ps.store import ParameterStore
from pstraining.runtime.replication import encoding, view_decisions
from pstraining.runtime.replication import view as views
from pstraining.runtime.replication.active_view import ActiveView
from pstraining.runtime.replication.member_calls import MemberCalls
from pstraining.runtime.replication.monitor import MemberMonitor
from pstraining.runtime.replication.transfer import chunks
from pstraining.runtime.replication.transfer.state_transfer import StateTransfer
from pstraining.runtime.replication.view import (
    Accept,
    Activate,
    Ballot,
    Founded,
    FoundLayout,
    LayoutOverError,
    LayoutPostponedError,
    Prepare,
    Process,
    ProcessStatus,
    RestoreCheckpoint,
    TransferState,
    View,
    Wait,
)
from pstraining.runtime.telemetry.counters import ChiefCounters
from pstraining.runtime.telemetry.events import event
from pstraining.runtime.transport.client import ShardLostError

POLL: Final = 0.02
"""Seconds between polls while the chief waits."""
FIRST_SECONDS: Final = 60.0
"""Seconds that the first view waits for members that have not started."""
REPORT_SECONDS: Final = 10.0


Reached = TypeVar("Reached", Activate, FoundLayout)


class ViewChanger:
    """Establishes views as this chief.

    Args:
        store: the store of all members.
        term: the chief's term; None for the next one, because worker 0 of a job without a chief has no term.
        epoch: the highest epoch that a former run of this process has used in its term.
        restore: restores the newest checkpoint on some members under a fence, and keeps them inactive.
        saved_step: returns the step of the newest checkpoint; -1 without one.
        check_abort: called repeatedly; may raise to end a view change.
        counters: counts lost members.
    """

    def __init__(
        self,
        store: ParameterStore,
        *,
        term: int | None,
        epoch: int = 0,
        restore: Callable[[Assignment, int], None],
        saved_step: Callable[[], int] = lambda: -1,
        check_abort: Callable[[], None] = lambda: None,
        counters: ChiefCounters | None = None,
    ) -> None:
        self._store, self._client, self._monitor = store, store.client, MemberMonitor(store)
        self._restore, self._saved_step, self._check_abort = restore, saved_step, check_abort
        self._lockstep = store.updates.follow is not None
        """Whether members apply the same steps in the same order: an undecided step is void under another view."""
        self._state_transfer = StateTransfer(self._monitor) if chunks.is_incremental(store) else None
        self._own = Ballot(term or views.NO_BALLOT.term, epoch)
        # The last view of a former process is unknown; each new view gets a new ballot.
        self._proposed: View | None = View(self._own, ()) if epoch else None
        self._voteless: frozenset[Process] = frozenset()
        self._calls = MemberCalls(self._monitor)
        self._began, self._reported = time.monotonic(), 0.0
        self._active = ActiveView(store, self._calls, counters or ChiefCounters())

    @property
    def fence(self) -> int:
        """Return the fence of the highest ballot that this chief has used."""
        return encoding.number(self._own)

    @property
    def is_quiet(self) -> bool:
        """Return whether all members were in sync for QUIET_SECONDS, none drains, and every reachable process votes."""
        return not self._voteless and self._active.is_quiet

    def establish(self, *, readmit: bool = False) -> View:
        """Return the view once it is active and its members' leases are renewed.

        Args:
            readmit: whether to readmit members without state. A small state is copied between two steps; for a large
                one, members are learners first. If False, such members remain missing.

        Raises:
            SupersededError: a chief of a later term leads.
            LayoutOverError: a quorum has accepted that the layout is over.
        """
        is_active, probe_first = False, not readmit
        while not is_active:
            reached, statuses = self._reach(Activate, readmit=readmit, probe_first=probe_first)
            try:
                is_active, probe_first = self._activate(reached.view, reached.to, statuses), False
            except ShardLostError:
                probe_first = True
        if self._state_transfer:
            self._state_transfer.on_new_view(reached.view)
        self._active.note(reached.view, statuses)
        return reached.view

    def freeze(self, until: float) -> View:
        """Stop training for the next layout, and return a view of the members that have the newest state.

        They apply no steps until `establish`.

        Args:
            until: latest time, in seconds on the monotonic clock.

        Raises:
            LayoutPostponedError: that was not possible in time.
            LayoutOverError: the layout is over already.
        """
        return self._reach(FoundLayout, founded=views.NOT_FOUNDED, until=until)[0].view

    def claim(self, ballot: Ballot) -> Ballot:
        """Let all members promise one ballot, before this layout is founded under a higher one.

        Args:
            ballot: the lowest one.

        Returns:
            The ballot; higher if an earlier attempt to found the layout has used higher ones.

        Raises:
            SupersededError: a chief of a later term leads.
        """
        statuses, _ = self._polled(readmit=False, probe_first=False)
        self._own = max([ballot, *(status.promised for status in statuses.values())])
        if self._own.term > ballot.term:
            raise SupersededError(f"this chief's term is over: term {self._own.term} leads the job")
        for process, status in statuses.items():
            if status.promised < self._own:
                self._calls.prepare(process, self._own)
        return self._own

    def found(self, under: Ballot, until: float) -> Ballot:
        """Found this layout, which has no view yet; return its ballot once a quorum has accepted its first view.

        No step is applied under it before `establish`.

        Args:
            under: the ballot of the current layout under which its members apply no steps.
            until: latest time, in seconds on the monotonic clock.

        Raises:
            LayoutPostponedError: that was not possible in time.
        """
        self.follow(under)
        self._own = max(self._own, Ballot(under.term, under.epoch - 1))
        return self._reach(Activate, until=until)[0].view.ballot

    def follow(self, founded: Ballot) -> None:
        """Ignore what attempts to found this layout have left under lower ballots."""
        self._monitor.founded = founded

    def close(self, founded: Founded) -> NoReturn:
        """Let a quorum accept that this layout is over.

        Raises:
            LayoutOverError: a quorum has accepted it.
            LayoutPostponedError: the ballot under which the state was copied is over, so the layout continues.
        """
        self._reach(FoundLayout, founded=founded)
        raise LayoutPostponedError("another view was needed after the state had been copied")

    def skip_epochs(self, epoch: int) -> None:
        """Use no ballot of this term up to an epoch: the attempt to found a layout has used them."""
        self._own = max(self._own, Ballot(self._own.term, epoch))

    def _reach(
        self,
        kind: type[Reached],
        *,
        readmit: bool = False,
        probe_first: bool = True,
        founded: Founded | None = None,
        until: float = math.inf,
    ) -> tuple[Reached, dict[Process, ProcessStatus]]:
        """Poll and act until the next action is of this kind; return it, and the statuses of all processes.

        Raises:
            LayoutOverError, LayoutPostponedError, SupersededError: see `freeze`.
        """
        while True:
            self._check_abort()
            if time.monotonic() > until:
                raise LayoutPostponedError("the members did not reply in time")
            statuses, observation = self._polled(readmit=readmit, probe_first=probe_first)
            probe_first = False
            promotable, joining = self._returning(statuses) if readmit else ([], [])
            action = view_decisions.next_action(
                self._own,
                self._monitor.voters,
                observation,
                promotable=promotable,
                joining=joining,
                voteless_before=self._voteless,
                wait_for_absent=time.monotonic() < self._began + FIRST_SECONDS,
                lockstep=self._lockstep,
                proposed=self._proposed,
                founded=founded,
            )
            if isinstance(action, Accept) and action.uncertain is not None:
                action = view_decisions.restored_instead(action, self._monitor.voters, self._saved_step())
            self._voteless = frozenset(process for process, status in statuses.items() if not status.is_voter)
            try:
                if self._comes_after_decided_step(action) and self._finish_decided_step(statuses):
                    continue
                if isinstance(action, kind):
                    return action, statuses
                self._act(action)
            except ShardLostError:
                probe_first = True

    def _polled(self, *, readmit: bool, probe_first: bool) -> tuple[dict[Process, ProcessStatus], views.Observation]:
        """Poll all voters, after a connection to processes that this task has none to."""
        observation = self._monitor.poll(probe_first=probe_first)
        if self._monitor.has_unconnected:
            self._client.reconnect_available()
            if readmit:  # training continues meanwhile
                deque(self.warm_up(), maxlen=0)
            observation = self._monitor.poll()
        statuses = {Process(task, a.incarnation): a for task, a in observation.items() if isinstance(a, ProcessStatus)}
        self._active.draining.update(process for process, status in statuses.items() if status.draining)
        if self._own.term == views.NO_BALLOT.term and statuses:
            self._own = Ballot(1 + max(status.promised.term for status in statuses.values()), 0)
        return statuses, observation

    def transfer(self, seconds: float) -> bool:
        """Send chunks of the state to learners for `seconds`; return whether any learner lacks chunks.

        Raises:
            ShardLostError: a server is lost.
        """
        return self._state_transfer is not None and self._state_transfer.run(seconds)

    def warm_up(self) -> Iterator[None]:
        """Trace the functions that a failover needs, one member at a time.

        The functions have no effect: no process has the incarnation in their arguments.
        """
        empty, session = View(Ballot(0, 0), ((),)), tf.constant([-1, -1], tf.int64)
        self._monitor.poll_members()
        yield
        for task in self._monitor.voters.members:
            absent = Process(task, -1)
            with suppress(ShardLostError):  # the function is traced at its first use
                self._calls.prepare(absent, empty.ballot)
                self._calls.accept(absent, empty)
                self._calls.activate(absent, empty.ballot, 0.0)
                self._calls.restored(absent, empty.ballot)
                if self._lockstep:
                    self._calls.start_rounds(absent, session, 0)
                    for standby in (False, True):
                        self._calls.follow(absent, session, -1, standby=standby)
                if self._state_transfer:
                    yield from self._state_transfer.warm_up(task)
            yield

    def assignment(self, view: View) -> Assignment:
        """Return the members of each shard in a view."""
        return self._monitor.assignment(view)

    def _returning(self, statuses: dict[Process, ProcessStatus]) -> tuple[list[Process], list[Process]]:
        """Return the members that may be in sync under the next view, and the members that may be its learners."""
        members = [process for process in statuses if process.task not in self._monitor.witnesses]
        return self._state_transfer.classify(members, statuses) if self._state_transfer else (members, [])

    def _comes_after_decided_step(self, action: views.Action) -> bool:
        return self._lockstep and isinstance(action, Accept | TransferState | FoundLayout)

    def _act(self, action: views.Action) -> None:
        """Perform one action."""
        match action:
            case Prepare(ballot, to):
                self._own = ballot
                for process in to:
                    self._calls.prepare(process, ballot)
            case Accept(view, to, founding, uncertain):
                if uncertain is not None:  # before any process has the view, or another chief might not report it
                    event("steps_may_be_lost", term=view.ballot.term, epoch=view.ballot.epoch, step=uncertain)
                self._proposed = view
                for process in to:
                    self._calls.accept(process, view, founding=founding)
            case views.AdmitVoter(view, to):
                for process in to:
                    self._calls.admit(process, view)
            case TransferState():
                self._transfer(action)
            case RestoreCheckpoint(ballot, to, _):
                self._restore_on(to, ballot)
            case views.ChangeLayout(view):
                raise LayoutOverError(view.successor)
            case views.Superseded(term):
                raise SupersededError(f"this chief's term is over: term {term} leads the job")
            case Wait(reason):
                self._wait(reason)

    def _activate(self, view: View, to: Sequence[Process], statuses: dict[Process, ProcessStatus]) -> bool:
        fence = encoding.number(view.ballot)
        inactive = [process for process in to if not statuses[process].active]
        if not self._begin_transfers(view, [process for process in view.learners if process in inactive]):
            return False  # a learner that has not begun is at another step, and must not become active
        session = tf.constant([fence, -statuses[view.shards[0][0]].generation.term], tf.int64)
        for process in inactive if self._lockstep else ():
            self._calls.start_rounds(process, session, fence << encoding.ATTEMPT_BITS)
        done = [self._calls.activate(process, view.ballot, member.LEASE_SECONDS) for process in to]
        if inactive:
            learners = [process.task for process in view.learners]
            listed = {"members": view.tasks} | ({"learners": learners} if learners else {})
            event("view", term=view.ballot.term, epoch=view.ballot.epoch, **listed)
        return all(done)

    def _begin_transfers(self, view: View, learners: Sequence[Process]) -> bool:
        """Start learners at their shards' step; no step is applied before they have started."""
        if self._state_transfer is None:
            return not learners
        for process in learners:
            self._active.write_sync_marker(process, "")
            source = view.shards[self._monitor.shard(process)][0]
            if not self._state_transfer.begin(source, process, encoding.number(view.ballot)):
                return False
        return True

    def _finish_decided_step(self, statuses: dict[Process, ProcessStatus]) -> bool:
        """Let members apply the step that others have applied; return whether any member was behind.

        A member applies a step only when every member in sync of every shard can apply it.
        """
        former = max((a.view for a in statuses.values() if a.view), key=lambda view: view.ballot, default=None)
        if former is None:
            return False
        states = {
            process: (status.generation, status.step)
            for process, status in statuses.items()
            if process in former.members and status.step is not None
        }
        newest = max((states[process] for process in former.in_sync if process in states), default=None)
        if newest is None:
            return False
        generation, step = newest
        behind = [process for process, state in states.items() if state == (generation, step - 1)]
        session = tf.constant([self.fence, -generation.term], tf.int64)
        primaries = [shard[0] for shard in former.shards]
        followed = [self._calls.follow(p, session, step - 1, standby=p not in primaries) for p in behind]
        return any(followed)

    def _transfer(self, action: TransferState) -> None:
        for source, target in action.pairs:
            self._transfer_one(source, target, action)

    def _transfer_one(self, source: Process, target: Process, action: TransferState) -> None:
        """Transfer the small state, if the target has learned under the former view; else the whole state."""
        self._active.write_sync_marker(target, "")  # it may have been in sync before it was suspected
        began, fence = time.monotonic(), encoding.number(action.ballot)
        if self._state_transfer and self._state_transfer.finish(source, target, fence, action.former):
            _report_transfer("complete", source, target, began)
            return
        self._calls.transfer(source, target, action.ballot)
        _report_transfer("whole", source, target, began)

    def _restore_on(self, to: Sequence[Process], ballot: Ballot) -> None:
        tasks = {process.task for process in to}
        shards = (tuple(m for m, task in enumerate(own) if task in tasks) for own in self._monitor.voters.shards)
        self._restore(tuple(shards), encoding.number(ballot))
        for process in to:
            self._calls.restored(process, ballot)

    def _wait(self, reason: str) -> None:
        if time.monotonic() - self._reported > REPORT_SECONDS:
            self._reported = time.monotonic()
            event("waiting", what="parameter servers", reason=reason)
        time.sleep(POLL)


def _report_transfer(phase: str, source: Process, target: Process, began: float) -> None:
    seconds = round(time.monotonic() - began, 3)
    event("state_transfer", phase=phase, source=source.task, target=target.task, seconds=seconds)
