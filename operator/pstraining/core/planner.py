"""From an observed state to actions: `plan` is pure, total and stateless.

    deleting, unreadable,
    managed by another        nothing
    ended, on record          clean up by cleanPodPolicy; delete the job when its TTL has expired
    just ended                nothing: status records the end first
    just failed as a whole    nothing: status counts the restart first
    suspended                 stop in order, the chief first
    not admitted by its queue stop in order, the chief first; then return the quota, or request it
    restarted as a whole      stop in order, then create again
    refused template          nothing until the spec changes; then delete what exists, and create it again; a job that
                              has started continues instead, and meanwhile creates only attempts
    changed unseen            stop in order, then create again
    another number of PSs     stop the chief, or let it save and end, then record the new number; some jobs instead stop
                              in order and are created again
    else                      create missing children, correct drifted ones, create the next attempt of the chief

The owners of children are corrected in all of these states except the first (policies/adoption.py, retain_policy.py).
Planning again on the result of a plan gives the empty plan, and every prefix of a plan leaves a legal state. The
policies that delete failed pods wait until status has recorded the failure.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from datetime import datetime

from pstraining.api import names
from pstraining.api.conditions import Condition, Reason
from pstraining.api.packed_records import numbers
from pstraining.core import desired_state, role_status
from pstraining.core.actions import WITH_PODS, Action, Create, Delete, Kind, Manifest, Plan, Replace
from pstraining.core.desired_state import DesiredState
from pstraining.core.facts import Facts, Unreadable
from pstraining.core.policies import (
    adoption,
    attempts,
    clean_up,
    completion,
    deadline,
    default_queue,
    diagnosis,
    dispatching,
    failover,
    gang,
    job_restart,
    missed_change,
    node_loss,
    pvc_retention,
    queueing,
    replaced_pods,
    resizing,
    retain_policy,
    retired_workers,
    rolling_update,
    stuck_pods,
    teardown,
)
from pstraining.core.policies.attempts import Step
from pstraining.core.policies.resharding import ReshardingStep
from pstraining.core.snapshot import Child
from pstraining.resources import workloads
from pstraining.resources.launcher import LauncherFiles, LauncherMap


def plan(facts: Facts | Unreadable, launcher: LauncherFiles) -> Plan:
    """Return the actions that are due for a job now.

    Args:
        facts: the facts of this pass.
        launcher: the launcher that new children get.
    """
    if isinstance(facts, Unreadable) or facts.snapshot.deleting or not (facts.is_managed_here or facts.is_dispatched):
        return Plan()
    if default_queue.is_due(facts):
        return Plan((default_queue.label(facts),))
    found = _dispatch(facts) if facts.is_dispatched else _decide(facts, launcher)
    adopted = _without(adoption.adoptions(facts.job, facts.snapshot), found.actions)
    owners = (*retain_policy.owner_changes(facts.job, facts.snapshot), *adopted)
    # The garbage collector deletes by the owners that an object has when the job is deleted.
    if owners and any(a.kind is Kind.PS_TRAINING_JOB for a in found.actions):
        return Plan(owners)
    # A refusal, such as that of a quota, ends the writes of the pass: what a job has comes before what it gets.
    return replace(found, actions=_creations_last(facts, (*found.actions, *owners)))


def _dispatch(facts: Facts) -> Plan:
    """Request or return the quota of a job that another cluster runs."""
    expiry = clean_up.expiry(facts.job, facts.status)
    if expiry is not None and expiry <= facts.now:
        return Plan((Delete(Kind.PS_TRAINING_JOB, facts.snapshot.name, facts.snapshot.uid, Reason.TTL_EXPIRED),))
    requeue_at = _earliest(expiry, dispatching.requeue_at(facts), queueing.look_again(facts))
    return Plan(tuple(dispatching.changes(facts)), requeue_at)


def _decide(facts: Facts, launcher: LauncherFiles) -> Plan:
    """Decide about everything except the owners of children."""
    if facts.recorded_end is not None:
        return _clean_up(facts, facts.recorded_end)
    if completion.new_end(facts) is not None or facts.failures.restart_job is not None:
        return Plan()
    if facts.job.spec.run_policy.suspend:
        return _hold(facts)
    found = _activate(facts, launcher)
    return replace(found, requeue_at=_earliest(found.requeue_at, deadline.ends_at(facts.job, facts.status)))


def _activate(facts: Facts, launcher: LauncherFiles) -> Plan:
    """Bring a job that may run one step closer to its desired state."""
    if job_restart.is_due(facts):
        return _stop(facts, Reason.JOB_RESTARTED)
    if facts.refused_generation is not None and (step := _after_refusal(facts, launcher)) is not None:
        return step
    if missed_change.is_due(facts.job, facts.snapshot):
        return _stop(facts, Reason.SPEC_CHANGED)
    match facts.resharding.step:
        case ReshardingStep.REPLACE_ALL:
            return _stop(facts, Reason.RESHARDING)
        case ReshardingStep.STOP_LEADER | ReshardingStep.SWITCH:
            return _switch(facts)
        case ReshardingStep.ADOPT:
            return Plan(tuple(desired_state.switched(facts)))
        case ReshardingStep.STEADY | ReshardingStep.START_SERVERS | ReshardingStep.SAVE:
            return _run(facts, launcher)


def _clean_up(facts: Facts, end: Condition) -> Plan:
    """Delete what cleanPodPolicy does not keep, and the job itself once its TTL has expired."""
    expiry = clean_up.expiry(facts.job, facts.status)
    if expiry is not None and expiry <= facts.now:
        job = facts.snapshot
        return Plan((Delete(Kind.PS_TRAINING_JOB, job.name, job.uid, Reason.TTL_EXPIRED),))
    step = clean_up.clean_up(facts, end)
    kept, deletions = desired_state.kept(facts, step), _deletions(step.delete, Reason.JOB_FINISHED)
    finished = () if step.delete else queueing.ended(facts, end)
    return Plan((*kept, *desired_state.ended(facts, step.delete), *deletions, *finished), _earliest(expiry, step.until))


def _hold(facts: Facts) -> Plan:
    """Stop a job that is suspended or not admitted, and write what its queue needs."""
    by_user = facts.queue.job.spec.run_policy.suspend
    found = _stop(facts, Reason.SUSPENDED if by_user else Reason.AWAITS_ADMISSION)
    requeue_at = _earliest(found.requeue_at, queueing.look_again(facts))
    return Plan((*found.actions, *queueing.changes(facts)), requeue_at)


def _stop(facts: Facts, reason: Reason) -> Plan:
    """Delete the next children of an orderly stop."""
    if _has_former_success(facts):
        return Plan()
    step = teardown.next_step(facts.job, facts.snapshot)
    actions = (*replaced_pods.announced(facts, _deletions(step.delete, reason)), *_force_deletions(facts))
    return Plan(actions, node_loss.requeue_at(facts.job, facts.snapshot, facts.now))


def _switch(facts: Facts) -> Plan:
    """Stop the leader, and record the next layout once no leader runs."""
    if facts.resharding.leader_may_run or _has_former_success(facts):
        return _stop(facts, Reason.SWITCH_LAYOUT)
    return Plan(tuple(desired_state.switched(facts)))


def _has_former_success(facts: Facts) -> bool:
    """Whether status still has the success of a program that runs again; after a crash, it would not be started."""
    if not facts.leader_stops:
        return False
    recorded = numbers(facts.status.completed_indexes)
    kept = numbers(role_status.completed_indexes(facts, has_ended=False))
    return attempts.success_recorded(facts.status, names.CHIEF) or not set(recorded) <= set(kept)


def _after_refusal(facts: Facts, launcher: LauncherFiles) -> Plan | None:
    """Wait while the refused spec is unchanged, and then delete its workloads; None if there are none.

    A job whose programs may run keeps them, and its lost pods are still replaced: of its objects, only attempts of the
    chief and the evaluator are created, because any other one may be the refused one. Without the cluster map, no
    container has started.
    """
    has_started = facts.snapshot.child(Kind.CONFIG_MAP, names.cluster_config_map(facts.snapshot.name)) is not None
    if facts.refused_generation == facts.snapshot.generation:
        return _run_as_it_is(facts, launcher) if has_started else Plan()
    left = () if has_started else teardown.workloads(facts.snapshot)
    return Plan(tuple(replaced_pods.announced(facts, _deletions(left, Reason.NOT_DESIRED)))) if left else None


def _run_as_it_is(facts: Facts, launcher: LauncherFiles) -> Plan:
    """Continue with the existing objects; a job that lacks parameter servers, as after a stop, waits instead."""
    if not facts.snapshot.of_kind(Kind.STATEFUL_SET):
        return Plan()
    found = _run(facts, launcher)
    actions = (a for a in found.actions if not isinstance(a, Create) or a.kind is Kind.JOB)
    return replace(found, actions=tuple(actions))


def _run(facts: Facts, launcher: LauncherFiles) -> Plan:
    """Bring the children of a running job to the desired state."""
    snapshot, now = facts.snapshot, facts.now
    requeue_at = _earliest(
        node_loss.requeue_at(facts.job, snapshot, now),
        diagnosis.requeue_at(snapshot, now),
        failover.requeue_at(facts.shards, now, failover.new_term(snapshot)),
        *(attempts.retry_at(observed, snapshot, now) for observed in facts.attempts.values()),
        retired_workers.requeue_at(facts.job, snapshot, facts.succeeded_workers, now),
        queueing.look_again(facts),
    )
    actions: Iterable[Action] = (*_changes(facts, launcher), *_force_deletions(facts))
    if facts.queue.lacks_assignments:
        # A template that is written now would lack the node labels of its flavor.
        actions = (action for action in actions if not _writes_template(action))
    return Plan(tuple(actions), requeue_at)


def _changes(facts: Facts, launcher: LauncherFiles) -> Iterator[Action]:
    """Yield the changes to a running job, in the order in which they are written."""
    snapshot, steps = facts.snapshot, _attempt_steps(facts)
    desired = desired_state.render(facts, launcher, steps[names.CHIEF].create or facts.current_term)
    promotions = list(failover.promotions(facts.job, snapshot, facts.shards))
    former = failover.fences(snapshot, facts.shards) if facts.failures_recorded else ()
    fences = list(replaced_pods.announced(facts, former))
    stuck, recorded = list(stuck_pods.deletions(facts)), list(desired_state.recorded(facts))

    yield from promotions
    yield from fences
    yield from recorded
    yield from _without(desired_state.missing_and_drifted(facts, desired.before_chief), recorded)
    yield from _next_attempts(facts, desired, steps)
    yield from _without(desired_state.missing_and_drifted(facts, desired.after_chief), promotions)
    yield from desired_state.retired(facts)
    yield from _without(desired_state.refreshed(facts, desired.term), fences)
    yield from (deletion for step in steps.values() for deletion in _deletions(step.delete, Reason.OLD_TERM))
    yield from desired_state.ended(facts) if facts.failures_recorded else ()
    yield from replaced_pods.announced(facts, desired_state.surplus(snapshot, desired.children))
    yield from pvc_retention.left_over(facts.job, snapshot, facts.resharding.servers_wanted)
    going = (*stuck, *_without(rolling_update.deletions(facts), stuck))
    yield from replaced_pods.announced(facts, going)
    yield from queueing.changes(facts)
    resizes = _without(_resizes(facts, desired.launcher_map), (*going, *fences))
    yield from replaced_pods.announced(facts, resizes)


def _resizes(facts: Facts, launcher_map: LauncherMap) -> Iterator[Action]:
    """Give pods the size of the spec, after all other changes: a refusal of a size ends the writes of the pass."""

    def worker(index: int) -> Manifest:
        installation = facts.snapshot.installation
        built = workloads.build_worker(facts.job, index, launcher_map, installation=installation)
        return desired_state.completed(facts, built)

    yield from resizing.changes(facts)
    yield from resizing.replacements(facts, worker)


def _attempt_steps(facts: Facts) -> dict[str, Step]:
    """Return the changes of the attempts of the chief and the evaluator, by role."""
    recorded = facts.failures_recorded
    return {
        role: attempts.next_step(observed, facts.snapshot, facts.now, failures_recorded=recorded)
        for role, observed in facts.attempts.items()
    }


def _next_attempts(facts: Facts, desired: DesiredState, steps: Mapping[str, Step]) -> Iterator[Create]:
    """Create the next attempts; the evaluator waits for the gang, because it is not a member."""
    for role, step in steps.items():
        is_chief = role == names.CHIEF
        if step.create is not None and (is_chief or not gang.is_waiting(facts)):
            installation = facts.snapshot.installation
            made_of = facts.job, role, step.create, desired.launcher_map
            attempt = workloads.build_attempt(*made_of, installation=installation)
            attempt = desired_state.completed(facts, attempt)
            later = Reason.NEXT_TERM if is_chief else Reason.NEXT_ATTEMPT
            yield Create(Kind.JOB, attempt["metadata"]["name"], attempt, Reason.DESIRED if step.create == 1 else later)


def _force_deletions(facts: Facts) -> tuple[Delete, ...]:
    """Delete lost pods by force, once status has recorded their failures."""
    forced = node_loss.force_deletions(facts.job, facts.snapshot, facts.now)
    return tuple(forced) if facts.failures_recorded else ()


def _writes_template(action: Action) -> bool:
    """Whether an action writes the template of pods."""
    return action.kind in WITH_PODS and isinstance(action, Create | Replace)


def _creations_last(facts: Facts, actions: Iterable[Action]) -> tuple[Action, ...]:
    """Return the actions with the creations last, except that of the chief's next attempt if the job has servers."""
    has_servers = bool(facts.snapshot.of_kind(Kind.STATEFUL_SET))
    chief = names.chief_job(facts.snapshot.name, facts.chief.newest + 1)

    def is_last(action: Action) -> bool:
        return isinstance(action, Create) and not (has_servers and (action.kind, action.name) == (Kind.JOB, chief))

    return tuple(sorted(actions, key=is_last))


def _without(actions: Iterable[Action], others: Iterable[Action]) -> Iterator[Action]:
    """Leave out the actions on objects that other actions already write."""
    written = {action.uid for action in others if not isinstance(action, Create)}
    return (action for action in actions if isinstance(action, Create) or action.uid not in written)


def _deletions(children: Iterable[Child], reason: Reason) -> Iterator[Delete]:
    return (Delete(c.kind, c.name, c.uid, reason) for c in children)


def _earliest(*times: datetime | None) -> datetime | None:
    return min((time for time in times if time is not None), default=None)
