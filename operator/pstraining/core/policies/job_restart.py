"""Is the job to be started anew as a whole, as a rule of spec.failurePolicy wants it?

A round is the time between two such restarts; status.jobRestarts is its number and every object that holds pods carries
it. The number is on record before anything of the old round is deleted, so an operator that dies in between goes on
where it was: what carries an older number goes, in order, and then everything is created with the new one.
"""

from typing import Any

from pstraining.api import names
from pstraining.api.models import PSTrainingJob
from pstraining.api.status import PSTrainingJobStatus
from pstraining.core.policies import teardown
from pstraining.core.policies.failure_counts import FailureCounts
from pstraining.core.snapshot import Snapshot


def number(status: PSTrainingJobStatus, counted: FailureCounts) -> int:
    """The round that the job is in, or now begins."""
    return status.job_restarts + (counted.restart_job is not None)


def exceeded(job: PSTrainingJob, status: PSTrainingJobStatus, counted: FailureCounts) -> bool:
    """Whether the job would have to begin more rounds than it may."""
    return number(status, counted) > job.spec.run_policy.max_restarts


def is_due(snapshot: Snapshot, status: PSTrainingJobStatus) -> bool:
    """Whether anything of an older round is left."""
    old = (c for c in teardown.workloads(snapshot) if max(0, c.number(names.LABEL_ROUND)) < status.job_restarts)
    return any(True for _ in old)


def stamped(manifest: dict[str, Any], status: PSTrainingJobStatus) -> dict[str, Any]:
    """A child with the round's number, where it holds pods; the first round needs none."""
    template = manifest["spec"].get("template") if "spec" in manifest else None
    if status.job_restarts == 0 or template is None:
        return manifest
    for metadata in (manifest["metadata"], template["metadata"]):
        metadata["labels"] = {**metadata["labels"], names.LABEL_ROUND: str(status.job_restarts)}
    return manifest
