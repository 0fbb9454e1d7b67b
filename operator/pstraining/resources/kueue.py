"""Kueue's objects for a job: the Workload that requests quota, and the fields that an admission adds to pods.

The API is kueue.x-k8s.io/v1beta2 (https://kueue.sigs.k8s.io/docs/reference/kueue.v1beta2/). A user's templates do not
change: an admission is only merged into rendered pods, so that no template has to be restored after an eviction.
"""

import hashlib
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from pstraining.api import names
from pstraining.api.models import PSTrainingJob
from pstraining.resources import pods, sizes, standbys
from pstraining.resources.launcher import LauncherMap
from pstraining.resources.metadata import metadata
from pstraining.resources.pods import PodTask

GROUP: Final = "kueue.x-k8s.io"
API_VERSION: Final = f"{GROUP}/v1beta2"
LABEL_QUEUE: Final = "kueue.x-k8s.io/queue-name"
LABEL_PRIORITY_CLASS: Final = "kueue.x-k8s.io/priority-class"
LABEL_MAX_SECONDS: Final = "kueue.x-k8s.io/max-exec-time-seconds"
LABEL_JOB_UID: Final = "kueue.x-k8s.io/job-uid"
PREBUILT: Final = "kueue.x-k8s.io/prebuilt-workload-name"
"""Annotation, or label, of a job that MultiKueue has sent here: the name of the Workload that it sent first."""
LABEL_ORIGIN: Final = "kueue.x-k8s.io/multikueue-origin"
"""Label of objects that MultiKueue has sent here: the cluster from which they come."""
LABEL_POD_SET: Final = "kueue.x-k8s.io/podset"
ANNOTATION_ELASTIC: Final = "kueue.x-k8s.io/elastic-job"
ANNOTATION_REPLACES: Final = "kueue.x-k8s.io/workload-slice-replacement-for"
ANNOTATION_SLICE: Final = "kueue.x-k8s.io/workload-slice-name"
ANNOTATION_WORKLOAD: Final = "kueue.x-k8s.io/workload"
ANNOTATION_UNCONSTRAINED: Final = "kueue.x-k8s.io/podset-unconstrained-topology"
DEFAULT_QUEUE: Final = "default"
"""The LocalQueue of jobs without a label, in a namespace that has such a queue."""
GATE_TOPOLOGY: Final = "kueue.x-k8s.io/topology"
STANDBY: Final = "standby"
"""The pod set of the members that are not the first of their shard."""

_POD_FIELDS: Final = (
    *("nodeSelector", "tolerations", "affinity", "priorityClassName", "runtimeClassName", "overhead", "resources"),
    *("topologySpreadConstraints", "schedulerName", "resourceClaims"),
)
_CONTAINER_FIELDS: Final = ("name", "image", "resources", "restartPolicy")
_ROLE_FIELDS: Final = ("template", "resources")
_OWN_ANNOTATIONS: Final = (
    *(ANNOTATION_ELASTIC, ANNOTATION_REPLACES, ANNOTATION_SLICE),
    *(names.ANNOTATION_POD_SETS, names.ANNOTATION_SPEC),
)
_MOST_SECONDS: Final = 2**31 - 1
"""Largest time limit of a Workload. Kueue's API refuses a larger one, and 0."""
MAX_SECONDS: Final = "maximumExecutionTimeSeconds"
"""The field of a Workload's spec with its time limit."""
_OPTIONAL: Final = ("priorityClassRef", MAX_SECONDS)
"""Fields of a Workload's spec that a job may lack."""


@dataclass(frozen=True)
class Priority:
    """The priority of a Workload among others."""

    value: int = 0
    group: str = ""
    """API group of the class; empty without a class."""
    name: str = ""


@dataclass(frozen=True)
class PodSetAssignment:
    """The fields that an admission assigns to the pods of one pod set."""

    node_selector: Mapping[str, str] = field(default_factory=dict)
    tolerations: tuple[Mapping[str, Any], ...] = ()
    labels: Mapping[str, str] = field(default_factory=dict)
    annotations: Mapping[str, str] = field(default_factory=dict)
    gates: tuple[str, ...] = ()
    """Names of scheduling gates, which Kueue removes."""
    contradiction: str = ""
    """How an admission check contradicts the flavor or another check; empty if none does."""


@dataclass(frozen=True)
class WorkloadTerms:
    """The terms of a Workload besides the kinds of its pods; with quota, only the number of workers may decrease."""

    workers: int
    fewest_workers: int | None
    """The minimum number of workers with which Kueue may admit the job; None for all workers."""
    is_elastic: bool
    """Whether the number of workers changes by slices."""
    max_seconds: int | None
    """Seconds after which Kueue stops the job; None for no limit."""


@dataclass(frozen=True)
class SliceChain:
    """The place of an elastic Workload among the Workloads of its job (KEP-77)."""

    first: str
    """Name of the first Workload."""
    replaces: str
    """Name of the Workload that the slice replaces once it is admitted."""


def workload_name(job: PSTrainingJob, extra: str = "") -> str:
    """Return the name of a Workload, by Kueue's convention: kind, name, and a hash that differs for each extra."""
    parts = (names.KIND, names.GROUP, job.metadata.name, job.metadata.uid, *((extra,) if extra else ()))
    digest = hashlib.sha1("\n".join(parts).encode(), usedforsecurity=False).hexdigest()
    return f"{names.workload_prefix(job.metadata.name)}-{digest[:5]}"


def prebuilt(labels: Mapping[str, str], annotations: Mapping[str, str]) -> str:
    """Return the name of the Workload that MultiKueue has sent with a job; empty if it has sent none.

    Args:
        labels: the job's labels.
        annotations: the job's annotations.
    """
    return annotations.get(PREBUILT) or labels.get(PREBUILT, "")


def prebuilt_of(job: PSTrainingJob) -> str:
    """Return the name of the Workload that MultiKueue has sent with a job; empty if it has sent none."""
    return prebuilt(job.metadata.labels, job.metadata.annotations)


def is_dispatched(job: PSTrainingJob) -> bool:
    """Whether MultiKueue sends the job to another cluster."""
    return job.spec.manager == names.MULTIKUEUE


def is_elastic(job: PSTrainingJob) -> bool:
    """Whether the job's number of workers changes by workload slices.

    With worker.minReplicas, Kueue may admit fewer. MultiKueue sends a job once, with all of its workers.
    """
    return job.spec.worker.min_replicas is None and not is_dispatched(job) and not prebuilt_of(job)


def terms(job: PSTrainingJob) -> WorkloadTerms:
    """Return the terms of a Workload that a job would get now."""
    worker, seconds = job.spec.worker, job.metadata.labels.get(LABEL_MAX_SECONDS, "")
    limit = int(seconds) if seconds.isdecimal() and 0 < int(seconds) <= _MOST_SECONDS else None
    return WorkloadTerms(worker.replicas, worker.min_replicas, is_elastic(job), limit)


def counts(job: PSTrainingJob) -> dict[str, int]:
    """Return the number of pods of each pod set, in the order of the Workload's pod sets."""
    spec = job.spec
    found = {
        names.PS: spec.ps.replicas,
        STANDBY: spec.ps.replicas * standbys.standbys(job),
        names.WORKER: spec.worker.replicas,
        names.CHIEF: int(spec.chief.enabled),
        names.EVALUATOR: int(spec.evaluator.enabled),
    }
    return {name: count for name, count in found.items() if count}


def digest(job: PSTrainingJob) -> str:
    """Return a hash of the fields that decide what the pods request.

    It is computed from the job and not from rendered pods, because another version of the operator renders other pods,
    but must not stop the job.
    """
    spec = job.spec.model_dump(mode="json", by_alias=True, exclude_defaults=True)
    roles = {role: spec.get(role) or {} for role in names.ROLES}
    found = {role: {f: values[f] for f in _ROLE_FIELDS if f in values} for role, values in roles.items()}
    return _hash(found)


def spec_digest(job: PSTrainingJob) -> str:
    """Return a hash of the spec that another cluster gets, without `suspend`, which only applies here."""
    spec = job.spec.model_dump(mode="json", by_alias=True, exclude_defaults=True)
    spec.get("runPolicy", {}).pop("suspend", None)
    return _hash(spec)


def _hash(spec: Mapping[str, Any]) -> str:
    """Return a hash that is equal for the same amounts in another notation."""
    return hashlib.sha256(json.dumps(sizes.without_notations(spec), sort_keys=True).encode()).hexdigest()[:10]


def _marks(job: PSTrainingJob) -> dict[str, str]:
    """Return the annotations by which the operator recognizes the spec from which a Workload was created."""
    return {names.ANNOTATION_POD_SETS: digest(job)} | (
        {names.ANNOTATION_SPEC: spec_digest(job)} if is_dispatched(job) else {}
    )


def pod_sets(job: PSTrainingJob, fewest_workers: int | None = None) -> list[dict[str, Any]]:
    """Return the pod sets of a job: the number of each role's pods, and the fields on which their placement depends.

    Args:
        job: the job.
        fewest_workers: the minimum number of workers with which Kueue may admit the job; None for all workers.
    """
    tasks = {
        names.PS: PodTask(names.PS),
        STANDBY: PodTask(names.PS, member=1),
        names.WORKER: PodTask(names.WORKER, 0),
        names.CHIEF: PodTask(names.CHIEF, term=1),
        names.EVALUATOR: PodTask(names.EVALUATOR, term=1),
    }
    found = []
    for name, count in counts(job).items():
        item: dict[str, Any] = {"name": name, "count": count}
        if name == names.WORKER and fewest_workers is not None:
            item["minCount"] = fewest_workers
        template = pods.build(job, tasks[name], LauncherMap(""))
        found.append(item | {"template": _outline(template)})
    return found


def build(job: PSTrainingJob, priority: Priority, name: str, chain: SliceChain | None = None) -> dict[str, Any]:
    """Return the Workload of a job.

    Args:
        job: the job as its user wrote it.
        priority: the job's priority; Kueue always needs one.
        name: the Workload's name.
        chain: the Workload's place among slices; None for the first Workload of a job.
    """
    found = metadata(job, name, "queue", annotations=_annotations(job, name, chain))
    found["labels"] |= {LABEL_JOB_UID: job.metadata.uid}
    spec = _spec(job, priority, is_slice=chain is not None)
    return {"apiVersion": API_VERSION, "kind": "Workload", "metadata": found, "spec": spec}


def corrections(job: PSTrainingJob, priority: Priority, manifest: Mapping[str, Any]) -> dict[str, Any]:
    """Return the changes, by JSON pointer, that turn a Workload without quota into the one that a job would get now.

    Other clients' fields and annotations are written again unchanged, so the resourceVersion is a precondition.

    Args:
        job: the job as its user wrote it.
        priority: the job's priority.
        manifest: the Workload.
    """
    observed = manifest["metadata"]
    annotations = {k: v for k, v in (observed.get("annotations") or {}).items() if k not in _OWN_ANNOTATIONS}
    spec = {k: v for k, v in manifest["spec"].items() if k not in _OPTIONAL}
    return {
        "/metadata/resourceVersion": observed["resourceVersion"],
        "/metadata/annotations": annotations | _annotations(job, observed["name"], None),
        "/spec": spec | _spec(job, priority, is_slice=False),
    }


def prioritized(priority: Priority) -> dict[str, Any]:
    """Return the fields of a Workload's spec that a priority sets."""
    found: dict[str, Any] = {"priority": priority.value}
    if priority.name:
        kind = "WorkloadPriorityClass" if priority.group == GROUP else "PriorityClass"
        found["priorityClassRef"] = {"group": priority.group, "kind": kind, "name": priority.name}
    return found


def _annotations(job: PSTrainingJob, name: str, chain: SliceChain | None) -> dict[str, str]:
    """Return the annotations of a Workload; a slice of an elastic Workload stays elastic, even if the job is not."""
    found = _marks(job)
    if chain is not None or is_elastic(job):
        found |= {ANNOTATION_ELASTIC: "true", ANNOTATION_SLICE: name if chain is None else chain.first}
    if chain is not None:
        found[ANNOTATION_REPLACES] = f"{job.metadata.namespace}/{chain.replaces}"
    return found


def _spec(job: PSTrainingJob, priority: Priority, *, is_slice: bool) -> dict[str, Any]:
    wanted = terms(job)
    # Kueue refuses a slice with a minimum.
    sets = pod_sets(job, None if is_slice else wanted.fewest_workers)
    spec = {"queueName": job.metadata.labels[LABEL_QUEUE], "podSets": sets, **prioritized(priority)}
    if wanted.max_seconds is not None:
        spec[MAX_SECONDS] = wanted.max_seconds
    return spec


def pod_set_of(manifest: Mapping[str, Any]) -> str | None:
    """Return the pod set of an object's pods; None if the object has no pods."""
    labels = manifest["metadata"].get("labels") or {}
    match manifest["kind"]:
        case "StatefulSet":
            return names.PS if labels[names.LABEL_MEMBER] == "0" else STANDBY
        case "Deployment" | "Job":
            return str(labels[names.LABEL_ROLE])
    return None


def place(manifest: dict[str, Any], assigned: Mapping[str, PodSetAssignment]) -> dict[str, Any]:
    """Return an object, with its admission merged into its pod template.

    Args:
        manifest: the object; an object without a pod template is returned unchanged.
        assigned: the assignment of each pod set; empty for a job without a queue.
    """
    found = assigned.get(pod_set_of(manifest) or "") if assigned else None
    template = (manifest.get("spec") or {}).get("template")
    if found is None or template is None:
        return manifest
    spec = template["spec"]
    for target, key, values in (
        (template["metadata"], "labels", found.labels),
        (template["metadata"], "annotations", found.annotations),
        (spec, "nodeSelector", found.node_selector),
    ):
        if values:
            target[key] = {**(target.get(key) or {}), **values}
    known = list(spec.get("tolerations") or ())
    added = [dict(t) for t in found.tolerations if t not in known]
    if added:
        spec["tolerations"] = [*known, *added]
    if found.gates:
        gates = [g for g in spec.get("schedulingGates") or () if g.get("name") not in found.gates]
        spec["schedulingGates"] = [*gates, *({"name": name} for name in found.gates)]
    return manifest


def conflict(job: PSTrainingJob, assigned: Mapping[str, PodSetAssignment]) -> str:
    """Return how an admission contradicts itself, or the pod template of a role; empty if it does not."""
    if within := next((each.contradiction for each in assigned.values() if each.contradiction), ""):
        return within
    for pod_set in pod_sets(job) if assigned else ():
        found, template = assigned.get(pod_set["name"], PodSetAssignment()), pod_set["template"]
        for field_name, own, values in (
            ("nodeSelector", template["spec"].get("nodeSelector"), found.node_selector),
            ("label", template["metadata"].get("labels"), found.labels),
            ("annotation", template["metadata"].get("annotations"), found.annotations),
        ):
            for key, value in values.items():
                if (own or {}).get(key, value) != value:
                    where = f"the admission sets {field_name} {key} of pod set {pod_set['name']} to {value}"
                    return f"{where}, but the template of the job sets it to {(own or {})[key]}"
    return ""


def _outline(template: Mapping[str, Any]) -> dict[str, Any]:
    spec = template["spec"]
    outline: dict[str, Any] = {key: spec[key] for key in _POD_FIELDS if key in spec}
    for key in ("initContainers", "containers"):
        if spec.get(key):
            outline[key] = [{f: c[f] for f in _CONTAINER_FIELDS if f in c} for c in spec[key]]
    return {"metadata": dict(_metadata(template["metadata"])), "spec": outline}


def _metadata(found: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """Yield pods' labels and annotations without those of this API, which vary between versions of the operator."""
    for key in ("labels", "annotations"):
        values = {k: v for k, v in (found.get(key) or {}).items() if not k.startswith(f"{names.GROUP}/")}
        if values:
            yield key, values
