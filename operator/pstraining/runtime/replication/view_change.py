"""The chief's view changes: it polls, takes the action of `replication.view`, and repeats until a view is active."""

import time
from collections import deque
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import suppress
from typing import Any, Final

import tensorflow as tf

from pstraining.runtime.checkpoint.state import SupersededError
from pstraining.runtime.ps.record import Assignment
from pstraining.runtime.ps.store import ParameterStore, int64
from pstraining.runtime.replication import chunks, encoding, witness
from pstraining.runtime.replication import view as views
from pstraining.runtime.replication.acceptor_ops import LEASE_SECONDS
from pstraining.runtime.replication.monitor import PROBE_TIMEOUT_SECONDS, MemberMonitor
from pstraining.runtime.replication.state_transfer import StateTransfer
from pstraining.runtime.replication.view import (
    Accept,
    Activate,
    Ballot,
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
QUIET_SECONDS: Final = 1.0
"""Seconds without a view change after which all workers have connected to returned members, and train.

They have yet to prepare for the next failure; they report when they have.
"""


class ViewChanger:
    """Establishes views as this chief.

    Args:
        store: of all members.
        term: the chief's; None: the next one, as worker 0 of a job without a chief has no term of its own.
        epoch: the highest that it has used in its term, if its process was renewed.
        restore: restores the newest checkpoint on some members, under a fence, and leaves them inactive.
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
        check_abort: Callable[[], None] = lambda: None,
        counters: ChiefCounters | None = None,
    ) -> None:
        self._counters = counters or ChiefCounters()
        self._store, self._client, self._monitor = store, store.client, MemberMonitor(store)
        self._restore, self._check_abort = restore, check_abort
        self._lockstep = store.updates.follow is not None
        """Whether members apply the same steps in the same order: an undecided step is void under another view."""
        self._state_transfer = StateTransfer(self._monitor) if chunks.is_incremental(store) else None
        self._own = None if term is None else Ballot(term, epoch)
        self._voteless: frozenset[Process] = frozenset()
        self._functions: dict[tuple[str, int], Any] = {}
        self._began = time.monotonic()
        self._former: View | None = None
        self._changed = time.monotonic()  # when another view became active
        self._draining: set[Process] = set()
        self._markers_written = False
        self._reported = 0.0

    @property
    def fence(self) -> int:
        """Return the fence of the highest ballot that this chief has used."""
        assert self._own is not None  # noqa: S101 - it has polled
        return encoding.number(self._own)

    @property
    def is_quiet(self) -> bool:
        """Return whether all members have been in sync for a moment, none is draining, and all that answer vote."""
        members = self._client.cluster.members
        whole = self._former is not None and all(len(own) == members for own in self._former.shards)
        is_settled = not self._draining and not self._voteless
        return whole and is_settled and time.monotonic() - self._changed > QUIET_SECONDS

    def establish(self, *, readmit: bool = False) -> View:
        """Return the view once it is active, its members' leases renewed.

        Args:
            readmit: whether to readmit members without state. Little state is copied between two steps; with much state
                they are learners first. Without it, a member is missing.

        Raises:
            SupersededError: a chief of a later term leads.
        """
        probe_first = not readmit
        while True:
            self._check_abort()
            observation = self._monitor.poll(probe_first=probe_first)
            probe_first = False
            if self._monitor.has_unconnected:
                self._client.reconnect_available()
                if readmit:  # training continues meanwhile
                    deque(self.warm_up(), maxlen=0)
                observation = self._monitor.poll()
            statuses = {
                Process(task, a.incarnation): a for task, a in observation.items() if isinstance(a, ProcessStatus)
            }
            self._draining.update(process for process, status in statuses.items() if status.draining)
            if self._own is None:
                self._own = Ballot(1 + max(status.promised.term for status in statuses.values()), 0)
            promotable, joining = self._returning(statuses) if readmit else ([], [])
            wait_for_absent = time.monotonic() < self._began + FIRST_SECONDS
            action = views.next_action(
                self._own,
                self._monitor.voters,
                observation,
                promotable=promotable,
                joining=joining,
                voteless_before=self._voteless,
                wait_for_absent=wait_for_absent,
                lockstep=self._lockstep,
            )
            self._voteless = frozenset(process for process, status in statuses.items() if not status.is_voter)
            try:
                if self._act(action, statuses):
                    assert isinstance(action, Activate)  # noqa: S101 - no other action ends a view change
                    self._on_new_view(action.view, statuses)
                    return action.view
            except ShardLostError:
                probe_first = True

    def transfer(self, seconds: float) -> bool:
        """Send chunks of the state to learners for `seconds`; return whether there are learners that lack any.

        Raises:
            ShardLostError: a server is lost.
        """
        return self._state_transfer is not None and self._state_transfer.run(seconds)

    def warm_up(self) -> Iterator[None]:
        """Trace the functions that a failover needs, one member at a time.

        They run without an effect: no process has the incarnation that they name.
        """
        empty, session = View(Ballot(0, 0), ((),)), tf.constant([-1, -1], tf.int64)
        for task in self._monitor.voters.members:
            absent = Process(task, -1)
            with suppress(ShardLostError):  # then it is traced when it is needed
                self._send("on_prepare", absent, empty.ballot)
                self._send("on_accept", absent, empty.ballot, empty)
                self._call("on_activate", absent, int64(0), tf.zeros([], tf.float64))
                if self._lockstep:
                    self._rounds("start", absent, session, int64(0))
                    for what in ("follow", "follow as a standby"):
                        self._rounds(what, absent, session, int64(-1))
                if self._state_transfer:
                    yield from self._state_transfer.warm_up(task)
            yield

    def assignment(self, view: View) -> Assignment:
        """Return the members of each shard in a view."""
        return self._monitor.assignment(view)

    def _returning(self, statuses: dict[Process, ProcessStatus]) -> tuple[list[Process], list[Process]]:
        """Return the members that may be in sync under the next view, and those that may be its learners."""
        members = [process for process in statuses if process.task not in self._monitor.witnesses]
        return self._state_transfer.classify(members, statuses) if self._state_transfer else (members, [])

    def _act(self, action: views.Action, statuses: dict[Process, ProcessStatus]) -> bool:
        """Take one action; return whether the view is active now."""
        match action:
            case Prepare(ballot, to):
                self._own = ballot
                for process in to:
                    self._send("on_prepare", process, ballot)
            case Accept() | TransferState() if self._lockstep and self._finish_decided_step(statuses):
                pass
            case Accept(view, to, founding):
                for process in to:
                    self._send("on_accept", process, view.ballot, view, founding=founding)
            case views.AdmitVoter(view, to):
                for process in to:
                    self._send("on_admit", process, view.ballot, view)
            case TransferState():
                self._transfer(action)
            case RestoreCheckpoint(ballot, to, _):
                self._restore_on(to, encoding.number(ballot))
            case Activate(view, to):
                return self._activate(view, to, statuses)
            case views.Superseded(term):
                raise SupersededError(f"this chief's term is over: {term} rules")
            case Wait(reason):
                self._wait(reason)
        return False

    def _activate(self, view: View, to: Sequence[Process], statuses: dict[Process, ProcessStatus]) -> bool:
        fence = encoding.number(view.ballot)
        was_active = all(statuses[process].active for process in to)
        if not all(
            self._begin_transfer(process, view, fence) for process in view.learners if not statuses[process].active
        ):
            return False  # a learner that has not begun is at another step, and must not become active
        session = tf.constant([fence, -statuses[view.shards[0][0]].generation.term], tf.int64)
        for process in to if self._lockstep else ():
            if not statuses[process].active:
                self._rounds("start", process, session, int64(fence << encoding.ATTEMPT_BITS))
        done = self._each("on_activate", to, (int64(fence), tf.constant(LEASE_SECONDS, tf.float64)))
        if not was_active:
            learners = [process.task for process in view.learners]
            listed = {"members": _listed(view)} | ({"learners": learners} if learners else {})
            event("view", term=view.ballot.term, epoch=view.ballot.epoch, **listed)
        return done

    def _begin_transfer(self, process: Process, view: View, fence: int) -> bool:
        """Start a learner at its shard's step; no step is applied before it has started."""
        assert self._state_transfer is not None  # noqa: S101 - there are learners
        self._write_sync_marker(process, "")
        return self._state_transfer.begin(view.shards[self._monitor.shard(process)][0], process, fence)

    def _finish_decided_step(self, statuses: dict[Process, ProcessStatus]) -> bool:
        """Let members apply the step that others have applied; return whether any was behind.

        A member applies a step only when every member in sync of every shard can apply it.
        """
        former = max((a.view for a in statuses.values() if a.view), key=lambda view: view.ballot, default=None)
        if former is None:
            return False
        states = {p: (statuses[p].generation, statuses[p].step) for p in former.members if p in statuses}
        in_sync = [states[p] for shard in former.shards for p in shard if p in states and states[p][1] is not None]
        newest = max(in_sync, default=None)
        if newest is None:
            return False
        generation, step = newest
        assert step is not None  # noqa: S101 - filtered above
        behind = [p for p, state in states.items() if state == (generation, step - 1)]
        session = tf.constant([self.fence, -generation.term], tf.int64)
        made = 0
        primaries = [shard[0] for shard in former.shards]
        for process in behind:
            what = "follow" if process in primaries else "follow as a standby"
            made += int(self._rounds(what, process, session, int64(step - 1)))
        return made > 0

    def _on_new_view(self, view: View, statuses: Collection[Process]) -> None:
        """Account for an active view, and write the markers that launchers read.

        The markers of a member in sync say so, and that the runtime owns the state. A drained member's are emptied once
        the view can do without it.
        """
        former, self._former = self._former, view
        if self._state_transfer:
            self._state_transfer.on_new_view(view)
        if view != former:
            self._changed = time.monotonic()
            members = self._client.cluster.members
            whole = all(len(own) == members for own in view.shards)
            left = views.switched_over(former, view, self._draining)
            self._draining &= view.in_sync
            lost = former is not None and not former.in_sync <= view.in_sync.union(left)
            self._counters.on_new_view(lost=lost, whole=whole)
            self._markers_written = False
            for process in left:
                event("switchover", server=process.task)
                if process in statuses:
                    with suppress(ShardLostError):  # it ends when its launcher has read that, maybe unanswered
                        self._write_sync_marker(process, "")
        if not self._markers_written:
            for process in sorted(view.in_sync):
                self._write_sync_marker(process, f"{view.ballot.term}.{view.ballot.epoch}")
            self._markers_written = True

    def _write_sync_marker(self, process: Process, text: str) -> None:
        if not self._client.cluster.in_pod:
            return
        try:
            self._call("write_marker", process, tf.constant(text))
        except tf.errors.OpError as error:  # then a drain of its node does not wait for it, and a new chief restores
            event("not_marked", server=process.task, reason=str(error).partition("\n")[0])

    def _transfer(self, action: TransferState) -> None:
        for source, target in action.pairs:
            self._transfer_one(source, target, encoding.number(action.ballot), action.former)

    def _transfer_one(self, source: Process, target: Process, fence: int, former: Ballot) -> None:
        """Transfer the small state, if the target has learned under the former view; else the whole state."""
        self._write_sync_marker(target, "")  # it may have been in sync before it was suspected
        began, index = time.monotonic(), self._monitor.index
        if self._state_transfer and self._state_transfer.finish(source, target, fence, former):
            _report_transfer("complete", source, target, began)
            return
        key = f"copy from {index(source)}", index(target)
        if key not in self._functions:
            source_ops, target_ops = self._monitor.acceptor(index(source)), self._monitor.acceptor(index(target))

            def copy(incarnation: Any, ballot: Any) -> Any:
                return self._client.to_local(target_ops.on_transfer(incarnation, ballot, *source_ops.read_state()))

            self._functions[key] = tf.function(copy, autograph=False)
        self._client.call(self._functions[key], int64(target.incarnation), int64(fence))
        _report_transfer("whole", source, target, began)

    def _restore_on(self, to: Sequence[Process], fence: int) -> None:
        shards = self._monitor.voters.shards
        there = {process.task for process in to}
        assignment = tuple(tuple(m for m, task in enumerate(own) if task in there) for own in shards)
        self._restore(assignment, fence)
        self._each("on_restore", to, (int64(fence),))

    def _wait(self, reason: str) -> None:
        if time.monotonic() - self._reported > REPORT_SECONDS:
            self._reported = time.monotonic()
            event("waiting", what="parameter servers", reason=reason)
        time.sleep(POLL)

    def _encoded(self, view: View) -> Any:
        members = self._client.cluster.members
        entries = encoding.encode(view, self._monitor.names, members)
        return tf.constant(
            _padded(entries, encoding.size(self._client.cluster.shards, members) - encoding.HEAD), tf.int64
        )

    def _send(
        self, what: str, process: Process, ballot: Ballot, view: View | None = None, *, founding: bool = False
    ) -> None:
        """Request a compare-and-set from an acceptor; the next observation shows whether it applied."""
        if address := self._monitor.witnesses.get(process.task):
            with suppress(OSError):
                witness.ask(
                    address, witness.request(what, process, ballot, view, founding=founding), PROBE_TIMEOUT_SECONDS
                )
            return
        arguments = [int64(encoding.number(ballot))]
        if what == "on_prepare":
            arguments.append(int64(process.incarnation or time.time_ns() + self._monitor.index(process)))
        if view:
            arguments.append(self._encoded(view))
        if what == "on_accept":
            arguments.append(int64(int(founding)))
        self._call(what, process, *arguments)

    def _each(self, what: str, to: Sequence[Process], arguments: Sequence[Any]) -> bool:
        """Request one compare-and-set from several members; return whether all applied."""
        done = [self._call(what, process, *arguments) for process in to]
        return all(done)

    def _call(self, what: str, process: Process, *arguments: Any) -> bool:
        """Request a compare-and-set from a member's acceptor; return whether it applied."""
        index = self._monitor.index(process)
        if (what, index) not in self._functions:
            emit = getattr(self._monitor.acceptor(index), what)
            home = self._client.to_local
            self._functions[what, index] = tf.function(lambda *inputs: home(emit(*inputs)), autograph=False)
        return bool(self._client.call(self._functions[what, index], int64(process.incarnation), *arguments))

    def _rounds(self, what: str, process: Process, *arguments: Any) -> Any:
        """Return the result of an operation on a member's part of a round."""
        index = self._monitor.index(process)
        if (what, index) not in self._functions:
            make = self._store.updates.member_round_ops
            assert make is not None  # noqa: S101 - members are in lockstep
            rounds = make(self._monitor.member(index), what.endswith("standby"))
            emit, home = getattr(rounds, what.split(maxsplit=1)[0]), self._client.to_local
            self._functions[what, index] = tf.function(lambda *inputs: home(emit(*inputs)), autograph=False)
        return self._client.call(self._functions[what, index], *arguments)


def _report_transfer(phase: str, source: Process, target: Process, began: float) -> None:
    seconds = round(time.monotonic() - began, 3)
    event("state_transfer", phase=phase, source=source.task, target=target.task, seconds=seconds)


def _padded(entries: Any, length: int) -> list[int]:
    found = [int(number) for number in entries]
    return found + [0] * (length - len(found))


def _listed(view: View) -> list[list[str]]:
    return [[process.task for process in own] for own in view.shards]
