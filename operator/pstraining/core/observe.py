"""Creates the snapshot of one job from the cached objects.

`observe` reads raw objects of the API server, and never raises for objects that a cluster may contain. Children that
the job does not control are left out, even if their labels name the job.
"""

from collections.abc import Iterable, Mapping
from datetime import datetime, timedelta
from types import MappingProxyType
from typing import Any, Final

from pstraining.api import names
from pstraining.api.numbers import number
from pstraining.core.actions import WITH_PODS, Kind, Manifest
from pstraining.core.snapshot import OUT_OF_SERVICE, Child, Container, Node, Pod, ResizeState, Snapshot, Termination
from pstraining.resources import kueue, sizes
from pstraining.resources.installation import STANDARD, Installation

GENERATED_MAX: Final = 58
"""Characters of `generateName` in an object's name; the API server adds five (apiserver/pkg/storage/names)."""


def observe(
    job: Manifest,
    children: Iterable[Manifest],
    pods: Iterable[Manifest],
    nodes: Iterable[Manifest] | None = None,
    refusals: Mapping[str, str] | None = None,
    *,
    mount_failures: Mapping[str, str] = MappingProxyType({}),
    installation: Installation = STANDARD,
    stall: str | None = None,
) -> Snapshot:
    """Return the snapshot of one job.

    Args:
        job: the PSTrainingJob.
        children: objects that may belong to it, of any kind except Pod; each has its `kind`.
        pods: pods whose label has the job's name.
        nodes: the existing nodes of the pods; None if nodes are not watched.
        refusals: messages about pods that could not be created, by the workload's uid.
        mount_failures: messages about volumes that cannot be mounted, by the pod's uid.
        installation: how the operator is installed.
        stall: see `Snapshot.stall`.
    """
    metadata, owned = job["metadata"], {}
    for manifest in children:
        if is_owned(manifest, metadata):
            named = _with_task_labels(manifest, metadata["name"])
            child = _child(named, (refusals or {}).get(manifest["metadata"]["uid"], ""))
            owned[child.kind, child.name] = child
    mine = [p for m in pods if (p := _pod(m, job, mount_failures.get(m["metadata"]["uid"], ""))) is not None]
    found = None if nodes is None else {n.name: n for n in map(_node, nodes)}
    ordered = tuple(sorted(mine, key=lambda p: (p.created, p.name)))
    return Snapshot(job=job, children=owned, pods=ordered, nodes=found, installation=installation, stall=stall)


def controller_uid(manifest: Manifest) -> str | None:
    """Return the uid of the object's controller; None without one."""
    for reference in manifest["metadata"].get("ownerReferences") or ():
        if reference.get("controller"):
            return str(reference.get("uid"))
    return None


def is_owned(manifest: Manifest, job: Manifest) -> bool:
    """Return whether an object other than a pod belongs to a job: the job controls it, or it has lost its controller.

    Any user of the namespace may write an owner reference, such as for a TensorBoard that is deleted with the job. So
    an object is a child only if it also has a name that the operator gives.

    Args:
        manifest: the object.
        job: the metadata of the job.
    """
    metadata = manifest["metadata"]
    if controller_uid(manifest) == job["uid"]:
        return manifest["kind"] in (Kind.CLAIM, Kind.WORKLOAD) or names.is_child(job["name"], metadata["name"])
    return _is_labelled(manifest, job) or _is_prebuilt(manifest, job)


def is_task(pod: Manifest, job: str) -> bool:
    """Return whether a controller of the job has created a pod. `kubectl debug --copy-to` makes copies with its labels.

    Args:
        pod: a pod whose label names the job.
        job: the job's name.
    """
    return bool(_task_labels_of(pod["metadata"], job))


def _task_labels_of(pod: Manifest, job: str) -> dict[str, str]:
    """Return the labels of a pod that follow from its controller's name and its own; empty if it is no task.

    Any user of the namespace may write a pod's labels, owner and generateName. But no pod of a StatefulSet has the name
    of another one, and other controllers count the pods that name them. A pod that has lost its owner, and will be
    adopted, keeps the field generateName. The garbage collector deletes a pod whose owner has another uid.

    Args:
        pod: the pod's metadata.
        job: the job's name.
    """
    owners = [owner for owner in pod.get("ownerReferences") or () if owner.get("controller")]
    kind = owners[0].get("kind") if owners else None
    base = str(owners[0].get("name") if owners else pod.get("generateName") or "").removesuffix("-")
    found = {} if kind == "ReplicaSet" else names.task_labels(job, base)
    if not found and kind in (None, "ReplicaSet"):
        found = names.task_labels(job, base.rpartition("-")[0])
    is_named = pod["name"].startswith(base[:GENERATED_MAX])
    if kind not in (None, "ReplicaSet", Kind.STATEFUL_SET, Kind.JOB) or not is_named:
        return {}
    if found.get(names.LABEL_ROLE) == names.PS:
        ordinal = pod["name"][len(base) + 1 :]
        return found | {names.LABEL_INDEX: ordinal} if ordinal.isdecimal() else {}
    return found


def _is_labelled(manifest: Manifest, job: Manifest) -> bool:
    """Whether an object belongs to the job by its label: a claim, or a child without a controller.

    A claim outlives its StatefulSet, so its owner does not show the job. A labelled object whose name is not that of a
    child is a user's copy.
    """
    metadata = manifest["metadata"]
    if (metadata.get("labels") or {}).get(names.LABEL_JOB_UID) != job["uid"]:
        return False
    is_child = names.is_workload if manifest["kind"] == Kind.WORKLOAD else names.is_child
    is_orphan = controller_uid(manifest) is None and is_child(job["name"], metadata["name"])
    return manifest["kind"] == Kind.CLAIM or is_orphan


def _is_prebuilt(manifest: Manifest, job: Manifest) -> bool:
    """Whether an object is the Workload that MultiKueue has sent with the job, and has no controller yet."""
    if manifest["kind"] != Kind.WORKLOAD or controller_uid(manifest) is not None:
        return False
    sent = kueue.prebuilt(job.get("labels") or {}, job.get("annotations") or {})
    return bool(sent == manifest["metadata"]["name"])


def parse_time(text: str | None) -> datetime | None:
    """Return a Kubernetes timestamp (RFC 3339, UTC) as an aware datetime; None for None."""
    return datetime.fromisoformat(text.replace("Z", "+00:00")) if text else None


def _with_task_labels(manifest: Manifest, job: str) -> Manifest:
    """Return an object with the labels that follow from its name, which other clients may change, if it has pods."""
    metadata = manifest["metadata"]
    known = names.task_labels(job, metadata["name"]) if manifest["kind"] in WITH_PODS else {}
    labels = metadata.get("labels") or {}
    if known.items() <= labels.items():
        return manifest
    return {**manifest, "metadata": {**metadata, "labels": {**labels, **known}}}


def _child(manifest: Manifest, refusal: str) -> Child:
    metadata = manifest["metadata"]
    return Child(
        kind=Kind.of(manifest),
        name=metadata["name"],
        uid=metadata["uid"],
        deleting=bool(metadata.get("deletionTimestamp")),
        manifest=manifest,
        refusal=refusal,
        has_controller=controller_uid(manifest) is not None,
    )


NOT_ADMITTED: Final = "NotAdmitted"
"""The disruption of a pod that its kubelet rejected before it started a container."""
_NOT_ADMITTED: Final = (
    "UnexpectedAdmissionError",
    "TopologyAffinityError",
    "NodeAffinity",
    "NodePorts",
    "NodeShutdown",
)
"""Reasons besides OutOf<resource>. They pass with the state of the node, unlike a forbidden sysctl.

Source: k8s.io/kubernetes pkg/kubelet/lifecycle and pkg/kubelet/cm."""

_OTHERS_UNREADY: Final = ("ContainersNotReady", "ReadinessGatesNotReady")
"""A kubelet's reasons for a pod that is not ready. For a silent node, another controller changes the status alone."""


def _pod(manifest: Manifest, job: Manifest, mount_failure: str) -> Pod | None:
    metadata, spec, status = manifest["metadata"], manifest.get("spec") or {}, manifest.get("status") or {}
    task = _task_labels_of(metadata, job["metadata"]["name"])
    labels = {**(metadata.get("labels") or {}), **task}
    role, created = task.get(names.LABEL_ROLE), parse_time(metadata.get("creationTimestamp"))
    # A pod's owner is a child of the job and not the job itself. The uid label, which no other job has, and the name of
    # the owner replace the check of that chain.
    if labels.get(names.LABEL_JOB_UID) != job["metadata"]["uid"] or role is None or created is None:
        return None
    index = number(labels.get(names.LABEL_INDEX) or labels.get(names.LABEL_POD_INDEX) or "0")
    term = number(labels.get(names.LABEL_TERM) or labels.get(names.LABEL_ATTEMPT) or "0")
    member = number(labels.get(names.LABEL_MEMBER) or "0")
    restarts = number(labels.get(names.LABEL_RESTART_ATTEMPT) or "0")
    if index is None or term is None or member is None or restarts is None:
        return None  # the operator never writes such labels
    conditions = {c.get("type"): c for c in status.get("conditions") or ()}
    scheduled = conditions.get("PodScheduled", {})
    containers, annotations = spec.get("containers") or (), metadata.get("annotations") or {}
    main, statuses = training_container(job, role, containers, annotations), status.get("containerStatuses") or ()
    container = _container(statuses, main)
    inits = _init_containers(spec, status, started=container.running or container.terminated is not None)
    resize, resize_message = _resize(metadata, status, conditions)
    return Pod(
        name=metadata["name"],
        uid=metadata["uid"],
        role=role,
        index=index,
        term=term,
        created=created,
        phase=status.get("phase", "Pending"),
        deleting=bool(metadata.get("deletionTimestamp")),
        ready=conditions.get("Ready", {}).get("status") == "True",
        disruption=_disruption(conditions.get("DisruptionTarget", {}), status),
        unschedulable=scheduled.get("message", "") if scheduled.get("reason") == "Unschedulable" else "",
        reason=status.get("reason", ""),
        cluster_hash=annotations.get(names.ANNOTATION_CLUSTER_HASH, ""),
        server_template=annotations.get(names.ANNOTATION_SERVER_TEMPLATE, ""),
        size=sizes.known(annotations.get(names.ANNOTATION_SIZE, "")),
        resize=resize,
        resize_message=resize_message,
        main=main,
        container=container,
        member=member,
        deleted_at=_deleted_at(metadata),
        ends_at=parse_time(metadata.get("deletionTimestamp")),
        replaced=annotations.get(names.ANNOTATION_REPLACED) == "true",
        forced=bool(metadata.get("deletionTimestamp")) and metadata.get("deletionGracePeriodSeconds") == 0,
        node=spec.get("nodeName", ""),
        ready_changed=parse_time(conditions.get("Ready", {}).get("lastTransitionTime")),
        blocked_init=next((c for c in inits if _is_blocked(c)), None),
        init_failures=_init_failures(c for c in inits if c.name not in _sidecars(spec)),
        job_restarts=restarts,
        others_unready=conditions.get("Ready", {}).get("reason") in _OTHERS_UNREADY,
        others_run=any(s.get("name") != main and "terminated" not in (s.get("state") or {}) for s in statuses),
        active_deadline=spec.get("activeDeadlineSeconds"),
        mount_failure=mount_failure,
        mounted=_is_mounted(conditions.get("PodReadyToStartContainers", {}), status),
        gates=tuple(gate.get("name", "") for gate in spec.get("schedulingGates") or ()),
    )


def _resize(
    metadata: Mapping[str, Any], status: Mapping[str, Any], conditions: Mapping[str, Mapping[str, Any]]
) -> tuple[ResizeState, str]:
    """Return the state of a resize and its message, without conditions about an earlier generation of the pod."""
    generation = metadata.get("generation", 0)

    def current(kind: str) -> Mapping[str, Any]:
        found = conditions.get(kind, {})
        is_outdated = 0 < found.get("observedGeneration", 0) < generation
        return {} if is_outdated or found.get("status") != "True" else found

    pending, applied = current("PodResizePending"), current("PodResizeInProgress")
    if pending.get("reason") in (ResizeState.DEFERRED, ResizeState.INFEASIBLE):
        return ResizeState(pending["reason"]), pending.get("message", "")
    if applied or 0 < status.get("observedGeneration", 0) < generation:
        return ResizeState.IN_PROGRESS, applied.get("message", "")
    return ResizeState.NONE, ""


def _is_mounted(sandbox: Mapping[str, Any], status: Mapping[str, Any]) -> bool:
    containers = (*(status.get("initContainerStatuses") or ()), *(status.get("containerStatuses") or ()))
    states = [container.get("state") or {} for container in containers]
    return sandbox.get("status") == "True" or any("running" in state or "terminated" in state for state in states)


def _node(manifest: Manifest) -> Node:
    conditions = (manifest.get("status") or {}).get("conditions") or ()
    found: Mapping[str, Any] = next((c for c in conditions if c.get("type") == "Ready"), {})
    ready = str(found.get("status", "Unknown"))
    taints = {t.get("key") for t in (manifest.get("spec") or {}).get("taints") or ()}
    return Node(manifest["metadata"]["name"], ready == "True", ready != "Unknown", OUT_OF_SERVICE in taints)


def _deleted_at(metadata: Mapping[str, Any]) -> datetime | None:
    """Return the time of the deletion request; deletionTimestamp is the end of the grace period."""
    end = parse_time(metadata.get("deletionTimestamp"))
    return end and end - timedelta(seconds=metadata.get("deletionGracePeriodSeconds") or 0)


def training_container(
    job: Manifest, role: str, containers: Iterable[Mapping[str, Any]], annotations: Mapping[str, str]
) -> str:
    """Return the name of a pod's training container, from the pod's annotation, or else from the job's template.

    The container's position in the pod has no meaning, because admission may insert a proxy before it.

    Args:
        job: the PSTrainingJob.
        role: the role of the pod.
        containers: the pod's containers.
        annotations: the pod's annotations.
    """
    existing = {str(c.get("name", "")) for c in containers}
    rendered = annotations.get(names.ANNOTATION_CONTAINER, "")
    return rendered if rendered in existing else _of_template(job, role)


def _of_template(job: Manifest, role: str) -> str:
    """Return the name from the template, because pods of older versions of the operator lack the annotation."""
    spec = job.get("spec") or {}
    own, workers = ((spec.get(r) or {}).get("template") for r in (role, names.WORKER))
    containers = [str(c.get("name", "")) for c in (((own or workers) or {}).get("spec") or {}).get("containers") or ()]
    return containers[0] if len(containers) == 1 else names.MAIN_CONTAINER


def _container(statuses: Iterable[Mapping[str, Any]], name: str) -> Container:
    for status in statuses:
        if status.get("name") == name:
            return _container_state(status)
    return Container()


def _container_state(status: Mapping[str, Any]) -> Container:
    state, last = status.get("state") or {}, status.get("lastState") or {}
    waiting = state.get("waiting") or {}
    return Container(
        name=status.get("name", ""),
        restarts=int(status.get("restartCount", 0)),
        running="running" in state,
        ready=bool(status.get("ready")),
        waiting_reason=waiting.get("reason", ""),
        waiting_message=waiting.get("message", ""),
        image=status.get("image", ""),
        started_at=parse_time((state.get("running") or {}).get("startedAt")),
        terminated=_termination(state.get("terminated")),
        last=_termination(last.get("terminated")),
    )


def _termination(terminated: Mapping[str, Any] | None) -> Termination | None:
    if not terminated:
        return None
    return Termination(
        exit_code=int(terminated.get("exitCode", 0)),
        reason=terminated.get("reason", ""),
        message=terminated.get("message", ""),
        finished_at=parse_time(terminated.get("finishedAt")),
        started_at=parse_time(terminated.get("startedAt")),
    )


def _disruption(condition: Mapping[str, Any], status: Mapping[str, Any]) -> str:
    if condition.get("status") == "True":
        return str(condition.get("reason") or "TerminationByKubelet")
    reason = str(status.get("reason", ""))
    if reason in _NOT_ADMITTED or reason.startswith("OutOf"):
        return NOT_ADMITTED
    return reason if reason in ("Evicted", "NodeLost", "Preempting", "Shutdown", "Terminated") else ""


def _sidecars(spec: Mapping[str, Any]) -> set[str]:
    """Return the names of native sidecars: init containers that keep running (KEP-753)."""
    return {str(c.get("name")) for c in spec.get("initContainers") or () if c.get("restartPolicy") == "Always"}


def _init_containers(spec: Mapping[str, Any], status: Mapping[str, Any], *, started: bool) -> list[Container]:
    """Return the init containers. Native sidecars are left out once the program has started, because their end is then
    not a failure."""
    ignored = _sidecars(spec) if started else ()
    containers = (_container_state(s) for s in status.get("initContainerStatuses") or ())
    return [c for c in containers if c.name not in ignored]


def _init_failures(containers: Iterable[Container]) -> int:
    """Return the number of failed runs of init containers."""
    count = 0
    for container in containers:
        failed = container.terminated is not None and container.terminated.exit_code != 0
        if container.terminated is not None or container.waiting_reason == "CrashLoopBackOff":
            count += container.restarts + (failed or container.waiting_reason == "CrashLoopBackOff")
    return count


def _is_blocked(container: Container) -> bool:
    """Whether an init container keeps the program from starting."""
    failed = container.terminated is not None and container.terminated.exit_code != 0
    return failed or container.waiting_reason not in ("", "PodInitializing")
