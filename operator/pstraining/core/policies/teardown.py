"""In which order does what runs go, so that nothing is lost that could be saved?

First what leads: the chief's attempts, or worker 0 in a job without a chief. Its pod gets SIGTERM and may write a last
checkpoint while the parameter servers still serve. Only when no pod of it can run any more the rest goes, the parameter
servers' StatefulSets last: as long as one exists, a stop that was broken off half-way shows. How long the first step
takes is bounded by the pod's own grace period. A gang's PodGroup goes after all its pods: a job that comes back waits
in line anew.

Level-based: the same answer at every look until nothing is left.
"""

from dataclasses import dataclass

from pstraining.api import names
from pstraining.api.models import PSTrainingJob
from pstraining.core.actions import Kind
from pstraining.core.snapshot import Child, Pod, Snapshot

_REST = (Kind.DEPLOYMENT, Kind.JOB, Kind.STATEFUL_SET)


@dataclass(frozen=True)
class Stop:
    """The next step of an orderly stop."""

    delete: tuple[Child, ...] = ()
    leader_may_run: bool = False
    """What leads is still there, and may be writing a checkpoint."""


def next_step(job: PSTrainingJob, snapshot: Snapshot) -> Stop:
    """What is to be deleted now; nothing while a leader that was told to stop takes its time."""
    leading = tuple(c for c in _leaders(job, snapshot) if not c.deleting)
    if leading or any(not p.over for p in leader_pods(job, snapshot)):
        return Stop(leading, leader_may_run=True)
    left = (*workloads(snapshot), *(c for kind in Kind.pod_groups() for c in snapshot.of_kind(kind)))
    return Stop(tuple(c for c in left if not c.deleting))


def is_over(snapshot: Snapshot) -> bool:
    """Nothing of the job runs or can be started again."""
    return not workloads(snapshot) and all(p.over for p in snapshot.pods)


def workloads(snapshot: Snapshot) -> tuple[Child, ...]:
    """All children that hold pods, in the order in which they go."""
    return tuple(c for k in _REST for c in snapshot.of_kind(k))


def leader_pods(job: PSTrainingJob, snapshot: Snapshot) -> tuple[Pod, ...]:
    """The pods of whoever has the chief's duty."""
    chiefs = snapshot.pods_of(names.CHIEF)
    return chiefs if job.spec.chief.enabled else (*chiefs, *snapshot.pods_of(names.WORKER, 0))


def _leaders(job: PSTrainingJob, snapshot: Snapshot) -> tuple[Child, ...]:
    chiefs = tuple(j for j in snapshot.of_kind(Kind.JOB) if j.labels.get(names.LABEL_ROLE) == names.CHIEF)
    worker = snapshot.child(Kind.DEPLOYMENT, names.worker_name(job.metadata.name, 0))
    return chiefs if job.spec.chief.enabled or worker is None else (*chiefs, worker)
