"""Which workers no longer run while the job continues?

The operator annotates their Deployments with the reason, and scales them to 0: the program has succeeded, or the job
has given up the worker. Status first records that a worker is given up (failure_counts.py); then its pod may be
deleted.

The pod of a worker that has succeeded stays for a while if the job has a history: the chief reads its log, at the
latest during the evaluation of the model.
"""

from collections.abc import Iterable
from datetime import datetime, timedelta
from typing import Final

from pstraining.api import names
from pstraining.api.models import PSTrainingJob
from pstraining.api.status import PSTrainingJobStatus
from pstraining.api.summary import LOGS_KEPT_SECONDS, HistoryPolicy
from pstraining.core.policies.success import succeeded
from pstraining.core.snapshot import Pod, Snapshot

LOGS_KEPT: Final = timedelta(seconds=LOGS_KEPT_SECONDS)


def given_up(status: PSTrainingJobStatus) -> frozenset[int]:
    """Return the workers that are recorded as given up."""
    return frozenset(r.index for r in status.replica_records if r.given_up)


def reasons(status: PSTrainingJobStatus, succeeded: Iterable[int]) -> dict[int, str]:
    """Return the annotation of each retired worker; success prevails."""
    annotations = dict.fromkeys(given_up(status), names.ANNOTATION_GIVEN_UP)
    return annotations | dict.fromkeys(succeeded, names.ANNOTATION_SUCCEEDED)


def pod_stays_until(job: PSTrainingJob, snapshot: Snapshot, index: int) -> datetime | None:
    """Return until when the pod of a worker that has succeeded stays for the job's history; None if it may go now.

    A pod that is being deleted does not stay: its Deployment would replace it by one that trains again.
    """
    checkpoint = job.spec.checkpoint
    if checkpoint is None or checkpoint.history is HistoryPolicy.NONE or snapshot.installation.progress is None:
        return None
    pods = [p for p in snapshot.pods_of(names.WORKER, index) if not (p.deleting or p.terminal) and succeeded(job, p)]
    return max((time + LOGS_KEPT for p in pods if (time := p.success_seen or _ended_at(p)) is not None), default=None)


def requeue_at(job: PSTrainingJob, snapshot: Snapshot, workers: Iterable[int], now: datetime) -> datetime | None:
    """Return when the next pod of these workers, which have succeeded, need not stay any more."""
    times = (pod_stays_until(job, snapshot, index) for index in workers)
    return min((time for time in times if time is not None and time > now), default=None)


def _ended_at(pod: Pod) -> datetime | None:
    """Return the last end with exit code 0 by the clock of the pod's node; None without one."""
    runs = (run for run in (pod.container.terminated, pod.container.last) if run is not None and run.exit_code == 0)
    return max((run.finished_at for run in runs if run.finished_at is not None), default=None)
