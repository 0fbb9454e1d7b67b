"""How each role stands: the numbers in status."""

from pstraining.api import names
from pstraining.api.models import PSTrainingJob
from pstraining.api.run_policy import CleanUp
from pstraining.api.status import PSTrainingJobStatus, RoleStatus
from pstraining.core.policies import redundancy
from pstraining.core.policies.attempts import Tally
from pstraining.core.policies.outcome import worker_succeeded
from pstraining.core.snapshot import Pod, Snapshot


def role_statuses(
    job: PSTrainingJob, snapshot: Snapshot, old: PSTrainingJobStatus, counted: Tally, *, finished: bool
) -> dict[str, RoleStatus]:
    """The status of ps, worker and chief.

    Args:
        job: the job.
        snapshot: what is observed.
        old: the stored status, for the failures that are not seen any more.
        counted: the counters.
        finished: the job has ended, so that what runs is about to be freed.
    """
    freed = finished and job.spec.run_policy.clean_pod_policy.on_success is not CleanUp.NONE
    done = _succeeded_workers(job, snapshot)
    workers = [p for p in snapshot.pods_of(names.WORKER) if works(p) and p.index not in done]
    chiefs = [p for p in snapshot.pods_of(names.CHIEF) if works(p)]
    desired = {
        names.PS: job.spec.ps.replicas,
        names.WORKER: job.spec.worker.replicas,
        names.CHIEF: int(job.spec.chief.enabled),
    }
    ready = {
        names.PS: len(_served(job, snapshot, old)),
        names.WORKER: len({p.index for p in workers}),
        names.CHIEF: len({p.term for p in chiefs}),
    }
    asked = 0 if freed or job.spec.run_policy.suspend else 1
    olds = {names.PS: old.ps, names.WORKER: old.worker, names.CHIEF: old.chief}
    return {
        role: RoleStatus(
            desired=desired[role],
            replicas=asked * (desired[role] - (len(done) if role == names.WORKER else 0)),
            ready=0 if freed else ready[role],
            # The Deployments that remember it are gone once the job is cleaned up.
            succeeded=max(len(done), old.worker.succeeded if finished else 0) if role == names.WORKER else 0,
            restarts=counted.restarts(role),
            summary=f"{0 if freed else ready[role]}/{desired[role]}",
            last_failure=next((f.told for f in reversed(counted.failures) if f.role == role), olds[role].last_failure),
        )
        for role in olds
    }


def works(pod: Pod) -> bool:
    """The pod's container runs and nothing is about to end it."""
    return pod.container.running and not pod.deleting and not pod.terminal


def ps_ready(job: PSTrainingJob, snapshot: Snapshot, old: PSTrainingJobStatus) -> bool:
    """Every shard's primary serves."""
    return _served(job, snapshot, old) >= set(range(job.spec.ps.replicas))


def chief_works(job: PSTrainingJob, snapshot: Snapshot) -> bool:
    """The chief, or worker 0 in its place, runs."""
    if job.spec.chief.enabled:
        return any(works(p) for p in snapshot.pods_of(names.CHIEF))
    return any(works(p) for p in snapshot.pods_of(names.WORKER, 0))


def enough_workers_work(job: PSTrainingJob, snapshot: Snapshot) -> bool:
    """As many workers as worker.minReplicas asks for run, or have succeeded; without it, one."""
    working = {p.index for p in snapshot.pods_of(names.WORKER) if works(p)}
    fewest = job.spec.worker.min_replicas
    return len(working) >= 1 if fewest is None else len(working | _succeeded_workers(job, snapshot)) >= fewest


def _served(job: PSTrainingJob, snapshot: Snapshot, old: PSTrainingJobStatus) -> set[int]:
    """The shards whose primary is ready."""
    primaries = redundancy.primaries_only(job, snapshot, old).pods_of(names.PS)
    return {p.index for p in primaries if p.ready and not p.deleting}


def _succeeded_workers(job: PSTrainingJob, snapshot: Snapshot) -> set[int]:
    return {i for i in range(job.spec.worker.replicas) if worker_succeeded(job, snapshot, i)}
