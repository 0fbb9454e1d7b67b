"""Writes to Kueue's Workloads that several policies share."""

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from pstraining.api.conditions import Reason
from pstraining.core.actions import Create, Delete, Kind, PatchStatus, Replace
from pstraining.core.facts import Facts
from pstraining.core.queue_workload import REQUEUED_REASONS, QueueCondition, QueueWorkload
from pstraining.resources import kueue
from pstraining.resources.kueue import SliceChain

_PENDING = "Pending"
"""The reason of QuotaReserved after an eviction."""


def created(facts: Facts, name: str, chain: SliceChain | None = None) -> Iterator[Create]:
    """Create a Workload, once the job's priority is known."""
    found = facts.queue.priority
    if found is not None:
        yield Create(Kind.WORKLOAD, name, kueue.build(facts.queue.job, found, name, chain), Reason.DESIRED)


def corrected(facts: Facts, current: QueueWorkload) -> Iterator[Replace]:
    """Write a Workload without quota again, once the job's priority is known."""
    found = facts.queue.priority
    if found is not None:
        parts = kueue.corrections(facts.queue.job, found, current.child.manifest)
        yield Replace(Kind.WORKLOAD, current.name, current.child.uid, parts, Reason.SPEC_CHANGED)


def reprioritized(facts: Facts) -> Iterator[Replace]:
    """Give the Workloads of a running job its new WorkloadPriorityClass, the only class that Kueue then lets change."""
    found = facts.queue.priority
    if found is None or found.group != kueue.GROUP or facts.queue.prebuilt:
        return
    for workload in facts.queue.live:
        group, name = workload.priority_class
        if group == kueue.GROUP and name != found.name:
            parts = {f"/spec/{key}": value for key, value in kueue.prioritized(found).items()}
            yield Replace(Kind.WORKLOAD, workload.name, workload.child.uid, parts, Reason.SPEC_CHANGED)


def deletions(workloads: Iterable[QueueWorkload], reason: Reason) -> Iterator[Delete]:
    """Delete Workloads."""
    return (Delete(Kind.WORKLOAD, w.name, w.child.uid, reason) for w in workloads)


def patched(workload: QueueWorkload, status: Mapping[str, Any], reason: Reason) -> PatchStatus:
    """Change the status of a Workload, unless it has changed since."""
    return PatchStatus(Kind.WORKLOAD, workload.name, workload.child.uid, workload.version, status, reason)


def quota_returned(facts: Facts, current: QueueWorkload) -> PatchStatus:
    """Clear the admission of an evicted Workload, which returns its quota; conditions use Kueue's own messages."""
    evicted = current.condition(QueueCondition.EVICTED)
    reason, message = str(evicted["reason"]), str(evicted["message"])
    changed = current.with_conditions(
        facts.now,
        (QueueCondition.QUOTA_RESERVED, False, _PENDING, message),
        (QueueCondition.ADMITTED, False, "NoReservation", "The workload has no reservation"),
        (QueueCondition.REQUEUED, reason in REQUEUED_REASONS, reason, message),
    )
    # PodsReady is removed as well: the time of the next start counts from the next admission.
    kept = [c for c in changed or () if c["type"] != QueueCondition.PODS_READY]
    return patched(current, {"admission": None, "reclaimablePods": None, "conditions": kept}, Reason.QUOTA_RETURNED)
