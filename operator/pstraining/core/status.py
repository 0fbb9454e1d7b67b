"""What a job's status says, and which events tell of the difference to what it said before.

Status is a function of the snapshot, of what became of the plan, and of the stored status (for times, counters and what
is not seen any more). The same input gives the same bytes, so that an unchanged job costs no write.
"""

from collections.abc import Iterator
from datetime import datetime
from typing import Any

from pstraining.api import names
from pstraining.api.conditions import Condition, Phase, Reason
from pstraining.api.models import PSTrainingJob
from pstraining.api.status import PSTrainingJobStatus, StatusCondition
from pstraining.core.actions import Create, Event, Kind, Outcomes, Verdict
from pstraining.core.conditions import Situation, conditions
from pstraining.core.observe import parse_time
from pstraining.core.planner import is_ours, read_job, read_status
from pstraining.core.policies import attempts, deadline, job_restart, node_loss
from pstraining.core.policies.completion import End, new_end, recorded_end
from pstraining.core.policies.failure_counts import count_failures, key_of
from pstraining.core.policies.teardown import workloads
from pstraining.core.role_status import role_statuses
from pstraining.core.shard_status import shard_statuses, standby_summary, took_over
from pstraining.core.snapshot import Snapshot
from pstraining.resources.workloads import worker_selector_text

_WARNINGS = {
    Condition.FAILED,
    Condition.RESTARTING,
    Condition.DEGRADED,
    Condition.NAME_CONFLICT,
    Condition.INVALID_TEMPLATE,
    Condition.CHECKPOINT_NOT_DURABLE,
}


_ENDS_TOLD = (Condition.NAME_CONFLICT, Condition.DEGRADED)
"""Whose end, too, is an event."""


def next_status(snapshot: Snapshot, outcomes: Outcomes, now: datetime) -> dict[str, Any]:
    """The whole status as it should be stored now.

    Args:
        snapshot: what the plan was made from.
        outcomes: what became of the plan.
        now: the present time; fractions of a second are dropped.
    """
    now = now.replace(microsecond=0)
    snapshot = node_loss.marked(snapshot, now)
    job, old = read_job(snapshot), read_status(snapshot)
    if isinstance(job, str):
        return _dump(_unreadable(snapshot, old, job, now))
    if not is_ours(job):
        return dict(snapshot.status)
    counted = count_failures(job, snapshot, old)
    end = _recorded(old) or new_end(job, snapshot, old, counted, now)
    situation = Situation(job, snapshot, old, outcomes, end)
    told = conditions(situation, now)
    shards = shard_statuses(job, snapshot, old, now)
    found = role_statuses(job, snapshot, old, counted, None if end is None else end.condition)
    return _dump(
        PSTrainingJobStatus(
            observed_generation=snapshot.generation,
            phase=_phase(told),
            conditions=told,
            start_time=None if situation.suspended else old.start_time or _started(snapshot, now),
            active_seconds=deadline.active_seconds(old, now, suspended=situation.suspended),
            completion_time=None if end is None else old.completion_time or now,
            term=_newest(job, snapshot, old, outcomes, names.CHIEF),
            evaluator_attempt=_newest(job, snapshot, old, outcomes, names.EVALUATOR),
            restarts=sum(role.restarts for role in found.values()),
            job_restarts=job_restart.number(old, counted) if end is None else old.job_restarts,
            ps=found["ps"],
            worker=found["worker"],
            chief=found["chief"],
            evaluator=found.get("evaluator"),
            shards=shards,
            standby_summary=standby_summary(job, shards),
            takeovers=sum(s.takeovers for s in shards) if shards else old.takeovers,
            failed_replica=old.failed_replica or (end.replica if end is not None else ""),
            selector=worker_selector_text(job),
            replica_records=list(counted.records),
        )
    )


def events(snapshot: Snapshot, status: dict[str, Any]) -> tuple[Event, ...]:
    """One event for each transition between the stored status and the new one."""
    old, new = read_status(snapshot), PSTrainingJobStatus.model_validate(status)
    before = {c.type: c for c in old.conditions}
    told = [e for c in new.conditions if (e := _transition(before.get(c.type), c)) is not None]
    return (*_failures(old, new), *took_over(old, new), *told)


def _recorded(old: PSTrainingJobStatus) -> End | None:
    kind = recorded_end(old)
    if kind is None:
        return None
    condition = next(c for c in old.conditions if c.type == kind)
    return End(kind, Reason(condition.reason), condition.message)


def _newest(job: PSTrainingJob, snapshot: Snapshot, old: PSTrainingJobStatus, outcomes: Outcomes, role: str) -> int:
    """The newest attempt of the chief or the evaluator, those made by this pass included."""
    if not attempts.is_wanted(job, role):
        return 0
    created = (o.action for o in outcomes.with_verdict(Verdict.DONE) if isinstance(o.action, Create))
    labels = (a.body["metadata"]["labels"] for a in created if a.kind is Kind.JOB)
    made = (int(found[attempts.NUMBER[role]]) for found in labels if attempts.NUMBER[role] in found)
    return max((attempts.newest(snapshot, old, role), *made))


def _started(snapshot: Snapshot, now: datetime) -> datetime:
    """When what runs now was made: before this moment, if an operator died between making it and telling so.

    A pod that is older than the start is taken for one from before a suspension, and its failures never count.
    """
    made = (parse_time(c.manifest["metadata"].get("creationTimestamp")) for c in workloads(snapshot) if not c.deleting)
    return min((now, *(m for m in made if m is not None)))


def _phase(told: list[StatusCondition]) -> Phase:
    true = {c.type for c in told if c.status == "True"}
    for condition, phase in (
        (Condition.SUCCEEDED, Phase.SUCCEEDED),
        (Condition.FAILED, Phase.FAILED),
        (Condition.SUSPENDED, Phase.SUSPENDED),
        (Condition.INVALID_TEMPLATE, Phase.INVALID),
        (Condition.RESCALING, Phase.RESCALING),
        (Condition.RESTARTING, Phase.RESTARTING),
        (Condition.RUNNING, Phase.RUNNING),
    ):
        if condition in true:
            return phase
    stops = any(c.type == Condition.SUSPENDED and c.reason == Reason.STOPPING for c in told)
    return Phase.STOPPING if stops else Phase.PENDING


def _unreadable(snapshot: Snapshot, old: PSTrainingJobStatus, why: str, now: datetime) -> PSTrainingJobStatus:
    """A job that this version cannot read: nothing is touched, and the field is named."""
    was = next((c for c in old.conditions if c.type == Condition.INVALID_TEMPLATE), None)
    condition = StatusCondition(
        type=Condition.INVALID_TEMPLATE,
        status="True",
        reason=Reason.TEMPLATE_REFUSED,
        message=f"This operator cannot read the job: {why}",
        last_transition_time=was.last_transition_time if was is not None and was.status == "True" else now,
        observed_generation=snapshot.generation,
    )
    others = [c for c in old.conditions if c.type != Condition.INVALID_TEMPLATE]
    return old.model_copy(
        update={"conditions": [*others, condition], "phase": Phase.INVALID, "observed_generation": snapshot.generation}
    )


def _failures(old: PSTrainingJobStatus, new: PSTrainingJobStatus) -> Iterator[Event]:
    before = {key_of(r): r.failures for r in old.replica_records}
    told = {"ps": new.ps, "worker": new.worker, "chief": new.chief, "evaluator": new.evaluator}
    last = {role: found.last_failure for role, found in told.items() if found is not None}
    for record in new.replica_records:
        if record.failures > before.get(key_of(record), 0):
            failure = last.get(record.role)
            why = f", exit code {failure.exit_code}: {failure.message}" if failure and failure.count else ""
            yield Event("Warning", "ReplicaFailed", f"{record.role} {record.index} failed ({record.failures}){why}")


def _transition(old: StatusCondition | None, new: StatusCondition) -> Event | None:
    if old is not None and (old.status, old.reason) == (new.status, new.reason):
        return None
    if new.type in (Condition.RESCALING, Condition.UPDATING):
        kind = "Warning" if new.reason == Reason.UPDATE_REFUSED else "Normal"
        return Event(kind, new.reason, new.message or str(new.reason))
    if new.status == "True":
        unusual = new.type in _WARNINGS or (new.type == Condition.RUNNING and new.reason != Reason.TRAINING)
        kind = "Warning" if unusual else "Normal"
        reason = new.type if new.type != Condition.RUNNING or not unusual else new.reason
        return Event(kind, str(reason), new.message or str(new.reason))
    if new.type == Condition.RUNNING and new.message and new.reason != Reason.WAITING_FOR_PODS:
        return Event("Warning", new.reason, new.message)
    if new.type == Condition.CREATED and new.reason in (Reason.WRITE_REFUSED, Reason.GANG_NOT_INSTALLED):
        return Event("Warning", new.reason, new.message)
    if new.type == Condition.SUSPENDED and new.reason in (Reason.STOPPING, Reason.RESUMED):
        return Event("Normal", new.reason, new.message or str(new.reason))
    if old is not None and old.status == "True" and new.type in _ENDS_TOLD:
        return Event("Normal", new.reason, str(new.reason))
    return None


def _dump(status: PSTrainingJobStatus) -> dict[str, Any]:
    return status.model_dump(by_alias=True, exclude_none=True, mode="json")
