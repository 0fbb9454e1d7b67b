"""What goes when the job has ended, and what stays?

cleanPodPolicy decides for each role, by how the job has ended. Of a job that failed the default keeps the one replica
that failed it, idle, for keepFailedSeconds: what a pod needs to stay is kept with it.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime, timedelta

from pstraining.api import names
from pstraining.api.conditions import Condition
from pstraining.api.models import PSTrainingJob
from pstraining.api.run_policy import CleanUp
from pstraining.api.status import PSTrainingJobStatus
from pstraining.core.actions import Kind
from pstraining.core.policies.attempts import NUMBER, jobs_of
from pstraining.core.policies.failures import role_spec
from pstraining.core.snapshot import Child, Snapshot

_WORKLOADS = (Kind.STATEFUL_SET, Kind.DEPLOYMENT, Kind.JOB)
_FOR_OTHERS = (Kind.POD_DISRUPTION_BUDGET, Kind.SERVICE, *Kind.pod_groups())
_FOR_PODS = (Kind.CONFIG_MAP, Kind.NETWORK_POLICY)
"""Claims are not among what is freed: they are data and go with the job itself."""


@dataclass(frozen=True)
class CleaningUp:
    """What an ended job still has to do."""

    delete: tuple[Child, ...] = ()
    narrow: tuple[tuple[Child, int], ...] = ()
    """StatefulSets of which one pod, of that ordinal, is to stay."""
    idle: bool = False
    """Something is kept that Kubernetes would start again: it must find in the cluster map that the job has ended."""
    until: datetime | None = None
    """When to look again."""


def policy(job: PSTrainingJob, role: str, end: Condition) -> CleanUp:
    """What becomes of a role's pods after this end."""
    own, general = role_spec(job, role).clean_pod_policy, job.spec.run_policy.clean_pod_policy
    if end is Condition.FAILED:
        return own.on_failure or general.on_failure
    found = own.on_success or general.on_success
    return CleanUp.RUNNING if found is CleanUp.FAILED else found


def frees(job: PSTrainingJob, role: str, end: Condition | None) -> bool:
    """Whether what runs of a role goes, or has gone, because the job has ended."""
    return end is not None and policy(job, role, end) is not CleanUp.NONE


def clean_up(
    job: PSTrainingJob, snapshot: Snapshot, status: PSTrainingJobStatus, end: Condition, now: datetime
) -> CleaningUp:
    """Decide what is freed once the end is on record."""
    over = _kept_until(job, status)
    failed = status.failed_replica if over is None or now < over else ""
    kept = {c.name: ordinal for c, ordinal in _kept(job, snapshot, status, end, failed)}
    workloads = [c for k in _WORKLOADS for c in snapshot.of_kind(k)]
    runs_on = [c for c in workloads if c.name in kept and not _is_over(snapshot, status, c)]
    gone = [c for c in workloads if c.name not in kept]
    everything = any(policy(job, r, end) is CleanUp.NONE for r in _roles(snapshot))
    if not everything:
        gone += [c for k in _FOR_OTHERS for c in snapshot.of_kind(k)]
    if not runs_on:
        # A server that is on its way out still runs whatever it is sent: its policy goes after it.
        closed = any(not p.over for p in snapshot.pods)
        gone += [c for k in _FOR_PODS for c in snapshot.of_kind(k) if not (closed and k is Kind.NETWORK_POLICY)]
    narrow = tuple(
        (c, ordinal)
        for c in runs_on
        if (ordinal := kept[c.name]) is not None and (c.replicas, _first(c)) != (1, ordinal) and not c.deleting
    )
    waits = over if failed and any(c.name in kept for c in workloads) else None
    return CleaningUp(tuple(c for c in gone if not c.deleting), narrow, bool(runs_on), waits)


def expiry(job: PSTrainingJob, status: PSTrainingJobStatus) -> datetime | None:
    """When an ended job deletes itself."""
    ttl = job.spec.run_policy.ttl_seconds_after_finished
    if ttl is None or status.completion_time is None:
        return None
    return status.completion_time + timedelta(seconds=ttl)


def _kept_until(job: PSTrainingJob, status: PSTrainingJobStatus) -> datetime | None:
    if status.completion_time is None:
        return None
    return status.completion_time + timedelta(seconds=job.spec.run_policy.clean_pod_policy.keep_failed_seconds)


def _kept(
    job: PSTrainingJob, snapshot: Snapshot, status: PSTrainingJobStatus, end: Condition, failed: str
) -> Iterator[tuple[Child, int | None]]:
    """What stays, and of a StatefulSet the one ordinal that does; None for all of it."""
    for child in (c for k in _WORKLOADS for c in snapshot.of_kind(k)):
        role = _role(child)
        match policy(job, role, end):
            case CleanUp.NONE:
                yield child, None
            case CleanUp.RUNNING if _is_newest_attempt(snapshot, child) and _is_over(snapshot, status, child):
                yield child, None
            case CleanUp.FAILED if failed.partition("/")[0] == role:
                yield from _failed(job, snapshot, child, int(failed.partition("/")[2]))


def _failed(job: PSTrainingJob, snapshot: Snapshot, child: Child, index: int) -> Iterator[tuple[Child, int | None]]:
    match child.kind:
        case Kind.STATEFUL_SET if child.name == names.ps_stateful_set(job.metadata.name):
            yield child, index
        case Kind.DEPLOYMENT if child.number(names.LABEL_INDEX) == index:
            yield child, None
        case Kind.JOB if _is_newest_attempt(snapshot, child):
            yield child, None


def _role(child: Child) -> str:
    if child.kind is Kind.STATEFUL_SET:
        return names.PS
    return child.labels.get(names.LABEL_ROLE) or names.WORKER


def _roles(snapshot: Snapshot) -> set[str]:
    return {_role(c) for k in _WORKLOADS for c in snapshot.of_kind(k)}


def _is_newest_attempt(snapshot: Snapshot, child: Child) -> bool:
    if child.kind is not Kind.JOB:
        return False
    jobs = jobs_of(snapshot, _role(child))
    return bool(jobs) and jobs[max(jobs)] is child


def _is_over(snapshot: Snapshot, status: PSTrainingJobStatus, child: Child) -> bool:
    """An attempt that has ended by itself: its pod holds the log and costs nothing."""
    if child.kind is not Kind.JOB:
        return False
    role = _role(child)
    told = status.chief if role == names.CHIEF else status.evaluator
    if told is not None and told.succeeded and _is_newest_attempt(snapshot, child):
        return True  # on record: pods that are seen as they were long ago, by an operator that has just started, lie
    number = child.number(NUMBER.get(role, names.LABEL_ATTEMPT))
    pods = [p for p in snapshot.pods_of(role) if p.term == number]
    # The container's end is seen a moment before the pod's.
    return all(p.over or p.container.terminated is not None for p in pods)


def _first(child: Child) -> int:
    return int(((child.manifest.get("spec") or {}).get("ordinals") or {}).get("start", 0))
