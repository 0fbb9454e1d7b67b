"""Which of Kueue's objects does the next decision about a job depend on? The operator and `plan --live` read these."""

from collections.abc import Mapping
from typing import Any, Final

from pstraining.core.actions import Kind, Manifest
from pstraining.core.facts import recorded_end
from pstraining.core.policies import admission, teardown
from pstraining.core.snapshot import QueueObjects, Snapshot
from pstraining.resources import kueue
from pstraining.resources.installation import KueueSupport

Ref = tuple[Kind, str]
"""A kind and a name; for a default queue, its namespace."""
_CLASSES: Final = (Kind.WORKLOAD_PRIORITY_CLASS, Kind.PRIORITY_CLASS)


def needed(snapshot: Snapshot) -> list[Ref]:
    """Return the objects on which the next decision about a job depends."""
    labels = snapshot.job["metadata"].get("labels") or {}
    if snapshot.installation.kueue is not KueueSupport.ON:
        return []
    job = snapshot.typed_job
    if isinstance(job, str):
        return []
    if not labels.get(kueue.LABEL_QUEUE):
        is_held = job.spec.run_policy.suspend or recorded_end(snapshot.typed_status) is not None
        may_start = not (is_held or teardown.workloads(snapshot))
        return [(Kind.LOCAL_QUEUE, snapshot.namespace)] if may_start else []
    state = admission.observed(job, snapshot, snapshot.typed_status)
    # The class is needed for each Workload that may be created, and a running job may get another slice.
    classes = [] if state.priority_class is None else [state.priority_class]
    flavors = frozenset() if state.granted is None or not state.granted.has_quota else state.granted.flavors
    return [*classes, *((Kind.RESOURCE_FLAVOR, name) for name in sorted(flavors))]


def place(ref: Ref) -> tuple[str, str]:
    """Return the namespace and the name of an object; without a namespace for objects of the cluster."""
    kind, name = ref
    return (name, kueue.DEFAULT_QUEUE) if kind is Kind.LOCAL_QUEUE else ("", name)


def collected(found: Mapping[Ref, Manifest]) -> QueueObjects:
    """Return the objects that exist, in the form of a snapshot."""
    return QueueObjects(
        {name: manifest for (kind, name), manifest in found.items() if kind is Kind.RESOURCE_FLAVOR},
        {ref: _value(manifest) for ref, manifest in found.items() if ref[0] in _CLASSES},
        frozenset(name for kind, name in found if kind is Kind.LOCAL_QUEUE),
    )


def _value(found: Mapping[str, Any]) -> int:
    value = found.get("value", 0)
    return value if isinstance(value, int) else 0
