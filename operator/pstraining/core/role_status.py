"""How each role stands: the numbers in status."""

from pstraining.api import names
from pstraining.api.conditions import Condition
from pstraining.api.models import PSTrainingJob
from pstraining.api.status import PSTrainingJobStatus, RoleStatus
from pstraining.core.policies import clean_up, failover
from pstraining.core.policies.attempts import has_succeeded
from pstraining.core.policies.completion import worker_succeeded
from pstraining.core.policies.failure_counts import FailureCounts
from pstraining.core.snapshot import Pod, Snapshot


def role_statuses(
    job: PSTrainingJob, snapshot: Snapshot, old: PSTrainingJobStatus, counted: FailureCounts, end: Condition | None
) -> dict[str, RoleStatus]:
    """The status of every role that the job has.

    Args:
        job: the job.
        snapshot: what is observed.
        old: the stored status, for the failures that are not seen any more.
        counted: the counters.
        end: how the job has ended, so that what runs is about to be freed.
    """
    done = _succeeded(job, snapshot)
    working = {role: [p for p in snapshot.pods_of(role) if works(p)] for role in done}
    ready = {
        names.PS: len(_served(job, snapshot, old)),
        names.WORKER: len({p.index for p in working[names.WORKER]} - done[names.WORKER]),
        names.CHIEF: min(1, len(working[names.CHIEF])),
        names.EVALUATOR: min(1, len(working[names.EVALUATOR])),
    }
    desired = {
        names.PS: job.spec.ps.replicas,
        names.WORKER: job.spec.worker.replicas,
        names.CHIEF: int(job.spec.chief.enabled),
        names.EVALUATOR: int(job.spec.evaluator.enabled),
    }
    olds = {names.PS: old.ps, names.WORKER: old.worker, names.CHIEF: old.chief}
    if job.spec.evaluator.enabled:
        olds[names.EVALUATOR] = old.evaluator or RoleStatus()
    found = {}
    for role, before in olds.items():
        freed = clean_up.frees(job, role, end)
        given_up = counted.given_up if role == names.WORKER else frozenset()
        asked = 0 if freed or job.spec.run_policy.suspend else desired[role] - len(done[role] | given_up)
        now_ready = 0 if freed else ready[role]
        found[role] = RoleStatus(
            desired=desired[role],
            replicas=asked,
            ready=now_ready,
            # What remembers it is gone once the job is cleaned up.
            succeeded=max(len(done[role]), before.succeeded if end is not None else 0),
            restarts=counted.restarts(role),
            summary=f"{now_ready}/{desired[role]}",
            last_failure=next((f.told for f in reversed(counted.failures) if f.role == role), before.last_failure),
        )
    return found


def works(pod: Pod) -> bool:
    """The pod's container runs, as far as anybody knows, and nothing is about to end it."""
    return pod.container.running and not (pod.deleting or pod.terminal or pod.silent)


def ps_ready(job: PSTrainingJob, snapshot: Snapshot, old: PSTrainingJobStatus) -> bool:
    """Every shard's primary serves."""
    return _served(job, snapshot, old) >= set(range(job.spec.ps.replicas))


def chief_works(job: PSTrainingJob, snapshot: Snapshot) -> bool:
    """The chief, or worker 0 in its place, runs, or is done while others are not."""
    if job.spec.chief.enabled:
        done = has_succeeded(job, snapshot, names.CHIEF)
        return done or any(works(p) for p in snapshot.pods_of(names.CHIEF))
    done = worker_succeeded(job, snapshot, 0)
    return done or any(works(p) for p in snapshot.pods_of(names.WORKER, 0))


def enough_workers_work(job: PSTrainingJob, snapshot: Snapshot) -> bool:
    """As many workers as worker.minReplicas asks for run, or have succeeded; without it, one runs or all are done."""
    working = {p.index for p in snapshot.pods_of(names.WORKER) if works(p)}
    done, fewest = _succeeded_workers(job, snapshot), job.spec.worker.min_replicas
    if fewest is None:
        return len(working) >= 1 or len(done) == job.spec.worker.replicas
    return len(working | done) >= fewest


def _served(job: PSTrainingJob, snapshot: Snapshot, old: PSTrainingJobStatus) -> set[int]:
    """The shards whose primary is ready."""
    primaries = failover.primaries_only(job, snapshot, old).pods_of(names.PS)
    return {p.index for p in primaries if p.ready and not p.deleting}


def _succeeded(job: PSTrainingJob, snapshot: Snapshot) -> dict[str, set[int]]:
    """The replicas of each role whose program has ended with 0 for good."""
    return {
        names.PS: set(),
        names.WORKER: _succeeded_workers(job, snapshot),
        names.CHIEF: {0} if has_succeeded(job, snapshot, names.CHIEF) else set(),
        names.EVALUATOR: {0} if has_succeeded(job, snapshot, names.EVALUATOR) else set(),
    }


def _succeeded_workers(job: PSTrainingJob, snapshot: Snapshot) -> set[int]:
    return {i for i in range(job.spec.worker.replicas) if worker_succeeded(job, snapshot, i)}
