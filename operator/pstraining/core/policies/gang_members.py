"""Which members of the gang still need a node, and does each of them have one?

A member that has succeeded or was given up needs no node any more.
"""

from collections.abc import Container

from pstraining.api import names
from pstraining.api.models import PSTrainingJob
from pstraining.core.snapshot import Pod, Snapshot
from pstraining.resources import gang
from pstraining.resources.gang import GangMembers


def remaining(job: PSTrainingJob, retired: Container[int], *, chief_succeeded: bool) -> GangMembers:
    """Return the gang without the members that need no node any more."""
    start = gang.members(job)
    left = sum(i not in retired for i in range(job.spec.worker.replicas))
    return GangMembers(start.ps, int(start.chief and not chief_succeeded), min(start.workers, left))


def are_placed(job: PSTrainingJob, snapshot: Snapshot, retired: Container[int], *, chief_succeeded: bool) -> bool:
    """Whether every member that needs a node has one."""
    start = gang.members(job)
    needed = {(names.PS, i) for i in range(start.ps)}
    needed |= {(names.WORKER, i) for i in range(start.workers) if i not in retired}
    if start.chief and not chief_succeeded:
        needed.add((names.CHIEF, 0))
    return needed <= {(p.role, p.index) for p in snapshot.pods if p.member == 0 and has_place(p)}


def has_place(pod: Pod) -> bool:
    """Whether a pod is bound to a node and is not about to leave it."""
    return bool(pod.node) and not pod.over and not pod.deleting
