"""When does the job reach runPolicy.activeDeadlineSeconds?

Suspended time does not count: status.startTime is when the job became active last, status.activeSeconds the active time
before that. The deadline needs no polling: the plan requeues the job for that moment.
"""

from datetime import datetime, timedelta

from pstraining.api.models import PSTrainingJob
from pstraining.api.status import PSTrainingJobStatus


def ends_at(job: PSTrainingJob, status: PSTrainingJobStatus) -> datetime | None:
    """Return the moment of the deadline; None if there is none or the job has not started."""
    allowed = job.spec.run_policy.active_deadline_seconds
    if allowed is None or status.start_time is None:
        return None
    return status.start_time + timedelta(seconds=allowed - status.active_seconds)


def active_seconds(status: PSTrainingJobStatus, now: datetime, *, suspended: bool) -> int:
    """Return the active seconds to record; a suspension adds the time since the last start."""
    if not suspended or status.start_time is None:
        return status.active_seconds
    return status.active_seconds + max(0, int((now - status.start_time).total_seconds()))
