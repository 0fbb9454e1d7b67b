"""Who holds the state of a shard with hot standbys, and who may say so: decisions of a chief on plain values.

A roster lists for every shard the processes in sync. It is made under a ballot, and counts once more than half of all
seats have it: a register in the manner of Lamport's Paxos (The Part-Time Parliament, 1998), whose content is a
configuration as in Lamport, Malkhi and Zhou, Vertical Paxos (2009). Members make steps under one ballot alone, that of
the roster which was opened on them, and a step counts when all members in sync have made it.
See docs/decisions/0013-hot-standby-commits-on-all-members-in-sync.md.

A chief looks at every place, acts, and looks again: what came of an action shows in the next view, so that a lost
answer is no case of its own.

Pure: no clock, no TensorFlow.
"""

from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from enum import Enum
from typing import Final, NamedTuple

from pstraining.runtime.ps.record import Assignment


class Ballot(NamedTuple):
    """Authority: the chief's term, which no other chief has, and its epoch."""

    term: int
    epoch: int


NOTHING: Final = Ballot(0, 0)
"""What a process that was just started has promised."""


class Process(NamedTuple):
    """One life of what runs at a place."""

    place: str
    life: int


@dataclass(frozen=True)
class Roster:
    """For every shard the processes in sync, the primary first; and who takes part in steps to become so."""

    ballot: Ballot
    shards: tuple[tuple[Process, ...], ...]
    learners: tuple[Process, ...] = ()
    """They make every step as a standby does, and do not count as having the state."""

    @property
    def processes(self) -> frozenset[Process]:
        """All in sync."""
        return frozenset(process for shard in self.shards for process in shard)

    @property
    def everyone(self) -> frozenset[Process]:
        """All that steps are made on."""
        return self.processes.union(self.learners)


@dataclass(frozen=True)
class Answer:
    """What a process says of itself."""

    life: int
    promised: Ballot = NOTHING
    votes: bool = False
    """Whether it has its place's seat; one that was just started has not."""
    roster: Roster | None = None
    """The last one that it took."""
    opened: bool = False
    """Whether a member makes steps under its roster."""
    step: int | None = None
    """The newest step that a member holds; None: it holds no state."""
    generation: Ballot = NOTHING
    """The ballot under which the set of states that its own belongs to was restored."""
    copied: Ballot = NOTHING
    """The ballot under which a member was given its state, by a copy or a restore."""
    learned: int = 0
    """How many pieces of the state a learner was given under its roster."""
    leaving: bool = False
    """Whether a member has been told to end, and stays until the others do without it."""


class Absent(Enum):
    """Why there is no answer."""

    GONE = "its port refuses: the process has ended, and the next one is not there yet"
    SILENT = "nothing is known"


View = Mapping[str, Answer | Absent]
"""What came of looking at every place."""


@dataclass(frozen=True)
class Seats:
    """The places of a job."""

    shards: tuple[tuple[str, ...], ...]
    """Places of every shard's members, in the order in which they are preferred."""
    witnesses: tuple[str, ...]
    """Places of the workers that the job began with."""

    @property
    def members(self) -> tuple[str, ...]:
        """Places of all members."""
        return tuple(place for shard in self.shards for place in shard)

    @property
    def places(self) -> tuple[str, ...]:
        """All of them."""
        return (*self.members, *self.witnesses)

    def is_majority(self, number: int) -> bool:
        """Whether two groups of so many seats share one."""
        return 2 * number > len(self.places)


# What a chief does next. Every part of it is one compare-and-set on one process.


@dataclass(frozen=True)
class Promise:
    """Ask for a promise to follow no lower ballot."""

    ballot: Ballot
    to: tuple[Process, ...]


@dataclass(frozen=True)
class Adopt:
    """Give a new roster to those who have promised its ballot."""

    roster: Roster
    to: tuple[Process, ...]
    founding: bool = False
    """Seats are taken with it: so many are lost that steps may be lost."""


@dataclass(frozen=True)
class Seat:
    """Give its place's seat to a process that has none, and with it the roster that counts."""

    roster: Roster
    to: tuple[Process, ...]


@dataclass(frozen=True)
class Open:
    """Let the roster's members make steps, or go on making them."""

    roster: Roster
    to: tuple[Process, ...]


@dataclass(frozen=True)
class Copy:
    """Give members what they lack of the state of one that has it; both have promised, and make no steps meanwhile.

    That is all of it, except for one that learned under the former roster, has every piece and is at the same step.
    """

    ballot: Ballot
    pairs: tuple[tuple[Process, Process], ...]
    """From and to."""
    former: Ballot
    """The former roster's."""


@dataclass(frozen=True)
class Restore:
    """Put the newest checkpoint on these members, which have promised."""

    ballot: Ballot
    to: tuple[Process, ...]
    shards: tuple[int, ...]
    """Numbers of the shards whose state is lost."""


@dataclass(frozen=True)
class Superseded:
    """A chief of a later term rules."""

    term: int


@dataclass(frozen=True)
class Wait:
    """Do nothing, and renew nothing."""

    reason: str


Action = Promise | Adopt | Seat | Open | Copy | Restore | Superseded | Wait


def decide(
    own: Ballot,
    seats: Seats,
    view: View,
    *,
    worth: Collection[Process] = (),
    learning: Collection[Process] = (),
    seen: Collection[Process] = (),
    waits: bool = True,
    in_step: bool = True,
) -> Action:
    """What a chief does next.

    Args:
        own: its term, and the highest epoch that it has used.
        seats: the job's places.
        view: what it found at every place.
        worth: processes that are to be in sync under the next roster, because little of the state is yet to be copied.
        learning: processes that are to be its learners, if they are not in it; those that are stay.
        seen: processes that had no seat when the chief looked the last time.
        waits: whether the first roster waits for members that have yet to come up; it is made without them where a
            cluster has no place for them.
        in_step: whether members in sync have all made the newest step, or one that decides for all has. Else each has
            every update that a worker was told to be made, in an order of its own.
    """
    answers = {Process(place, a.life): a for place, a in view.items() if isinstance(a, Answer)}
    highest = max((answer.promised for answer in answers.values()), default=NOTHING)
    term, staying = own.term, {process for process, answer in answers.items() if not answer.leaving}
    worth, learning = ([process for process in wanted if process in staying] for wanted in (worth, learning))
    if highest.term > term:
        return Superseded(highest.term)
    newest = max((a.roster for a in answers.values() if a.roster), key=lambda roster: roster.ballot, default=None)
    if newest and newest.ballot == highest and highest.term == term and not _changes(answers, newest, worth, learning):
        return _keep(own, seats, view, newest, answers, seen)
    voters = {process for process, answer in answers.items() if answer.votes}
    founding = not seats.is_majority(len(voters))
    silent = [place for place in seats.members if view[place] is Absent.SILENT]
    if founding and silent:
        return Wait(f"{len(voters)} of {len(seats.places)} seats answer, no majority, and {', '.join(silent)} do not")
    missing = [place for place in seats.members if view[place] is Absent.GONE]
    if newest is None and waits and missing:
        return Wait(f"{', '.join(missing)} have yet to come up for the first time")
    promised = {process: answer for process, answer in answers.items() if answer.promised == highest}
    # A member that has not promised yet may hold the state, and go on under its roster.
    enough = all(process in promised for process in answers if process.place in seats.members)
    enough &= founding or seats.is_majority(len(voters.intersection(promised)))
    if highest.term != term or (newest and highest == newest.ballot) or not enough:
        return Promise(_next(own, highest), tuple(answers))
    made = _succeed(seats, view, newest, promised, highest, worth, founding=founding, in_step=in_step)
    if not isinstance(made, Adopt):
        return made
    # Whoever learned goes on, from the beginning: under another ballot no piece counts.
    pupils = {*learning, *(newest.learners if newest else ())}.intersection(promised, staying) - made.roster.processes
    return replace(made, roster=replace(made.roster, learners=tuple(sorted(pupils))))


def _changes(
    answers: Mapping[Process, Answer], roster: Roster, worth: Collection[Process], learning: Collection[Process]
) -> bool:
    """Whether the roster has somebody who does not answer any more, or is leaving, or lacks somebody who is to be in
    it."""
    is_new = not roster.processes.issuperset(worth) or not roster.everyone.issuperset(learning)
    if is_new or not roster.everyone <= answers.keys() or any(answers[process].leaving for process in roster.learners):
        return True
    return any(_staying(own, answers) != own for own in roster.shards)


def _staying(own: tuple[Process, ...], answers: Mapping[Process, Answer]) -> tuple[Process, ...]:
    """Those of a shard's members in sync that are not leaving; all, if nobody else has the state."""
    return tuple(process for process in own if not answers[process].leaving) or own


def handed_over(former: Roster | None, roster: Roster, leaving: Collection[Process]) -> tuple[Process, ...]:
    """Who was in sync, had said that it leaves, and is done without now.

    Args:
        former: the roster before.
        roster: which is in force now.
        leaving: whoever said so since the former one came into force. It may be gone by now: making a roster takes
            several looks.
    """
    return () if former is None else tuple(sorted(former.processes.intersection(leaving) - roster.processes))


def _next(own: Ballot, highest: Ballot) -> Ballot:
    """One that was never used: processes that promised a higher one may all be gone."""
    return Ballot(own.term, 1 + max(own.epoch, highest.epoch if highest.term == own.term else 0))


def _keep(
    own: Ballot,
    seats: Seats,
    view: View,
    roster: Roster,
    answers: Mapping[Process, Answer],
    seen: Collection[Process],
) -> Action:
    """Carry this chief's own roster through: to everybody, and then into force."""
    following = {process for process, answer in answers.items() if answer.promised == roster.ballot}
    if lacking := [process for process in following if answers[process].roster != roster]:
        return Adopt(roster, tuple(lacking))
    votes = sum(answers[process].votes for process in following)
    by_majority = seats.is_majority(votes)
    if not by_majority and any(view[place] is Absent.SILENT for place in seats.members):
        return Wait(f"{votes} of {len(seats.places)} seats have the roster, which is no majority")
    if not roster.everyone <= following:
        return Promise(_next(own, roster.ballot), tuple(answers))
    fresh = tuple(process for process, answer in answers.items() if not answer.votes and process in seen)
    if fresh and by_majority and all(answers[process].opened for process in roster.everyone):
        return Seat(roster, fresh)
    return Open(roster, tuple(sorted(roster.everyone)))


def _succeed(
    seats: Seats,
    view: View,
    former: Roster | None,
    promised: Mapping[Process, Answer],
    ballot: Ballot,
    worth: Collection[Process],
    *,
    founding: bool,
    in_step: bool,
) -> Action:
    """The roster after `former`, of those who have the state and have promised to follow it."""
    shards: list[tuple[Process, ...]] = []
    lost, copies, generations = [], [], set()
    for number, places in enumerate(seats.shards):
        before = former.shards[number] if former else ()
        states = {p: (promised[p].generation, promised[p].step or 0) for p in before if _has_state(p, promised)}
        newest = max(states.values(), default=None)
        in_sync = [p for p, s in states.items() if newest and (s == newest if in_step else s[0] == newest[0])]
        may_have = [process.place for process in before if view[process.place] is Absent.SILENT]
        if not in_sync and may_have:
            return Wait(f"the state of shard {number} may be on {', '.join(may_have)} alone, which does not answer")
        others = [process for process in promised if process.place in places and process not in in_sync]
        joined = [process for process in others if promised[process].copied == ballot]
        if in_sync:
            copies += [(in_sync[0], process) for process in others if process in worth and process not in joined]
        elif not others:
            return Wait(f"the state of shard {number} is lost, and none of {', '.join(places)} is there to restore it")
        elif not joined:
            lost.append(number)
        # In the order in which they are preferred: whoever comes back finds the roster that there was before.
        have = sorted((*in_sync, *joined), key=lambda process: places.index(process.place))
        shards.append(_staying(tuple(have), promised))
        generations |= {promised[process].generation for process in shards[-1]}
    if lost or len(generations) > 1:
        return Restore(ballot, tuple(p for p in promised if p.place in seats.members), tuple(lost))
    if copies:
        return Copy(ballot, tuple(copies), former.ballot if former else NOTHING)
    return Adopt(Roster(ballot, tuple(shards)), tuple(promised), founding=founding)


def _has_state(process: Process, promised: Mapping[Process, Answer]) -> bool:
    return process in promised and promised[process].step is not None


def in_force(view: View) -> Roster | None:
    """The newest roster that a view holds, if it is open on all its members: what a worker trains with."""
    answers = {Process(place, a.life): a for place, a in view.items() if isinstance(a, Answer)}
    known = [answer.roster for answer in answers.values() if answer.roster]
    newest = max(known, key=lambda roster: roster.ballot, default=None)
    if newest is None:
        return None
    own = [answers.get(process) for process in newest.everyone]
    is_open = all(a and a.opened and a.promised == newest.ballot and a.roster == newest for a in own)
    return newest if is_open else None


def likely_losses(formation: Assignment, nodes: Mapping[tuple[int, int], str]) -> list[Assignment]:
    """What may be left after the next loss: of any one member, or of all on one node, of shards that keep others.

    Args:
        formation: who is there.
        nodes: where each is, by shard and number, as far as it is known.
    """
    seats = [(number, member) for number, own in enumerate(formation) for member in own]
    groups = [{seat} for seat in seats]
    for node in sorted(set(nodes.values())):
        groups.append({seat for seat in seats if nodes.get(seat) == node})
    left = [
        tuple(tuple(member for member in own if (number, member) not in group) for number, own in enumerate(formation))
        for group in groups
    ]
    return [found for found in dict.fromkeys(left) if all(found) and found != formation]
