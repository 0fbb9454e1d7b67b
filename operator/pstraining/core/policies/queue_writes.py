"""Writes to Kueue's Workloads that several policies share."""

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from pstraining.api.conditions import Reason
from pstraining.core.actions import Create, Delete, Kind, PatchStatus, Replace
from pstraining.core.facts import Facts
from pstraining.core.observe import parse_time
from pstraining.core.queue_workload import (
    PAST_SECONDS,
    REQUEUED_REASONS,
    TIME_LIMIT,
    QueueCondition,
    QueueWorkload,
)
from pstraining.resources import kueue
from pstraining.resources.kueue import SliceChain

_PENDING = "Pending"
"""The reason of QuotaReserved after an eviction."""
_DEACTIVATED = "Deactivated"
"""The only reason of Requeued, among all that begin with it, with which Kueue 0.19 queues a Workload again once it is
active (kueue #14309)."""


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


def retimed(facts: Facts) -> Iterator[Replace]:
    """Give Workloads that are not admitted yet the job's time limit, which Kueue fixes only then."""
    limit = kueue.terms(facts.queue.job).max_seconds
    for workload in facts.queue.live:
        is_free = not (workload.is_true(QueueCondition.ADMITTED) or workload.is_evicted or facts.queue.prebuilt)
        if is_free and workload.terms.max_seconds != limit:
            parts = {"/metadata/resourceVersion": workload.version, f"/spec/{kueue.MAX_SECONDS}": limit}
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
    requeued = _DEACTIVATED if reason.startswith(_DEACTIVATED) else reason
    changed = current.with_conditions(
        facts.now,
        (QueueCondition.QUOTA_RESERVED, False, _PENDING, message),
        (QueueCondition.ADMITTED, False, "NoReservation", "The workload has no reservation"),
        (QueueCondition.REQUEUED, reason in REQUEUED_REASONS, requeued, message),
    )
    # PodsReady is removed as well: the time of the next start counts from the next admission.
    kept = [c for c in changed or () if c["type"] != QueueCondition.PODS_READY]
    returned: dict[str, Any] = {"admission": None, "reclaimablePods": None, "conditions": kept}
    returned |= _spent_time(facts, current, reason)
    return patched(current, returned, Reason.QUOTA_RETURNED)


def _spent_time(facts: Facts, current: QueueWorkload, reason: str) -> dict[str, int | None]:
    """Return the change of the time that counts against the time limit of an evicted job; empty without a limit.

    Kueue counts the time since the newest admission. The client that clears the admission adds it to the time before.
    A job whose limit has passed runs again only if a user permits it; it then has all of the time.
    """
    admitted = current.condition(QueueCondition.ADMITTED)
    since = parse_time(admitted.get("lastTransitionTime"))
    if current.terms.max_seconds is None or admitted.get("status") != "True" or since is None:
        return {}
    if reason.endswith(TIME_LIMIT):
        return {PAST_SECONDS: None}
    return {PAST_SECONDS: current.past_seconds + max(0, int((facts.now - since).total_seconds()))}
