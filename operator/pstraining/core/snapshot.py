"""What is observed of one job, frozen: the only input of planning besides the clock.

`observe` reads raw objects as the API server sends them and never raises for what a cluster may hold; children that the
job does not control are left out, whatever their labels say.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from functools import cached_property
from typing import Any

from pstraining.api import names
from pstraining.core.actions import Kind, Manifest

OUT_OF_SERVICE = "node.kubernetes.io/out-of-service"


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
    container: Container
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
    round: int = 0
    """How often the job had been restarted as a whole when the pod was rendered."""

    @property
    def terminal(self) -> bool:
        """No process of this pod will ever run again."""
        return self.phase in ("Succeeded", "Failed")

    @property
    def over(self) -> bool:
        """No process of this pod runs, or none that still counts."""
        return self.terminal or self.lost


@dataclass(frozen=True)
class Node:
    """One node of the cluster."""

    name: str
    ready: bool
    answers: bool
    """Its kubelet is heard of: the condition Ready is not Unknown."""
    out_of_service: bool
    """Somebody vouches that nothing runs on it any more (KEP-2268)."""


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
    def round(self) -> int:
        """How often the job has been restarted as a whole, by its stored status."""
        found = self.status.get("jobRestarts")
        return found if isinstance(found, int) else 0

    def is_of_this_round(self, found: Pod | Child) -> bool:
        """Whether something was made since the job was last restarted as a whole: what is older counts no more."""
        number = found.round if isinstance(found, Pod) else max(0, found.number(names.LABEL_ROUND))
        return number >= self.round

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


def observe(
    job: Manifest,
    children: Iterable[Manifest],
    pods: Iterable[Manifest],
    nodes: Iterable[Manifest] | None = None,
    refusals: Mapping[str, str] | None = None,
) -> Snapshot:
    """Freeze what the caches hold of one job.

    Args:
        job: the PSTrainingJob.
        children: objects of any kind but Pod that may belong to it; `kind` is set on each.
        pods: pods that carry the job's name as a label.
        nodes: the nodes that are known; None if nodes are not watched.
        refusals: why pods of a workload could not be created, by the workload's uid.
    """
    uid = job["metadata"]["uid"]
    owned = {}
    for manifest in children:
        if controller_uid(manifest) == uid or _is_claim_of(manifest, uid):
            child = _child(manifest, (refusals or {}).get(manifest["metadata"]["uid"], ""))
            owned[child.kind, child.name] = child
    mine = [p for m in pods if (p := _pod(m, uid)) is not None]
    found = None if nodes is None else {n.name: n for n in map(_node, nodes)}
    return Snapshot(job=job, children=owned, pods=tuple(sorted(mine, key=lambda p: (p.created, p.name))), nodes=found)


def controller_uid(manifest: Manifest) -> str | None:
    """The uid of the object's controller, if it has one."""
    for reference in manifest["metadata"].get("ownerReferences") or ():
        if reference.get("controller"):
            return str(reference.get("uid"))
    return None


def _is_claim_of(manifest: Manifest, job_uid: str) -> bool:
    """A PS's claim outlives its StatefulSet, and perhaps the job: a label is all that it has of it."""
    labels = manifest["metadata"].get("labels") or {}
    return manifest["kind"] == Kind.CLAIM and labels.get(names.LABEL_JOB_UID) == job_uid


def parse_time(text: str | None) -> datetime | None:
    """A Kubernetes timestamp (RFC 3339, UTC) as an aware datetime."""
    return datetime.fromisoformat(text.replace("Z", "+00:00")) if text else None


def _child(manifest: Manifest, refusal: str) -> Child:
    metadata = manifest["metadata"]
    return Child(
        kind=Kind(manifest["kind"]),
        name=metadata["name"],
        uid=metadata["uid"],
        deleting=bool(metadata.get("deletionTimestamp")),
        manifest=manifest,
        refusal=refusal,
    )


def _pod(manifest: Manifest, job_uid: str) -> Pod | None:
    metadata, spec, status = manifest["metadata"], manifest.get("spec") or {}, manifest.get("status") or {}
    labels = metadata.get("labels") or {}
    role, created = labels.get(names.LABEL_ROLE), parse_time(metadata.get("creationTimestamp"))
    # Labels alone don't make a pod ours, but a pod's owner is a child of ours and not the job: the uid label, which no
    # other job shares, stands for the chain.
    if labels.get(names.LABEL_JOB_UID) != job_uid or role is None or created is None:
        return None
    index = labels.get(names.LABEL_INDEX) or labels.get(names.LABEL_POD_INDEX) or "0"
    term = labels.get(names.LABEL_TERM) or labels.get(names.LABEL_ATTEMPT) or "0"
    member = labels.get(names.LABEL_MEMBER) or "0"
    round_ = labels.get(names.LABEL_ROUND) or "0"
    if not (index.isdecimal() and term.isdecimal() and member.isdecimal() and round_.isdecimal()):
        return None  # labels that somebody else has written
    conditions = {c.get("type"): c for c in status.get("conditions") or ()}
    scheduled = conditions.get("PodScheduled", {})
    containers = spec.get("containers") or ()
    return Pod(
        name=metadata["name"],
        uid=metadata["uid"],
        role=role,
        index=int(index),
        term=int(term),
        created=created,
        phase=status.get("phase", "Pending"),
        deleting=bool(metadata.get("deletionTimestamp")),
        ready=conditions.get("Ready", {}).get("status") == "True",
        disruption=_disruption(conditions.get("DisruptionTarget", {}), status),
        unschedulable=scheduled.get("message", "") if scheduled.get("reason") == "Unschedulable" else "",
        reason=status.get("reason", ""),
        cluster_hash=(metadata.get("annotations") or {}).get(names.ANNOTATION_CLUSTER_HASH, ""),
        container=_container(status.get("containerStatuses") or (), main_container_name(containers)),
        member=int(member),
        deleted_at=_deleted_at(metadata),
        ends_at=parse_time(metadata.get("deletionTimestamp")),
        forced=bool(metadata.get("deletionTimestamp")) and metadata.get("deletionGracePeriodSeconds") == 0,
        node=spec.get("nodeName", ""),
        ready_changed=parse_time(conditions.get("Ready", {}).get("lastTransitionTime")),
        blocked_init=_blocked_init(status.get("initContainerStatuses") or ()),
        init_failures=_init_failures(status.get("initContainerStatuses") or ()),
        round=int(round_),
    )


def _node(manifest: Manifest) -> Node:
    conditions = (manifest.get("status") or {}).get("conditions") or ()
    ready = next((str(c.get("status")) for c in conditions if c.get("type") == "Ready"), "Unknown")
    taints = {t.get("key") for t in (manifest.get("spec") or {}).get("taints") or ()}
    return Node(manifest["metadata"]["name"], ready == "True", ready != "Unknown", OUT_OF_SERVICE in taints)


def _deleted_at(metadata: Mapping[str, Any]) -> datetime | None:
    """deletionTimestamp is when the grace period will have ended."""
    end = parse_time(metadata.get("deletionTimestamp"))
    return end and end - timedelta(seconds=metadata.get("deletionGracePeriodSeconds") or 0)


def main_container_name(containers: Iterable[Mapping[str, Any]]) -> str:
    """The wrapped container: the one named `tensorflow`, else the first, which is then the only one."""
    found = [str(c.get("name", "")) for c in containers]
    return names.MAIN_CONTAINER if names.MAIN_CONTAINER in found or not found else found[0]


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
    )


def _disruption(condition: Mapping[str, Any], status: Mapping[str, Any]) -> str:
    if condition.get("status") == "True":
        return str(condition.get("reason") or "TerminationByKubelet")
    reason = str(status.get("reason", ""))
    return reason if reason in ("Evicted", "NodeLost", "Preempting", "Shutdown", "Terminated") else ""


def _init_failures(statuses: Iterable[Mapping[str, Any]]) -> int:
    """Failed runs; a sidecar, which runs on, is none of them."""
    found = 0
    for status in statuses:
        container = _container_state(status)
        failed = container.terminated is not None and container.terminated.exit_code != 0
        if container.terminated is not None or container.waiting_reason == "CrashLoopBackOff":
            found += container.restarts + (failed or container.waiting_reason == "CrashLoopBackOff")
    return found


def _blocked_init(statuses: Iterable[Mapping[str, Any]]) -> Container | None:
    for status in statuses:
        container = _container_state(status)
        failed = container.terminated is not None and container.terminated.exit_code != 0
        if failed or container.waiting_reason not in ("", "PodInitializing"):
            return container
    return None
