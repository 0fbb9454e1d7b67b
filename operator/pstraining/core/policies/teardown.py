"""In which order does a job stop, so that the leader can save its state?

The leader stops first: the chief's attempts, or worker 0 in a job without a chief. Its pod gets SIGTERM and may write a
last checkpoint while the parameter servers still serve; the pod's grace period bounds this step. Once no pod of the
leader can run, the other workloads are deleted, the StatefulSets of the parameter servers last. While one exists,
an interrupted stop is visible. A gang's PodGroup is deleted after all its pods: a job that resumes queues again.

Level-based: equal snapshots give equal answers.
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
    """Whether the leader still exists and may be writing a checkpoint."""


def next_step(job: PSTrainingJob, snapshot: Snapshot) -> Stop:
    """Return the children to delete now; none while the leader terminates."""
    leading = tuple(c for c in _leaders(job, snapshot) if not c.deleting)
    if leading or any(not p.over for p in leader_pods(job, snapshot)):
        return Stop(leading, leader_may_run=True)
    left = (*workloads(snapshot), *(c for kind in Kind.pod_groups() for c in snapshot.of_kind(kind)))
    return Stop(tuple(c for c in left if not c.deleting))


def is_over(snapshot: Snapshot) -> bool:
    """Whether no pod of the job runs or can be restarted."""
    return not workloads(snapshot) and all(p.over for p in snapshot.pods)


def workloads(snapshot: Snapshot) -> tuple[Child, ...]:
    """Return all children that hold pods, in the order of their deletion."""
    return tuple(c for k in _REST for c in snapshot.of_kind(k))


def chief_jobs(snapshot: Snapshot) -> tuple[Child, ...]:
    """Return the Jobs of the chief's attempts."""
    return tuple(j for j in snapshot.of_kind(Kind.JOB) if j.labels.get(names.LABEL_ROLE) == names.CHIEF)


def leader_pods(job: PSTrainingJob, snapshot: Snapshot) -> tuple[Pod, ...]:
    """Return the pods of the leader."""
    chiefs = snapshot.pods_of(names.CHIEF)
    return chiefs if job.spec.chief.enabled else (*chiefs, *snapshot.pods_of(names.WORKER, 0))


def _leaders(job: PSTrainingJob, snapshot: Snapshot) -> tuple[Child, ...]:
    chiefs = chief_jobs(snapshot)
    worker = snapshot.child(Kind.DEPLOYMENT, names.worker_name(job.metadata.name, 0))
    return chiefs if job.spec.chief.enabled or worker is None else (*chiefs, worker)
