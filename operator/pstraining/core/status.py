"""The status of a job, and the events for each change of it.

The status is a function of the snapshot, the outcomes of the plan, and the stored status (for times, counters and
objects that are not observed any more). The same input gives the same bytes, so an unchanged job causes no write.
"""

from collections.abc import Iterator
from datetime import datetime
from typing import Any

from pstraining.api import names
from pstraining.api.condition_reasons import OVER
from pstraining.api.conditions import Condition, Phase, Reason
from pstraining.api.packed_records import packed, unpacked
from pstraining.api.status import LastFailure, PSTrainingJobStatus, ReplicaRecord, StatusCondition
from pstraining.api.text import WHITESPACE, printable
from pstraining.core.actions import Create, Event, Kind, Outcomes, Verdict
from pstraining.core.conditions import Situation, conditions
from pstraining.core.facts import UNREADABLE, Facts, Unreadable
from pstraining.core.observe import parse_time
from pstraining.core.policies import autoscaling, completion, deadline, job_restart
from pstraining.core.policies.attempts import Attempts
from pstraining.core.policies.failure_counts import key_of
from pstraining.core.policies.spec_warnings import CORRECTED
from pstraining.core.policies.teardown import workloads
from pstraining.core.role_status import completed_indexes, role_statuses
from pstraining.core.shard_status import shard_statuses, standby_summary, takeovers, took_over
from pstraining.core.snapshot import Snapshot
from pstraining.resources.workloads import worker_selector_text

_WARNINGS = {
    Condition.FAILED,
    Condition.RESTARTING,
    Condition.DEGRADED,
    Condition.NAME_CONFLICT,
    Condition.INVALID_TEMPLATE,
    *CORRECTED,
    Condition.STATUS_INCOMPLETE,
    Condition.STALLED,
}


FAILURE_EVENTS_MAX = 20
"""Events for single failures in one status; one more event reports the number of the others."""
_END_IS_EVENT = (Condition.NAME_CONFLICT, Condition.DEGRADED, Condition.STALLED)
"""The conditions whose end is also an event."""


def next_status(facts: Facts | Unreadable, outcomes: Outcomes) -> dict[str, Any]:
    """Return the whole status to be stored now.

    Args:
        facts: the facts from which the plan was computed.
        outcomes: the outcomes of the plan.
    """
    if isinstance(facts, Unreadable) and not facts.snapshot.has_other_manager:
        return _dump(_unreadable(facts))
    if isinstance(facts, Unreadable) or not facts.is_managed_here:
        return dict(facts.snapshot.status)
    return _dump(_status(Situation(facts, outcomes, completion.end(facts))))


def _status(situation: Situation) -> PSTrainingJobStatus:
    facts, stored, end = situation.facts, situation.facts.status, situation.end
    roles = role_statuses(facts, None if end is None else end.condition, situation.refused_sizes)
    updated, shards = conditions(situation), shard_statuses(facts)
    start = None if situation.suspended else _started(facts)
    return PSTrainingJobStatus(
        observed_generation=facts.snapshot.generation,
        phase=_phase(updated),
        conditions=updated,
        start_time=start,
        active_seconds=deadline.active_seconds(stored, facts.now, start),
        completion_time=None if end is None else stored.completion_time or facts.timestamp,
        term=_newest(facts.chief, situation.outcomes),
        evaluator_attempt=_newest(facts.evaluator, situation.outcomes),
        restarts=max(stored.restarts + sum(facts.new_restarts.values()), sum(r.restarts for r in roles.values())),
        job_restarts=job_restart.count(facts) if end is None else stored.job_restarts,
        ps=roles["ps"],
        worker=roles["worker"],
        chief=roles["chief"],
        evaluator=roles.get("evaluator"),
        shards=shards,
        standby_summary=standby_summary(facts.job, shards),
        takeovers=takeovers(stored, shards),
        autoscaling=situation.sizings,
        failed_replica=stored.failed_replica or (end.replica if end is not None else ""),
        selector=worker_selector_text(facts.job),
        completed_indexes=completed_indexes(facts, has_ended=end is not None),
        replica_records=list(facts.failures.records),
    )


def events(snapshot: Snapshot, status: dict[str, Any]) -> tuple[Event, ...]:
    """Return one event for each transition between the stored status and the new one."""
    old, new = snapshot.typed_status, unpacked(PSTrainingJobStatus.model_validate(status))
    before = {c.type: c for c in old.conditions}
    transitions = [e for c in new.conditions if (e := transition(before.get(c.type), c)) is not None]
    grown = autoscaling.events(old.autoscaling, new.autoscaling)
    return (*_failures(old, new), *took_over(old, new), *grown, *transitions)


def _newest(attempts: Attempts, outcomes: Outcomes) -> int:
    """Return the newest attempt of a role, including one that this pass has created; 0 before the first.

    It is kept while the job has no such role, because a number is never used again.
    """
    actions = (o.action for o in outcomes.with_verdict(Verdict.DONE))
    labels = (a.body["metadata"]["labels"] for a in actions if isinstance(a, Create) and a.kind is Kind.JOB)
    number = names.ATTEMPT_LABELS[attempts.role]
    return max((attempts.newest, *(int(label[number]) for label in labels if number in label)))


def _started(facts: Facts) -> datetime:
    """Return when the job became active: at the latest when its running workloads were created.

    They are older than the first status if an operator crashed before it wrote that status, or if its clock is ahead of
    the API server's. A pod that is older than the start counts as created before a suspension, and its failures are
    ignored.
    """
    existing = (c for c in workloads(facts.snapshot) if not c.deleting)
    created = (parse_time(c.manifest["metadata"].get("creationTimestamp")) for c in existing)
    return min((facts.status.start_time or facts.timestamp, *(time for time in created if time is not None)))


def _phase(updated: list[StatusCondition]) -> Phase:
    # Training continues while more servers start for it.
    true = {c.type for c in updated if c.status == "True" and c.reason != Reason.STARTING_SERVERS}
    for condition, phase in (
        (Condition.SUCCEEDED, Phase.SUCCEEDED),
        (Condition.FAILED, Phase.FAILED),
        (Condition.SUSPENDED, Phase.SUSPENDED),
        (Condition.QUEUED, Phase.QUEUED),
        (Condition.INVALID_TEMPLATE, Phase.INVALID),
        (Condition.RESCALING, Phase.RESCALING),
        (Condition.RESTARTING, Phase.RESTARTING),
        (Condition.RUNNING, Phase.RUNNING),
    ):
        if condition in true:
            return phase
    holds = (Condition.SUSPENDED, Condition.QUEUED)
    stops = any(c.type in holds and c.reason == Reason.STOPPING for c in updated)
    return Phase.STOPPING if stops else Phase.PENDING


def _unreadable(found: Unreadable) -> PSTrainingJobStatus:
    """Return the status of a job that this version cannot read; the message names the field."""
    old, now, generation = found.snapshot.typed_status, found.now.replace(microsecond=0), found.snapshot.generation
    stored = next((c for c in old.conditions if c.type == Condition.INVALID_TEMPLATE), None)
    condition = StatusCondition(
        type=Condition.INVALID_TEMPLATE,
        status="True",
        reason=Reason.TEMPLATE_REFUSED,
        message=printable(f"{UNREADABLE}: {found.error}", WHITESPACE),
        last_transition_time=stored.last_transition_time if stored is not None and stored.status == "True" else now,
        observed_generation=generation,
    )
    others = [c for c in old.conditions if c.type != Condition.INVALID_TEMPLATE]
    return old.model_copy(
        update={"conditions": [*others, condition], "phase": Phase.INVALID, "observed_generation": generation}
    )


def _failures(old: PSTrainingJobStatus, new: PSTrainingJobStatus) -> Iterator[Event]:
    before = {key_of(r): (r.failures, r.restarts) for r in old.replica_records}
    last, former = _last_failures(new), _last_failures(old)
    # A restart of the whole job sets the failures of all replicas to 0.
    is_forgiven = {role: new.job_restarts > old.job_restarts and last[role] != former.get(role) for role in last}

    def has_failed(record: ReplicaRecord) -> bool:
        failures, restarts = before.get(key_of(record), (0, 0))
        return record.failures > failures or (is_forgiven.get(record.role, False) and record.restarts > restarts)

    failed = [r for r in new.replica_records if has_failed(r)]
    for record in failed[:FAILURE_EVENTS_MAX]:
        failure = last.get(record.role)
        why = f", exit code {failure.exit_code}: {failure.message}" if failure and failure.count else ""
        count = record.failures or (failure.count if failure else 0)
        yield Event("Warning", "ReplicaFailed", f"{record.role} {record.index} failed ({count}){why}")
    if len(failed) > FAILURE_EVENTS_MAX:
        more = len(failed) - FAILURE_EVENTS_MAX
        yield Event("Warning", "ReplicaFailed", f"{more} more replicas failed; see status.replicaRecords")


def _last_failures(status: PSTrainingJobStatus) -> dict[str, LastFailure | None]:
    roles = {"ps": status.ps, "worker": status.worker, "chief": status.chief, "evaluator": status.evaluator}
    return {role: found.last_failure for role, found in roles.items() if found is not None}


def transition(old: StatusCondition | None, new: StatusCondition) -> Event | None:
    """Return the event for a changed condition, or None if the change has none."""
    if old is not None and (old.status, old.reason) == (new.status, new.reason):
        return None
    is_kept = new.type == Condition.QUEUED and new.reason == Reason.KUEUE_NOT_INSTALLED
    if new.status == "False" and new.reason in OVER and new.type != Condition.RUNNING and not is_kept:
        return None  # the suspension, or the end, has its own event
    if new.type in (Condition.RESCALING, Condition.UPDATING, Condition.RESIZING):
        failed = (Reason.UPDATE_REFUSED, Reason.RESIZE_REFUSED, Reason.RESIZE_INFEASIBLE)
        kind = "Warning" if new.reason in failed else "Normal"
        return Event(kind, new.reason, new.message or str(new.reason))
    if new.type == Condition.AUTOSCALING:
        held = (Reason.QUEUE_FIXES_SIZES, Reason.RESIZE_NOT_SERVED, Reason.NO_MEMORY_LIMIT)
        return Event("Warning", new.reason, new.message or str(new.reason)) if new.reason in held else None
    if new.type == Condition.QUEUED:
        kind = "Warning" if new.reason in (Reason.QUEUE_IGNORED, Reason.KUEUE_NOT_INSTALLED) else "Normal"
        return Event(kind, str(new.type) if new.status == "True" else new.reason, new.message or str(new.reason))
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
    if old is not None and old.status == "True" and new.type in _END_IS_EVENT:
        return Event("Normal", new.reason, str(new.reason))
    return None


def _dump(status: PSTrainingJobStatus) -> dict[str, Any]:
    return packed(status).model_dump(by_alias=True, exclude_none=True, mode="json")
