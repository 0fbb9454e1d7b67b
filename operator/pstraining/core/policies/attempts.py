"""Which attempt of the chief, and of the evaluator, is to exist?

Each attempt is a Job of one pod that never starts again. A number is never used twice and at most one attempt lives:
the next one is created only when no pod of an older one can still run, or where one can, its node is lost and only the
newest attempt counts. The chief's number is its term, the fencing token; so it comes from status and from what exists,
whichever is higher.
"""

from dataclasses import dataclass

from pstraining.api import names
from pstraining.api.models import PSTrainingJob
from pstraining.api.status import PSTrainingJobStatus
from pstraining.core.actions import Kind
from pstraining.core.policies.failure_counts import FailureCounts, succeeded
from pstraining.core.snapshot import Child, Snapshot

NUMBER = {names.CHIEF: names.LABEL_TERM, names.EVALUATOR: names.LABEL_ATTEMPT}
"""The roles that run in attempts, and the label that holds an attempt's number."""


@dataclass(frozen=True)
class Attempts:
    """What to do about a role's attempts."""

    create: int | None = None
    delete: tuple[Child, ...] = ()


def is_wanted(job: PSTrainingJob, role: str) -> bool:
    """Whether the job has such a role."""
    return job.spec.chief.enabled if role == names.CHIEF else job.spec.evaluator.enabled


def jobs_of(snapshot: Snapshot, role: str) -> dict[int, Child]:
    """A role's Jobs by number."""
    jobs = (j for j in snapshot.of_kind(Kind.JOB) if j.labels.get(names.LABEL_ROLE) == role)
    return {j.number(NUMBER[role]): j for j in jobs}


def newest(snapshot: Snapshot, status: PSTrainingJobStatus, role: str) -> int:
    """The highest number ever used; 0 before the first."""
    told = status.term if role == names.CHIEF else status.evaluator_attempt
    return max(told, _newest_seen(snapshot, role))


def has_succeeded(job: PSTrainingJob, snapshot: Snapshot, role: str) -> bool:
    """Whether the newest attempt has ended with exit code 0: an older one that its lost node kept counts no more."""
    last = _newest_seen(snapshot, role)
    current = jobs_of(snapshot, role).get(last)
    if current is not None and snapshot.is_of_this_round(current) and current.true_condition("Complete"):
        return True
    pods = (p for p in snapshot.pods_of(role) if p.term == last and snapshot.is_of_this_round(p))
    return any(succeeded(job, p) for p in pods)


def decide(
    job: PSTrainingJob, snapshot: Snapshot, status: PSTrainingJobStatus, counted: FailureCounts, role: str
) -> Attempts:
    """Decide which attempt to create and which to forget."""
    if not is_wanted(job, role) or has_succeeded(job, snapshot, role):
        return Attempts()
    existing, last = jobs_of(snapshot, role), newest(snapshot, status, role)
    alive = any(not p.over for p in snapshot.pods_of(role))
    current = existing.get(last)
    ended = current is None or current.deleting or _ended(snapshot, current, last, role)
    create = last + 1 if ended and not alive else None
    # An older attempt is evidence until what ended it is on record; then its log has had a whole attempt to be read.
    old = (c for n, c in sorted(existing.items()) if n < last and not c.deleting)
    return Attempts(create, tuple(old) if counted.is_told(status) else ())


def _newest_seen(snapshot: Snapshot, role: str) -> int:
    return max((*jobs_of(snapshot, role), *(p.term for p in snapshot.pods_of(role))), default=0)


def _ended(snapshot: Snapshot, child: Child, number: int, role: str) -> bool:
    pods = [p for p in snapshot.pods_of(role) if p.term == number]
    return child.true_condition("Failed") is not None or (bool(pods) and all(p.over for p in pods))
