"""The size of a pod: the resources of its training container, and the changes that a running pod supports.

The rules are those of Kubernetes' in-place resize (KEP-1287) that depend only on the template. The API server and the
kubelet check the others, such as a LimitRange or the room on the node.
"""

import json
import math
from collections.abc import Iterator, Mapping
from decimal import Decimal
from functools import lru_cache
from typing import Any, Final

from pstraining.api.values import copied
from pstraining.resources.containers import all_containers
from pstraining.resources.resource_requests import Amounts, parse

RESIZABLE: Final = ("cpu", "memory")
"""The resources whose amounts can change in a running pod."""
_KINDS: Final = ("requests", "limits")
_WITH_AMOUNTS: Final = (*_KINDS, "overhead")
"""Fields of a pod's spec with amounts by resource."""


def text(container: Mapping[str, Any]) -> str:
    """Return the resources of a container as canonical JSON, without resource claims (`claims`)."""
    found = container.get("resources") or {}
    return json.dumps({kind: found[kind] for kind in _KINDS if found.get(kind)}, sort_keys=True)


def known(written: str) -> str:
    """Return the size in an annotation; empty if another client has written another text."""
    try:
        found = json.loads(written)
    except ValueError:
        return ""
    is_size = isinstance(found, dict) and all(isinstance(found.get(kind) or {}, dict) for kind in _KINDS)
    return written if is_size else ""


@lru_cache(maxsize=1024)
def are_equal(before: str, after: str) -> bool:
    """Return whether two sizes have the same amounts, such as `cpu: 2` and `cpu: 2000m`.

    Args:
        before: a size, as `text` gives it.
        after: another size.
    """
    return before == after or _written(before) == _written(after)


def without_notations(values: Any) -> Any:
    """Return a part of a spec with one notation of each amount, such as 2000m and 2, so that equal ones have one text.

    Args:
        values: the part, with requests, limits and overheads at any depth.
    """
    if isinstance(values, Mapping):
        return {
            name: {resource: _one_notation(amount) for resource, amount in value.items()}
            if name in _WITH_AMOUNTS and isinstance(value, Mapping)
            else without_notations(value)
            for name, value in values.items()
        }
    return [*map(without_notations, values)] if isinstance(values, list) else values


def refusal(before: str, after: str, spec: Mapping[str, Any], container: str) -> str:
    """Return why a running pod cannot be resized; empty if its template allows the resize.

    Args:
        before: the pod's present size, as `text` gives it.
        after: the wanted size.
        spec: the pod's spec, with any size.
        container: the name of the container that is resized.
    """
    old, new = _amounts(before), _amounts(after)
    changed = sorted({name for _, name in old.keys() | new.keys() if _changes(name, old, new)})
    others = [name for name in changed if name not in RESIZABLE]
    removed = sorted(f"{kind}.{name}" for kind, name in old.keys() - new.keys())
    if others:
        return f"{others[0]} changes, but Kubernetes resizes only cpu and memory of a running pod"
    if removed:
        return f"{removed[0]} is removed, but a running pod keeps each request and limit"
    if restarts := [name for name in changed if _restarts(spec, container, name)]:
        return f"resizePolicy of the template restarts the container when its {restarts[0]} changes"
    if spec.get("resources"):
        return "the template has pod-level resources, and Kubernetes does not resize such a pod"
    classes = [qos_class(_with(spec, container, size)) for size in (before, after)]
    if classes[0] != classes[1]:
        return f"its QoS class would change from {classes[0]} to {classes[1]}, but a running pod keeps its class"
    return ""


def qos_class(spec: Mapping[str, Any]) -> str:
    """Return the QoS class of a pod: Guaranteed, Burstable or BestEffort.

    https://kubernetes.io/docs/concepts/workloads/pods/pod-qos/
    """
    found = [_amounts(text(container)) for container in all_containers(spec)]
    if not any(amount for each in found for (_, name), amount in each.items() if name in RESIZABLE):
        return "BestEffort"
    exact = all(
        each.get(("limits", name), 0) and each.get(("limits", name)) == each.get(("requests", name))
        for each in found
        for name in RESIZABLE
    )
    return "Guaranteed" if exact else "Burstable"


def asked(size: str) -> dict[str, Any]:
    """Return the resources to request for a running pod. Without a request the limit is requested, as in a new pod.

    Args:
        size: the wanted size, as `text` gives it.
    """
    found: dict[str, Any] = json.loads(size or "{}")
    limits = {name: amount for name, amount in (found.get("limits") or {}).items() if name in RESIZABLE}
    return {**found, "requests": {**limits, **(found.get("requests") or {})}} if limits else found


def memory_limit(resources: Mapping[str, Any]) -> Decimal | None:
    """Return the memory limit of a container's resources in bytes; None without one. In Kubernetes, 0 is no limit."""
    return _parsed(resources.get("limits") or {}).get("memory") or None


def limit_of(size: str) -> Decimal | None:
    """Return the memory limit of a size in bytes; None without one."""
    return memory_limit(json.loads(size or "{}"))


def cpu_limit_of(size: str) -> Decimal | None:
    """Return the CPU limit of a size in cores; None without one. In Kubernetes, 0 is no limit."""
    return _parsed(json.loads(size or "{}").get("limits") or {}).get("cpu") or None


def text_with_memory(size: str, limit: Decimal) -> str:
    """Return a size with another memory limit, as `with_memory` changes it."""
    return text({"resources": with_memory(json.loads(size), limit)})


def with_memory(resources: Mapping[str, Any], limit: Decimal) -> dict[str, Any]:
    """Return resources with another memory limit, and with a request that has the same share of it as before.

    Args:
        resources: a container's resources, with a memory limit.
        limit: the new limit in bytes.
    """
    found = copied(dict(resources))
    before, requested = memory_limit(found), _parsed(found.get("requests") or {}).get("memory")
    share = Decimal(1) if not before or requested is None else requested / before
    found["limits"]["memory"] = memory_text(limit)
    request = memory_text(min(limit, whole_mebibytes(limit * share)))
    found["requests"] = {**(found.get("requests") or {}), "memory": request}
    return found


def whole_mebibytes(amount: Decimal) -> Decimal:
    """Return an amount of memory in bytes, rounded up to whole Mi."""
    return Decimal(math.ceil(amount / 2**20) * 2**20)


def memory_text(amount: Decimal) -> str:
    """Return an amount of memory as a quantity: in Gi or Mi if it is a whole number of them, otherwise in bytes."""
    number = math.ceil(amount)
    suffix, size = next(((s, n) for s, n in (("Gi", 2**30), ("Mi", 2**20)) if number % n == 0), ("", 1))
    return f"{number // size}{suffix}"


def changes(before: str, after: str) -> Iterator[str]:
    """Yield the changes from one size to another, for display, such as `limits.memory 1Gi -> 2Gi`."""
    old, new = json.loads(before or "{}"), json.loads(after or "{}")
    for kind in _KINDS:
        was, will = old.get(kind) or {}, new.get(kind) or {}
        for name in sorted(was.keys() | will.keys()):
            if was.get(name) != will.get(name):
                yield f"{kind}.{name} {was.get(name, 'none')} -> {will.get(name, 'none')}"


def _changes(name: str, old: Mapping[tuple[str, str], Any], new: Mapping[tuple[str, str], Any]) -> bool:
    return any(old.get((kind, name)) != new.get((kind, name)) for kind in _KINDS)


def _restarts(spec: Mapping[str, Any], container: str, resource: str) -> bool:
    """Whether the kubelet restarts a container to change the amounts of a resource."""
    wanted = {"resourceName": resource, "restartPolicy": "RestartContainer"}
    return any(wanted in (c.get("resizePolicy") or ()) for c in spec["containers"] if c.get("name") == container)


def _amounts(size: str) -> dict[tuple[str, str], Any]:
    """Return all amounts by kind and name. Without a request the limit is requested, as in the API server."""
    found = json.loads(size or "{}")
    parsed: dict[str, Amounts] = {kind: _parsed(found.get(kind) or {}) for kind in _KINDS}
    parsed["requests"] = parsed["limits"] | parsed["requests"]
    return {(kind, name): amount for kind in _KINDS for name, amount in parsed[kind].items()}


def _written(size: str) -> dict[tuple[str, str], Any]:
    """Return all amounts as `_amounts` does, with the texts of those that the API server refuses."""
    found = json.loads(size or "{}")
    texts = {(kind, name): str(amount) for kind in _KINDS for name, amount in (found.get(kind) or {}).items()}
    return texts | _amounts(size)


def _one_notation(amount: Any) -> Any:
    try:
        return f"{parse(amount).normalize():f}"
    except ValueError:
        return amount  # the API server refuses the template


def _parsed(quantities: Mapping[str, Any]) -> Amounts:
    found: Amounts = {}
    for name, quantity in quantities.items():
        try:
            found[name] = parse(quantity)
        except ValueError:
            continue  # the API server refuses the template
    return found


def _with(spec: Mapping[str, Any], container: str, size: str) -> dict[str, Any]:
    changed = copied(dict(spec))
    for each in changed.get("containers") or ():
        if each.get("name") == container:
            each["resources"] = json.loads(size or "{}")
    return changed
