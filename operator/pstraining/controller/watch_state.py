"""Holds the objects that the watches have delivered, and maps each event to the jobs that need a pass."""

from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Any

from pstraining.controller import failed_creates, nodes
from pstraining.controller.deletions import Deletions
from pstraining.controller.failed_creates import FailedCreates
from pstraining.controller.informer_cache import InformerCache, Key
from pstraining.controller.nodes import Nodes
from pstraining.controller.successes import Successes
from pstraining.core.actions import Kind
from pstraining.core.observe import observe
from pstraining.core.snapshot import Node, QueueObjects, Snapshot
from pstraining.core.usage import Usage
from pstraining.resources.installation import STANDARD, Installation

Object = Mapping[str, Any]


@dataclass
class WatchState:
    """The cached jobs and their objects, the nodes, and the pods that could not be created."""

    watches_nodes: bool = False
    cache: InformerCache = field(default_factory=InformerCache)
    nodes: Nodes = field(default_factory=Nodes)
    deletions: Deletions = field(default_factory=Deletions)
    successes: Successes = field(default_factory=Successes)
    failed_creates: FailedCreates = field(default_factory=FailedCreates)
    installation: Installation = STANDARD
    """The operator's installation, which main.py examines at the start."""
    queue_objects: Callable[[], QueueObjects] = QueueObjects
    """Returns Kueue's objects of the cluster that have been read."""
    hidden_workloads: dict[Key, dict[str, str]] = field(default_factory=dict)
    """Uids of Workloads that the watch does not deliver any more, by job and name (hidden_workloads.py)."""
    stall: Callable[[Key, str, Collection[str]], str | None] = lambda key, uid, pods: None
    """Returns why the job with this uid makes no steps; see `ProgressBoard.stall`."""
    usage: Callable[[Key, str], Usage] = lambda key, uid: MappingProxyType({})
    """Returns the resource usage of the pods of the job with this uid; see `UsageBoard.of`."""

    def receive(self, raw: Object, event: str | None) -> Iterable[Key]:
        """Record an object from a watch.

        Args:
            raw: the object.
            event: ADDED, MODIFIED, DELETED, or None if a list returned the object.

        Returns:
            The jobs that need a pass.
        """
        is_deleted = event == "DELETED"
        match raw.get("kind"):
            case nodes.KIND:
                changed = self.nodes.vanished(raw) if is_deleted else self.nodes.observed(raw)
                return self.cache.on_node(raw["metadata"]["name"]) if changed else ()
            case failed_creates.KIND:
                # Kubernetes deletes an event after an hour; its message stays valid until a pod is created.
                if is_deleted:
                    return ()
                job = self.cache.job_of(raw["metadata"]["namespace"], raw["involvedObject"])
                is_new = self.failed_creates.observed(raw, is_ours=job is not None)
                key = job if is_new else None
            case Kind.PS_TRAINING_JOB:
                job = raw["metadata"]["namespace"], raw["metadata"]["name"]
                former = self.cache.job_uid(job)
                key = self.cache.vanished(raw) if is_deleted else self.cache.observed(raw)
                if self.cache.job_uid(job) != former:
                    self.cache.drop_children(job)  # they belong to the former job of this name
            case _ if not is_deleted and not self.cache.belongs(raw):
                # Any user may write labels. Jobs are listed before their children (watch.py), and created before them.
                key = self.cache.drop(raw)
            case Kind.POD if is_deleted:
                self.deletions.vanished(raw)
                self.successes.vanished(raw)
                key = self.cache.vanished(raw)
            case Kind.POD:
                self._note_pod(raw, event)
                key = self.cache.observed(raw)
            case _ if is_deleted:
                # A job that replaces a deleted one waits until it may use the names of that one's objects.
                key = self.cache.vanished(raw) or self.cache.freed(raw)
            case _:
                key = self.cache.observed(raw)
        if key is not None and raw.get("kind") == Kind.WORKLOAD and not self.cache.has(raw):
            self.hidden_workloads.setdefault(key, {})[raw["metadata"]["name"]] = raw["metadata"]["uid"]
        return () if key is None else (key,)

    def snapshot(self, key: Key, mount_failures: Mapping[str, str] = MappingProxyType({})) -> Snapshot:
        """Return the snapshot of a job.

        Args:
            key: the job.
            mount_failures: messages about volumes of the job's pods, by the pod's uid.

        Raises:
            KeyError: the job is not cached.
        """
        view = self.cache.view(key)
        if view.job is None:
            raise KeyError(key)
        known_nodes = self.nodes.of(view.pods) if self.watches_nodes else None
        refusals = self.failed_creates.of(view.children, view.pods)
        found = view.job, view.children, view.pods, known_nodes, refusals
        uid = view.job["metadata"]["uid"]
        stays = {pod["metadata"]["uid"] for pod in view.pods if not pod["metadata"].get("deletionTimestamp")}
        installation, stall = self.installation, self.stall(key, uid, stays)
        snapshot = observe(*found, mount_failures=mount_failures, installation=installation, stall=stall)
        return replace(
            snapshot,
            pods=tuple(self.successes.timed(self.deletions.timed(pod)) for pod in snapshot.pods),
            nodes=self._timed(snapshot),
            last_reports=self.nodes.last_reports(view.pods),
            queue_objects=self.queue_objects(),
            usage=self.usage(key, uid),
        )

    def _note_pod(self, pod: Object, event: str | None) -> None:
        """Note a new pod, or a deletion and the report of a kubelet on the containers of the deleted pod."""
        is_new = event in ("ADDED", None)
        if is_new:
            self.failed_creates.pod_seen(pod)
        self.deletions.observed(pod, is_change=not is_new)
        if pod["metadata"].get("deletionTimestamp") and self.cache.has_new_containers(pod):
            self.nodes.pod_reported(str((pod.get("spec") or {}).get("nodeName")))

    def _timed(self, snapshot: Snapshot) -> Mapping[str, Node] | None:
        """Return the nodes of a snapshot with the times at which their silence was first seen."""
        if snapshot.nodes is None:
            return None
        return {name: replace(n, silent_since=self.nodes.silent_since(name)) for name, n in snapshot.nodes.items()}
