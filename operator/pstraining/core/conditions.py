"""The conditions of a job: each a pure function of the facts of this pass and the stored conditions."""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

from pstraining.api import names
from pstraining.api.autoscaling import RoleSizing
from pstraining.api.conditions import ALWAYS_PRESENT, Condition, Reason
from pstraining.api.status import RefusedSize, StatusCondition
from pstraining.api.text import WHITESPACE, printable
from pstraining.core import queue_messages, restarting, role_status
from pstraining.core.actions import Create, Delete, Kind, Outcome, Outcomes, Replace, Resize, Verdict
from pstraining.core.facts import Facts
from pstraining.core.policies import (
    autoscaling,
    gang,
    grown_sizes,
    node_loss,
    resharding,
    resizing,
    rolling_update,
    teardown,
)
from pstraining.core.policies.completion import End
from pstraining.core.policies.diagnosis import diagnose
from pstraining.core.policies.spec_warnings import CORRECTED, spec_warnings
from pstraining.core.shard_status import degraded
from pstraining.resources.installation import KueueSupport

_BEFORE_PODS = (Kind.CLAIM, Kind.WORKLOAD, *Kind.pod_groups())
"""The kinds that are created before the API server validates any pod template."""


@dataclass(frozen=True)
class ConditionUpdate:
    """The new state of one condition."""

    type: Condition
    true: bool
    reason: str
    """A `Reason`; one that is kept from the stored condition may be another version's."""
    message: str = ""


@dataclass(frozen=True)
class Situation:
    """The input of all conditions."""

    facts: Facts
    outcomes: Outcomes
    end: End | None
    """How the job has ended, on record or in this pass."""

    @property
    def suspended(self) -> bool:
        """Whether the job is suspended, by its user or because it is not admitted."""
        return self.end is None and self.facts.job.spec.run_policy.suspend

    @property
    def held_by_queue(self) -> bool:
        """Whether the job is suspended only because it is not admitted."""
        return self.suspended and not self.facts.queue.job.spec.run_policy.suspend

    @property
    def hold(self) -> Reason:
        """The reason why a suspended job does not run."""
        if not self.held_by_queue:
            return Reason.SUSPENDED
        missing = self.facts.queue.support is KueueSupport.MISSING
        return Reason.KUEUE_NOT_INSTALLED if missing else Reason.AWAITS_ADMISSION

    @property
    def is_settled(self) -> bool:
        """Whether a job that may run needs no write, and waits for no change of its spec."""
        facts = self.facts
        waits = facts.refused_generation == facts.snapshot.generation or facts.failures.restart_job is not None
        return not (self.outcomes.have_writes or self.suspended or self.end is not None or waits)

    @property
    def refusals(self) -> tuple[Outcome, ...]:
        """The outcomes of actions that the API server has refused."""
        return (*self.outcomes.with_verdict(Verdict.INVALID), *self.outcomes.with_verdict(Verdict.REFUSED))

    @property
    def refused_resize(self) -> Outcome | None:
        """The outcome of a resize that the API server has refused."""
        return next((o for o in self.refusals if _is_resize(o)), None)

    @cached_property
    def refused_sizes(self) -> dict[str, RefusedSize]:
        """The refusals of sizes that still hold, by role, without those of growths, which are withdrawn."""
        if self.end is not None or self.suspended:
            return {}
        refused = self.refused_resize
        is_growth = refused is not None and autoscaling.takes_back(self.facts, refused)
        return resizing.refusals(self.facts, None if is_growth else refused)

    @cached_property
    def sizings(self) -> list[RoleSizing]:
        """status.autoscaling after this pass."""
        return autoscaling.sizings(self.facts, self.refused_resize)

    def stored(self, kind: Condition) -> StatusCondition | None:
        """Return the condition as stored."""
        return next((c for c in self.facts.status.conditions if c.type == kind), None)

    def was_true(self, kind: Condition) -> bool:
        """Whether the stored condition is true."""
        condition = self.stored(kind)
        return condition is not None and condition.status == "True"


def conditions(situation: Situation) -> list[StatusCondition]:
    """Return all conditions; the transition time of each changes only with its status."""
    updates = {u.type: u for u in (*_lifecycle(situation), *_degraded(situation), *_troubles(situation))}
    order = [*ALWAYS_PRESENT, *(t for t in Condition if t not in ALWAYS_PRESENT)]
    merged = []
    for kind in order:
        stored = situation.stored(kind)
        if kind in updates:
            merged.append(_merge(updates[kind], stored, situation.facts))
        elif stored is not None:
            merged.append(stored)
    return merged


def _merge(update: ConditionUpdate, stored: StatusCondition | None, facts: Facts) -> StatusCondition:
    status = "True" if update.true else "False"
    same = stored is not None and stored.status == status
    return StatusCondition(
        type=update.type,
        status=status,
        reason=update.reason,
        message=printable(update.message, WHITESPACE),  # it may quote a pod, an event or a webhook
        last_transition_time=stored.last_transition_time if stored is not None and same else facts.timestamp,
        observed_generation=facts.snapshot.generation,
    )


def _lifecycle(situation: Situation) -> Iterator[ConditionUpdate]:
    end, running = situation.end, _running(situation)
    rescaling = _rescaling(situation, running.true)
    yield _created(situation)
    yield running
    if rescaling is not None:
        yield rescaling
    yield from _updating(situation)
    yield from _resizing(situation)
    yield from _autoscaling(situation)
    # Training continues while more servers start for it.
    stops = rescaling is not None and rescaling.true and rescaling.reason != Reason.STARTING_SERVERS
    yield _restarting(situation, running.true, stops)
    yield _suspended(situation)
    yield from _queued(situation)
    for kind in (Condition.SUCCEEDED, Condition.FAILED):
        if end is not None and end.condition is kind:
            yield ConditionUpdate(kind, True, end.reason, end.message)
        else:
            yield ConditionUpdate(kind, False, Reason.NOT_FINISHED if end is None else Reason.JOB_FINISHED)


def _rescaling(situation: Situation, runs: bool) -> ConditionUpdate | None:
    stored = situation.stored(Condition.RESCALING)
    if situation.end is not None or situation.suspended:
        is_due = situation.end is not None or situation.was_true(Condition.RESCALING)
        return next(_withdrawn(situation, Condition.RESCALING), None) if is_due else None
    facts, found = situation.facts, None
    if facts.resharding.step is resharding.ReshardingStep.START_SERVERS:
        starting = [p for p in facts.snapshot.pods_of(names.PS) if p.index >= facts.resharding.current]
        found = diagnose(facts.snapshot, facts.now, starting)
    trouble = "" if found is None else f"{found.message}."
    field = "ps.replicas"
    if grown_sizes.servers(facts.queue.job, facts.status) > facts.queue.job.spec.ps.replicas:
        field = "maxReplicas of ps in spec.autoscaling.rolePolicies"
    progress = resharding.progress(facts.job, facts.resharding, stored, runs=runs, field=field, trouble=trouble)
    return None if progress is None else ConditionUpdate(Condition.RESCALING, *progress)


def _updating(situation: Situation) -> Iterator[ConditionUpdate]:
    stored = situation.stored(Condition.UPDATING)
    if situation.end is None and not situation.suspended:
        invalid = (o for o in situation.outcomes.with_verdict(Verdict.INVALID) if _is_update(o))
        refused = next((o for o in invalid if o.action.kind is Kind.STATEFUL_SET), None)
        progress = rolling_update.progress(situation.facts, stored, refused)
        if progress is not None:
            yield ConditionUpdate(Condition.UPDATING, *progress)
    else:
        yield from _withdrawn(situation, Condition.UPDATING)


def _resizing(situation: Situation) -> Iterator[ConditionUpdate]:
    if situation.end is not None or situation.suspended:
        yield from _withdrawn(situation, Condition.RESIZING)
        return
    if any(isinstance(o.action, Replace) and o.action.kind is Kind.STATEFUL_SET for o in situation.refusals):
        return  # the condition Updating reports it
    progress = resizing.progress(situation.facts, situation.stored(Condition.RESIZING), situation.refused_sizes)
    if progress is not None:
        yield ConditionUpdate(Condition.RESIZING, *progress)


def _autoscaling(situation: Situation) -> Iterator[ConditionUpdate]:
    if situation.end is not None or situation.suspended:
        yield from _withdrawn(situation, Condition.AUTOSCALING)
        return
    found = autoscaling.state(situation.facts, situation.stored(Condition.AUTOSCALING), situation.sizings)
    if found is not None:
        yield ConditionUpdate(Condition.AUTOSCALING, *found)


def _withdrawn(situation: Situation, kind: Condition) -> Iterator[ConditionUpdate]:
    """End a condition that only a running job can have, once it has been reported."""
    if situation.stored(kind) is not None:
        reason = situation.hold if situation.suspended else Reason.JOB_FINISHED
        yield ConditionUpdate(kind, False, reason)


def _suspended(situation: Situation) -> ConditionUpdate:
    stored = situation.stored(Condition.SUSPENDED)
    if not situation.suspended or situation.held_by_queue:
        # A job that ends while it stops was not resumed.
        was = (Reason.RESUMED,) if situation.end is not None else (Reason.RESUMED, Reason.SUSPENDED, Reason.STOPPING)
        resumed = stored is not None and stored.reason in was
        return ConditionUpdate(Condition.SUSPENDED, False, Reason.RESUMED if resumed else Reason.NOT_SUSPENDED)
    # A recorded suspension stays true: a pod that is observed late is terminating.
    kept = situation.was_true(Condition.SUSPENDED) and not teardown.workloads(situation.facts.snapshot)
    if kept or teardown.is_over(situation.facts.snapshot):
        message = "spec.runPolicy.suspend is true: nothing runs."
        return ConditionUpdate(Condition.SUSPENDED, True, Reason.SUSPENDED, message)
    first = role_status.leader(situation.facts)
    left = f"`kubectl get pods -l {names.LABEL_JOB}={situation.facts.snapshot.name}` shows what is left"
    message = f"spec.runPolicy.suspend is true: {first} stops first, then all others; {left}."
    return ConditionUpdate(Condition.SUSPENDED, False, Reason.STOPPING, message)


def _queued(situation: Situation) -> Iterator[ConditionUpdate]:
    state, snapshot = situation.facts.queue, situation.facts.snapshot
    if situation.end is not None or (situation.suspended and not situation.held_by_queue):
        yield from _withdrawn(situation, Condition.QUEUED)
    elif not state.queue:
        if situation.stored(Condition.QUEUED) is not None:
            yield ConditionUpdate(Condition.QUEUED, False, Reason.NOT_QUEUED)
    elif not state.decides:
        yield ConditionUpdate(Condition.QUEUED, False, Reason.QUEUE_IGNORED, queue_messages.ignored(state))
    elif not situation.held_by_queue and state.support is KueueSupport.MISSING:
        yield ConditionUpdate(Condition.QUEUED, False, Reason.KUEUE_NOT_INSTALLED, queue_messages.KEPT)
    elif not situation.held_by_queue:
        yield ConditionUpdate(Condition.QUEUED, False, Reason.ADMITTED, queue_messages.admitted(state))
    elif not teardown.is_over(snapshot):
        yield ConditionUpdate(Condition.QUEUED, False, Reason.STOPPING, queue_messages.stopping(state))
    else:
        yield ConditionUpdate(Condition.QUEUED, True, situation.hold, queue_messages.waiting(state))


def _created(situation: Situation) -> ConditionUpdate:
    if refused := _refused(situation):
        return ConditionUpdate(Condition.CREATED, False, Reason.WRITE_REFUSED, refused)
    if situation.outcomes.with_verdict(Verdict.NOT_SERVED):
        message = gang.not_installed(situation.facts.job)
        return ConditionUpdate(Condition.CREATED, False, Reason.GANG_NOT_INSTALLED, message)
    bad = any(not o.succeeded and not _is_update(o) for o in situation.outcomes.outcomes)
    stored = situation.stored(Condition.CREATED)
    if bad or (situation.suspended and (stored is None or not situation.was_true(Condition.CREATED))):
        return ConditionUpdate(Condition.CREATED, False, Reason.CHILDREN_MISSING)
    stays = situation.suspended or situation.end is not None
    if not stays and gang.holds_back(situation.facts):
        message = "Other workers, standbys and the evaluator are created once every pod of the gang has a node."
        return ConditionUpdate(Condition.CREATED, False, Reason.WAITING_FOR_GANG, message)
    # These are over once there is nothing to write.
    waited = (Reason.WAITING_FOR_GANG, Reason.WRITE_REFUSED, *([Reason.CHILDREN_MISSING] * situation.is_settled))
    if stored is not None and stored.reason not in waited and not situation.outcomes.have_writes:
        return ConditionUpdate(Condition.CREATED, situation.was_true(Condition.CREATED), stored.reason, stored.message)
    message = "Every object of the job exists."
    for outcome in situation.outcomes.with_verdict(Verdict.EXISTS):
        found = f"{outcome.action.kind} {outcome.action.name}"
        message += f" {found} existed before the job: the chief resumes from the checkpoints in it, if there are any."
    return ConditionUpdate(Condition.CREATED, True, Reason.CHILDREN_CREATED, message)


def _refused(situation: Situation) -> str:
    """Return the message about the first object that the API server refuses; empty without one."""
    for outcome in (o for o in situation.outcomes.with_verdict(Verdict.REFUSED) if not _is_resize(o)):
        what = "The deletion of " if isinstance(outcome.action, Delete) else ""
        return f"{what}{outcome.action.kind} {outcome.action.name} was refused: {outcome.message}"
    return ""


def _running(situation: Situation) -> ConditionUpdate:
    facts = situation.facts
    if situation.end is not None:
        return ConditionUpdate(Condition.RUNNING, False, Reason.JOB_FINISHED)
    if situation.suspended:
        message = queue_messages.waiting(facts.queue) if situation.held_by_queue else ""
        return ConditionUpdate(Condition.RUNNING, False, situation.hold, message)
    if (held := node_loss.stands_still(facts.job, facts.snapshot)) is not None:
        return ConditionUpdate(Condition.RUNNING, False, held.reason, held.message)
    # The condition Degraded reports problems of standbys.
    observed = [pod for pod in facts.without_standbys.pods if not facts.is_retired(pod)]
    trouble = node_loss.diagnose(facts.job, facts.snapshot, observed) or diagnose(facts.snapshot, facts.now, observed)
    trouble = gang.explained(facts, trouble)
    if role_status.ps_ready(facts) and role_status.chief_works(facts) and role_status.enough_workers_work(facts):
        if trouble is not None:
            message = f"{trouble.message} (training continues without it)"
            return ConditionUpdate(Condition.RUNNING, True, trouble.reason, message)
        message = f"Every parameter server is ready and {role_status.running_leader(facts)}."
        return ConditionUpdate(Condition.RUNNING, True, Reason.TRAINING, message)
    if refused := _refused(situation):  # pods wait for the object, but cannot report why it is missing
        return ConditionUpdate(Condition.RUNNING, False, Reason.WRITE_REFUSED, refused)
    if trouble is not None:
        return ConditionUpdate(Condition.RUNNING, False, trouble.reason, trouble.message)
    chief = ", the chief and a worker" if facts.job.spec.chief.enabled else " and worker 0"
    message = f"Waiting for the parameter servers{chief}."
    return ConditionUpdate(Condition.RUNNING, False, Reason.WAITING_FOR_PODS, message)


def _restarting(situation: Situation, runs: bool, rescales: bool) -> ConditionUpdate:
    has_run = situation.was_true(Condition.RUNNING) or situation.was_true(Condition.RESTARTING)
    ends = situation.end is not None or situation.suspended
    found = None if ends else restarting.cause(situation.facts, runs=runs, has_run=has_run and not rescales)
    if found is None:
        return ConditionUpdate(Condition.RESTARTING, False, Reason.NOT_RESTARTING)
    return ConditionUpdate(Condition.RESTARTING, True, *found)


def _degraded(situation: Situation) -> Iterator[ConditionUpdate]:
    if situation.end is not None or situation.suspended:
        yield from _withdrawn(situation, Condition.DEGRADED)
        return
    degradation = degraded(situation.facts, stored=situation.stored(Condition.DEGRADED) is not None)
    if degradation is not None:
        yield ConditionUpdate(Condition.DEGRADED, *degradation)


def _troubles(situation: Situation) -> Iterator[ConditionUpdate]:
    outcomes, is_over = situation.outcomes, situation.end is not None
    taken = outcomes.with_verdict(Verdict.NAME_TAKEN)
    invalid = [o for o in outcomes.with_verdict(Verdict.INVALID) if not _is_update(o)]
    clean = situation.is_settled or (outcomes.have_writes and not taken and not invalid)
    if taken:
        held = ", ".join(f"{o.action.kind} {o.action.name}" for o in taken)
        message = f"{held} exists and does not belong to the job; it is not changed. Delete it or rename the job."
        yield ConditionUpdate(Condition.NAME_CONFLICT, True, Reason.NAME_TAKEN, message)
    elif situation.was_true(Condition.NAME_CONFLICT) and (clean or situation.suspended or is_over):
        yield ConditionUpdate(Condition.NAME_CONFLICT, False, Reason.JOB_FINISHED if is_over else Reason.NAMES_FREE)
    if invalid:
        message = f"{invalid[0].action.kind} {invalid[0].action.name} was refused: {invalid[0].message}"
        yield ConditionUpdate(Condition.INVALID_TEMPLATE, True, Reason.TEMPLATE_REFUSED, message)
    elif situation.was_true(Condition.INVALID_TEMPLATE) and (is_over or situation.suspended or _is_accepted(situation)):
        accepted = Reason.JOB_FINISHED if is_over else Reason.TEMPLATE_ACCEPTED
        yield ConditionUpdate(Condition.INVALID_TEMPLATE, False, accepted)
    yield from _of_spec(situation)
    yield from _stalled(situation)
    if situation.was_true(Condition.STATUS_INCOMPLETE):
        # A status that the API server refuses is stored in a reduced form, which sets the condition again.
        yield ConditionUpdate(Condition.STATUS_INCOMPLETE, False, Reason.STATUS_ACCEPTED)


def _is_update(outcome: Outcome) -> bool:
    """Whether a refusal of this action leaves the job unchanged, because it updates an existing object."""
    return isinstance(outcome.action, Replace | Resize)


def _is_resize(outcome: Outcome) -> bool:
    """Whether an action gives running pods another size; a change of a StatefulSet's template does not count."""
    is_template = isinstance(outcome.action, Replace) and outcome.action.kind is Kind.DEPLOYMENT
    return is_template or isinstance(outcome.action, Resize)


def _is_accepted(situation: Situation) -> bool:
    """Whether the refused spec was changed, and an owner of pods was created or no further object is needed."""
    created = (o.action for o in situation.outcomes.with_verdict(Verdict.DONE) if isinstance(o.action, Create))
    is_other = situation.facts.refused_generation != situation.facts.snapshot.generation
    return is_other and (not situation.outcomes.have_writes or any(a.kind not in _BEFORE_PODS for a in created))


def _of_spec(situation: Situation) -> Iterator[ConditionUpdate]:
    found = spec_warnings(situation.facts.queue.job)
    for kind, corrected in CORRECTED.items():
        is_known = situation.stored(kind) is not None
        # A job that has ended under an earlier version gets no new warning.
        if kind in found and (is_known or situation.end is None):
            yield ConditionUpdate(kind, True, *found[kind])
        elif is_known:
            yield ConditionUpdate(kind, False, corrected)


def _stalled(situation: Situation) -> Iterator[ConditionUpdate]:
    stall, endpoint = situation.facts.snapshot.stall, situation.facts.snapshot.installation.progress
    if situation.end is not None or situation.suspended:
        yield from _withdrawn(situation, Condition.STALLED)
    elif stall:
        yield ConditionUpdate(Condition.STALLED, True, Reason.NO_STEP, stall)
    elif situation.stored(Condition.STALLED) is not None and (stall is not None or endpoint is None):
        yield ConditionUpdate(Condition.STALLED, False, Reason.NO_REPORTS if stall is None else Reason.STEPPING)
