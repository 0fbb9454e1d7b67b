"""Which deletions of pods are the operator's own, so that no rule of spec.failurePolicy applies to them?

The operator deletes running pods to replace them: former primaries, servers and workers that get another template or
size, and launchers that idle. It also deletes workloads when a job is suspended or has fewer workers, which may be
withdrawn while their pods still end. A rule about deleted pods, or about any failure of a role, is not about these. A
pod that ends does not show who has deleted it, and its last runs may disappear from its status. It is therefore
annotated first. Jobs without rules need no annotation, because deletions then have no consequence.
"""

from collections.abc import Iterable, Iterator
from typing import Any

from pstraining.api import names
from pstraining.core.actions import Action, Apply, Delete, Kind, Replace
from pstraining.core.facts import Facts
from pstraining.core.snapshot import Child, Pod


def announced(facts: Facts, actions: Iterable[Action]) -> Iterator[Action]:
    """Yield the actions, each after annotations of the pods that it replaces.

    Args:
        facts: the facts of this pass.
        actions: deletions and changes of pods and workloads.
    """
    has_rules = bool(facts.job.spec.failure_policy.rules)
    for action in actions:
        if has_rules:
            yield from (_annotated(facts, pod, action) for pod in _replaced_by(facts, action))
        yield action


def pod_annotations(digest: str, *, replaced: bool) -> dict[str, str]:
    """Return all annotations that are applied to a pod. One that is left out in a later apply would be removed.

    Args:
        digest: the hash of the pod's cluster map.
        replaced: whether the operator has decided to delete the pod.
    """
    return {names.ANNOTATION_CLUSTER_HASH: digest} | ({names.ANNOTATION_REPLACED: "true"} if replaced else {})


def _replaced_by(facts: Facts, action: Action) -> Iterator[Pod]:
    """Yield the pods that end by an action. A changed Deployment replaces its pods; a StatefulSet does not."""
    match action:
        case Delete(kind=Kind.POD):
            found = tuple(pod for pod in facts.snapshot.pods if pod.uid == action.uid)
        case Delete() | Replace(kind=Kind.DEPLOYMENT):
            child = facts.snapshot.child(action.kind, action.name)
            found = () if child is None else _pods_of(facts, child)
        case _:
            found = ()
    yield from (pod for pod in found if not (pod.deleting or pod.over))


def _pods_of(facts: Facts, child: Child) -> tuple[Pod, ...]:
    """Return the pods of a workload; none of another child."""
    pods, role = facts.snapshot.pods_of, child.labels.get(names.LABEL_ROLE, "")
    match child.kind:
        case Kind.STATEFUL_SET:
            return tuple(pod for pod in pods(names.PS) if pod.member == child.number(names.LABEL_MEMBER))
        case Kind.DEPLOYMENT:
            return pods(names.WORKER, child.number(names.LABEL_INDEX))
        case Kind.JOB if role in names.ATTEMPT_LABELS:
            return tuple(pod for pod in pods(role) if pod.term == child.number(names.ATTEMPT_LABELS[role]))
    return ()


def _annotated(facts: Facts, pod: Pod, action: Action) -> Apply:
    annotations = pod_annotations(pod.cluster_hash, replaced=True)
    metadata = {"name": pod.name, "namespace": facts.snapshot.namespace, "uid": pod.uid, "annotations": annotations}
    body: dict[str, Any] = {"apiVersion": "v1", "kind": str(Kind.POD), "metadata": metadata}
    return Apply(Kind.POD, pod.name, pod.uid, body, action.reason)
