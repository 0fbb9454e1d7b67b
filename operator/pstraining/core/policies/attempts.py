"""Which attempt of the chief, and of the evaluator, is to exist?

Each attempt is a Job with one pod that never restarts. A number is never reused, and at most one attempt is alive: the
next attempt is created only when no program of an older one can still run. An attempt ends with its training container,
even if other containers of the pod still run. A program on a lost node may still run; then only the newest attempt
counts. The chief's number is its term, the fencing token, so it is the maximum of the recorded and the observed number.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final

from pstraining.api import names
from pstraining.api.conditions import Condition, Reason
from pstraining.api.models import PSTrainingJob
from pstraining.api.status import PSTrainingJobStatus
from pstraining.core.actions import Kind
from pstraining.core.observe import NOT_ADMITTED
from pstraining.core.policies.success import is_former, stops, succeeded
from pstraining.core.snapshot import Child, Snapshot

_COUNTED: Final = "count/jobs.batch"
"""The resource in the message of a ResourceQuota that limits the number of Jobs."""
REJECTED_PAUSE: Final = timedelta(seconds=10)
"""Time from the creation of a pod that its kubelet rejects to the next attempt."""


@dataclass(frozen=True)
class Attempts:
    """The attempts of one role."""

    role: str
    wanted: bool
    """Whether the job has such a role."""
    jobs: Mapping[int, Child]
    """The observed Jobs by number."""
    newest: int
    """The highest number ever used; 0 before the first."""
    succeeded: bool
    """Whether the newest observed attempt has ended with exit code 0; older ones on lost nodes no longer count."""

    def is_newest_job(self, child: Child) -> bool:
        """Whether this Job is the newest one observed."""
        return bool(self.jobs) and self.jobs[max(self.jobs)] is child


@dataclass(frozen=True)
class Step:
    """The changes to a role's attempts."""

    create: int | None = None
    """The number of the attempt to create."""
    delete: tuple[Child, ...] = ()
    """Older attempts to delete."""


def is_wanted(job: PSTrainingJob, role: str) -> bool:
    """Whether the job has such a role."""
    return job.spec.chief.enabled if role == names.CHIEF else job.spec.evaluator.enabled


def observed(job: PSTrainingJob, snapshot: Snapshot, status: PSTrainingJobStatus, role: str) -> Attempts:
    """Return the attempts of a role, as observed and on record."""
    children = (j for j in snapshot.of_kind(Kind.JOB) if j.labels.get(names.LABEL_ROLE) == role)
    jobs = {j.number(names.ATTEMPT_LABELS[role]): j for j in children}
    newest_seen = max((*jobs, *(p.term for p in snapshot.pods_of(role))), default=0)
    recorded = status.term if role == names.CHIEF else status.evaluator_attempt
    is_recorded = recorded == newest_seen and success_recorded(status, role)
    done = _has_succeeded(job, snapshot, status, role, newest_seen, jobs.get(newest_seen), recorded=is_recorded)
    if newest_seen < recorded and success_recorded(status, role):
        done = not stops(job, snapshot)  # its Job was deleted, such as by a user
    return Attempts(role, is_wanted(job, role), jobs, max(recorded, newest_seen), done)


def next_step(attempts: Attempts, snapshot: Snapshot, now: datetime, *, failures_recorded: bool) -> Step:
    """Decide which attempt to create and which ones to delete.

    Args:
        attempts: the attempts of one role.
        snapshot: the observed state.
        now: the time of this pass.
        failures_recorded: whether status has every failure; until then older attempts are evidence.
    """
    if not attempts.wanted or attempts.succeeded:
        return Step()
    waits = any(not p.over for p in snapshot.pods_of(attempts.role)) or retry_at(attempts, snapshot, now) is not None
    create = attempts.newest + 1 if _newest_is_over(attempts, snapshot) and not waits else None
    # An older attempt is kept until its end is recorded, so its log is readable during the whole next attempt.
    there = [(n, c) for n, c in sorted(attempts.jobs.items()) if not c.deleting]
    if there and create is not None and failures_recorded and _lacks_room(attempts, snapshot):
        return Step(delete=tuple(c for _, c in there))
    return Step(create, tuple(c for n, c in there if n < attempts.newest) if failures_recorded else ())


def retry_at(attempts: Attempts, snapshot: Snapshot, now: datetime) -> datetime | None:
    """Return when the next attempt may be created, if the kubelet has just rejected the newest one; None otherwise.

    A kubelet rejects pods at once, for example until a device plugin has registered, and each costs no budget.
    """
    rejected = (
        p for p in snapshot.pods_of(attempts.role) if p.disruption == NOT_ADMITTED and p.term == attempts.newest
    )
    found = max((pod.created + REJECTED_PAUSE for pod in rejected), default=None)
    return found if found is not None and found > now else None


def success_recorded(status: PSTrainingJobStatus, role: str) -> bool:
    """Whether the stored status has the success of a role's newest attempt."""
    stored = status.chief if role == names.CHIEF else status.evaluator
    return stored is not None and stored.succeeded > 0


def _has_succeeded(
    job: PSTrainingJob,
    snapshot: Snapshot,
    status: PSTrainingJobStatus,
    role: str,
    number: int,
    child: Child | None,
    *,
    recorded: bool,
) -> bool:
    # If a deadline ended other containers, Kubernetes marks the Job as Failed: after its pod, only status has the end.
    if child is not None and snapshot.is_of_current_restart(child) and (recorded or child.true_condition("Complete")):
        return True
    pods = (p for p in snapshot.pods_of(role) if p.term == number and snapshot.is_of_current_restart(p))
    return any(succeeded(job, p) and not is_former(job, snapshot, status, p, child) for p in pods)


def _lacks_room(attempts: Attempts, snapshot: Snapshot) -> bool:
    """Whether a quota has refused the Job of the next attempt, by the stored status: ended Jobs count against it."""
    build = names.chief_job if attempts.role == names.CHIEF else names.evaluator_job
    begin = f"{Kind.JOB} {build(snapshot.name, attempts.newest + 1)} was refused: "
    refused = (c for c in snapshot.status.get("conditions") or () if c.get("reason") == Reason.WRITE_REFUSED)
    messages = (str(c.get("message")) for c in refused if c.get("type") == Condition.CREATED)
    return any(m.startswith(begin) and _COUNTED in m for m in messages)


def _newest_is_over(attempts: Attempts, snapshot: Snapshot) -> bool:
    child = attempts.jobs.get(attempts.newest)
    if child is None or child.deleting or any(child.true_condition(end) for end in ("Failed", "Complete")):
        return True
    pods = [p for p in snapshot.pods_of(attempts.role) if p.term == attempts.newest]
    return bool(pods) and all(p.over for p in pods)
