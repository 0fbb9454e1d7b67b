"""Which children of an ended job are deleted, and which stay?

cleanPodPolicy decides for each role, by the way the job has ended. By default a failed job keeps the one replica that
failed it, idle, for keepFailedSeconds; the objects that this pod needs stay with it.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime, timedelta

from pstraining.api import names
from pstraining.api.conditions import Condition
from pstraining.api.models import PSTrainingJob
from pstraining.api.run_policy import CleanUp
from pstraining.api.status import PSTrainingJobStatus
from pstraining.core.actions import WITH_PODS, Kind
from pstraining.core.facts import Facts
from pstraining.core.policies.failures import role_spec
from pstraining.core.snapshot import Child, Snapshot
from pstraining.resources import standbys

_FOR_OTHERS = (Kind.POD_DISRUPTION_BUDGET, Kind.SERVICE, *Kind.pod_groups())
_FOR_PODS = (Kind.CONFIG_MAP, Kind.NETWORK_POLICY)
"""The kinds that pods need. Claims are not among them: they are data, and at most deleted with the job."""


@dataclass(frozen=True)
class CleanUpStep:
    """The changes to the children of an ended job."""

    delete: tuple[Child, ...] = ()
    narrow: tuple[tuple[Child, int], ...] = ()
    """StatefulSets that keep only the pod of that ordinal."""
    idle: bool = False
    """Whether a kept pod would be restarted by Kubernetes: the cluster map must show that the job has ended."""
    until: datetime | None = None
    """When to plan again."""


def policy(job: PSTrainingJob, role: str, end: Condition) -> CleanUp:
    """Return the policy for a role's pods after this end."""
    own, general = role_spec(job, role).clean_pod_policy, job.spec.run_policy.clean_pod_policy
    if end is Condition.FAILED:
        return own.on_failure or general.on_failure
    on_success = own.on_success or general.on_success
    return CleanUp.RUNNING if on_success is CleanUp.FAILED else on_success


def frees(job: PSTrainingJob, role: str, end: Condition | None) -> bool:
    """Whether the running pods of a role are deleted because the job has ended."""
    return end is not None and policy(job, role, end) is not CleanUp.NONE


def clean_up(facts: Facts, end: Condition) -> CleanUpStep:
    """Decide which children to delete once the end is on record."""
    job, snapshot = facts.job, facts.snapshot
    over = _kept_until(job, facts.status)
    failed = facts.status.failed_replica if over is None or facts.now < over else ""
    kept = {c.name: ordinal for c, ordinal in _kept(facts, end, failed)}
    workloads = [c for k in WITH_PODS for c in snapshot.of_kind(k)]
    running = [c for c in workloads if c.name in kept and not _is_over(facts, c)]
    delete = [c for c in workloads if c.name not in kept]
    if not any(policy(job, role, end) is CleanUp.NONE for role in _roles(snapshot)):
        delete += [c for k in _FOR_OTHERS for c in snapshot.of_kind(k)]
    if not running:
        # A server that is terminating still executes every request: its network policy is deleted after it.
        closed = any(not p.over for p in snapshot.pods)
        delete += [c for k in _FOR_PODS for c in snapshot.of_kind(k) if not (closed and k is Kind.NETWORK_POLICY)]
    narrow = tuple(
        (c, ordinal)
        for c in running
        if (ordinal := kept[c.name]) is not None and (c.replicas, c.first_ordinal) != (1, ordinal) and not c.deleting
    )
    until = over if failed and any(c.name in kept for c in workloads) else None
    return CleanUpStep(tuple(c for c in delete if not c.deleting), narrow, bool(running), until)


def expiry(job: PSTrainingJob, status: PSTrainingJobStatus) -> datetime | None:
    """Return when an ended job is deleted."""
    ttl = job.spec.run_policy.ttl_seconds_after_finished
    if ttl is None or status.completion_time is None:
        return None
    return status.completion_time + timedelta(seconds=ttl)


def _kept_until(job: PSTrainingJob, status: PSTrainingJobStatus) -> datetime | None:
    if status.completion_time is None:
        return None
    return status.completion_time + timedelta(seconds=job.spec.run_policy.clean_pod_policy.keep_failed_seconds)


def _kept(facts: Facts, end: Condition, failed: str) -> Iterator[tuple[Child, int | None]]:
    """Yield the workloads to keep, with the one ordinal to keep of a StatefulSet; None for all of it."""
    for child in (c for k in WITH_PODS for c in facts.snapshot.of_kind(k)):
        role = _role(child)
        match policy(facts.job, role, end):
            case CleanUp.NONE:
                yield child, None
            case CleanUp.RUNNING if _is_newest_attempt(facts, child) and _is_over(facts, child):
                yield child, None
            case CleanUp.FAILED if failed.partition("/")[0] == role:
                yield from _failed(facts, child, int(failed.partition("/")[2]))


def _failed(facts: Facts, child: Child, index: int) -> Iterator[tuple[Child, int | None]]:
    match child.kind:
        case Kind.STATEFUL_SET if child.name in _failed_servers(facts, index):
            yield child, index
        case Kind.DEPLOYMENT if child.number(names.LABEL_INDEX) == index:
            yield child, None
        case Kind.JOB if _is_newest_attempt(facts, child):
            yield child, None


def _failed_servers(facts: Facts, index: int) -> set[str]:
    """Return the StatefulSets of the members of a shard that have failed, as all of them use one budget."""
    records = [r for r in facts.status.replica_records if (r.role, r.index) == (names.PS, index)]
    # A restart of the job sets the failures to 0, but not the restarts.
    failed = [r.member for r in records if r.failures] or [r.member for r in records] or [0]
    return {standbys.stateful_set(facts.job, member) for member in failed}


def _role(child: Child) -> str:
    if child.kind is Kind.STATEFUL_SET:
        return names.PS
    role = child.labels.get(names.LABEL_ROLE)
    return role if role in names.ROLES else names.WORKER


def _roles(snapshot: Snapshot) -> set[str]:
    return {_role(c) for k in WITH_PODS for c in snapshot.of_kind(k)}


def _is_newest_attempt(facts: Facts, child: Child) -> bool:
    attempts = facts.attempts.get(_role(child))
    return child.kind is Kind.JOB and attempts is not None and attempts.is_newest_job(child)


def _is_over(facts: Facts, child: Child) -> bool:
    """Whether an attempt has ended by itself: its pod holds the log and costs nothing."""
    if child.kind is not Kind.JOB:
        return False
    role = _role(child)
    recorded = facts.status.chief if role == names.CHIEF else facts.status.evaluator
    if recorded is not None and recorded.succeeded and _is_newest_attempt(facts, child):
        return True  # an operator that has just started may observe pods in an outdated state
    number = child.number(names.ATTEMPT_LABELS.get(role, names.LABEL_ATTEMPT))
    pods = [p for p in facts.snapshot.pods_of(role) if p.term == number]
    return all(p.over for p in pods)
