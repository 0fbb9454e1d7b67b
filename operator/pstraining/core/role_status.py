"""The state of each role: the numbers in status."""

from collections.abc import Mapping

from pstraining.api import names
from pstraining.api.conditions import Condition
from pstraining.api.packed_records import numbers, ranges
from pstraining.api.status import RefusedSize, RoleStatus
from pstraining.core.facts import Facts
from pstraining.core.policies import clean_up, success
from pstraining.core.policies.resharding import ReshardingStep
from pstraining.core.snapshot import Pod

_NONE: frozenset[int] = frozenset()


def role_statuses(facts: Facts, end: Condition | None, refused: Mapping[str, RefusedSize]) -> dict[str, RoleStatus]:
    """Return the status of every role that the job has.

    Args:
        facts: the facts of this pass.
        end: how the job has ended, because its running pods are then about to be deleted.
        refused: the refusals of sizes that still hold, by role.
    """
    job, stored = facts.job, facts.status
    old = {names.PS: stored.ps, names.WORKER: stored.worker, names.CHIEF: stored.chief}
    if job.spec.evaluator.enabled:
        old[names.EVALUATOR] = stored.evaluator or RoleStatus()
    ready, succeeded = _ready(facts), _succeeded(facts, has_ended=end is not None)
    found = {role: _role_status(facts, role, end, ready[role], succeeded[role], old[role]) for role in old}
    return {role: status.model_copy(update={"refused_size": refused.get(role)}) for role, status in found.items()}


def _role_status(
    facts: Facts, role: str, end: Condition | None, ready: int, succeeded: frozenset[int], before: RoleStatus
) -> RoleStatus:
    freed = clean_up.frees(facts.job, role, end)
    done = succeeded | (facts.failures.given_up if role == names.WORKER else _NONE)
    desired = _desired(facts, role)
    ready = 0 if freed else ready
    new = (f.last_failure for f in reversed(facts.failures.failures) if f.role == role)
    return RoleStatus(
        desired=desired,
        replicas=0 if freed or facts.job.spec.run_policy.suspend else desired - len(done),
        ready=ready,
        # The objects that record a success are deleted when the job is cleaned up.
        succeeded=max(len(succeeded), before.succeeded if end is not None else 0),
        restarts=_restarts(facts, role, before),
        summary=f"{ready}/{desired}",
        last_failure=next(new, before.last_failure),
    )


def _restarts(facts: Facts, role: str, before: RoleStatus) -> int:
    """Return how often replicas of a role were restarted, including replicas that the job no longer has."""
    return max(before.restarts + facts.new_restarts.get(role, 0), facts.failures.restarts(role))


def works(pod: Pod) -> bool:
    """Whether the pod's program runs, by the last report of its node, and is not about to end."""
    return pod.container.runs_program and not (pod.deleting or pod.terminal or pod.silent)


def ps_ready(facts: Facts) -> bool:
    """Whether every shard's primary serves."""
    return facts.served_shards >= set(range(facts.job.spec.ps.replicas))


def leader(facts: Facts) -> str:
    """Return the task with the duties of the chief, for messages."""
    return "the chief" if facts.job.spec.chief.enabled else "worker 0"


def running_leader(facts: Facts) -> str:
    """Return which tasks train, for messages."""
    is_given_up = not facts.job.spec.chief.enabled and 0 in facts.failures.given_up
    return "the other workers run; worker 0 was given up" if is_given_up else f"{leader(facts)} runs"


def chief_works(facts: Facts) -> bool:
    """Whether the chief runs or has succeeded; in a job without one, worker 0, unless it was given up."""
    if facts.job.spec.chief.enabled:
        return facts.chief.succeeded or any(works(p) for p in facts.snapshot.pods_of(names.CHIEF))
    is_over = 0 in facts.succeeded_workers or 0 in facts.failures.given_up
    return is_over or any(works(p) for p in facts.snapshot.pods_of(names.WORKER, 0))


def is_complete(facts: Facts) -> bool:
    """Whether every replica that the job wants runs, or has ended for good."""
    workers = set(range(facts.job.spec.worker.replicas)) - facts.retired_workers.keys()
    return ps_ready(facts) and chief_works(facts) and workers <= _working(facts, names.WORKER)


def enough_workers_work(facts: Facts) -> bool:
    """Whether worker.minReplicas workers run or have succeeded; without it, whether one runs or all have succeeded."""
    working, succeeded = _working(facts, names.WORKER), facts.succeeded_workers
    fewest = facts.job.spec.worker.min_replicas
    if fewest is None:
        return len(working) >= 1 or len(succeeded) == facts.job.spec.worker.replicas
    return len(working | succeeded) >= fewest


def _working(facts: Facts, role: str) -> frozenset[int]:
    """Return the replicas of a role that run."""
    return frozenset(p.index for p in facts.snapshot.pods_of(role) if works(p))


def _desired(facts: Facts, role: str) -> int:
    """Return the number of replicas in the spec."""
    spec = facts.job.spec
    replicas = {names.PS: spec.ps.replicas, names.WORKER: spec.worker.replicas, names.CHIEF: int(spec.chief.enabled)}
    return replicas.get(role, int(spec.evaluator.enabled))


def _ready(facts: Facts) -> dict[str, int]:
    """Return the number of ready replicas of each role."""
    return {
        names.PS: len(facts.served_shards),
        names.WORKER: len(_working(facts, names.WORKER) - facts.succeeded_workers),
        names.CHIEF: int(any(works(p) for p in facts.snapshot.pods_of(names.CHIEF))),
        names.EVALUATOR: int(any(works(p) for p in facts.snapshot.pods_of(names.EVALUATOR))),
    }


def _succeeded(facts: Facts, *, has_ended: bool) -> dict[str, frozenset[int]]:
    """Return the replicas of each role whose program has ended with 0 for good."""
    # The records of both Jobs outlive them (policies/attempts.py), but not a stop after which their programs run again.
    return {
        names.PS: _NONE,
        names.WORKER: facts.succeeded_workers,
        **{
            role: frozenset({0}) if attempts.succeeded and (has_ended or not _runs_again(facts, role)) else _NONE
            for role, attempts in facts.attempts.items()
        },
    }


def completed_indexes(facts: Facts, *, has_ended: bool) -> str:
    """Return the workers that have succeeded, as ranges; without those whose program runs again."""
    done = facts.succeeded_workers
    if has_ended:
        return ranges(done.union(numbers(facts.status.completed_indexes)))
    if not done or _runs_again(facts, names.EVALUATOR) or success.stops(facts.job, facts.snapshot):
        return ""
    leads_again = facts.leader_stops and not facts.job.spec.chief.enabled
    return ranges(done - {0} if leads_again else done)


def _runs_again(facts: Facts, role: str) -> bool:
    """Whether the program of the chief or the evaluator runs again after a stop, although it has succeeded."""
    if facts.failures.restart_job is not None:
        return True
    return facts.leader_stops if role == names.CHIEF else facts.resharding.step is ReshardingStep.REPLACE_ALL
