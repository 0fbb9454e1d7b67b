"""Reduces an object to the fields that planning reads, before it is cached.

Fields that change without meaning (heartbeats, probe times, counts that the pods show as well) are dropped. An update
of only those fields is then no change and causes no pass. Every field that `core.observe.observe` reads must be kept.

Any user of a namespace may create objects with a job's labels, owner and names, and may fill their other fields. What
is cached of one such object is therefore small.
"""

from collections.abc import Mapping
from itertools import islice
from typing import Any, Final

import orjson

from pstraining.api import names
from pstraining.api.conditions import WITHOUT_TRAINING
from pstraining.core.actions import Kind
from pstraining.core.snapshot import RATES
from pstraining.resources import kueue

DROPPED_ANNOTATIONS = ("kubectl.kubernetes.io/last-applied-configuration", "deployment.kubernetes.io/revision")
"""A second copy of the object, and the Deployment controller's own counter."""
METADATA = (
    *("name", "namespace", "uid", "resourceVersion", "generation", "creationTimestamp", "ownerReferences"),
    *("deletionTimestamp", "deletionGracePeriodSeconds"),
)
POD_LABELS = (names.LABEL_POD_INDEX,)
WRITTEN_MAX: Final = 8_192
"""Maximum bytes that are kept of what users can write to one child. The operator's own ones need less than 2 KB."""
OWNERS_MAX: Final = 16
"""Maximum number of owner references that are kept of one child; also of labels and annotations of a large Workload."""
OWNER_MAX: Final = 600
"""Maximum bytes of a kept owner reference, or value of these; names and kinds of objects are shorter."""
CONFIG_MAP_LABELS = (
    *(names.LABEL_APP_NAME, names.LABEL_APP_INSTANCE, names.LABEL_APP_COMPONENT, names.LABEL_APP_MANAGED_BY),
    *(names.LABEL_JOB, names.LABEL_JOB_UID),
)
POD_SPEC = ("nodeName", "schedulingGates", "activeDeadlineSeconds")
POD_CONDITIONS = (
    *("PodScheduled", "PodReadyToStartContainers", "Ready", "DisruptionTarget"),
    *("PodResizePending", "PodResizeInProgress"),
)
POD_CONDITION_FIELDS = ("type", "status", "reason", "message", "lastTransitionTime", "observedGeneration")
WORKLOAD_CONDITIONS: Final = {
    Kind.DEPLOYMENT: ("ReplicaFailure",),
    Kind.STATEFUL_SET: (),
    Kind.JOB: ("Complete", "Failed", "FailureTarget"),
}
QUEUE_PREFIXES: Final = (f"{names.GROUP}/", f"{kueue.GROUP}/", f"{names.LABEL_APP_NAME.partition('/')[0]}/")
QUEUE_STATUS = (
    *("conditions", "admission", "admissionChecks", "reclaimablePods"),
    "accumulatedPastExecutionTimeSeconds",
)
CONTAINER_FIELDS = ("name", "ready", "restartCount", "state", "lastState", "image")


def transform(raw: Mapping[str, Any]) -> dict[str, Any]:
    """Return the object in the form that is cached. The input is not changed; the result shares parts of it."""
    kind = raw.get("kind")
    trimmed = _trimmed(raw, kind)
    if kind == Kind.PS_TRAINING_JOB:
        return trimmed
    metadata = trimmed["metadata"]
    if owners := metadata.get("ownerReferences"):
        metadata["ownerReferences"] = _owners(owners, kind)
    if kind == Kind.WORKLOAD:
        if len(orjson.dumps(metadata)) > WRITTEN_MAX:
            trimmed["metadata"] = _queue_metadata(metadata)
        return trimmed
    written = {field: part for field, part in trimmed.items() if field not in ("data", "status")}
    if len(orjson.dumps(written)) > WRITTEN_MAX:
        # Without its labels and its spec, it is corrected like any child that another client has changed.
        kept = {field: metadata[field] for field in METADATA if field in metadata}
        trimmed = {field: raw[field] for field in ("apiVersion", "kind") if field in raw} | {"metadata": kept}
    return trimmed


def _trimmed(raw: Mapping[str, Any], kind: str | None) -> dict[str, Any]:
    trimmed = dict(raw)
    trimmed["metadata"] = _metadata(raw["metadata"])
    match kind:
        case Kind.PS_TRAINING_JOB:
            if raw.get("status"):
                trimmed["status"] = _job_status(raw["status"])
        case Kind.POD:
            trimmed["metadata"] = _pod_metadata(trimmed["metadata"])
            trimmed["spec"] = _pod_spec(raw.get("spec") or {})
            trimmed["status"] = _pod_status(raw.get("status") or {})
        case Kind.DEPLOYMENT | Kind.STATEFUL_SET | Kind.JOB:
            trimmed["metadata"] = _pod_metadata(trimmed["metadata"])
            trimmed["spec"] = _workload_spec(raw.get("spec") or {})
            trimmed["status"] = _workload_status(raw.get("status") or {}, *WORKLOAD_CONDITIONS[Kind(kind)])
        case Kind.SERVICE | Kind.POD_DISRUPTION_BUDGET | Kind.POD_GROUP:  # of either scheduler
            trimmed.pop("status", None)
        case Kind.WORKLOAD:
            trimmed["spec"] = _queue_spec(raw.get("spec") or {})
            trimmed["status"] = {k: v for k, v in (raw.get("status") or {}).items() if k in QUEUE_STATUS}
        case Kind.CLAIM:
            # The volume controller writes annotations and finalizers step by step; planning does not read them.
            metadata = trimmed["metadata"]
            metadata.pop("annotations", None)
            metadata.pop("finalizers", None)
            trimmed = {k: trimmed[k] for k in ("apiVersion", "kind") if k in trimmed} | {"metadata": metadata}
        case Kind.CONFIG_MAP:
            # Planning compares only the cluster map. The launcher's ConfigMap is immutable; others are not ours. Any
            # user may create many with a job's labels, so nothing that they can make large is kept.
            labels = raw["metadata"].get("labels") or {}
            job = labels.get(names.LABEL_JOB)
            trimmed["metadata"] = {k: raw["metadata"][k] for k in METADATA if k in raw["metadata"]}
            trimmed["metadata"]["labels"] = {k: v for k, v in labels.items() if k in CONFIG_MAP_LABELS}
            trimmed.pop("binaryData", None)
            if raw.get("immutable") or not job or raw["metadata"]["name"] != names.cluster_config_map(job):
                trimmed.pop("data", None)
    return trimmed


def _job_status(raw: Mapping[str, Any]) -> dict[str, Any]:
    """Return the status without the progress, which only the program's reports change.

    Three decisions depend on it: training that a chief has led to another layout, which the first one is not, a program
    that uses pstraining.runtime, which alone reports a layout, and rates of a job that does not run.
    """
    status, training = {k: v for k, v in raw.items() if k != "training"}, raw.get("training") or {}
    layout = training.get("layout") or 0
    kept = {name: training.get(name) for name in ("layout", "term")[: min(layout, 2)]}
    if raw.get("phase") in WITHOUT_TRAINING:
        kept |= {name: training[name] for name in RATES if training.get(name)}
    return status | ({"training": kept} if kept else {})


def _metadata(raw: Mapping[str, Any]) -> dict[str, Any]:
    metadata = {k: v for k, v in raw.items() if k not in ("managedFields", "selfLink")}
    kept = {k: v for k, v in (metadata.pop("annotations", None) or {}).items() if k not in DROPPED_ANNOTATIONS}
    return metadata | ({"annotations": kept} if kept else {})


def _owners(references: Any, kind: str | None) -> list[Any]:
    """Return the owner references that are read: the controller's, or all of a claim or of an object without one."""
    controllers = [owner for owner in references if owner.get("controller")]
    found = controllers if controllers and kind != Kind.CLAIM else references
    return [owner for owner in found if len(orjson.dumps(owner)) <= OWNER_MAX][:OWNERS_MAX]


def _pod_metadata(metadata: Mapping[str, Any]) -> dict[str, Any]:
    trimmed = {k: metadata[k] for k in (*METADATA, "generateName") if k in metadata}
    for field in ("labels", "annotations"):
        values = metadata.get(field) or {}
        trimmed[field] = {k: v for k, v in values.items() if k.startswith(f"{names.GROUP}/") or k in POD_LABELS}
    return trimmed


def _pod_spec(spec: Mapping[str, Any]) -> dict[str, Any]:
    containers = [{"name": c.get("name", "")} for c in spec.get("containers") or ()]
    trimmed = {"containers": containers} | {k: spec[k] for k in POD_SPEC if k in spec}
    inits = [{k: c[k] for k in ("name", "restartPolicy") if k in c} for c in spec.get("initContainers") or ()]
    return trimmed | ({"initContainers": inits} if inits else {})


def _pod_status(status: Mapping[str, Any]) -> dict[str, Any]:
    trimmed: dict[str, Any] = {
        k: status[k] for k in ("phase", "reason", "message", "observedGeneration") if k in status
    }
    trimmed["conditions"] = [
        {k: c[k] for k in POD_CONDITION_FIELDS if k in c}
        for c in status.get("conditions") or ()
        if c.get("type") in POD_CONDITIONS
    ]
    found = {field: containers(status, field) for field in ("containerStatuses", "initContainerStatuses")}
    return trimmed | {field: states for field, states in found.items() if states}


def containers(status: Mapping[str, Any], field: str = "containerStatuses") -> list[dict[str, Any]]:
    """Return the states of the containers in a pod's status, in the form that is cached."""
    return [{k: c[k] for k in CONTAINER_FIELDS if k in c} for c in status.get(field) or ()]


def _queue_metadata(metadata: Mapping[str, Any]) -> dict[str, Any]:
    """Return the metadata of a Workload that are the operator's or Kueue's, without large values."""
    trimmed = {k: metadata[k] for k in METADATA if k in metadata}
    for field in ("labels", "annotations"):
        own = ((k, v) for k, v in (metadata.get(field) or {}).items() if k.startswith(QUEUE_PREFIXES))
        trimmed[field] = dict(islice(((k, v) for k, v in own if len(v) <= OWNER_MAX), OWNERS_MAX))
    return trimmed


def _queue_spec(spec: Mapping[str, Any]) -> dict[str, Any]:
    """Return the spec of Kueue's Workload without pod templates, which a hash on the Workload represents."""
    pod_sets = [{k: item[k] for k in ("name", "count", "minCount") if k in item} for item in spec.get("podSets") or ()]
    return {**spec, "podSets": pod_sets}


def _workload_spec(spec: Mapping[str, Any]) -> dict[str, Any]:
    """Return the size of an object with pods, and of its template the annotations and the launcher's volume."""
    template = spec.get("template") or {}
    annotations = (template.get("metadata") or {}).get("annotations") or {}
    own = {name: value for name, value in annotations.items() if name.startswith(f"{names.GROUP}/")}
    volumes = (template.get("spec") or {}).get("volumes") or ()
    mounted = [{"projected": v["projected"]} for v in volumes if v.get("name") == names.VOLUMES[0] and "projected" in v]
    kept: dict[str, Any] = {"metadata": {"annotations": own}, "spec": {"volumes": mounted}}
    return {field: spec[field] for field in ("replicas", "ordinals") if field in spec} | {"template": kept}


def _workload_status(status: Mapping[str, Any], *conditions: str) -> dict[str, Any]:
    kept = [
        {k: c[k] for k in ("type", "status", "reason", "message", "lastTransitionTime") if k in c}
        for c in status.get("conditions") or ()
        if c.get("type") in conditions
    ]
    return {"conditions": kept} if kept else {}
