"""Which attempt of the chief is to exist?

A term is never used twice and at most one attempt lives: the next one is created only when no pod of an older term can
still run. The term is the chief's fencing token, so it comes from status and from what exists, whichever is higher.
"""

from dataclasses import dataclass

from pstraining.api import names
from pstraining.api.models import PSTrainingJob
from pstraining.api.status import PSTrainingJobStatus
from pstraining.core.actions import Kind
from pstraining.core.policies.attempts import Tally
from pstraining.core.snapshot import Child, Snapshot


@dataclass(frozen=True)
class Terms:
    """What to do about the chief's attempts."""

    create: int | None = None
    delete: tuple[Child, ...] = ()


def attempts(snapshot: Snapshot) -> dict[int, Child]:
    """The chief's Jobs by term."""
    jobs = (j for j in snapshot.of_kind(Kind.JOB) if j.labels.get(names.LABEL_ROLE, names.CHIEF) == names.CHIEF)
    return {j.number(names.LABEL_TERM): j for j in jobs}


def newest_term(snapshot: Snapshot, status: PSTrainingJobStatus) -> int:
    """The highest term ever used; 0 before the first."""
    pods = (p.term for p in snapshot.pods_of(names.CHIEF))
    return max((status.term, *attempts(snapshot), *pods))


def terms(job: PSTrainingJob, snapshot: Snapshot, status: PSTrainingJobStatus, counted: Tally) -> Terms:
    """Decide which attempt to create and which to forget."""
    if not job.spec.chief.enabled:
        return Terms()
    existing, newest = attempts(snapshot), newest_term(snapshot, status)
    alive = any(not p.terminal for p in snapshot.pods_of(names.CHIEF))
    current = existing.get(newest)
    ended = current is None or current.deleting or _ended(snapshot, current, newest)
    create = newest + 1 if ended and not alive else None
    # An older attempt is evidence until what ended it is on record; then its log has had a whole term to be read.
    told = status.replica_records == list(counted.records)
    old = tuple(c for t, c in sorted(existing.items()) if t < newest and not c.deleting) if told else ()
    return Terms(create, old)


def _ended(snapshot: Snapshot, child: Child, term: int) -> bool:
    pods = [p for p in snapshot.pods_of(names.CHIEF) if p.term == term]
    conditions = (child.manifest.get("status") or {}).get("conditions") or ()
    failed = any(c.get("type") == "Failed" and c.get("status") == "True" for c in conditions)
    return failed or (bool(pods) and all(p.terminal for p in pods))
