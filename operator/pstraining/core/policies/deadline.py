"""When has the job been active for as long as it may?

Time in which it is suspended does not count: status.startTime is when it became active last, status.activeSeconds what
it was before. The end is a moment, not a poll: the plan says when to look again.
"""

from datetime import datetime, timedelta

from pstraining.api.models import PSTrainingJob
from pstraining.api.status import PSTrainingJobStatus


def ends_at(job: PSTrainingJob, status: PSTrainingJobStatus) -> datetime | None:
    """The moment of activeDeadlineSeconds; None while there is none."""
    allowed = job.spec.run_policy.active_deadline_seconds
    if allowed is None or status.start_time is None:
        return None
    return status.start_time + timedelta(seconds=allowed - status.active_seconds)


def active_seconds(status: PSTrainingJobStatus, now: datetime, *, suspended: bool) -> int:
    """What to keep of the time that the job was active, when it is suspended."""
    if not suspended or status.start_time is None:
        return status.active_seconds
    return status.active_seconds + max(0, int((now - status.start_time).total_seconds()))
