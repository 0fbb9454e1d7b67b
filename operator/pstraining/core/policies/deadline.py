"""When does the job reach runPolicy.activeDeadlineSeconds?

Suspended time does not count: status.startTime is when the job became active last, status.activeSeconds the active time
before that. The deadline needs no polling: the plan requeues the job for that moment.
"""

from datetime import datetime, timedelta

from pstraining.api.conditions import Reason
from pstraining.api.models import PSTrainingJob
from pstraining.api.status import PSTrainingJobStatus


def ends_at(job: PSTrainingJob, status: PSTrainingJobStatus) -> datetime | None:
    """Return the moment of the deadline; None if there is none or the job has not started."""
    allowed = job.spec.run_policy.active_deadline_seconds
    if allowed is None or status.start_time is None:
        return None
    return status.start_time + timedelta(seconds=allowed - status.active_seconds)


def active_seconds(status: PSTrainingJobStatus, now: datetime, start: datetime | None) -> int:
    """Return the active seconds to record; a suspension adds the time since the last start.

    A job that is resumed while it still stops has its former start again, from which all time counts as active. What
    its suspension has added is then taken back.

    Args:
        status: the stored status.
        now: the present time.
        start: the start to record; None for a suspended job.
    """
    if start is None:
        return status.active_seconds + (0 if status.start_time is None else _seconds(status.start_time, now))
    if status.start_time is None and any(c.reason == Reason.STOPPING for c in status.conditions):
        return max(0, status.active_seconds - _seconds(start, now))
    return status.active_seconds


def _seconds(since: datetime, until: datetime) -> int:
    return max(0, int((until - since).total_seconds()))
