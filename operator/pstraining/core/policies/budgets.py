"""Is a replica's budget of failures spent?

Each replica has a budget: spec.<role>.backoff, or else runPolicy.backoffLimit. With a window, only failures within
windowSeconds before the newest one count. No clock is needed, and a later pass gives the same answer. The members of a
shard share one budget.
"""

from collections.abc import Iterable
from datetime import datetime, timedelta

from pstraining.api.models import PSTrainingJob
from pstraining.api.status import ReplicaRecord
from pstraining.core.policies.failures import role_spec


def limit(job: PSTrainingJob, role: str) -> int:
    """Return the number of failures that one replica of a role may have."""
    own = role_spec(job, role).backoff.limit
    return job.spec.run_policy.backoff_limit if own is None else own


def window(job: PSTrainingJob, role: str) -> timedelta | None:
    """Return the time within which failures count; None for the job's whole life."""
    seconds = role_spec(job, role).backoff.window_seconds
    return None if seconds is None else timedelta(seconds=seconds)


def remembered(job: PSTrainingJob, role: str, times: Iterable[datetime]) -> list[datetime]:
    """Return the times of failures to keep, ascending: as many of the newest as can still spend the budget."""
    within = window(job, role)
    if within is None:
        return []
    found = sorted(times)
    return [t for t in found if t > found[-1] - within][-(limit(job, role) + 1) :]


def used(job: PSTrainingJob, role: str, records: Iterable[ReplicaRecord]) -> int:
    """Return how many failures of a replica's budget its records have used."""
    mine = list(records)
    if window(job, role) is None:
        return sum(r.failures for r in mine)
    return len(remembered(job, role, (t for r in mine for t in r.failure_times)))
