"""Is a replica's budget of failures spent?

A budget is a replica's own: spec.<role>.backoff, else runPolicy.backoffLimit. With a window only the failures count
that happened within windowSeconds before the newest one, so that no clock is needed and an operator that looks later
comes to the same answer. The members of a shard share one budget.
"""

from collections.abc import Iterable
from datetime import datetime, timedelta

from pstraining.api.models import PSTrainingJob
from pstraining.api.status import ReplicaRecord
from pstraining.core.policies.failures import role_spec


def limit(job: PSTrainingJob, role: str) -> int:
    """How many failures one replica of a role may have."""
    own = role_spec(job, role).backoff.limit
    return job.spec.run_policy.backoff_limit if own is None else own


def window(job: PSTrainingJob, role: str) -> timedelta | None:
    """The time within which failures count; None for all of the job's life."""
    seconds = role_spec(job, role).backoff.window_seconds
    return None if seconds is None else timedelta(seconds=seconds)


def remembered(job: PSTrainingJob, role: str, times: Iterable[datetime]) -> list[datetime]:
    """The times of failures that are worth keeping: as many as can still spend the budget, the newest last."""
    within = window(job, role)
    if within is None:
        return []
    found = sorted(times)
    return [t for t in found if t > found[-1] - within][-(limit(job, role) + 1) :]


def used(job: PSTrainingJob, role: str, records: Iterable[ReplicaRecord]) -> int:
    """How much of a replica's budget its records have used."""
    mine = list(records)
    if window(job, role) is None:
        return sum(r.failures for r in mine)
    return len(remembered(job, role, (t for r in mine for t in r.failure_times)))
