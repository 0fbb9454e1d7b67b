"""Does the number of parameter servers change, and which step is the job in?

The parameters are partitioned over the servers when training starts, so another number of servers requires a restart
from a checkpoint: the job stops in order, its pods are deleted, and all of them are created again. Level-based: a
StatefulSet is annotated with the number of shards that it was created for. If only its replicas were changed by hand,
they are corrected.
"""

from pstraining.api import names
from pstraining.api.conditions import Condition, Reason
from pstraining.api.models import PSTrainingJob
from pstraining.api.numbers import number
from pstraining.api.status import PSTrainingJobStatus, StatusCondition
from pstraining.core.actions import Kind
from pstraining.core.policies import teardown
from pstraining.core.snapshot import Child, Snapshot


def is_due(job: PSTrainingJob, snapshot: Snapshot) -> bool:
    """Whether a StatefulSet exists that was created for another number of shards."""
    return any(_shards(c) != job.spec.ps.replicas for c in snapshot.of_kind(Kind.STATEFUL_SET))


def progress(
    job: PSTrainingJob, snapshot: Snapshot, stored: StatusCondition | None, *, runs: bool
) -> tuple[bool, Reason, str] | None:
    """Return the condition Rescaling of a job that does not end or stop; None if it does not change.

    Args:
        job: the job.
        snapshot: the observed state.
        stored: the condition as stored.
        runs: whether training runs.
    """
    count = job.spec.ps.replicas
    if is_due(job, snapshot):
        if teardown.next_step(job, snapshot).leader_may_run:
            leader = "the chief" if job.spec.chief.enabled else "worker 0"
            message = f"For ps.replicas {count}, {leader} stops first and may save its state; {_base(job)}"
            return True, Reason.CHECKPOINTING, message
        return True, Reason.RESHARDING, f"All pods go and come back for ps.replicas {count}; {_base(job)}"
    if stored is None or stored.status != "True":
        return None
    if runs:
        return False, Reason.RESCALED, f"Training continues with ps.replicas {count}."
    return True, Reason.RESUMING, f"Waiting for the pods with ps.replicas {count}; {_base(job)}"


def began(status: PSTrainingJobStatus) -> StatusCondition | None:
    """Return the condition Rescaling while it is true: older pods are being deleted, and their ends are no failures."""
    true = (c for c in status.conditions if c.type == Condition.RESCALING and c.status == "True")
    return next(true, None)


def _base(job: PSTrainingJob) -> str:
    if job.spec.checkpoint is None:
        return "spec.checkpoint is not set: training restarts from the beginning."
    return "training resumes from the newest checkpoint."


def _shards(child: Child) -> int:
    count = number(child.annotations.get(names.ANNOTATION_SHARDS))
    return child.replicas if count is None else count
