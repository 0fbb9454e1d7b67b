"""The chief's next action on a view: pure decisions on plain values.

The chief polls every voter, acts, and polls again. The next observation shows the effect of an action, so a lost reply
needs no special handling. `view` has the values.

Pure: no clock, no TensorFlow.
"""

from collections.abc import Collection, Mapping
from dataclasses import replace

from pstraining.runtime.replication.view import (
    MAY_LIVE,
    NO_BALLOT,
    Accept,
    Action,
    Activate,
    AdmitVoter,
    Ballot,
    ChangeLayout,
    Founded,
    FoundLayout,
    Observation,
    Prepare,
    Process,
    ProcessStatus,
    RestoreCheckpoint,
    Superseded,
    TransferState,
    Unreachable,
    View,
    Voters,
    Wait,
)


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
    founded: Founded | None = None,
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
        founded: the chief's progress with the next layout; None if no other layout is wanted.
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
    is_over = newest is not None and newest.successor != NO_BALLOT
    founded = None if is_over else founded
    if newest and is_own and founded is None and (is_over or not _is_changed(statuses, newest, promotable, joining)):
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
    if newest and is_over:  # it may have been accepted by a quorum: the next layout may be in use
        made: Action = Accept(replace(newest, ballot=highest), tuple(promised), founding=founding)
    else:
        made = _next_view(
            voters, observation, newest, promised, highest, promotable, founding=founding, lockstep=lockstep
        )
    if not isinstance(made, Accept):
        return made
    # A later checkpoint may replace a state that may lack steps, before another layout gets the state.
    founded = founded if made.uncertain is None else None
    if founded is not None and founded.under != highest:
        return FoundLayout(made.view)
    if founded is not None:
        view = replace(made.view, successor=founded.ballot)
    else:
        # Learners remain, and their transfers restart: chunks do not count under another ballot.
        known = {*joining, *(newest.learners if newest else ())}.intersection(promised, remaining)
        view = replace(made.view, learners=() if is_over else tuple(sorted(known - made.view.in_sync)))
    if proposed and proposed.ballot == highest and proposed != view:
        return again
    return replace(made, view=view, uncertain=None if proposed == view else made.uncertain)


def restored_instead(accept: Accept, voters: Voters, saved_step: int) -> Accept | RestoreCheckpoint:
    """Return a restore of the newest checkpoint instead of a view whose members may lack later steps, if it has them.

    A chief that was cut off, and is evicted with its servers, saves such a checkpoint.

    Args:
        accept: the view that the decision returned.
        voters: the job's voters.
        saved_step: the step of the newest checkpoint; -1 without one.
    """
    if accept.uncertain is None or saved_step <= accept.uncertain:
        return accept
    to = tuple(process for process in accept.to if process.task in voters.members)
    return RestoreCheckpoint(accept.view.ballot, to, tuple(range(len(voters.shards))))


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


def failed_over(former: View | None, view: View, left: Collection[Process]) -> bool:
    """Return whether a primary was lost, and another member in sync of its shard continues.

    Args:
        former: the previous view.
        view: the active one.
        left: the processes that were switched over.
    """
    shards = zip(former.shards, view.shards, strict=False) if former else ()
    return any(
        before[0] not in (*after, *left) and not set(before).isdisjoint(after) for before, after in shards if before
    )


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
    if view.successor != NO_BALLOT:
        return ChangeLayout(view)
    if not view.members <= following:
        return again
    fresh = tuple(process for process, status in statuses.items() if not status.is_voter and process in voteless_before)
    if fresh and all(statuses[process].active for process in view.members):
        # Without a quorum, a process gets its vote with the next view: every member that has not crashed promises it.
        # Witnesses that come up after the first view would otherwise never vote.
        return AdmitVoter(view, fresh) if has_quorum else again
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
    lost, transfers, generations, uncertain = [], [], set(), list[int]()
    for number, tasks in enumerate(voters.shards):
        before = former.shards[number] if former else ()
        have = [process for process in before if process in promised and promised[process].step is not None]
        states = {process: (promised[process].generation, promised[process].step or 0) for process in have}
        newest = max(states.values(), default=None)
        in_sync = [p for p, s in states.items() if newest and (s == newest if lockstep else s[0] == newest[0])]
        may_have = [process.task for process in before if observation[process.task] in MAY_LIVE]
        if not in_sync and may_have:
            return Wait(f"the state of shard {number} may be on {', '.join(may_have)} alone, which does not answer")
        if newest and len(in_sync) < len(tasks):  # another process of the shard may have had a later view without them
            uncertain.append(newest[1])
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
    # A view needs a member of every shard. If all members of one shard are left, they know any later view.
    left = min(uncertain) if founding and len(uncertain) == len(voters.shards) else None
    return Accept(View(ballot, tuple(shards)), tuple(promised), founding=founding, uncertain=left)
