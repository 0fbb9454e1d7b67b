"""Which memory do the pods of a role have, and how many servers has the job, where they have grown beyond the spec?

The grown limit and number are kept in status.autoscaling, and the operator does not change the spec: the larger of both
applies. They therefore survive the operator, a larger size in the spec wins, and GitOps tools find no difference.
Everything that is rendered from the job, such as templates, sizes and the sum of a gang, is rendered from the grown job
(core/facts.py).
"""

from datetime import datetime, timedelta
from decimal import Decimal
from typing import Any, Final

from pstraining.api import names
from pstraining.api.autoscaling import RoleSizing
from pstraining.api.models import PSTrainingJob
from pstraining.api.status import PSTrainingJobStatus
from pstraining.core.snapshot import Pod, ResizeState, Snapshot
from pstraining.resources import pods, sizes
from pstraining.resources.layout import with_shards
from pstraining.resources.resource_requests import parse

GROW_SHARE: Final = Decimal("0.85")
"""Share of a limit in use from which a role grows."""
REST: Final = timedelta(minutes=10)
"""Time between two changes of a role without an OOM kill."""
TRIAL: Final = timedelta(seconds=120)
"""Time during which a change of a size is withdrawn if a node cannot grant it, or the API server refuses it."""


def effective(job: PSTrainingJob, snapshot: Snapshot, status: PSTrainingJobStatus, now: datetime) -> PSTrainingJob:
    """Return the job with the memory and the number of servers that it has grown to.

    Args:
        job: the job as its user wrote it, or as Kueue has admitted it.
        snapshot: the observed state.
        status: the stored status.
        now: the present time.
    """
    updates: dict[str, Any] = {}
    for sizing in status.autoscaling:
        if (limit := applied(job, sizing, snapshot, now)) is None:
            continue
        resources = own_resources(job, sizing.role)
        own = sizes.memory_limit(resources)
        if own is not None and limit > own:
            grown = {"resources": sizes.with_memory(resources, limit)}
            updates[sizing.role] = getattr(job.spec, sizing.role).model_copy(update=grown)
    found = job.model_copy(update={"spec": job.spec.model_copy(update=updates)}) if updates else job
    number = servers(job, status)
    return with_shards(found, number) if number > job.spec.ps.replicas else found


def servers(job: PSTrainingJob, status: PSTrainingJobStatus) -> int:
    """Return the number of parameter servers that a job has grown to; 0 if it has not. It never exceeds its maximum.

    Args:
        job: the job as its user wrote it.
        status: the stored status.
    """
    grown = next((s.grown_replicas for s in status.autoscaling if s.role == names.PS), None) or 0
    most = job.spec.autoscaling.most_servers
    return grown if most is None else min(grown, most)


def own_resources(job: PSTrainingJob, role: str) -> dict[str, Any]:
    """Return the resources that the spec gives to the training container of a role."""
    found: dict[str, Any] = pods.main_container(pods.sized(job, role)).get("resources") or {}
    return found


def applied(job: PSTrainingJob, sizing: RoleSizing, snapshot: Snapshot, now: datetime) -> Decimal | None:
    """Return the grown memory limit of a role in bytes; None if it has not grown. It never exceeds its maximum."""
    text = sizing.grown_from if infeasible(sizing, snapshot, now) is not None else sizing.grown_memory
    if text is None:
        return None
    maximum = job.spec.autoscaling.maximum(sizing.role)
    return parse(text) if maximum is None else min(parse(text), parse(maximum))


def infeasible(sizing: RoleSizing, snapshot: Snapshot, now: datetime) -> str | None:
    """Return the message of a node that can never grant the newest size; None if no node reports this."""
    if sizing.grown_from is None or not is_trial(sizing, now):
        return None
    found = (p for p in snapshot.pods_of(sizing.role) if p.resize is ResizeState.INFEASIBLE and not p.deleting)
    return next((pod.resize_message or "its node can never grant it" for pod in found), None)


def is_rested(sizing: RoleSizing, now: datetime) -> bool:
    """Whether the last change of a role is long enough ago for another one."""
    return sizing.grown_time is None or now - sizing.grown_time >= REST


def is_trial(sizing: RoleSizing, now: datetime) -> bool:
    """Whether the newest size is so new that it is withdrawn if it is refused or cannot be granted."""
    return sizing.grown_time is not None and now - sizing.grown_time <= TRIAL


def is_tried_on(pod: Pod, status: PSTrainingJobStatus, now: datetime) -> bool:
    """Whether a pod is to get the newest memory limit of its role, which is withdrawn if the API server refuses it."""
    sizing = next((s for s in status.autoscaling if s.role == pod.role), None)
    if sizing is None or sizing.grown_from is None or not is_trial(sizing, now):
        return False
    return sizes.limit_of(pod.size) == parse(sizing.grown_from)
