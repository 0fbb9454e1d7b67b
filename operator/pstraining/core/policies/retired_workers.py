"""Which workers no longer run while the job continues?

The operator scales their Deployments to 0 and annotates them with the reason: the program has succeeded, or the job has
given up the worker. Status first records that a worker is given up (failure_counts.py); then its pod may be deleted.
"""

from collections.abc import Iterable

from pstraining.api import names
from pstraining.api.status import PSTrainingJobStatus


def given_up(status: PSTrainingJobStatus) -> frozenset[int]:
    """Return the workers that are recorded as given up."""
    return frozenset(r.index for r in status.replica_records if r.given_up)


def reasons(status: PSTrainingJobStatus, succeeded: Iterable[int]) -> dict[int, str]:
    """Return the annotation of each retired worker; success prevails."""
    annotations = dict.fromkeys(given_up(status), names.ANNOTATION_GIVEN_UP)
    return annotations | dict.fromkeys(succeeded, names.ANNOTATION_SUCCEEDED)
