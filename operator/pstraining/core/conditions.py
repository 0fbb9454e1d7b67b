"""The conditions of a job: each a pure function of what is observed and what was told before."""

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime

from pstraining.api import names
from pstraining.api.conditions import ALWAYS_TOLD, Condition, Reason
from pstraining.api.models import PSTrainingJob
from pstraining.api.status import PSTrainingJobStatus, StatusCondition
from pstraining.core import role_status
from pstraining.core.actions import Create, Kind, Outcome, Outcomes, Replace, Verdict
from pstraining.core.policies import failover, gang, job_restart, node_loss, resharding, rolling_update, teardown
from pstraining.core.policies.completion import End
from pstraining.core.policies.diagnosis import diagnose
from pstraining.core.shard_status import degraded
from pstraining.core.snapshot import Snapshot

_NOT_DURABLE = {
    "emptyDir": "is an emptyDir: checkpoints go with the chief's pod.",
    "hostPath": "is a hostPath: a chief that is started on another node does not find its checkpoints.",
}
_BEFORE_PODS = (Kind.CLAIM, *Kind.pod_groups())
"""What is made before any template is shown to the API server."""


@dataclass(frozen=True)
class ConditionUpdate:
    """What one condition says now."""

    type: Condition
    true: bool
    reason: Reason
    message: str = ""


@dataclass(frozen=True)
class Situation:
    """All that conditions are made from."""

    job: PSTrainingJob
    snapshot: Snapshot
    old: PSTrainingJobStatus
    outcomes: Outcomes
    end: End | None
    """How the job has ended, now or on record."""

    @property
    def suspended(self) -> bool:
        """The job is held back."""
        return self.end is None and self.job.spec.run_policy.suspend

    def was(self, kind: Condition) -> StatusCondition | None:
        """The condition as stored."""
        return next((c for c in self.old.conditions if c.type == kind), None)

    def was_true(self, kind: Condition) -> bool:
        """Whether the stored condition is true."""
        found = self.was(kind)
        return found is not None and found.status == "True"


def conditions(situation: Situation, now: datetime) -> list[StatusCondition]:
    """All conditions, with times that move only when the status does."""
    told = {t.type: t for t in (*_lifecycle(situation, now), *_degraded(situation, now), *_troubles(situation))}
    order = [*ALWAYS_TOLD, *(t for t in Condition if t not in ALWAYS_TOLD)]
    generation = situation.snapshot.generation
    found = []
    for kind in order:
        old = situation.was(kind)
        if kind in told:
            found.append(_merge(told[kind], old, generation, now))
        elif old is not None:
            found.append(old)
    return found


def _merge(told: ConditionUpdate, old: StatusCondition | None, generation: int, now: datetime) -> StatusCondition:
    status = "True" if told.true else "False"
    same = old is not None and old.status == status
    return StatusCondition(
        type=told.type,
        status=status,
        reason=told.reason,
        message=told.message,
        last_transition_time=old.last_transition_time if old is not None and same else now,
        observed_generation=generation,
    )


def _lifecycle(situation: Situation, now: datetime) -> Iterator[ConditionUpdate]:
    end = situation.end
    yield _created(situation)
    running = _running(situation, now)
    yield running
    yield from _rescaling(situation, running.true)
    yield from _updating(situation)
    yield _restarting(situation, running.true)
    yield _suspended(situation)
    for kind in (Condition.SUCCEEDED, Condition.FAILED):
        if end is not None and end.condition is kind:
            yield ConditionUpdate(kind, True, end.reason, end.message)
        else:
            yield ConditionUpdate(kind, False, Reason.NOT_FINISHED if end is None else Reason.JOB_FINISHED)


def _rescaling(situation: Situation, runs: bool) -> Iterator[ConditionUpdate]:
    if situation.end is not None:
        if situation.was(Condition.RESCALING) is not None:
            yield ConditionUpdate(Condition.RESCALING, False, Reason.JOB_FINISHED)
    elif not situation.suspended:
        was = situation.was(Condition.RESCALING)
        found = resharding.progress(situation.job, situation.snapshot, was, runs=runs)
        if found is not None:
            yield ConditionUpdate(Condition.RESCALING, *found)


def _updating(situation: Situation) -> Iterator[ConditionUpdate]:
    was = situation.was(Condition.UPDATING)
    if situation.end is None and not situation.suspended:
        refused = next((o for o in situation.outcomes.with_verdict(Verdict.INVALID) if _leaves_all(o)), None)
        found = rolling_update.progress(situation.job, situation.snapshot, was, refused)
        if found is not None:
            yield ConditionUpdate(Condition.UPDATING, *found)
    elif was is not None:
        yield ConditionUpdate(
            Condition.UPDATING, False, Reason.SUSPENDED if situation.suspended else Reason.JOB_FINISHED
        )


def _suspended(situation: Situation) -> ConditionUpdate:
    was = situation.was(Condition.SUSPENDED)
    if not situation.suspended:
        resumed = was is not None and was.reason != Reason.NOT_SUSPENDED
        return ConditionUpdate(Condition.SUSPENDED, False, Reason.RESUMED if resumed else Reason.NOT_SUSPENDED)
    # What was once told as over stays so: a pod that is seen late is on its way out.
    kept = situation.was_true(Condition.SUSPENDED) and not teardown.workloads(situation.snapshot)
    if kept or teardown.is_over(situation.snapshot):
        return ConditionUpdate(
            Condition.SUSPENDED, True, Reason.SUSPENDED, "spec.runPolicy.suspend is true: nothing runs."
        )
    first = "the chief" if situation.job.spec.chief.enabled else "worker 0"
    left = f"`kubectl get pods -l {names.LABEL_JOB}={situation.snapshot.name}` shows what is left"
    message = f"spec.runPolicy.suspend is true: {first} stops first, then all others; {left}."
    return ConditionUpdate(Condition.SUSPENDED, False, Reason.STOPPING, message)


def _created(situation: Situation) -> ConditionUpdate:
    refused = situation.outcomes.with_verdict(Verdict.REFUSED)
    if refused:
        message = f"{refused[0].action.kind} {refused[0].action.name} was refused: {refused[0].message}"
        return ConditionUpdate(Condition.CREATED, False, Reason.WRITE_REFUSED, message)
    unknown = situation.outcomes.with_verdict(Verdict.NOT_SERVED)
    if unknown:
        return ConditionUpdate(Condition.CREATED, False, Reason.GANG_NOT_INSTALLED, gang.not_installed(situation.job))
    bad = any(o.verdict is not Verdict.DONE and not _leaves_all(o) for o in situation.outcomes.outcomes)
    was = situation.was(Condition.CREATED)
    if bad or (situation.suspended and (was is None or not situation.was_true(Condition.CREATED))):
        return ConditionUpdate(Condition.CREATED, False, Reason.CHILDREN_MISSING)
    stays = situation.suspended or situation.end is not None
    if not stays and gang.holds_back(situation.job, situation.snapshot, situation.old):
        message = "What the job can do without is created once the gang has its places."
        return ConditionUpdate(Condition.CREATED, False, Reason.WAITING_FOR_GANG, message)
    waited = was is not None and was.reason == Reason.WAITING_FOR_GANG
    if was is not None and not waited and not situation.outcomes.outcomes:
        return ConditionUpdate(
            Condition.CREATED, situation.was_true(Condition.CREATED), Reason(was.reason), was.message
        )
    return ConditionUpdate(Condition.CREATED, True, Reason.CHILDREN_CREATED, "Every object of the job exists.")


def _running(situation: Situation, now: datetime) -> ConditionUpdate:
    job, snapshot = situation.job, situation.snapshot
    if situation.end is not None:
        return ConditionUpdate(Condition.RUNNING, False, Reason.JOB_FINISHED)
    if situation.suspended:
        return ConditionUpdate(Condition.RUNNING, False, Reason.SUSPENDED)
    # What a standby waits for is told as Degraded.
    primaries = failover.primaries_only(job, snapshot, situation.old)
    trouble = node_loss.diagnose(job, primaries) or diagnose(snapshot, now, primaries.pods)
    trouble = gang.explained(job, snapshot, situation.old, trouble)
    served = role_status.ps_ready(job, snapshot, situation.old)
    if served and role_status.chief_works(job, snapshot) and role_status.enough_workers_work(job, snapshot):
        if trouble is not None:
            return ConditionUpdate(
                Condition.RUNNING, True, trouble.reason, f"{trouble.message} (training goes on without it)"
            )
        return ConditionUpdate(
            Condition.RUNNING, True, Reason.TRAINING, "Every parameter server is ready and the chief runs."
        )
    if trouble is not None:
        return ConditionUpdate(Condition.RUNNING, False, trouble.reason, trouble.message)
    return ConditionUpdate(
        Condition.RUNNING, False, Reason.WAITING_FOR_PODS, "Waiting for the parameter servers, the chief and a worker."
    )


def _restarting(situation: Situation, runs: bool) -> ConditionUpdate:
    has_run = situation.was_true(Condition.RUNNING) or situation.was_true(Condition.RESTARTING)
    planned = situation.suspended or any(t.true for t in _rescaling(situation, runs))
    if runs or not has_run or situation.end is not None or planned:
        return ConditionUpdate(Condition.RESTARTING, False, Reason.NOT_RESTARTING)
    if job_restart.is_due(situation.snapshot, situation.old):
        return ConditionUpdate(
            Condition.RESTARTING, True, Reason.JOB_RESTARTED, "All of the job is being started again."
        )
    if not role_status.ps_ready(situation.job, situation.snapshot, situation.old):
        return ConditionUpdate(Condition.RESTARTING, True, Reason.PS_LOST, "A parameter server is being started again.")
    return ConditionUpdate(Condition.RESTARTING, True, Reason.CHIEF_REPLACED, "The chief is being started again.")


def _degraded(situation: Situation, now: datetime) -> Iterator[ConditionUpdate]:
    told = situation.was(Condition.DEGRADED) is not None
    if situation.end is not None or situation.suspended:
        if told:
            yield ConditionUpdate(
                Condition.DEGRADED, False, Reason.SUSPENDED if situation.suspended else Reason.JOB_FINISHED
            )
        return
    found = degraded(situation.job, situation.snapshot, situation.old, now, told=told)
    if found is not None:
        yield ConditionUpdate(Condition.DEGRADED, *found)


def _troubles(situation: Situation) -> Iterator[ConditionUpdate]:
    outcomes = situation.outcomes
    taken = outcomes.with_verdict(Verdict.NAME_TAKEN)
    invalid = [o for o in outcomes.with_verdict(Verdict.INVALID) if not _leaves_all(o)]
    clean = outcomes.outcomes and not taken and not invalid
    if taken:
        held = ", ".join(f"{o.action.kind} {o.action.name}" for o in taken)
        yield ConditionUpdate(
            Condition.NAME_CONFLICT,
            True,
            Reason.NAME_TAKEN,
            f"{held} exists and belongs to someone else; it is left alone. Delete it or rename the job.",
        )
    elif situation.was_true(Condition.NAME_CONFLICT) and (clean or situation.suspended):
        yield ConditionUpdate(Condition.NAME_CONFLICT, False, Reason.NAMES_FREE)
    if invalid:
        message = f"{invalid[0].action.kind} {invalid[0].action.name} was refused: {invalid[0].message}"
        yield ConditionUpdate(Condition.INVALID_TEMPLATE, True, Reason.TEMPLATE_REFUSED, message)
    elif situation.was_true(Condition.INVALID_TEMPLATE) and (_created_some(outcomes) or situation.suspended):
        yield ConditionUpdate(Condition.INVALID_TEMPLATE, False, Reason.TEMPLATE_ACCEPTED)
    yield from _checkpoint(situation)


def _leaves_all(outcome: Outcome) -> bool:
    """Whether everything stays as it is when that is refused: nothing is missing of a job."""
    return isinstance(outcome.action, Replace)


def _created_some(outcomes: Outcomes) -> bool:
    return any(
        isinstance(o.action, Create) and o.verdict is Verdict.DONE and o.action.kind not in _BEFORE_PODS
        for o in outcomes.outcomes
    )


def _checkpoint(situation: Situation) -> Iterator[ConditionUpdate]:
    checkpoint = situation.job.spec.checkpoint
    if checkpoint is None:
        message = "spec.checkpoint is not set: a lost parameter server or chief means training from the beginning."
        yield ConditionUpdate(Condition.CHECKPOINT_NOT_DURABLE, True, Reason.NO_CHECKPOINT_VOLUME, message)
    elif weak := next((why for kind, why in _NOT_DURABLE.items() if kind in (checkpoint.volume or {})), None):
        message = f"spec.checkpoint.volume {weak}"
        yield ConditionUpdate(Condition.CHECKPOINT_NOT_DURABLE, True, Reason.CHECKPOINT_VOLUME_NOT_DURABLE, message)
    elif situation.was(Condition.CHECKPOINT_NOT_DURABLE) is not None:
        yield ConditionUpdate(Condition.CHECKPOINT_NOT_DURABLE, False, Reason.CHECKPOINT_DURABLE)
