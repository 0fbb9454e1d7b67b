"""What `plan --live` reads about Kueue, so that it plans as the operator in the cluster does.

Users may lack rights to read the operator or Kueue's objects. Each missing right leads to an assumption, in words.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from pstraining.api import names
from pstraining.api.conditions import Condition, Reason
from pstraining.cli.client import ClusterClient, Object
from pstraining.cli.doctor.checks import Unavailable, environment, watches
from pstraining.cli.doctor.examination import attempted, operator_deployments
from pstraining.cli.errors import DeniedError, RequestError
from pstraining.cli.jobs import condition
from pstraining.core.actions import Kind
from pstraining.core.policies import queue_objects
from pstraining.core.policies.queue_objects import Ref
from pstraining.core.snapshot import QueueObjects, Snapshot
from pstraining.kube.paths import RESOURCES
from pstraining.resources import kueue
from pstraining.resources.installation import KueueSupport

_DECIDES: Final = (Reason.ADMITTED, Reason.AWAITS_ADMISSION, Reason.KUEUE_NOT_INSTALLED, Reason.STOPPING)
"""Reasons of the condition Queued that only an operator with kueue.enabled gives."""


@dataclass(frozen=True)
class Queueing:
    """Whether a job waits for Kueue, and its Workloads."""

    support: KueueSupport = KueueSupport.OFF
    workloads: Sequence[Object] = field(default=())
    assumption: str = ""
    """Why the support is a guess; empty if it is known."""
    hidden: bool = False
    """Whether the user may not read the Workloads, so that the plan leaves out the queue."""


def queueing(cluster: ClusterClient, job: Object, before: Object | None) -> Queueing:
    """Return whether the operator lets a job wait for Kueue, and the job's Workloads.

    Args:
        cluster: the job's cluster.
        job: the job as it would be stored.
        before: the job as it is stored; None for a new job.
    """
    has_queue, is_served = bool(queue_label(job)), _is_served(cluster)
    if not (has_queue or is_served):
        return Queueing()
    enabled, assumption = _enabled(cluster, before or job), ""
    if enabled is None:
        enabled = is_served
        assumption = f"Whether the operator has kueue.enabled is unknown: the plan assumes {str(enabled).lower()}."
    if not enabled:
        return Queueing(assumption=assumption)
    if not is_served:
        return Queueing(KueueSupport.MISSING, (), assumption)
    if before is None:
        return Queueing(KueueSupport.ON, (), assumption)
    place, name = RESOURCES[Kind.WORKLOAD], job["metadata"]["name"]
    try:
        found = cluster.listed(place.path(job["metadata"]["namespace"]), labelSelector=f"{names.LABEL_JOB}={name}")
    except DeniedError as error:
        return Queueing(assumption=f"{error} The plan leaves out the job's queue.", hidden=True)
    what = {"apiVersion": place.api_version, "kind": str(Kind.WORKLOAD)}
    return Queueing(KueueSupport.ON, [workload | what for workload in found], assumption)


def queue_label(job: Mapping[str, Object]) -> str:
    """Return the queue that a job's label names; empty without one."""
    return str((job["metadata"].get("labels") or {}).get(kueue.LABEL_QUEUE) or "")


def objects(cluster: ClusterClient, snapshot: Snapshot) -> tuple[QueueObjects, list[str]]:
    """Return Kueue's objects that the operator reads for a job, and the assumptions about those that may not be read.

    Args:
        cluster: the job's cluster.
        snapshot: the observed state.
    """
    found: dict[Ref, Object] = {}
    unknown: list[str] = []
    for ref in queue_objects.needed(snapshot):
        try:
            one = cluster.read(RESOURCES[ref[0]].path(*queue_objects.place(ref)))
        except DeniedError as error:
            is_queue = ref[0] is Kind.LOCAL_QUEUE
            unknown.append(f"{error} The plan assumes that it {'does not exist' if is_queue else 'exists'}.")
            one = None if is_queue else {}
        if one is not None:
            found[ref] = one
    return queue_objects.collected(found), unknown


def _is_served(cluster: ClusterClient) -> bool:
    """Whether the API server serves Workloads and creates them, as the operator asks."""
    place = RESOURCES[Kind.WORKLOAD]
    try:
        served = (cluster.read(f"/{place.api}") or {}).get("resources") or ()
    except RequestError as error:
        if error.status == 404:
            return False
        raise
    return any(one.get("name") == place.plural and "create" in (one.get("verbs") or ()) for one in served)


def _enabled(cluster: ClusterClient, job: Object) -> bool | None:
    """Return whether the operator of a job has kueue.enabled; None if the user cannot find out."""
    found = attempted(lambda: operator_deployments(cluster))
    listed = () if isinstance(found, Unavailable) else found
    ours = [one for one in listed if not watches(one) or job["metadata"]["namespace"] in watches(one)]
    if ours:
        return any(environment(one).get("PSTRAINING_KUEUE", "").strip().lower() == "true" for one in ours)
    reason = condition(dict(job), Condition.QUEUED).get("reason")
    return None if reason not in (*_DECIDES, Reason.QUEUE_IGNORED) else reason != Reason.QUEUE_IGNORED
