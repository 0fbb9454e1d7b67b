"""Which pods are lost with their nodes, and which of them may be deleted by force?

Kubernetes' taint manager deletes a pod on an unreachable node, runPolicy.nodeLossSeconds after the node's own grace.
The pod then stays "Terminating" until its kubelet confirms that its processes have ended, which may never happen. No
StatefulSet replaces it before. Deleting it by force is safe only if a process that still runs can do no damage:

- A parameter server without a volume: the Service of its shard does not select it any more.
- A chief: its term fences it, and only the next one counts.
- A member or a chief of a job with hot standbys: not while its part may continue by itself on nodes that do not
  answer (cut_off.py).
- A pod with its own volume: only if the node was deleted or tainted node.kubernetes.io/out-of-service (KEP-2268), or if
  the user allows two nodes to mount the volume (runPolicy.forceDeleteVolumes).
"""

from collections.abc import Collection, Iterator
from dataclasses import replace
from datetime import datetime, timedelta

from pstraining.api import names
from pstraining.api.conditions import Reason
from pstraining.api.models import PSTrainingJob
from pstraining.core.actions import Delete, Kind
from pstraining.core.policies import cut_off
from pstraining.core.policies.diagnosis import Diagnosis, by_role
from pstraining.core.policies.failures import is_given_up_with_its_node
from pstraining.core.snapshot import OUT_OF_SERVICE, Pod, Snapshot

OVERDUE = timedelta(seconds=5)
"""The time after the grace period in which a reachable kubelet has to confirm the end of a pod."""
_FENCED = (names.PS, names.CHIEF)
_CLAIM = "persistentVolumeClaim"


def marked(snapshot: Snapshot, now: datetime) -> Snapshot:
    """Return the snapshot with `silent` and `lost` set on its pods.

    The node of a silent pod does not report now. The node of a lost pod will never report again, or its reports do not
    count.
    """
    return replace(snapshot, pods=tuple(_marked(snapshot, p, now) for p in snapshot.pods))


def requeue_at(job: PSTrainingJob, snapshot: Snapshot, now: datetime) -> datetime | None:
    """Return when a terminating pod becomes overdue, or may be deleted by force."""
    ends = (p.ends_at + OVERDUE for p in snapshot.pods if p.ends_at is not None and _may_be_overdue(snapshot, p))
    settled = cut_off.requeue_at(job, snapshot, now)
    return min((e for e in (*ends, settled) if e is not None and e > now), default=None)


def force_deletions(job: PSTrainingJob, snapshot: Snapshot, now: datetime) -> Iterator[Delete]:
    """Delete by force the lost pods that can do no damage."""
    for pod in snapshot.pods:
        is_due = pod.lost and not pod.forced and pod.role in _FENCED
        if is_due and not is_held(job, snapshot, pod) and not cut_off.is_held(job, snapshot, pod, now):
            yield Delete(Kind.POD, pod.name, pod.uid, Reason.NODE_LOST, grace_seconds=0)


def diagnose(job: PSTrainingJob, snapshot: Snapshot, among: Collection[Pod] | None = None) -> Diagnosis | None:
    """Return the first pod that makes the job wait for a lost node, or else the first pod to be replaced.

    Args:
        job: the job.
        snapshot: the observed state.
        among: the pods to diagnose; None for all pods.
    """
    pods = snapshot.pods if among is None else among
    replaced = {(p.role, p.index) for p in pods if p.container.running and not p.deleting and not p.terminal}
    lost = (p for p in pods if p.lost and not p.finished and (p.role, p.index) not in replaced)
    held = ((words, p) for p in lost if (words := why_held(job, snapshot, p)))
    follows = {(p.role, p.index) for p in pods if not (p.silent or p.deleting or p.terminal)}
    silent = (p for p in pods if p.silent and (p.role, p.index) not in follows and _is_wanted(snapshot, p))
    found = (*held, *((_waits(p), p) for p in sorted(silent, key=by_role)))
    return next((Diagnosis(Reason.NODE_LOST, words, p) for words, p in found), None)


def is_held(job: PSTrainingJob, snapshot: Snapshot, pod: Pod) -> bool:
    """Whether a lost pod's volume forbids replacing it before its node is back."""
    if job.spec.run_policy.force_delete_volumes or not _has_volume(job, pod.role):
        return False
    if snapshot.nodes is None:
        return True
    node = snapshot.nodes.get(pod.node)
    return node is not None and not node.out_of_service


def stands_still(job: PSTrainingJob, snapshot: Snapshot) -> Diagnosis | None:
    """Return the first member whose part of a job may continue elsewhere, so that no other part trains."""
    members = (p for p in snapshot.pods_of(names.PS) if p.lost and _may_go_on(job, snapshot, p))
    return next((Diagnosis(Reason.NODE_LOST, why_held(job, snapshot, p), p) for p in members), None)


def _may_go_on(job: PSTrainingJob, snapshot: Snapshot, pod: Pod) -> bool:
    return pod.node in cut_off.silent_nodes(snapshot) and cut_off.goes_on(job, snapshot)


def why_held(job: PSTrainingJob, snapshot: Snapshot, pod: Pod) -> str:
    """Return why a lost pod is not replaced before its node is back; empty if it is replaced."""
    if not pod.lost or pod.role not in _FENCED:
        return ""
    if is_held(job, snapshot, pod):
        return _words(pod, "has a volume that no other node can mount before the node is back") + _OR_ALLOW
    if _may_go_on(job, snapshot, pod):
        why = "may continue training there: nodes that do not answer hold most of the job's voters, or all of its state"
        return _words(pod, f"{why}. It is replaced when they answer again, or are deleted") + "."
    return ""


def _marked(snapshot: Snapshot, pod: Pod, now: datetime) -> Pod:
    node, lost = (snapshot.nodes or {}).get(pod.node), _is_lost(snapshot, pod, now)
    silent = lost or (node is not None and not node.answers and not pod.finished)
    return replace(pod, silent=silent, lost=lost) if silent else pod


def _is_lost(snapshot: Snapshot, pod: Pod, now: datetime) -> bool:
    if not pod.deleting or pod.terminal or not pod.node:
        return False
    node = (snapshot.nodes or {}).get(pod.node)
    if node is not None and (node.out_of_service or not node.answers):
        return True
    return _may_be_overdue(snapshot, pod) and pod.ends_at is not None and now >= pod.ends_at + OVERDUE


_OR_ALLOW = ", or set spec.runPolicy.forceDeleteVolumes for volumes that two nodes may mount."


def _words(pod: Pod, why: str) -> str:
    return (
        f"Pod {pod.name} is lost with its node {pod.node} and {why}. If nothing runs on the node: "
        f"`kubectl taint node {pod.node} {OUT_OF_SERVICE}=nodeshutdown:NoExecute`"
    )


def _waits(pod: Pod) -> str:
    return f"Node {pod.node} does not answer: pod {pod.name} is replaced elsewhere unless the node is back in time."


def _is_wanted(snapshot: Snapshot, pod: Pod) -> bool:
    """Whether a pod is replaced: workers that were scaled down or have succeeded are not."""
    if pod.role != names.WORKER:
        return True
    child = snapshot.child(Kind.DEPLOYMENT, names.worker_name(snapshot.name, pod.index))
    return child is not None and child.replicas > 0


def _may_be_overdue(snapshot: Snapshot, pod: Pod) -> bool:
    """Whether a slow deletion means that the node is lost; on a healthy node it does not."""
    if not pod.deleting or pod.terminal or not pod.node:
        return False
    if snapshot.nodes is not None:
        node = snapshot.nodes.get(pod.node)
        return node is None or not node.ready
    return is_given_up_with_its_node(pod)


def _has_volume(job: PSTrainingJob, role: str) -> bool:
    """Whether a role's pods have their own volume; two nodes can mount a volume that all roles share anyway."""
    own = job.spec.ps.template if role == names.PS else job.spec.chief.template
    volumes = ((own or job.spec.worker.template).get("spec") or {}).get("volumes") or ()
    asked = any("ephemeral" in v or (own is not None and _CLAIM in v) for v in volumes)
    if role == names.PS:
        return asked or bool(job.spec.ps.volume_claim_templates)
    checkpoint = job.spec.checkpoint
    if checkpoint is None or checkpoint.uri is not None:  # keys of an object store have terms: two chiefs do no harm
        return asked
    return asked or checkpoint.volume is None or _CLAIM in checkpoint.volume
