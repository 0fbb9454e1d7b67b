"""Which programs have ended with exit code 0 for good?"""

from datetime import datetime

from pstraining.api import names
from pstraining.api.conditions import Reason
from pstraining.api.models import PSTrainingJob
from pstraining.api.packed_records import numbers
from pstraining.api.run_policy import RestartPolicy, SuccessPolicy
from pstraining.api.status import PSTrainingJobStatus
from pstraining.api.training import TrainingSpec
from pstraining.core.actions import Kind
from pstraining.core.observe import parse_time
from pstraining.core.policies import missed_change, teardown
from pstraining.core.policies.failures import is_given_up_with_its_node
from pstraining.core.policies.resharding import began
from pstraining.core.snapshot import Child, Pod, Snapshot
from pstraining.resources.pods import PodTask, has_chief_duty


def workers(job: PSTrainingJob, snapshot: Snapshot, status: PSTrainingJobStatus) -> frozenset[int]:
    """Return the workers that have succeeded; their pods show this first, and later a record."""
    recorded = on_record(job, snapshot, status)
    left = (i for i in range(job.spec.worker.replicas) if i not in recorded)
    return recorded.union(i for i in left if _pod_succeeded(job, snapshot, status, i))


def on_record(job: PSTrainingJob, snapshot: Snapshot, status: PSTrainingJobStatus) -> frozenset[int]:
    """Return the workers with a record of their success: an annotation of the Deployment, or status without one.

    A user may have deleted the Deployment. The worker does not run again, unless all programs of the job do.
    """
    count, deployments = job.spec.worker.replicas, snapshot.of_kind(Kind.DEPLOYMENT)
    annotated = (c for c in deployments if c.annotations.get(names.ANNOTATION_SUCCEEDED) == "true")
    found = {c.number(names.LABEL_INDEX) for c in annotated if snapshot.is_of_current_restart(c)}
    if status.completed_indexes and not stops(job, snapshot):
        found |= {*numbers(status.completed_indexes)} - {c.number(names.LABEL_INDEX) for c in deployments}
    return frozenset(index for index in found if 0 <= index < count)


def stops(job: PSTrainingJob, snapshot: Snapshot) -> bool:
    """Whether all pods of the job are deleted or will be, after which all programs run again."""
    is_older = any(not snapshot.is_of_current_restart(c) for c in teardown.workloads(snapshot))
    return job.spec.run_policy.suspend or is_older or missed_change.is_due(job, snapshot)


def succeeded(job: PSTrainingJob, pod: Pod) -> bool:
    """Whether the program of this pod has ended with 0 for good, now or before the launcher went idle."""
    if pod.role == names.PS or runs_for_ever(job, pod.role, pod.index):
        return False
    runs = (pod.container.terminated, pod.container.last)
    ends = [t.finished_at for t in runs if t is not None and t.exit_code == 0]
    given_up = _given_up_at(pod)
    if given_up is not None:
        # Another pod has replaced the worker's, so a success that its lost node reports late does not count.
        return any(end is not None and end <= given_up for end in ends)
    return pod.phase == "Succeeded" or bool(ends)


def runs_for_ever(job: PSTrainingJob, role: str, index: int) -> bool:
    """Whether a worker's program runs again even after exit code 0."""
    always = role == names.WORKER and job.spec.worker.restart_policy is RestartPolicy.ALWAYS
    return always and not has_chief_duty(job, PodTask(role, index))


def decides_end(job: PSTrainingJob, snapshot: Snapshot, index: int) -> bool:
    """Whether the job cannot end well without a worker: its success is the job's, or only it ends training and saves.

    The latter holds for worker 0 of programs that use pstraining.runtime, which alone read `spec.training` and report a
    layout.
    """
    if not has_chief_duty(job, PodTask(names.WORKER, index)):
        return False
    is_of_runtime = job.spec.training != TrainingSpec() or snapshot.uses_runtime
    return is_of_runtime or job.spec.success_policy is SuccessPolicy.CHIEF


def is_former(
    job: PSTrainingJob, snapshot: Snapshot, status: PSTrainingJobStatus, pod: Pod, owner: Child | None
) -> bool:
    """Whether a pod has outlived its owner, which was deleted for a stop after which its program runs again.

    Args:
        job: the job.
        snapshot: the observed state.
        status: the stored status.
        pod: the pod.
        owner: the Deployment or the Job that now has the pod's place; None without one.
    """
    if owner is not None:
        created = parse_time(owner.manifest["metadata"].get("creationTimestamp"))
        return created is not None and pod.created < created
    if stops(job, snapshot):
        return False  # a program that ends well while it is stopped has succeeded
    if status.start_time is None:
        return bool(status.conditions)
    changes = (c for c in (began(status), missed_change.began(status)) if c is not None)
    over = (c.last_transition_time for c in changes if c.reason != Reason.CHECKPOINTING)
    return pod.created < max((status.start_time, *over))


def _pod_succeeded(job: PSTrainingJob, snapshot: Snapshot, status: PSTrainingJobStatus, index: int) -> bool:
    pods = (p for p in snapshot.pods_of(names.WORKER, index) if snapshot.is_of_current_restart(p))
    if not (ended := [p for p in pods if succeeded(job, p)]):
        return False
    owner = snapshot.child(Kind.DEPLOYMENT, names.worker_name(job.metadata.name, index))
    return not all(is_former(job, snapshot, status, p, owner) for p in ended)


def _given_up_at(pod: Pod) -> datetime | None:
    """Return when a worker's pod was deleted because its node was lost."""
    return pod.deleted_at if pod.role == names.WORKER and is_given_up_with_its_node(pod) else None
