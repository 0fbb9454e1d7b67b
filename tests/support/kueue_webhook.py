"""The rules of Kueue 0.19's webhook and CRD for Workloads, which no write of the operator may violate.

https://github.com/kubernetes-sigs/kueue/blob/v0.19.2/pkg/webhooks/workload_webhook.go
"""

from collections.abc import Mapping
from typing import Any

from pstraining.resources import kueue

Workload = Mapping[str, Any]


def check_create(made: Workload) -> None:
    """Demand that Kueue accepts a Workload.

    Raises:
        AssertionError: it does not.
    """
    least = [s for s in made["spec"]["podSets"] if "minCount" in s]
    assert len(least) <= 1, "at most one podSet can use minCount"
    assert not (least and _is_elastic(made)), "partial admission and elastic job cannot be used together"
    assert all(s["minCount"] <= s["count"] for s in least), "minCount should be less or equal to count"
    if "priorityClassRef" in made["spec"]:
        assert made["spec"].get("priority") is not None, "priority should not be nil"
    if is_true(made, "QuotaReserved"):
        assert made["status"].get("admission"), "admission must be set while QuotaReserved is true"


def check_update(old: Workload, new: Workload) -> None:
    """Demand that Kueue accepts a change of a Workload.

    Raises:
        AssertionError: it does not.
    """
    check_create(new)
    held = [is_true(w, "QuotaReserved") for w in (old, new)]
    if held[0]:
        _check_pod_sets(old["spec"]["podSets"], new["spec"]["podSets"])
        _check_priority(old["spec"].get("priorityClassRef"), new["spec"].get("priorityClassRef"))
    if all(held):
        assert old["spec"].get("queueName") == new["spec"].get("queueName"), "queueName is immutable"
        _check_reclaimable(old, new)
    if is_true(old, "Admitted") and is_true(new, "Admitted"):
        limits = {w["spec"].get("maximumExecutionTimeSeconds", 0) for w in (old, new)}
        assert len(limits) == 1, "maximumExecutionTimeSeconds is immutable"
    admissions = [a for w in (old, new) if (a := (w.get("status") or {}).get("admission"))]
    assert len(admissions) < 2 or admissions[0] == admissions[1], "admission is immutable"


def _check_pod_sets(old: list[Mapping[str, Any]], new: list[Mapping[str, Any]]) -> None:
    assert len(old) == len(new), "podSets are immutable"
    for before, after in zip(old, new, strict=True):
        shrunk = {**after, "count": max(after["count"], before["count"])}
        assert shrunk == dict(before), f"podSets are immutable, but for smaller counts: {after}"


def _check_priority(old: Mapping[str, Any] | None, new: Mapping[str, Any] | None) -> None:
    assert (old is None) == (new is None), "priorityClassRef is immutable"
    if old is None or new is None:
        return
    fixed = ("group", "kind", *(("name",) if new["kind"] == "PriorityClass" else ()))
    assert all(old[key] == new[key] for key in fixed), "priorityClassRef is immutable, but for the name of a class"


def _check_reclaimable(old: Workload, new: Workload) -> None:
    """Counts may not fall, nor exceed the pod set, unless an elastic pod set has shrunk since the last count."""
    sizes = {s["name"]: s["count"] for s in new["spec"]["podSets"]}
    before, after = (
        {r["name"]: r["count"] for r in (w.get("status") or {}).get("reclaimablePods") or ()} for w in (old, new)
    )
    for name, count in after.items():
        is_stale = _is_elastic(new) and before.get(name) == count
        assert count <= sizes[name] or is_stale, f"reclaimablePods of {name} should be less or equal to {sizes[name]}"
    if before != after and not _is_elastic(new):
        assert all(after.get(name, -1) >= count for name, count in before.items()), "reclaimablePods cannot be less"


def _is_elastic(workload: Workload) -> bool:
    return bool((workload["metadata"].get("annotations") or {}).get(kueue.ANNOTATION_ELASTIC) == "true")


def is_true(workload: Workload, kind: str) -> bool:
    """Whether a condition of a Workload is true."""
    conditions = (workload.get("status") or {}).get("conditions") or ()
    return any(c["type"] == kind and c["status"] == "True" for c in conditions)
