"""Has the job ended, and how?

An end that is recorded in status stands for ever. A new end is only told by this pass; what follows from it (freeing
pods) waits for the next one, so that nothing is freed before the end is on record.
"""

from dataclasses import dataclass

from pstraining.api import names
from pstraining.api.conditions import Condition, Reason
from pstraining.api.models import PSTrainingJob
from pstraining.api.status import PSTrainingJobStatus
from pstraining.core.actions import Kind
from pstraining.core.policies.attempts import Tally, succeeded
from pstraining.core.snapshot import Child, Snapshot


@dataclass(frozen=True)
class End:
    """How a job has ended."""

    condition: Condition
    """Succeeded or Failed."""
    reason: Reason
    message: str


def recorded_end(status: PSTrainingJobStatus) -> Condition | None:
    """Succeeded or Failed, if status already says so."""
    for condition in status.conditions:
        if condition.type in (Condition.SUCCEEDED, Condition.FAILED) and condition.status == "True":
            return Condition(condition.type)
    return None


def new_end(job: PSTrainingJob, snapshot: Snapshot, counted: Tally) -> End | None:
    """How the job has just ended, by what the snapshot shows."""
    if job.spec.chief.enabled:
        complete = any(_complete(j) for j in snapshot.of_kind(Kind.JOB))
        if complete or any(succeeded(p) for p in snapshot.pods_of(names.CHIEF)):
            return End(Condition.SUCCEEDED, Reason.CHIEF_SUCCEEDED, "The chief has ended with exit code 0.")
    elif worker_succeeded(job, snapshot, 0):
        return End(Condition.SUCCEEDED, Reason.WORKER_ZERO_SUCCEEDED, "Worker 0 has ended with exit code 0.")
    return _spent(job, counted)


def worker_succeeded(job: PSTrainingJob, snapshot: Snapshot, index: int) -> bool:
    """Whether that worker's program has ended with 0: its Deployment remembers, its pod shows it first."""
    child = snapshot.child(Kind.DEPLOYMENT, names.worker_name(job.metadata.name, index))
    if child is not None and child.annotations.get(names.ANNOTATION_SUCCEEDED) == "true":
        return True
    return any(succeeded(p) for p in snapshot.pods_of(names.WORKER, index))


def _spent(job: PSTrainingJob, counted: Tally) -> End | None:
    limit = job.spec.run_policy.backoff_limit
    for record in counted.records:
        failed = counted.failed(record.role, record.index)
        if failed > limit:
            last = next(
                (f.told for f in reversed(counted.failures) if (f.role, f.index) == (record.role, record.index)), None
            )
            end = f"; last, pod {last.pod} ended with exit code {last.exit_code}: {last.message}" if last else ""
            return End(
                Condition.FAILED,
                Reason.BACKOFF_LIMIT_EXCEEDED,
                f"{record.role} {record.index} failed {failed} times, more than backoffLimit {limit}{end}",
            )
    return None


def _complete(child: Child) -> bool:
    conditions = (child.manifest.get("status") or {}).get("conditions") or ()
    return any(c.get("type") == "Complete" and c.get("status") == "True" for c in conditions)
