"""The chief's hand on rosters: it looks, does what `replication.view` says, and looks again, until one is in force."""

import time
from collections import deque
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import suppress
from typing import Any, Final

import tensorflow as tf

from pstraining.runtime.ps.record import Assignment
from pstraining.runtime.ps.store import ParameterStore, int64
from pstraining.runtime.replication import chunks, encoding, witness
from pstraining.runtime.replication import view as views
from pstraining.runtime.replication.acceptor_ops import LEASE_SECONDS
from pstraining.runtime.replication.monitor import PATIENCE, Lookout
from pstraining.runtime.replication.state_transfer import Teaching
from pstraining.runtime.replication.view import (
    Absent,
    Adopt,
    Answer,
    Ballot,
    Copy,
    Open,
    Process,
    Promise,
    Restore,
    Roster,
    Wait,
)
from pstraining.runtime.telemetry.counters import ChiefAccount
from pstraining.runtime.telemetry.events import event
from pstraining.runtime.transport.client import ShardLostError

POLL: Final = 0.02
"""Seconds between looks while nothing can be done."""
FIRST_SECONDS: Final = 60.0
"""How long the first roster waits for members that have yet to come up."""
TELL_SECONDS: Final = 10.0
QUIET_SECONDS: Final = 1.0
"""After so long without a change of roster all have connected to whoever came back, and train; they have yet to make
ready what they need after the next loss, which they say."""

View = dict[str, Answer | Absent]


class SupersededError(RuntimeError):
    """A newer chief rules the parameter servers; this one must end."""


class Succession:
    """Who holds the state of each shard, by this chief's word.

    Args:
        store: of all members.
        term: the chief's; None: the next one, as worker 0 of a job without a chief has none of its own.
        epoch: the highest that it has used in its term, if its process was renewed.
        restore: puts the newest checkpoint on some members, under a fence; shut, so that nobody makes steps yet.
        look_in: called again and again; may raise to end it.
        account: counts what is lost.
    """

    def __init__(
        self,
        store: ParameterStore,
        *,
        term: int | None,
        epoch: int = 0,
        restore: Callable[[Assignment, int], None],
        look_in: Callable[[], None] = lambda: None,
        account: ChiefAccount | None = None,
    ) -> None:
        self._account = account or ChiefAccount()
        self._store, self._client, self._lookout = store, store.client, Lookout(store)
        self._restore, self._look_in = restore, look_in
        self._in_step = store.updates.follow is not None
        """Whether members make the same steps one after the other: what is not decided is void under another roster."""
        self._teaching = Teaching(self._lookout) if chunks.is_incremental(store) else None
        self._own = None if term is None else Ballot(term, epoch)
        self._seen: frozenset[Process] = frozenset()
        self._functions: dict[tuple[str, int], Any] = {}
        self._began = time.monotonic()
        self._former: Roster | None = None
        self._changed = time.monotonic()  # when another roster came into force
        self._leaving: set[Process] = set()
        self._told_launchers = False
        self._told = 0.0

    @property
    def fence(self) -> int:
        """The number of the highest ballot that this chief has used."""
        assert self._own is not None  # noqa: S101 - it has looked
        return encoding.number(self._own)

    @property
    def is_quiet(self) -> bool:
        """Whether all members have been in sync for a moment, nobody leaves, and all who answer have their seats."""
        members = self._client.cluster.members
        whole = self._former is not None and all(len(own) == members for own in self._former.shards)
        is_settled = not self._leaving and not self._seen
        return whole and is_settled and time.monotonic() - self._changed > QUIET_SECONDS

    def rule(self, *, heal: bool = False) -> Roster:
        """Return when a roster is in force, renewed for some seconds.

        Args:
            heal: bring members back that have no state: where there is little of it, it is copied while no steps are
                made, else they learn first. Without, somebody is missing.

        Raises:
            SupersededError: a chief of a later term rules.
        """
        suspicious = not heal
        while True:
            self._look_in()
            view = self._lookout.look(suspicious=suspicious)
            suspicious = False
            if self._lookout.strangers:
                self._client.reach()
                if heal:  # training goes on meanwhile
                    deque(self.prepare(), maxlen=0)
                view = self._lookout.look()
            answers = {Process(place, a.life): a for place, a in view.items() if isinstance(a, Answer)}
            self._leaving.update(process for process, answer in answers.items() if answer.leaving)
            if self._own is None:
                self._own = Ballot(1 + max(answer.promised.term for answer in answers.values()), 0)
            worth, learning = self._back(answers) if heal else ([], [])
            waits = time.monotonic() < self._began + FIRST_SECONDS
            action = views.decide(
                self._own,
                self._lookout.seats,
                view,
                worth=worth,
                learning=learning,
                seen=self._seen,
                waits=waits,
                in_step=self._in_step,
            )
            self._seen = frozenset(process for process, answer in answers.items() if not answer.votes)
            try:
                if self._act(action, answers):
                    assert isinstance(action, Open)  # noqa: S101 - nothing else is an end
                    self._follow(action.roster, answers)
                    return action.roster
            except ShardLostError:
                suspicious = True

    def teach(self, seconds: float) -> bool:
        """Give learners pieces of the state for so long; whether there are any.

        Raises:
            ShardLostError: a server is gone.
        """
        return self._teaching is not None and self._teaching.teach(seconds)

    def prepare(self) -> Iterator[None]:
        """Make functions that a take-over needs, a member's at a time, without an effect: nobody has the name that they
        are for."""
        never, session = Roster(Ballot(0, 0), ((),)), tf.constant([-1, -1], tf.int64)
        for place in self._lookout.seats.members:
            nobody = Process(place, -1)
            with suppress(ShardLostError):  # it is made when it is needed
                self._tell("promise", nobody, never.ballot)
                self._tell("adopt", nobody, never.ballot, never)
                self._call("open", nobody, int64(0), tf.zeros([], tf.float64))
                if self._in_step:
                    self._rounds("start", nobody, session, int64(0))
                    for what in ("follow", "follow as a standby"):
                        self._rounds(what, nobody, session, int64(-1))
                if self._teaching:
                    yield from self._teaching.prepare(place)
            yield

    def formation(self, roster: Roster) -> Assignment:
        """The members of each shard that a roster names."""
        return self._lookout.formation(roster)

    def _back(self, answers: dict[Process, Answer]) -> tuple[list[Process], list[Process]]:
        """Of the members, who may be in sync under the next roster, and who may learn under it."""
        members = [process for process in answers if process.place not in self._lookout.witnesses]
        return self._teaching.sort(members, answers) if self._teaching else (members, [])

    def _act(self, action: views.Action, answers: dict[Process, Answer]) -> bool:
        """Do one thing; whether the roster is in force now."""
        match action:
            case Promise(ballot, to):
                self._own = ballot
                for process in to:
                    self._tell("promise", process, ballot)
            case Adopt() | Copy() if self._in_step and self._settle(answers):
                pass
            case Adopt(roster, to, founding):
                for process in to:
                    self._tell("adopt", process, roster.ballot, roster, founding=founding)
            case views.Seat(roster, to):
                for process in to:
                    self._tell("seat", process, roster.ballot, roster)
            case Copy():
                self._copy(action)
            case Restore(ballot, to, _):
                self._restore_on(to, encoding.number(ballot))
            case Open(roster, to):
                return self._open(roster, to, answers)
            case views.Superseded(term):
                raise SupersededError(f"this chief's term is over: {term} rules")
            case Wait(reason):
                self._wait(reason)
        return False

    def _open(self, roster: Roster, to: Sequence[Process], answers: dict[Process, Answer]) -> bool:
        fence = encoding.number(roster.ballot)
        was_open = all(answers[process].opened for process in to)
        if not all(self._begin(process, roster, fence) for process in roster.learners if not answers[process].opened):
            return False  # who has not begun must not be opened: it would stand at another step
        session = tf.constant([fence, -answers[roster.shards[0][0]].generation.term], tf.int64)
        for process in to if self._in_step else ():
            if not answers[process].opened:
                self._rounds("start", process, session, int64(fence << encoding.ATTEMPT_BITS))
        done = self._each("open", to, (int64(fence), tf.constant(LEASE_SECONDS, tf.float64)))
        if not was_open:
            learners = [process.place for process in roster.learners]
            told = {"members": _listed(roster)} | ({"learners": learners} if learners else {})
            event("roster", term=roster.ballot.term, epoch=roster.ballot.epoch, **told)
        return done

    def _begin(self, process: Process, roster: Roster, fence: int) -> bool:
        """Let a learner begin at its shard's step, of which no steps are made before it does."""
        assert self._teaching is not None  # noqa: S101 - nobody learns without
        self._mark(process, "")
        return self._teaching.begin(roster.shards[self._lookout.shard(process)][0], process, fence)

    def _settle(self, answers: dict[Process, Answer]) -> bool:
        """Let members make the step that others have made; whether any was behind.

        A step is made by anybody only when every member in sync of every shard can make it.
        """
        former = max((a.roster for a in answers.values() if a.roster), key=lambda roster: roster.ballot, default=None)
        if former is None:
            return False
        states = {p: (answers[p].generation, answers[p].step) for p in former.everyone if p in answers}
        in_sync = [states[p] for shard in former.shards for p in shard if p in states and states[p][1] is not None]
        newest = max(in_sync, default=None)
        if newest is None:
            return False
        generation, step = newest
        assert step is not None  # noqa: S101 - sorted out above
        behind = [p for p, state in states.items() if state == (generation, step - 1)]
        session = tf.constant([self.fence, -generation.term], tf.int64)
        made = 0
        primaries = [shard[0] for shard in former.shards]
        for process in behind:
            what = "follow" if process in primaries else "follow as a standby"
            made += int(self._rounds(what, process, session, int64(step - 1)))
        return made > 0

    def _follow(self, roster: Roster, answers: Collection[Process]) -> None:
        """A roster is in force: count what was lost, and tell the launchers beside its members that these are in sync,
        and that the state is the runtime's; and those beside who is leaving, if it is done without them."""
        former, self._former = self._former, roster
        if self._teaching:
            self._teaching.follow(roster)
        if roster != former:
            self._changed = time.monotonic()
            members = self._client.cluster.members
            whole = all(len(own) == members for own in roster.shards)
            left = views.handed_over(former, roster, self._leaving)
            self._leaving &= roster.processes
            lost = former is not None and not former.processes <= roster.processes.union(left)
            self._account.follow(lost=lost, whole=whole)
            self._told_launchers = False
            for process in left:
                event("handed_over", server=process.place)
                if process in answers:
                    with suppress(ShardLostError):  # it ends as soon as it has read that, maybe before it answers
                        self._mark(process, "")
        if not self._told_launchers:
            for process in sorted(roster.processes):
                self._mark(process, f"{roster.ballot.term}.{roster.ballot.epoch}")
            self._told_launchers = True

    def _mark(self, process: Process, text: str) -> None:
        if not self._client.cluster.in_pod:
            return
        try:
            self._call("mark", process, tf.constant(text))
        except tf.errors.OpError as error:  # a drain of its node does not wait for it then, and a new chief restores
            event("not_marked", server=process.place, reason=str(error).partition("\n")[0])

    def _copy(self, action: Copy) -> None:
        for source, target in action.pairs:
            self._copy_one(source, target, encoding.number(action.ballot), action.former)

    def _copy_one(self, source: Process, target: Process, fence: int, former: Ballot) -> None:
        """What is left of the state, if it has learned under the former roster; else the whole."""
        self._mark(target, "")  # it may have been in sync before it was silent
        began, index = time.monotonic(), self._lookout.index
        if self._teaching and self._teaching.join(source, target, fence, former):
            event("joined", source=source.place, target=target.place, seconds=round(time.monotonic() - began, 3))
            return
        key = f"copy from {index(source)}", index(target)
        if key not in self._functions:
            given, taker = self._lookout.seat(index(source)), self._lookout.seat(index(target))

            def copy(life: Any, ballot: Any) -> Any:
                return self._client.brought_home(taker.fill(life, ballot, *given.state()))

            self._functions[key] = tf.function(copy, autograph=False)
        self._client.call(self._functions[key], int64(target.life), int64(fence))
        event("copied", source=source.place, target=target.place, seconds=round(time.monotonic() - began, 3))

    def _restore_on(self, to: Sequence[Process], fence: int) -> None:
        shards = self._lookout.seats.shards
        there = {process.place for process in to}
        formation = tuple(tuple(m for m, place in enumerate(own) if place in there) for own in shards)
        self._restore(formation, fence)
        self._each("filled", to, (int64(fence),))

    def _wait(self, reason: str) -> None:
        if time.monotonic() - self._told > TELL_SECONDS:
            self._told = time.monotonic()
            event("waiting", what="parameter servers", reason=reason)
        time.sleep(POLL)

    def _encoded(self, roster: Roster) -> Any:
        members = self._client.cluster.members
        entries = encoding.encode(roster, self._lookout.names, members)
        return tf.constant(
            _padded(entries, encoding.size(self._client.cluster.shards, members) - encoding.HEAD), tf.int64
        )

    def _tell(
        self, what: str, process: Process, ballot: Ballot, roster: Roster | None = None, *, founding: bool = False
    ) -> None:
        """A compare-and-set on a seat, of a member or of a worker; whether it was done shows in the next view."""
        if address := self._lookout.witnesses.get(process.place):
            with suppress(OSError):
                witness.ask(address, witness.request(what, process, ballot, roster, founding=founding), PATIENCE)
            return
        told = [int64(encoding.number(ballot))]
        if what == "promise":
            told.append(int64(process.life or time.time_ns() + self._lookout.index(process)))
        if roster:
            told.append(self._encoded(roster))
        if what == "adopt":
            told.append(int64(int(founding)))
        self._call(what, process, *told)

    def _each(self, what: str, to: Sequence[Process], arguments: Sequence[Any]) -> bool:
        """The same compare-and-set on several; whether all were done."""
        done = [self._call(what, process, *arguments) for process in to]
        return all(done)

    def _call(self, what: str, process: Process, *arguments: Any) -> bool:
        """A compare-and-set on a process's seat; whether it was done."""
        index = self._lookout.index(process)
        if (what, index) not in self._functions:
            emit = getattr(self._lookout.seat(index), what)
            home = self._client.brought_home
            self._functions[what, index] = tf.function(lambda *told: home(emit(*told)), autograph=False)
        return bool(self._client.call(self._functions[what, index], int64(process.life), *arguments))

    def _rounds(self, what: str, process: Process, *arguments: Any) -> Any:
        """An operation of a member's part in rounds."""
        index = self._lookout.index(process)
        if (what, index) not in self._functions:
            make = self._store.updates.member_rounds
            assert make is not None  # noqa: S101 - members make the same steps
            rounds = make(self._lookout.member(index), what.endswith("standby"))
            emit, home = getattr(rounds, what.split(maxsplit=1)[0]), self._client.brought_home
            self._functions[what, index] = tf.function(lambda *told: home(emit(*told)), autograph=False)
        return self._client.call(self._functions[what, index], *arguments)


def _padded(entries: Any, length: int) -> list[int]:
    found = [int(number) for number in entries]
    return found + [0] * (length - len(found))


def _listed(roster: Roster) -> list[list[str]]:
    return [[process.place for process in own] for own in roster.shards]
