"""Which programs have ended with exit code 0 for good?"""

from datetime import datetime

from pstraining.api import names
from pstraining.api.models import PSTrainingJob
from pstraining.api.run_policy import RestartPolicy, SuccessPolicy
from pstraining.core.actions import Kind
from pstraining.core.policies.failures import is_given_up_with_its_node
from pstraining.core.snapshot import Pod, Snapshot
from pstraining.resources.pods import PodTask, has_chief_duty


def workers(job: PSTrainingJob, snapshot: Snapshot) -> frozenset[int]:
    """Return the workers that have succeeded."""
    return frozenset(i for i in range(job.spec.worker.replicas) if _worker_succeeded(job, snapshot, i))


def is_recorded(job: PSTrainingJob, snapshot: Snapshot, index: int) -> bool:
    """Whether a worker's Deployment has the annotation that the worker has succeeded."""
    deployment = snapshot.child(Kind.DEPLOYMENT, names.worker_name(job.metadata.name, index))
    if deployment is None or deployment.annotations.get(names.ANNOTATION_SUCCEEDED) != "true":
        return False
    return snapshot.is_of_current_restart(deployment)


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


def decides_end(job: PSTrainingJob, index: int) -> bool:
    """Whether the success of a worker is that of the job, which cannot end well without it."""
    return has_chief_duty(job, PodTask(names.WORKER, index)) and job.spec.success_policy is SuccessPolicy.CHIEF


def _worker_succeeded(job: PSTrainingJob, snapshot: Snapshot, index: int) -> bool:
    """Whether a worker has succeeded; its pod shows this first, and later an annotation of its Deployment."""
    if is_recorded(job, snapshot, index):
        return True
    pods = (p for p in snapshot.pods_of(names.WORKER, index) if snapshot.is_of_current_restart(p))
    return any(succeeded(job, p) for p in pods)


def _given_up_at(pod: Pod) -> datetime | None:
    """Return when a worker's pod was deleted because its node was lost."""
    return pod.deleted_at if pod.role == names.WORKER and is_given_up_with_its_node(pod) else None
