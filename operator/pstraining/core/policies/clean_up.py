"""What goes when the job has ended, and what stays?"""

from datetime import datetime, timedelta

from pstraining.api import names
from pstraining.api.models import PSTrainingJob
from pstraining.api.run_policy import CleanUp
from pstraining.api.status import PSTrainingJobStatus
from pstraining.core.actions import Kind
from pstraining.core.policies.chief_terms import attempts
from pstraining.core.snapshot import Child, Snapshot

_WORKLOADS = (Kind.STATEFUL_SET, Kind.DEPLOYMENT, Kind.JOB)
_ORDER = (*_WORKLOADS, Kind.POD_DISRUPTION_BUDGET, Kind.SERVICE, Kind.CONFIG_MAP, Kind.NETWORK_POLICY)
"""What runs goes first. Claims are data: they go with the job itself."""


def freed_on_end(job: PSTrainingJob, snapshot: Snapshot) -> tuple[Child, ...]:
    """What cleanPodPolicy frees once the end is on record."""
    policy = job.spec.run_policy.clean_pod_policy.on_success
    if policy is CleanUp.NONE:
        return ()
    kept = _finished_chief(snapshot) if policy is CleanUp.RUNNING else None
    everything = (c for k in _ORDER for c in snapshot.of_kind(k))
    closed = any(not p.terminal for p in snapshot.pods)
    return tuple(
        c
        for c in everything
        # A server that is on its way out still runs whatever it is sent.
        if c is not kept and not c.deleting and not (closed and c.kind is Kind.NETWORK_POLICY)
    )


def _finished_chief(snapshot: Snapshot) -> Child | None:
    """The chief's last attempt, if it has ended by itself: its pod holds the log and costs nothing."""
    jobs = attempts(snapshot)
    if not jobs:
        return None
    newest = max(jobs)
    pods = [p for p in snapshot.pods_of(names.CHIEF) if p.term == newest]
    # The container's end is seen a moment before the pod's.
    return jobs[newest] if all(p.terminal or p.container.terminated is not None for p in pods) else None


def expiry(job: PSTrainingJob, status: PSTrainingJobStatus) -> datetime | None:
    """When an ended job deletes itself."""
    ttl = job.spec.run_policy.ttl_seconds_after_finished
    if ttl is None or status.completion_time is None:
        return None
    return status.completion_time + timedelta(seconds=ttl)
