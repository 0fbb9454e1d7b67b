"""What is observed of one job, frozen: the only input of planning besides the clock (observe.py makes it)."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from functools import cached_property
from typing import Any

from pstraining.api import names
from pstraining.core.actions import Kind, Manifest

OUT_OF_SERVICE = "node.kubernetes.io/out-of-service"
PASSED_DEADLINE = 1
"""The shortest spec.activeDeadlineSeconds of a pod; it cannot get a longer one afterwards."""
RUN_ONCE = (names.CHIEF, names.EVALUATOR)
"""The roles whose pods have restartPolicy Never: each attempt is a pod of its own."""


@dataclass(frozen=True)
class Termination:
    """How one run of a container ended."""

    exit_code: int
    reason: str
    message: str
    finished_at: datetime | None


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
    """When the present run began."""
    terminated: Termination | None = None
    """Set while the container stands terminated."""
    last: Termination | None = None
    """The run before the present one."""


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
    """Kubernetes itself ended it (evicted, preempted, drained, its node lost): in its words why; or empty."""
    unschedulable: str
    """The scheduler's message, or empty."""
    reason: str
    cluster_hash: str
    main: str
    """The name of the training container, which has the launcher around its program."""
    container: Container
    """The training container."""
    member: int = 0
    """Which member of its shard a PS is."""
    deleted_at: datetime | None = None
    """When somebody asked for its deletion."""
    ends_at: datetime | None = None
    """When its grace period ends, or has ended."""
    forced: bool = False
    """It is being deleted without waiting for its node."""
    node: str = ""
    silent: bool = False
    """Its node is not heard of: nobody knows what it does (policies/node_loss.py)."""
    lost: bool = False
    """It is being deleted and its node will not say that it has ended (policies/node_loss.py decides)."""
    ready_changed: datetime | None = None
    """When it became ready, or stopped being so."""
    blocked_init: Container | None = None
    """An init container that waits or has failed."""
    init_failures: int = 0
    """Runs of init containers that have failed."""
    job_restarts: int = 0
    """How often the whole job had been restarted when the pod was rendered."""
    server_template: str = ""
    """What a PS with hot standbys was made from, as a hash."""
    others_run: bool = False
    """A container beside the training container has not ended; native sidecars, which end with it, do not count."""
    active_deadline: int | None = None
    """spec.activeDeadlineSeconds."""
    gates: tuple[str, ...] = ()
    """Names of its scheduling gates: no scheduler looks at it until somebody has opened them (KEP-3521)."""

    @property
    def terminal(self) -> bool:
        """No process of this pod will ever run again."""
        return self.phase in ("Succeeded", "Failed")

    @property
    def finished(self) -> bool:
        """The program has ended and never runs again in this pod, whatever other containers of the pod do."""
        return self.terminal or (self.role in RUN_ONCE and self.container.terminated is not None)

    @property
    def over(self) -> bool:
        """The program does not run, or does not count any more."""
        return self.finished or self.lost


@dataclass(frozen=True)
class Node:
    """One node of the cluster."""

    name: str
    ready: bool
    answers: bool
    """Its kubelet is heard of: the condition Ready is not Unknown."""
    out_of_service: bool
    """Somebody vouches that nothing runs on it any more (KEP-2268)."""
    silent_since: datetime | None = None
    """When its kubelet was given up, if it does not answer."""


@dataclass(frozen=True)
class Child:
    """One object that the job controls."""

    kind: Kind
    name: str
    uid: str
    deleting: bool
    manifest: Manifest
    refusal: str = ""
    """Why Kubernetes could not create a pod of it, in its controller's words."""

    @property
    def labels(self) -> Mapping[str, str]:
        """metadata.labels."""
        return self.manifest["metadata"].get("labels") or {}

    @property
    def annotations(self) -> Mapping[str, str]:
        """metadata.annotations."""
        return self.manifest["metadata"].get("annotations") or {}

    @property
    def conditions(self) -> tuple[Mapping[str, Any], ...]:
        """status.conditions."""
        return tuple((self.manifest.get("status") or {}).get("conditions") or ())

    def true_condition(self, kind: str) -> Mapping[str, Any] | None:
        """The condition of that type, if it is true."""
        return next((c for c in self.conditions if c.get("type") == kind and c.get("status") == "True"), None)

    def number(self, label: str) -> int:
        """A label as a number; -1 if somebody has made it something else."""
        text = self.labels.get(label, "")
        return int(text) if text.isdecimal() else -1

    @property
    def replicas(self) -> int:
        """spec.replicas as the API server defaults it."""
        return int(self.manifest.get("spec", {}).get("replicas", 1))


@dataclass(frozen=True)
class Snapshot:
    """A job and everything it controls, as of one moment."""

    job: Manifest
    children: Mapping[tuple[Kind, str], Child] = field(default_factory=dict)
    pods: tuple[Pod, ...] = ()
    nodes: Mapping[str, Node] | None = None
    """The nodes of the job's pods by name, those that exist; None if the operator may not look at nodes."""

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
        """The job is being deleted: the garbage collector's business, not ours."""
        return bool(self.job["metadata"].get("deletionTimestamp"))

    @property
    def status(self) -> Mapping[str, Any]:
        """The status as stored."""
        return self.job.get("status") or {}

    @cached_property
    def job_restarts(self) -> int:
        """How often the whole job has been restarted, by its stored status."""
        recorded = self.status.get("jobRestarts")
        return recorded if isinstance(recorded, int) else 0

    def is_of_current_restart(self, item: Pod | Child) -> bool:
        """Whether a pod or child was created since the newest restart of the job; an older one does not count."""
        restarts = item.job_restarts if isinstance(item, Pod) else max(0, item.number(names.LABEL_RESTART_ATTEMPT))
        return restarts >= self.job_restarts

    def child(self, kind: Kind, name: str) -> Child | None:
        """The child of that kind and name."""
        return self.children.get((kind, name))

    def of_kind(self, kind: Kind) -> tuple[Child, ...]:
        """All children of that kind, by name."""
        return self._by_kind.get(kind, ())

    def pods_of(self, role: str, index: int | None = None) -> tuple[Pod, ...]:
        """The pods of a role, oldest first."""
        return self._by_replica.get((role, index), ())

    # A pass asks for every replica of a large job many times: to look through all pods each time is n squared.

    @cached_property
    def _by_kind(self) -> dict[Kind, tuple[Child, ...]]:
        found: dict[Kind, list[Child]] = {}
        for (kind, _), child in sorted(self.children.items()):
            found.setdefault(kind, []).append(child)
        return {kind: tuple(children) for kind, children in found.items()}

    @cached_property
    def _by_replica(self) -> dict[tuple[str, int | None], tuple[Pod, ...]]:
        found: dict[tuple[str, int | None], list[Pod]] = {}
        for pod in self.pods:
            found.setdefault((pod.role, None), []).append(pod)
            found.setdefault((pod.role, pod.index), []).append(pod)
        return {replica: tuple(pods) for replica, pods in found.items()}
