"""Does a rule of spec.failurePolicy restart the whole job?

status.jobRestarts counts these restarts, and every object that holds pods carries the count in a label. The new count
is recorded before anything older is deleted, so an operator that crashes in between resumes there. Objects with an
older count are deleted in order; then all of them are created with the new one. The label is called `round`, because
live objects of earlier versions carry it.
"""

from typing import Any

from pstraining.api import names
from pstraining.core.facts import Facts
from pstraining.core.policies import teardown


def count(facts: Facts) -> int:
    """Return the number of restarts, including one that this pass decides."""
    return facts.status.job_restarts + (facts.failures.restart_job is not None)


def is_exceeded(facts: Facts) -> bool:
    """Whether the job would exceed runPolicy.maxRestarts."""
    return count(facts) > facts.job.spec.run_policy.max_restarts


def is_due(facts: Facts) -> bool:
    """Whether a workload exists from before the newest restart."""
    workloads, restarts = teardown.workloads(facts.snapshot), facts.status.job_restarts
    return any(max(0, c.number(names.LABEL_RESTART_ATTEMPT)) < restarts for c in workloads)


def labelled(manifest: dict[str, Any], restarts: int) -> dict[str, Any]:
    """Return a child with the restart count as a label, if it has pods; count 0 needs no label."""
    template = manifest["spec"].get("template") if "spec" in manifest else None
    if restarts == 0 or template is None:
        return manifest
    for metadata in (manifest["metadata"], template["metadata"]):
        metadata["labels"] = {**metadata["labels"], names.LABEL_RESTART_ATTEMPT: str(restarts)}
    return manifest
