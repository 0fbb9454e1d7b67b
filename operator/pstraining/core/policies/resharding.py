"""Does the number of parameter servers change, and how far is that?

The parameters are laid out over the servers when training begins, so another number of servers means a new beginning
from a checkpoint: what runs stops in order, goes, and is created anew. Level-based: a StatefulSet says how many shards
it was made for. One whose replicas were changed by hand is only corrected.
"""

from pstraining.api import names
from pstraining.api.conditions import Condition, Reason
from pstraining.api.models import PSTrainingJob
from pstraining.api.status import PSTrainingJobStatus, StatusCondition
from pstraining.core.actions import Kind
from pstraining.core.policies import teardown
from pstraining.core.snapshot import Child, Snapshot


def is_due(job: PSTrainingJob, snapshot: Snapshot) -> bool:
    """Whether a StatefulSet is there that was made for another number of shards."""
    return any(_shards(c) != job.spec.ps.replicas for c in snapshot.of_kind(Kind.STATEFUL_SET))


def progress(
    job: PSTrainingJob, snapshot: Snapshot, was: StatusCondition | None, *, runs: bool
) -> tuple[bool, Reason, str] | None:
    """What the condition Rescaling says of a job that is not to end or stop; None if it does not change.

    Args:
        job: the job.
        snapshot: what is observed.
        was: the condition as stored.
        runs: whether training runs.
    """
    count = job.spec.ps.replicas
    if is_due(job, snapshot):
        if teardown.next_step(job, snapshot).leader_may_run:
            leader = "the chief" if job.spec.chief.enabled else "worker 0"
            message = f"For ps.replicas {count}, {leader} stops first and may save its state; {_base(job)}"
            return True, Reason.CHECKPOINTING, message
        return True, Reason.RESHARDING, f"All pods go and come back for ps.replicas {count}; {_base(job)}"
    if was is None or was.status != "True":
        return None
    if runs:
        return False, Reason.RESCALED, f"Training goes on with ps.replicas {count}."
    return True, Reason.RESUMING, f"Waiting for the pods with ps.replicas {count}; {_base(job)}"


def began(status: PSTrainingJobStatus) -> StatusCondition | None:
    """The condition Rescaling while it is true: pods from before it are on their way out, and nobody's failure."""
    found = (c for c in status.conditions if c.type == Condition.RESCALING and c.status == "True")
    return next(found, None)


def _base(job: PSTrainingJob) -> str:
    if job.spec.checkpoint is None:
        return "spec.checkpoint is not set: training begins anew."
    return "training goes on from the newest checkpoint."


def _shards(child: Child) -> int:
    text = child.annotations.get(names.ANNOTATION_SHARDS, "")
    return int(text) if text.isdecimal() else child.replicas
