"""Which workers are to run no more, while the job goes on?

Their Deployments go to 0 replicas and remember why: those whose program has succeeded, and those that the job has given
up. A worker is given up in status first (attempts.py), so that what made it fail may go.
"""

from pstraining.api import names
from pstraining.api.models import PSTrainingJob
from pstraining.api.status import PSTrainingJobStatus
from pstraining.core.policies.completion import worker_succeeded
from pstraining.core.snapshot import Snapshot


def given_up(status: PSTrainingJobStatus) -> frozenset[int]:
    """The workers that are on record as given up."""
    return frozenset(r.index for r in status.replica_records if r.given_up)


def why(job: PSTrainingJob, snapshot: Snapshot, status: PSTrainingJobStatus, index: int) -> str | None:
    """The annotation that says why a worker is to run no more; None if it is to run."""
    if worker_succeeded(job, snapshot, index):
        return names.ANNOTATION_SUCCEEDED
    return names.ANNOTATION_GIVEN_UP if index in given_up(status) else None
