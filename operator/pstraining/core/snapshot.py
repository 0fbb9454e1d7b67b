"""The observed state of one job, frozen: the only input of planning besides the clock. observe.py creates it."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum
from functools import cached_property
from typing import Any

from pydantic import ValidationError

from pstraining.api import names
from pstraining.api.models import PSTrainingJob
from pstraining.api.numbers import number
from pstraining.api.packed_records import unpacked
from pstraining.api.status import PSTrainingJobStatus
from pstraining.api.values import path_of
from pstraining.core.actions import Kind, Manifest
from pstraining.core.usage import Usage
from pstraining.resources.installation import STANDARD, Installation

OUT_OF_SERVICE = "node.kubernetes.io/out-of-service"
PASSED_DEADLINE = 1
"""The shortest spec.activeDeadlineSeconds of a pod; Kubernetes does not let it be raised afterwards."""
RATES = ("samplesPerSecond", "estimatedRemainingSeconds")
"""The fields of a job's progress that only hold while it trains."""
RUN_ONCE = (names.CHIEF, names.EVALUATOR)
"""The roles whose pods have restartPolicy Never: each attempt has a separate pod."""


@dataclass(frozen=True)
class Termination:
    """How one run of a container ended."""

    exit_code: int
    reason: str
    message: str
    finished_at: datetime | None
    started_at: datetime | None = None


@dataclass(frozen=True)
class Container:
    """The state of the wrapped container, or of an init container."""

    name: str = ""
    restarts: int = 0
    running: bool = False
    ready: bool = False
    waiting_reason: str = ""
    waiting_message: str = ""
    image: str = ""
    started_at: datetime | None = None
    """Start of the current run."""
    terminated: Termination | None = None
    """The end of the last run, while no other run has started."""
    last: Termination | None = None
    """The end of the run before the current one."""

    @property
    def runs_program(self) -> bool:
        """Whether the container's program runs. A container whose launcher waits also runs, but is not ready."""
        return self.running and self.ready


class ResizeState(StrEnum):
    """The state of a pod's resize that the kubelet reports; the values are those of Kubernetes."""

    NONE = ""
    IN_PROGRESS = "InProgress"
    """The resize is being applied, or the kubelet has not seen it yet."""
    DEFERRED = "Deferred"
    """The node has too little room now; the kubelet tries again."""
    INFEASIBLE = "Infeasible"
    """The node can never grant the size."""


@dataclass(frozen=True)
class Pod:
    """One pod of the job."""

    name: str
    uid: str
    role: str
    index: int
    term: int
    created: datetime
    phase: str
    deleting: bool
    ready: bool
    disruption: str
    """Kubernetes' reason for ending the pod (evicted, preempted, drained, node lost); empty if it did not."""
    unschedulable: str
    """The scheduler's message, or empty."""
    reason: str
    cluster_hash: str
    main: str
    """The name of the training container, whose program the launcher runs."""
    container: Container
    """The training container."""
    member: int = 0
    """Number of a PS among the members of its shard."""
    deleted_at: datetime | None = None
    """Time at which the deletion was requested."""
    ends_at: datetime | None = None
    """End of the grace period of the deletion."""
    success_seen: datetime | None = None
    """Time at which it was first seen that a worker's program has ended with exit code 0."""
    replaced: bool = False
    """Whether the operator has decided to delete the pod (policies/replaced_pods.py)."""
    forced: bool = False
    """Whether the pod is being deleted without waiting for its node."""
    node: str = ""
    silent: bool = False
    """Whether the pod's node does not report, so that the pod's state is unknown (policies/node_loss.py)."""
    lost: bool = False
    """Whether the pod is being deleted and its node cannot confirm the end (policies/node_loss.py decides)."""
    ready_changed: datetime | None = None
    """Time at which the pod became ready or stopped being ready."""
    blocked_init: Container | None = None
    """The init container that waits or has failed; None without one."""
    init_failures: int = 0
    """Number of failed runs of init containers."""
    job_restarts: int = 0
    """Number of restarts of the whole job when the pod was rendered."""
    server_template: str = ""
    """Hash of the template of a PS with hot standbys."""
    size: str = ""
    """The resources of the training container that were requested last, as JSON; empty in pods of older operators."""
    resize: ResizeState = ResizeState.NONE
    resize_message: str = ""
    """The kubelet's message about the resize."""
    others_unready: bool = False
    """Whether the kubelet names other containers, or readiness gates, as a cause for which the pod is not ready."""
    others_run: bool = False
    """Whether a container other than the training container runs. Native sidecars, which end with it, do not count."""
    active_deadline: int | None = None
    """spec.activeDeadlineSeconds."""
    mounted: bool = False
    """Whether the pod's volumes are mounted: its sandbox, which is created later, exists or has run a container."""
    mount_failure: str = ""
    """Kubernetes' message about a volume that could not be mounted; empty without one."""
    gates: tuple[str, ...] = ()
    """Names of the pod's scheduling gates; no scheduler places the pod until they are removed (KEP-3521)."""

    @property
    def serves(self) -> bool:
        """Whether a PS's server is available, even if another container of its pod is not ready."""
        return self.ready or (self.others_unready and self.container.runs_program and not self.silent)

    @property
    def terminal(self) -> bool:
        """Whether no process of this pod will run again."""
        return self.phase in ("Succeeded", "Failed")

    @property
    def finished(self) -> bool:
        """Whether the program has ended and never runs again in this pod, even if other containers run."""
        return self.terminal or (self.role in RUN_ONCE and self.container.terminated is not None)

    @property
    def over(self) -> bool:
        """Whether the program has ended or is lost."""
        return self.finished or self.lost

    @property
    def stopped(self) -> bool:
        """Whether all containers have ended or are lost: the pod uses no quota any more."""
        return self.terminal or self.lost


@dataclass(frozen=True)
class Node:
    """One node of the cluster."""

    name: str
    ready: bool
    answers: bool
    """Whether its kubelet reports: the condition Ready is not Unknown."""
    out_of_service: bool
    """Whether the out-of-service taint asserts that nothing runs on the node (KEP-2268)."""
    silent_since: datetime | None = None
    """Time at which the watch first showed that its kubelet was given up, if it does not report. The time in its
    condition is that of the node controller's clock."""


@dataclass(frozen=True)
class Child:
    """One object that the job controls."""

    kind: Kind
    name: str
    uid: str
    deleting: bool
    manifest: Manifest
    refusal: str = ""
    """The controller's message if Kubernetes could not create a pod of it; empty otherwise."""
    has_controller: bool = True
    """Whether an owner reference names a controller."""

    @property
    def labels(self) -> Mapping[str, str]:
        """Return metadata.labels."""
        return self.manifest["metadata"].get("labels") or {}

    @property
    def annotations(self) -> Mapping[str, str]:
        """Return metadata.annotations."""
        return self.manifest["metadata"].get("annotations") or {}

    @property
    def conditions(self) -> tuple[Mapping[str, Any], ...]:
        """Return status.conditions."""
        return tuple((self.manifest.get("status") or {}).get("conditions") or ())

    def true_condition(self, kind: str) -> Mapping[str, Any] | None:
        """Return the condition of this type if it is true, else None."""
        return next((c for c in self.conditions if c.get("type") == kind and c.get("status") == "True"), None)

    def number(self, label: str) -> int:
        """Return a label as a number; -1 if it is missing or not a number."""
        found = number(self.labels.get(label))
        return -1 if found is None else found

    @property
    def replicas(self) -> int:
        """Return spec.replicas, by default 1."""
        return int(self.manifest.get("spec", {}).get("replicas", 1))

    @property
    def first_ordinal(self) -> int:
        """Return spec.ordinals.start of a StatefulSet, by default 0."""
        return int(((self.manifest.get("spec") or {}).get("ordinals") or {}).get("start", 0))


@dataclass(frozen=True)
class QueueObjects:
    """Kueue's objects that jobs with a queue refer to, without those that could not be read."""

    flavors: Mapping[str, Manifest] = field(default_factory=dict)
    """ResourceFlavors by name."""
    priorities: Mapping[tuple[Kind, str], int] = field(default_factory=dict)
    """Values of priority classes, by kind and name."""
    default_queues: frozenset[str] = frozenset()
    """The namespaces that have a default queue."""


@dataclass(frozen=True)
class Snapshot:
    """A job and everything that it controls, at one moment."""

    job: Manifest
    children: Mapping[tuple[Kind, str], Child] = field(default_factory=dict)
    pods: tuple[Pod, ...] = ()
    nodes: Mapping[str, Node] | None = None
    """The existing nodes of the job's pods, by name; None if the operator does not watch nodes."""
    last_reports: Mapping[str, datetime] = field(default_factory=dict)
    """When kubelets have last reported on containers of a pod that is being deleted, by node."""
    installation: Installation = STANDARD
    """The operator's installation, on which new pods depend."""
    queue_objects: QueueObjects = field(default_factory=QueueObjects)
    stall: str | None = None
    """Why training makes no steps, as its program reports; empty if it makes steps, None if that is not known."""
    usage: Usage = field(default_factory=dict)
    """The pods' resource usage by role, as the chief's launcher reports it; empty if it is not known."""

    @property
    def name(self) -> str:
        """The job's name."""
        return str(self.job["metadata"]["name"])

    @property
    def namespace(self) -> str:
        """The job's namespace."""
        return str(self.job["metadata"]["namespace"])

    @property
    def uid(self) -> str:
        """The job's uid."""
        return str(self.job["metadata"]["uid"])

    @property
    def generation(self) -> int:
        """The generation of the job's spec."""
        return int(self.job["metadata"].get("generation", 1))

    @property
    def deleting(self) -> bool:
        """Whether the job is being deleted; the garbage collector then deletes its children."""
        return bool(self.job["metadata"].get("deletionTimestamp"))

    @property
    def status(self) -> Mapping[str, Any]:
        """Return the stored status without the progress, which programs report."""
        return {name: value for name, value in (self.job.get("status") or {}).items() if name != "training"}

    @property
    def reported_layout(self) -> tuple[int | None, int | None]:
        """Return the layout in which training continues, as the chief has reported it, and that chief's term."""
        training = (self.job.get("status") or {}).get("training") or {}
        return training.get("layout"), training.get("term")

    @property
    def uses_runtime(self) -> bool:
        """Whether the program uses pstraining.runtime, which alone reports a layout."""
        return self.reported_layout[0] is not None

    @property
    def has_old_rates(self) -> bool:
        """Whether the stored progress has a rate or an estimate although nothing trains (controller/transform.py)."""
        return any((self.job.get("status") or {}).get("training", {}).get(name) for name in RATES)

    @property
    def has_other_manager(self) -> bool:
        """Whether managedBy leaves the job to another manager, also if the rest of the job cannot be read."""
        spec = self.job.get("spec") or {}
        manager = spec.get("managedBy") or (spec.get("runPolicy") or {}).get("managedBy") or names.MANAGED_BY
        return manager not in (names.MANAGED_BY, names.MULTIKUEUE)

    # The plan, the status and the events of a pass read these values; each is validated once.

    @cached_property
    def typed_job(self) -> PSTrainingJob | str:
        """Return the job as typed data, or its first error: a CRD of another version may have accepted it."""
        try:
            return PSTrainingJob.model_validate(self.job)
        except ValidationError as error:
            first = error.errors()[0]
            return f"{path_of(first['loc'])}: {first['msg']}"

    @cached_property
    def typed_status(self) -> PSTrainingJobStatus:
        """Return the stored status with all records in full, without the values that this version cannot read."""
        found = _readable(self.status)
        try:
            return unpacked(found)
        except ValueError:
            return found

    @cached_property
    def job_restarts(self) -> int:
        """Return the number of restarts of the whole job, by the stored status."""
        recorded = self.status.get("jobRestarts")
        return recorded if isinstance(recorded, int) else 0

    def is_of_current_restart(self, item: Pod | Child) -> bool:
        """Whether a pod or child was created since the newest restart of the job; an older one does not count."""
        restarts = item.job_restarts if isinstance(item, Pod) else max(0, item.number(names.LABEL_RESTART_ATTEMPT))
        return restarts >= self.job_restarts

    def child(self, kind: Kind, name: str) -> Child | None:
        """Return the child of this kind and name; None without one."""
        return self.children.get((kind, name))

    def of_kind(self, kind: Kind) -> tuple[Child, ...]:
        """Return all children of this kind, sorted by name."""
        return self._by_kind.get(kind, ())

    def pods_of(self, role: str, index: int | None = None) -> tuple[Pod, ...]:
        """Return the pods of a role, or of one replica, oldest first."""
        return self._by_replica.get((role, index), ())

    # A pass reads every replica of a large job many times; searching all pods each time would be quadratic.

    @cached_property
    def _by_kind(self) -> dict[Kind, tuple[Child, ...]]:
        children: dict[Kind, list[Child]] = {}
        for (kind, _), child in sorted(self.children.items()):
            children.setdefault(kind, []).append(child)
        return {kind: tuple(of_kind) for kind, of_kind in children.items()}

    @cached_property
    def _by_replica(self) -> dict[tuple[str, int | None], tuple[Pod, ...]]:
        pods: dict[tuple[str, int | None], list[Pod]] = {}
        for pod in self.pods:
            pods.setdefault((pod.role, None), []).append(pod)
            pods.setdefault((pod.role, pod.index), []).append(pod)
        return {replica: tuple(of_replica) for replica, of_replica in pods.items()}


def _readable(status: Mapping[str, Any]) -> PSTrainingJobStatus:
    """Return a status without the fields, and the items of lists, that another version has written in another form.

    Without its conditions, a job that has ended would start again.
    """
    found = {name: list(value) if isinstance(value, list) else value for name, value in status.items()}
    while True:
        try:
            return PSTrainingJobStatus.model_validate(found)
        except ValidationError as error:
            wrong: dict[Any, set[Any]] = {}
            for item in error.errors():
                name, *inside = *item["loc"], None
                wrong.setdefault(name, set()).add(inside[0])
        if wrong.keys() - found.keys():
            return PSTrainingJobStatus()
        for name, places in wrong.items():
            value = found.pop(name)
            if isinstance(value, list) and all(isinstance(place, int) for place in places):
                found[name] = [item for number, item in enumerate(value) if number not in places]
