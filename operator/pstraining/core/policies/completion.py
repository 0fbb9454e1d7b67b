"""Has the job ended, and how?

An end that status has recorded is final. A pass that finds a new end only records it. The next pass deletes pods, so
that nothing is deleted before the end is on record.
"""

from dataclasses import dataclass

from pstraining.api import names
from pstraining.api.conditions import Condition, Reason
from pstraining.api.models import PSTrainingJob
from pstraining.api.run_policy import SuccessPolicy
from pstraining.api.status import ReplicaRecord
from pstraining.core.facts import Facts
from pstraining.core.policies import budgets, deadline, job_restart
from pstraining.core.policies.failure_counts import Failure
from pstraining.core.policies.failures import TABLE, role_spec
from pstraining.core.policies.success import decides_end


@dataclass(frozen=True)
class End:
    """How a job has ended."""

    condition: Condition
    """Succeeded or Failed."""
    reason: str
    """A `Reason`; a recorded one may be another version's."""
    message: str
    replica: str = ""
    """The replica that failed the job, as role/index."""


def end(facts: Facts) -> End | None:
    """Return how the job has ended, on record or in this pass."""
    if facts.recorded_end is None:
        return new_end(facts)
    condition = next(c for c in facts.status.conditions if c.type == facts.recorded_end)
    return End(facts.recorded_end, condition.reason, condition.message)


def new_end(facts: Facts) -> End | None:
    """Return how the job has just ended, by the snapshot and the clock."""
    all_workers = facts.job.spec.success_policy is SuccessPolicy.ALL_WORKERS
    success = _all_workers_succeeded(facts) if all_workers else _leader_succeeded(facts)
    return success or _failed(facts) or _deadline_exceeded(facts)


def _leader_succeeded(facts: Facts) -> End | None:
    if facts.job.spec.chief.enabled:
        if facts.chief.succeeded:
            return End(Condition.SUCCEEDED, Reason.CHIEF_SUCCEEDED, "The chief has ended with exit code 0.")
    elif 0 in facts.succeeded_workers:
        return End(Condition.SUCCEEDED, Reason.WORKER_ZERO_SUCCEEDED, "Worker 0 has ended with exit code 0.")
    return None


def _all_workers_succeeded(facts: Facts) -> End | None:
    chief = facts.job.spec.chief.enabled
    if chief and not facts.chief.succeeded:
        return None
    workers = set(range(facts.job.spec.worker.replicas)) - facts.failures.given_up
    if not workers or not workers <= facts.succeeded_workers:
        return None
    replicas = "The chief and every worker have" if chief else "Every worker has"
    return End(Condition.SUCCEEDED, Reason.ALL_WORKERS_SUCCEEDED, f"{replicas} ended with exit code 0.")


def _deadline_exceeded(facts: Facts) -> End | None:
    deadline_at = deadline.ends_at(facts.job, facts.status)
    if deadline_at is None or facts.now < deadline_at:
        return None
    seconds = facts.job.spec.run_policy.active_deadline_seconds
    message = f"The job was active for {seconds} s, which is all that runPolicy.activeDeadlineSeconds allows"
    return End(Condition.FAILED, Reason.DEADLINE_EXCEEDED, message)


def _failed(facts: Facts) -> End | None:
    """Return the end of a job that a rule, a restartPolicy or a spent budget fails."""
    job, counts = facts.job, facts.failures
    if counts.restart_job is not None:
        return _restarts_exceeded(job, counts.restart_job) if job_restart.is_exceeded(facts) else None
    if counts.fail_job is not None:
        return _decided(facts, counts.fail_job)
    return next((_spent(facts, record, used) for record, used in counts.spent(job)), None)


def _restarts_exceeded(job: PSTrainingJob, failure: Failure) -> End:
    limit = job.spec.run_policy.max_restarts
    message = f"{_words(failure)}: one restart of the job too many, as runPolicy.maxRestarts is {limit}"
    return End(Condition.FAILED, Reason.RESTARTS_EXCEEDED, message, _replica(failure.role, failure.index))


def _decided(facts: Facts, failure: Failure) -> End:
    job, replica = facts.job, _replica(failure.role, failure.index)
    if failure.decision.rule is not None:
        message = f"{_words(failure)}: spec.failurePolicy.rules[{failure.decision.rule}] fails the job"
        return End(Condition.FAILED, Reason.FAILURE_RULE, message, replica)
    if TABLE[failure.decision.cause].final:
        message = f"{_words(failure)}; another run would fail as well, so it was not retried"
        return End(Condition.FAILED, Reason.BAD_SETTINGS, message, replica)
    policy = role_spec(job, failure.role).restart_policy
    if _may_be_given_up(facts, failure.role, failure.index):
        message = f"{_words(failure)}: fewer than worker.minReplicas {job.spec.worker.min_replicas} are left"
        return End(Condition.FAILED, Reason.TOO_FEW_WORKERS, message, replica)
    message = f"{_words(failure)}: {failure.role}.restartPolicy {policy} takes that as final"
    return End(Condition.FAILED, Reason.REPLICA_FAILED, message, replica)


def _spent(facts: Facts, record: ReplicaRecord, used: int) -> End:
    job, counts = facts.job, facts.failures
    role, limit = record.role, budgets.limit(job, record.role)
    last = next((f for f in reversed(counts.failures) if (f.role, f.index) == (role, record.index)), None)
    within = budgets.window(job, role)
    often = f"{role} {record.index} failed {used} times"
    if within is not None:
        often += f" within {within.total_seconds():.0f} s"
    own = role_spec(job, role).backoff.limit is not None
    named = f"{role}.backoff.limit {limit}" if own else f"runPolicy.backoffLimit {limit}"
    end = f"; last: {_words(last)}" if last else ""
    short = _may_be_given_up(facts, role, record.index)
    if short:
        end += f"; fewer than worker.minReplicas {job.spec.worker.min_replicas} are left"
    reason = Reason.TOO_FEW_WORKERS if short else Reason.BACKOFF_LIMIT_EXCEEDED
    return End(Condition.FAILED, reason, f"{often}, more than {named}{end}", _replica(role, record.index))


def _may_be_given_up(facts: Facts, role: str, index: int) -> bool:
    """Whether the job continues without such a replica while enough others are left."""
    is_limited = role == names.WORKER and facts.job.spec.worker.min_replicas is not None
    return is_limited and not decides_end(facts.job, facts.snapshot, index)


def _replica(role: str, index: int) -> str:
    return f"{role}/{index}"


def _words(failure: Failure) -> str:
    """Return a failure as text."""
    last = failure.last_failure
    line = f": {last.message}" if last.message else ""
    return f"pod {last.pod} ended with exit code {last.exit_code} ({last.reason}){line}"
