"""Which deletions of pods are the operator's own, so that no rule of spec.failurePolicy applies to them?

The operator deletes running pods to replace them: former primaries, servers and workers that get another template or
size, and launchers that idle. A rule about deleted pods, or about any failure of a role, is not about these. A pod that
ends does not show who has deleted it, and its last runs may disappear from its status. It is therefore annotated first.
Jobs without rules need no annotation, because deletions then have no consequence.
"""

from collections.abc import Iterable, Iterator
from typing import Any

from pstraining.api import names
from pstraining.core.actions import Action, Apply, Delete, Kind, Replace
from pstraining.core.facts import Facts
from pstraining.core.snapshot import Pod


def announced(facts: Facts, actions: Iterable[Action]) -> Iterator[Action]:
    """Yield the actions, each after annotations of the pods that it replaces.

    Args:
        facts: the facts of this pass.
        actions: deletions of pods and changes of workloads.
    """
    has_rules = bool(facts.job.spec.failure_policy.rules)
    for action in actions:
        if has_rules:
            yield from _annotations(facts, action)
        yield action


def _annotations(facts: Facts, action: Action) -> Iterator[Apply]:
    """Annotate the pods that end by an action. A changed Deployment replaces its pods; a StatefulSet does not."""
    match action:
        case Delete(kind=Kind.POD):
            yield from (_annotated(facts, pod, action) for pod in facts.snapshot.pods if pod.uid == action.uid)
        case Replace(kind=Kind.DEPLOYMENT):
            for pod in facts.snapshot.pods_of(names.WORKER):
                if not pod.deleting and names.worker_name(facts.job.metadata.name, pod.index) == action.name:
                    yield _annotated(facts, pod, action)


def _annotated(facts: Facts, pod: Pod, action: Delete | Replace) -> Apply:
    # A field that was applied before and is left out now would be removed.
    annotations = {names.ANNOTATION_CLUSTER_HASH: pod.cluster_hash, names.ANNOTATION_REPLACED: "true"}
    metadata = {"name": pod.name, "namespace": facts.snapshot.namespace, "uid": pod.uid, "annotations": annotations}
    body: dict[str, Any] = {"apiVersion": "v1", "kind": str(Kind.POD), "metadata": metadata}
    return Apply(Kind.POD, pod.name, pod.uid, body, action.reason)
