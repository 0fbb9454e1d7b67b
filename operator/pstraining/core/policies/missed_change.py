"""Was the job suspended, changed and resumed between two passes of the operator?

Fields that are fixed while a job runs may change while it is suspended. If it is resumed before the operator has
stopped it, its pods still run with the former values: other training settings, or other voters, two majorities of which
need not meet. The job then first stops in order, as the suspension requested, and is created again. Level-based: every
child with pods carries a hash of these fields (resources/fixed_fields.py).
"""

from pstraining.api import names
from pstraining.api.conditions import Condition, Reason
from pstraining.api.models import PSTrainingJob
from pstraining.api.status import PSTrainingJobStatus, StatusCondition
from pstraining.core.policies import teardown
from pstraining.core.snapshot import Snapshot
from pstraining.resources import fixed_fields


def is_due(job: PSTrainingJob, snapshot: Snapshot) -> bool:
    """Whether a child exists that was created from other values of these fields."""
    carried = {c.annotations.get(names.ANNOTATION_FIXED) for c in teardown.workloads(snapshot)}
    return any(fixed_fields.differ(job, found) for found in carried)


def began(status: PSTrainingJobStatus) -> StatusCondition | None:
    """Return the condition Restarting while it is true for this reason: ends of older pods are not failures."""
    true = (c for c in status.conditions if c.type == Condition.RESTARTING and c.status == "True")
    return next((c for c in true if c.reason == Reason.SPEC_CHANGED), None)
