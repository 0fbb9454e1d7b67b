"""Has the job ended, and how?

An end that is recorded in status stands for ever. A new end is only told by this pass; what follows from it (freeing
pods) waits for the next one, so that nothing is freed before the end is on record.
"""

from dataclasses import dataclass
from datetime import datetime

from pstraining.api import names
from pstraining.api.conditions import Condition, Reason
from pstraining.api.models import PSTrainingJob
from pstraining.api.run_policy import SuccessPolicy
from pstraining.api.status import PSTrainingJobStatus, ReplicaRecord
from pstraining.core.actions import Kind
from pstraining.core.policies import attempts, budgets, deadline, job_restart
from pstraining.core.policies.failure_counts import Failure, FailureCounts, succeeded
from pstraining.core.policies.failures import Consequence, role_spec
from pstraining.core.snapshot import Snapshot


@dataclass(frozen=True)
class End:
    """How a job has ended."""

    condition: Condition
    """Succeeded or Failed."""
    reason: Reason
    message: str
    replica: str = ""
    """The replica that failed the job, as role/index."""


def recorded_end(status: PSTrainingJobStatus) -> Condition | None:
    """Succeeded or Failed, if status already says so."""
    for condition in status.conditions:
        if condition.type in (Condition.SUCCEEDED, Condition.FAILED) and condition.status == "True":
            return Condition(condition.type)
    return None


def new_end(
    job: PSTrainingJob, snapshot: Snapshot, status: PSTrainingJobStatus, counted: FailureCounts, now: datetime
) -> End | None:
    """How the job has just ended, by what the snapshot shows and the clock."""
    if job.spec.success_policy is SuccessPolicy.ALL_WORKERS:
        won = _all_workers(job, snapshot, counted)
    else:
        won = _leader(job, snapshot)
    return won or _failed(job, status, counted) or _late(job, status, now)


def _leader(job: PSTrainingJob, snapshot: Snapshot) -> End | None:
    if job.spec.chief.enabled:
        if attempts.has_succeeded(job, snapshot, names.CHIEF):
            return End(Condition.SUCCEEDED, Reason.CHIEF_SUCCEEDED, "The chief has ended with exit code 0.")
    elif worker_succeeded(job, snapshot, 0):
        return End(Condition.SUCCEEDED, Reason.WORKER_ZERO_SUCCEEDED, "Worker 0 has ended with exit code 0.")
    return None


def _all_workers(job: PSTrainingJob, snapshot: Snapshot, counted: FailureCounts) -> End | None:
    if job.spec.chief.enabled and not attempts.has_succeeded(job, snapshot, names.CHIEF):
        return None
    asked = set(range(job.spec.worker.replicas)) - counted.given_up
    if not asked or not all(worker_succeeded(job, snapshot, i) for i in asked):
        return None
    who = "The chief and every worker have" if job.spec.chief.enabled else "Every worker has"
    return End(Condition.SUCCEEDED, Reason.ALL_WORKERS_SUCCEEDED, f"{who} ended with exit code 0.")


def _late(job: PSTrainingJob, status: PSTrainingJobStatus, now: datetime) -> End | None:
    end = deadline.ends_at(job, status)
    if end is None or now < end:
        return None
    seconds = job.spec.run_policy.active_deadline_seconds
    message = f"The job was active for {seconds} s, which is all that runPolicy.activeDeadlineSeconds allows"
    return End(Condition.FAILED, Reason.DEADLINE_EXCEEDED, message)


def worker_succeeded(job: PSTrainingJob, snapshot: Snapshot, index: int) -> bool:
    """Whether that worker's program has ended with 0: its Deployment remembers, its pod shows it first."""
    child = snapshot.child(Kind.DEPLOYMENT, names.worker_name(job.metadata.name, index))
    remembers = child is not None and child.annotations.get(names.ANNOTATION_SUCCEEDED) == "true"
    if child is not None and remembers and snapshot.is_of_this_round(child):
        return True
    pods = (p for p in snapshot.pods_of(names.WORKER, index) if snapshot.is_of_this_round(p))
    return any(succeeded(job, p) for p in pods)


def _failed(job: PSTrainingJob, status: PSTrainingJobStatus, counted: FailureCounts) -> End | None:
    """Whether a failure ends the job: by its rule or restartPolicy, or because it spends a budget."""
    if (cause := counted.restart_job) is not None:
        if not job_restart.exceeded(job, status, counted):
            return None
        limit = job.spec.run_policy.max_restarts
        message = f"{_words(cause)}: one restart of the job too many, as runPolicy.maxRestarts is {limit}"
        return End(Condition.FAILED, Reason.RESTARTS_EXCEEDED, message, _replica(cause.role, cause.index))
    for failure in counted.failures:
        if failure.decision.consequence is Consequence.FAIL_JOB and not _given_up(counted, failure):
            return _decided(job, failure)
    for record in counted.records:
        used = budgets.used(job, record.role, counted.of(record.role, record.index))
        if used > budgets.limit(job, record.role) and not record.given_up:
            return _spent(job, record, used, counted)
    return None


def _given_up(counted: FailureCounts, failure: Failure) -> bool:
    return failure.role == names.WORKER and failure.decision.rule is None and failure.index in counted.given_up


def _decided(job: PSTrainingJob, failure: Failure) -> End:
    replica = _replica(failure.role, failure.index)
    if failure.decision.rule is not None:
        message = f"{_words(failure)}: spec.failurePolicy.rules[{failure.decision.rule}] fails the job"
        return End(Condition.FAILED, Reason.FAILURE_RULE, message, replica)
    policy = role_spec(job, failure.role).restart_policy
    if failure.role == names.WORKER and job.spec.worker.min_replicas is not None:
        message = f"{_words(failure)}: fewer than worker.minReplicas {job.spec.worker.min_replicas} are left"
        return End(Condition.FAILED, Reason.TOO_FEW_WORKERS, message, replica)
    message = f"{_words(failure)}: {failure.role}.restartPolicy {policy} takes that as final"
    return End(Condition.FAILED, Reason.REPLICA_FAILED, message, replica)


def _spent(job: PSTrainingJob, record: ReplicaRecord, used: int, counted: FailureCounts) -> End:
    role, limit = record.role, budgets.limit(job, record.role)
    last = next((f for f in reversed(counted.failures) if (f.role, f.index) == (role, record.index)), None)
    within = budgets.window(job, role)
    often = f"{role} {record.index} failed {used} times"
    if within is not None:
        often += f" within {within.total_seconds():.0f} s"
    own = role_spec(job, role).backoff.limit is not None
    named = f"{role}.backoff.limit {limit}" if own else f"runPolicy.backoffLimit {limit}"
    end = f"; last: {_words(last)}" if last else ""
    short = role == names.WORKER and job.spec.worker.min_replicas is not None
    if short:
        end += f"; fewer than worker.minReplicas {job.spec.worker.min_replicas} are left"
    reason = Reason.TOO_FEW_WORKERS if short else Reason.BACKOFF_LIMIT_EXCEEDED
    return End(Condition.FAILED, reason, f"{often}, more than {named}{end}", _replica(role, record.index))


def _replica(role: str, index: int) -> str:
    return f"{role}/{index}"


def _words(failure: Failure) -> str:
    """A failure in words."""
    told = failure.told
    line = f": {told.message}" if told.message else ""
    return f"pod {told.pod} ended with exit code {told.exit_code} ({told.reason}){line}"
