"""Views of a job with hot standbys, and the chief's next action on them: pure decisions on plain values.

The package's docstring defines the terms.

A view counts once a quorum of all voters has accepted it. This is a register in the manner of Lamport's Paxos (The
Part-Time Parliament, 1998), whose content is a configuration as in Lamport, Malkhi and Zhou, Vertical Paxos (2009).
Members apply steps under one ballot only, that of their active view. A step counts when all members in sync have
applied it. See docs/project/decisions/0013-hot-standby-commits-on-all-members-in-sync.md.

The chief polls every voter, acts, and polls again. The next observation shows the effect of an action, so a lost reply
needs no special handling. Pure: no clock, no TensorFlow.
"""

from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from enum import Enum
from functools import cached_property
from typing import Final, NamedTuple

from pstraining.runtime.ps.record import Assignment


class Ballot(NamedTuple):
    """A chief's authority: its term, which no other chief has, and its epoch."""

    term: int
    epoch: int


NO_BALLOT: Final = Ballot(0, 0)
"""The ballot of a process that has promised none yet."""


class Process(NamedTuple):
    """One incarnation of a task."""

    task: str
    incarnation: int


@dataclass(frozen=True)
class View:
    """The members of every shard under one ballot: those in sync, the primary first, and the learners."""

    ballot: Ballot
    shards: tuple[tuple[Process, ...], ...]
    learners: tuple[Process, ...] = ()
    """Members that apply every step as a standby does, but are not in sync."""

    @property
    def in_sync(self) -> frozenset[Process]:
        """Return the members in sync of all shards."""
        return frozenset(process for shard in self.shards for process in shard)

    @property
    def members(self) -> frozenset[Process]:
        """Return all members, learners included: the processes that apply steps."""
        return self.in_sync.union(self.learners)


@dataclass(frozen=True)
class ProcessStatus:
    """What a process reports about itself."""

    incarnation: int
    promised: Ballot = NO_BALLOT
    is_voter: bool = False
    """Whether the process votes for its task; a new process does not."""
    view: View | None = None
    """The last view that the process accepted."""
    active: bool = False
    """Whether the process applies steps under its view; True for members only."""
    step: int | None = None
    """The newest step that a member has applied; None if it holds no state."""
    generation: Ballot = NO_BALLOT
    """The ballot under which the generation of the states that its own belongs to was restored."""
    transferred_in: Ballot = NO_BALLOT
    """The ballot under which a member received its state, by a transfer or from a checkpoint."""
    chunks: int = 0
    """Number of chunks of the state that a learner has received under its view."""
    draining: bool = False
    """Whether a member's pod is being terminated; it runs until the other members continue without it."""


class Unreachable(Enum):
    """The reason why a process has no status."""

    CRASHED = "its port refuses connections: the process has ended, and the next one is not there yet"
    SUSPECTED = "it does not answer"
    UNCONNECTED = "a process answers at its port and not this task's calls: the known one, or the next"


def of_layout(status: ProcessStatus, first_term: int) -> ProcessStatus | Unreachable:
    """Return a status, or why a process with it has no part in a layout.

    A process that has promised to an earlier chief than the layout's first was started for a former layout. Its
    launcher starts it again; whatever it holds, and promised, concerns the former layout alone.

    Args:
        status: the status that it reports.
        first_term: the first term of a chief that trains the layout.
    """
    is_former = status.promised > NO_BALLOT and status.promised.term < first_term
    return Unreachable.CRASHED if is_former else status


MAY_LIVE: Final = (Unreachable.SUSPECTED, Unreachable.UNCONNECTED)
Observation = Mapping[str, ProcessStatus | Unreachable]
"""The result of polling every voter: each task's status, or the reason why it has none."""


@dataclass(frozen=True)
class Voters:
    """The tasks of a job that vote."""

    shards: tuple[tuple[str, ...], ...]
    """Tasks of every shard's members, in the order of preference for primary."""
    witnesses: tuple[str, ...]
    """Tasks of the workers that the job began with."""

    @cached_property
    def members(self) -> tuple[str, ...]:
        """Return the tasks of all members."""
        return tuple(task for shard in self.shards for task in shard)

    @cached_property
    def tasks(self) -> tuple[str, ...]:
        """Return all tasks that vote, members first."""
        return (*self.members, *self.witnesses)

    def is_quorum(self, number: int) -> bool:
        """Return whether any two groups of `number` voters share one."""
        return 2 * number > len(self.tasks)


# The chief's actions. Each consists of compare-and-sets, one on each process.


@dataclass(frozen=True)
class Prepare:
    """Request a promise to follow no lower ballot."""

    ballot: Ballot
    to: tuple[Process, ...]


@dataclass(frozen=True)
class Accept:
    """Send a new view to the processes that have promised its ballot."""

    view: View
    to: tuple[Process, ...]
    founding: bool = False
    """Whether a process becomes a voter by accepting the view. True if too few processes vote for a quorum: at a job's
    start, or after losses, when steps may be lost."""


@dataclass(frozen=True)
class AdmitVoter:
    """Let a process without memory vote for its task, and send it the view that counts."""

    view: View
    to: tuple[Process, ...]


@dataclass(frozen=True)
class Activate:
    """Let the view's members apply steps, or renew their leases."""

    view: View
    to: tuple[Process, ...]


@dataclass(frozen=True)
class TransferState:
    """Transfer the missing state to members. Source and target have promised the ballot, and apply no steps meanwhile.

    A learner of the former view with every chunk, at the same step, receives the small state; others the whole state.
    """

    ballot: Ballot
    pairs: tuple[tuple[Process, Process], ...]
    """Source and target of each transfer."""
    former: Ballot
    """The former view's ballot."""


@dataclass(frozen=True)
class RestoreCheckpoint:
    """Restore the newest checkpoint on these members, which have promised."""

    ballot: Ballot
    to: tuple[Process, ...]
    shards: tuple[int, ...]
    """Numbers of the shards whose state is lost."""


@dataclass(frozen=True)
class Superseded:
    """Stop: a chief of a later term has taken the lead."""

    term: int


@dataclass(frozen=True)
class Wait:
    """Do nothing, and renew no lease."""

    reason: str


Action = Prepare | Accept | AdmitVoter | Activate | TransferState | RestoreCheckpoint | Superseded | Wait


def next_action(  # noqa: PLR0913 - one argument for each thing that a chief knows
    own: Ballot,
    voters: Voters,
    observation: Observation,
    *,
    promotable: Collection[Process] = (),
    joining: Collection[Process] = (),
    voteless_before: Collection[Process] = (),
    wait_for_absent: bool = True,
    lockstep: bool = True,
    proposed: View | None = None,
) -> Action:
    """Return the chief's next action.

    Args:
        own: the chief's term, and the highest epoch that it has used.
        voters: the job's voters.
        observation: the status of every voter.
        promotable: processes that can be in sync under the next view, because little of their state is missing.
        joining: processes that become learners of the next view; the learners of the current view remain.
        voteless_before: processes that did not vote at the previous poll.
        wait_for_absent: whether the first view waits for members that have not started; False if they cannot be
            scheduled.
        lockstep: whether the newest step is on all members in sync, or on one that decides for all. Otherwise each has
            every acknowledged update, in its own order.
        proposed: the last view that the chief has sent. Some process may have accepted it, so its ballot has no
            other view.
    """
    statuses = {Process(task, a.incarnation): a for task, a in observation.items() if isinstance(a, ProcessStatus)}
    highest = max((status.promised for status in statuses.values()), default=NO_BALLOT)
    term, remaining = own.term, {process for process, status in statuses.items() if not status.draining}
    promotable, joining = ([process for process in wanted if process in remaining] for wanted in (promotable, joining))
    if highest.term > term:
        return Superseded(highest.term)
    newest = max((a.view for a in statuses.values() if a.view), key=lambda view: view.ballot, default=None)
    # No ballot is used twice, though the processes that promised a higher one may all be lost.
    epoch = 1 + max(own.epoch, highest.epoch if highest.term == term else 0)
    again = Prepare(Ballot(term, epoch), tuple(statuses))
    is_own = newest is not None and newest.ballot == highest and highest.term == term
    if newest and is_own and not _is_changed(statuses, newest, promotable, joining):
        return _carry_through(again, voters, observation, newest, statuses, voteless_before)
    voting = {process for process, status in statuses.items() if status.is_voter}
    founding = not voters.is_quorum(len(voting))
    suspected = [task for task in voters.members if observation[task] in MAY_LIVE]
    if founding and suspected:
        return Wait(f"{len(voting)} of {len(voters.tasks)} voters answer, no quorum, and {', '.join(suspected)} do not")
    missing = [task for task in voters.members if observation[task] is Unreachable.CRASHED]
    if newest is None and wait_for_absent and missing:
        return Wait(f"{', '.join(missing)} have yet to come up for the first time")
    promised = {process: status for process, status in statuses.items() if status.promised == highest}
    # A member that has not promised yet may hold the state, and apply steps under its view.
    enough = all(process in promised for process in statuses if process.task in voters.members)
    enough &= founding or voters.is_quorum(len(voting.intersection(promised)))
    if highest != own or (newest and highest == newest.ballot) or not enough:
        return again
    made = _next_view(voters, observation, newest, promised, highest, promotable, founding=founding, lockstep=lockstep)
    if not isinstance(made, Accept):
        return made
    # Learners remain, and their transfers restart: chunks do not count under another ballot.
    learners = {*joining, *(newest.learners if newest else ())}.intersection(promised, remaining) - made.view.in_sync
    view = replace(made.view, learners=tuple(sorted(learners)))
    return again if proposed and proposed.ballot == highest and proposed != view else replace(made, view=view)


def _is_changed(
    statuses: Mapping[Process, ProcessStatus], view: View, promotable: Collection[Process], joining: Collection[Process]
) -> bool:
    """Return whether the view must change: a member is lost or draining, or a process joins."""
    is_new = not view.in_sync.issuperset(promotable) or not view.members.issuperset(joining)
    if is_new or not view.members <= statuses.keys() or any(statuses[process].draining for process in view.learners):
        return True
    return any(_not_draining(own, statuses) != own for own in view.shards)


def _not_draining(own: tuple[Process, ...], statuses: Mapping[Process, ProcessStatus]) -> tuple[Process, ...]:
    """Return the shard's members in sync without the draining ones; all of them if no other member has the state."""
    return tuple(process for process in own if not statuses[process].draining) or own


def switched_over(former: View | None, view: View, draining: Collection[Process]) -> tuple[Process, ...]:
    """Return the processes that were draining in sync, and are no longer in sync.

    Args:
        former: the previous view.
        view: the active one.
        draining: processes that reported draining since the former view became active; some may have ended.
    """
    return () if former is None else tuple(sorted(former.in_sync.intersection(draining) - view.in_sync))


def _carry_through(
    again: Prepare,
    voters: Voters,
    observation: Observation,
    view: View,
    statuses: Mapping[Process, ProcessStatus],
    voteless_before: Collection[Process],
) -> Action:
    """Return the action that brings the chief's own view to every process, and then makes it active."""
    following = {process for process, status in statuses.items() if status.promised == view.ballot}
    if lacking := [process for process in following if statuses[process].view != view]:
        return Accept(view, tuple(lacking))
    votes = sum(statuses[process].is_voter for process in following)
    has_quorum = voters.is_quorum(votes)
    if not has_quorum and any(observation[task] in MAY_LIVE for task in voters.members):
        return Wait(f"{votes} of {len(voters.tasks)} voters have the view, which is no quorum")
    if not view.members <= following:
        return again
    fresh = tuple(process for process, status in statuses.items() if not status.is_voter and process in voteless_before)
    if fresh and has_quorum and all(statuses[process].active for process in view.members):
        return AdmitVoter(view, fresh)
    return Activate(view, tuple(sorted(view.members)))


def _next_view(
    voters: Voters,
    observation: Observation,
    former: View | None,
    promised: Mapping[Process, ProcessStatus],
    ballot: Ballot,
    promotable: Collection[Process],
    *,
    founding: bool,
    lockstep: bool,
) -> Action:
    """Return the acceptance of the view after `former`, or an action that must precede it."""
    shards: list[tuple[Process, ...]] = []
    lost, transfers, generations = [], [], set()
    for number, tasks in enumerate(voters.shards):
        before = former.shards[number] if former else ()
        have = [process for process in before if process in promised and promised[process].step is not None]
        states = {process: (promised[process].generation, promised[process].step or 0) for process in have}
        newest = max(states.values(), default=None)
        in_sync = [p for p, s in states.items() if newest and (s == newest if lockstep else s[0] == newest[0])]
        may_have = [process.task for process in before if observation[process.task] in MAY_LIVE]
        if not in_sync and may_have:
            return Wait(f"the state of shard {number} may be on {', '.join(may_have)} alone, which does not answer")
        others = [process for process in promised if process.task in tasks and process not in in_sync]
        given = [process for process in others if promised[process].transferred_in == ballot]
        if in_sync:
            transfers += [(in_sync[0], process) for process in others if process in promotable and process not in given]
        elif not others:
            return Wait(f"the state of shard {number} is lost, and none of {', '.join(tasks)} is there to restore it")
        elif not given:
            lost.append(number)
        # In order of preference: a returning member regains its rank.
        ranked = sorted((*in_sync, *given), key=lambda process: tasks.index(process.task))
        shards.append(_not_draining(tuple(ranked), promised))
        generations |= {promised[process].generation for process in shards[-1]}
    if lost or len(generations) > 1:
        return RestoreCheckpoint(ballot, tuple(p for p in promised if p.task in voters.members), tuple(lost))
    if transfers:
        return TransferState(ballot, tuple(transfers), former.ballot if former else NO_BALLOT)
    return Accept(View(ballot, tuple(shards)), tuple(promised), founding=founding)


def active_view(observation: Observation) -> View | None:
    """Return the newest view, if it is active on all its members, so that workers can train with it; else None."""
    statuses = {Process(task, a.incarnation): a for task, a in observation.items() if isinstance(a, ProcessStatus)}
    known = [status.view for status in statuses.values() if status.view]
    newest = max(known, key=lambda view: view.ballot, default=None)
    if newest is None:
        return None
    own = [statuses.get(process) for process in newest.members]
    is_active = all(a and a.active and a.promised == newest.ballot and a.view == newest for a in own)
    return newest if is_active else None


def anticipated_failures(assignment: Assignment, nodes: Mapping[tuple[int, int], str]) -> list[Assignment]:
    """Return the assignments that may remain after the next failure.

    One member fails, or all members on one node; every shard keeps one.

    Args:
        assignment: the members of each shard now.
        nodes: the node of each member, by shard and number, where it is known.
    """
    members = [(number, member) for number, own in enumerate(assignment) for member in own]
    groups = [{member} for member in members]
    for node in sorted(set(nodes.values())):
        groups.append({member for member in members if nodes.get(member) == node})
    left = [
        tuple(tuple(member for member in own if (number, member) not in group) for number, own in enumerate(assignment))
        for group in groups
    ]
    return [others for others in dict.fromkeys(left) if all(others) and others != assignment]
