"""The accelerators of a pod template: their requests, the selectors of their nodes, and a copy without them. Pure.

Roles that need no accelerator run a copy of the worker's template. The copy may run on other nodes than the workers if
all selectors of the template are marks of nodes with accelerators. The meaning of other selectors is unknown, so with
any such selector all of them are kept.
"""

from collections.abc import Iterator, Mapping
from typing import Any, Final

from pstraining.resources.containers import all_containers

_NODE_LABELS: Final = (
    "cloud.google.com/gke-accelerator",
    "cloud.google.com/gke-gpu",
    "cloud.google.com/gke-tpu",
    "k8s.amazonaws.com/accelerator",
    "karpenter.k8s.aws/instance-gpu",
    "karpenter.k8s.aws/instance-accelerator",
    "kubernetes.azure.com/accelerator",
)
"""Prefixes of the labels with which the large providers mark nodes with accelerators."""
_NEUTRAL: Final = (
    "kubernetes.io/os",
    "kubernetes.io/arch",
    "topology.kubernetes.io/zone",
    "topology.kubernetes.io/region",
)
"""Labels that nodes without accelerators also have."""
_REQUIRED: Final = "requiredDuringSchedulingIgnoredDuringExecution"
_PREFERRED: Final = "preferredDuringSchedulingIgnoredDuringExecution"
_ATTRACT: Final = ("In", "Exists", "Gt", "Lt")
"""Operators of node affinity that require the label to be present."""


def domains(spec: Mapping[str, Any], own: Mapping[str, Any] | None = None) -> set[str]:
    """Return the domains of the extended resources that workers request, such as nvidia.com; claims have no domain.

    Args:
        spec: the spec of a pod with the worker's template.
        own: the resources in spec.worker.
    """
    found = {name for amounts in _amounts(spec) for name in amounts if "/" in name}
    return {name.partition("/")[0] for name in (*found, *extended(own or {}))}


def extended(resources: Mapping[str, Any]) -> list[str]:
    """Return the names of the extended resources that a container requests, such as nvidia.com/gpu."""
    return [name for amounts in _amounts_of(resources) for name in amounts if "/" in name]


def are_requested(spec: Mapping[str, Any], own: Mapping[str, Any] | None = None) -> bool:
    """Return whether workers request extended resources or resource claims; arguments as in `domains`."""
    if spec.get("resourceClaims") or extended(own or {}):
        return True
    for container in all_containers(spec):
        resources = container.get("resources") or {}
        if resources.get("claims") or extended(resources):
            return True
    return False


def drop(spec: dict[str, Any], own: Mapping[str, Any] | None = None) -> None:
    """Remove the requests for accelerators, and the selectors of their nodes if there are no other selectors.

    Args:
        spec: the spec of a pod with the worker's template; it is changed.
        own: the resources in spec.worker.
    """
    if not are_requested(spec, own):
        return
    found = domains(spec, own)
    if not kept_selectors(spec, own):
        _leave(spec, found)
    spec.pop("resourceClaims", None)
    for container in all_containers(spec):
        (container.get("resources") or {}).pop("claims", None)
    for amounts in _amounts(spec):
        for name in [name for name in amounts if "/" in name]:
            del amounts[name]


def kept_selectors(spec: Mapping[str, Any], own: Mapping[str, Any] | None = None) -> list[str]:
    """Return the labels, other than those of accelerators, by which a pod selects nodes; arguments as in `domains`."""
    found = domains(spec, own)
    keys = [*_mapping(spec.get("nodeSelector")), *(_key(e) for term in _terms(spec) for e in _expressions(term))]
    return [key for key in dict.fromkeys(keys) if key and key not in _NEUTRAL and not _marks(key, found)]


def _amounts(spec: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """Yield amounts of resources by name. Only names of extended resources have a domain."""
    for container in all_containers(spec):
        yield from _amounts_of(container.get("resources") or {})


def _amounts_of(resources: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    yield from (resources.get(kind) or {} for kind in ("limits", "requests"))


def _marks(key: str, found: set[str]) -> bool:
    """Whether a label or a taint marks nodes with accelerators: its domain is the resource's, or a provider set it."""
    return key.startswith(_NODE_LABELS) or key.partition("/")[0] in found


# Templates may contain any value. Values of a wrong type are not changed, and the API server refuses the pod.
def _mapping(value: Any) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}


def _list(value: Any) -> list[dict[str, Any]]:
    return [item for item in value if isinstance(item, dict)] if isinstance(value, list) else []


def _key(item: Mapping[str, Any]) -> str:
    key = item.get("key")
    return key if isinstance(key, str) else ""


def _node_affinity(spec: Mapping[str, Any]) -> dict[str, Any]:
    return _mapping(_mapping(spec.get("affinity")).get("nodeAffinity"))


def _terms(spec: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return the terms of the required node affinity."""
    return _list(_mapping(_node_affinity(spec).get(_REQUIRED)).get("nodeSelectorTerms"))


def _expressions(term: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return the expressions of a term that require a label."""
    found = [*_list(term.get("matchExpressions")), *_list(term.get("matchFields"))]
    return [expression for expression in found if expression.get("operator") in _ATTRACT]


def _leave(spec: dict[str, Any], found: set[str]) -> None:
    """Remove selectors, tolerations and the runtime class of nodes with accelerators."""
    if selector := _mapping(spec.get("nodeSelector")):
        _put(spec, "nodeSelector", {key: value for key, value in selector.items() if not _marks(key, found)})
    if _list(spec.get("tolerations")):
        left = [t for t in spec["tolerations"] if not (isinstance(t, dict) and _marks(_key(t), found))]
        _put(spec, "tolerations", left)
    vendors = {domain.split(".")[-2] for domain in found if "." in domain}
    if str(spec.get("runtimeClassName")).partition("-")[0] in vendors:
        del spec["runtimeClassName"]
    _leave_by_affinity(spec, found)


def _leave_by_affinity(spec: dict[str, Any], found: set[str]) -> None:
    affinity, terms = _node_affinity(spec), _terms(spec)
    for term in terms:
        # Fields of nodes are no marks: Kubernetes has only metadata.name.
        gone = [e for e in _expressions({**term, "matchFields": None}) if _marks(_key(e), found)]
        if gone:
            _put(term, "matchExpressions", [e for e in term["matchExpressions"] if e not in gone])
    # Terms are alternatives. Here every node meets a term without conditions, although in Kubernetes no node meets it.
    if any(not term for term in terms):
        del affinity[_REQUIRED]
    preferred = affinity.get(_PREFERRED)
    if gone := [item for item in _list(preferred) if _prefers(item, found)]:
        _put(affinity, _PREFERRED, [item for item in affinity[_PREFERRED] if item not in gone])


def _prefers(item: Mapping[str, Any], found: set[str]) -> bool:
    return any(_marks(_key(e), found) for e in _expressions(_mapping(item.get("preference"))))


def _put(target: dict[str, Any], name: str, value: Any) -> None:
    """Set a field, or remove it if its value is empty."""
    if value:
        target[name] = value
    else:
        del target[name]
