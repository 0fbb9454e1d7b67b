"""Which member is each shard's primary, and which standby replaces a lost one?

With warm standbys the shard's Service is authoritative. Its selector names the primary, and the annotation written in
the same request counts the failovers, so one epoch never has two primaries. The write has the observed version of the
Service as its precondition: of two writes planned from one snapshot only one succeeds.

With hot standbys the chief decides by itself. A member is ready while it is in sync, and the first member in sync is
the primary. The operator only derives the status from that and writes nothing else.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from enum import StrEnum

from pstraining.api import names
from pstraining.api.conditions import Reason
from pstraining.api.models import PSTrainingJob
from pstraining.api.numbers import number
from pstraining.api.status import PSTrainingJobStatus, ShardStatus
from pstraining.core.actions import Apply, Delete, Kind
from pstraining.core.policies.failures import is_given_up_with_its_node
from pstraining.core.snapshot import Child, Pod, Snapshot
from pstraining.resources import services, standbys
from pstraining.resources.services import Pointer

START_GRACE = timedelta(seconds=30)
"""The time that a pod may take to start. It has no state to lose until then, and a chief may be connecting to it."""


class LossCause(StrEnum):
    """Why a failover happens, as shown in status and metrics."""

    GONE = "pod gone"
    DELETED = "pod deleted"
    ENDED = "container ended"
    NOT_READY = "not ready"
    NODE_LOST = "node lost"
    REQUESTED = "requested"
    NOT_STARTED = "not started"
    UNKNOWN_MEMBER = "no such member"


@dataclass(frozen=True)
class Loss:
    """Why a primary is replaced."""

    cause: LossCause
    since: datetime | None = None
    """When the loss was reported, usually by the kubelet."""
    detail: str = ""
    alive: bool = False
    """Whether its server may still run, with clients connected to it."""

    @property
    def words(self) -> str:
        """The loss as text."""
        return f"{self.cause} {self.detail}".strip()


@dataclass(frozen=True)
class ShardState:
    """One shard: its primary, its standbys, and the failover that is due."""

    index: int
    pointer: Pointer
    """The current primary and epoch."""
    members: tuple[Pod | None, ...]
    """The pods by member number; None for a member without a pod."""
    primary: Pod | None
    loss: Loss | None = None
    successor: Pod | None = None
    """The standby to promote now."""
    requested: bool = False
    """Whether a user requests a switchover from the present primary."""

    @property
    def standbys(self) -> tuple[Pod, ...]:
        """The pods of the members that are not primary."""
        return tuple(p for p in self.members if p is not None and p is not self.primary)

    @property
    def awaits_switchover(self) -> bool:
        """Whether a requested switchover waits for a standby."""
        return self.requested and self.successor is None

    @property
    def next_pointer(self) -> Pointer:
        """The primary and epoch after this pass."""
        if self.successor is None or self.loss is None:
            return self.pointer
        demoted = self.primary.uid if self.primary is not None and self.loss.alive else ""
        return Pointer(self.successor.name, self.pointer.epoch + 1, self.loss.words, demoted)


def shards(
    job: PSTrainingJob, snapshot: Snapshot, status: PSTrainingJobStatus, now: datetime
) -> tuple[ShardState, ...]:
    """Return every shard with its current and its next primary."""
    if standbys.is_hot(job):
        return tuple(_hot_shard(job, snapshot, status, index, now) for index in range(job.spec.ps.replicas))
    requested = _requested(snapshot)
    return tuple(_shard(job, snapshot, status, index, requested, now) for index in range(job.spec.ps.replicas))


def usable(pod: Pod) -> bool:
    """Whether clients can use this server."""
    return pod.serves and not pod.deleting and not pod.terminal


def promotions(job: PSTrainingJob, snapshot: Snapshot, shards: tuple[ShardState, ...]) -> Iterator[Apply]:
    """Promote the successors, each by one write to its shard's Service."""
    for shard in shards:
        service = _service(job, snapshot, shard.index)
        if shard.successor is not None and shard.loss is not None and service is not None:
            body = services.build_ps(job, shard.index, shard.next_pointer)
            version = service.manifest["metadata"].get("resourceVersion")
            body["metadata"] |= {"uid": service.uid} | ({"resourceVersion": version} if version else {})
            yield Apply(Kind.SERVICE, service.name, service.uid, body, Reason.TAKE_OVER, shard.loss.since)


def fences(snapshot: Snapshot, shards: tuple[ShardState, ...]) -> Iterator[Delete]:
    """Delete former primaries that still run: connected clients would continue to use them."""
    for shard in shards:
        for pod in snapshot.pods_of(names.PS, shard.index):
            if pod.uid == shard.next_pointer.demoted and not pod.deleting:
                yield Delete(Kind.POD, pod.name, pod.uid, Reason.TAKE_OVER)


def requeue_at(shards: tuple[ShardState, ...], now: datetime, new_term: datetime | None = None) -> datetime | None:
    """Return when the start grace of a member ends, for members that start or have no pod yet.

    Args:
        shards: every shard.
        now: the present time.
        new_term: when the chief was replaced.
    """
    several = [s for s in shards if len(s.members) > 1]
    members = (p for s in several for p in s.members if p is not None and (not usable(p) or None in s.members))
    moments = (moment for p in members for moment in (p.created, p.ready_changed, new_term) if moment is not None)
    return min((end for m in moments if (end := m + START_GRACE) > now), default=None)


def without_standbys(job: PSTrainingJob, snapshot: Snapshot, shards: tuple[ShardState, ...]) -> Snapshot:
    """Return the snapshot with the primary as the only pod of each shard. Servers of the next layout have no shard."""
    if not standbys.standbys(job):
        count = job.spec.ps.replicas
        if all(p.index < count for p in snapshot.pods_of(names.PS)):
            return snapshot
        return replace(snapshot, pods=tuple(p for p in snapshot.pods if p.role != names.PS or p.index < count))
    primaries = {shard.pointer.pod for shard in shards}
    pods = (p for p in snapshot.pods if p.role != names.PS or p.name in primaries)
    return replace(snapshot, pods=tuple(pods))


def _shard(
    job: PSTrainingJob,
    snapshot: Snapshot,
    status: PSTrainingJobStatus,
    index: int,
    requested: dict[int, int],
    now: datetime,
) -> ShardState:
    pointer = _pointer(job, snapshot, status, index)
    members = _members(job, snapshot, index)
    primary = next((p for p in snapshot.pods_of(names.PS, index) if p.name == pointer.pod), None)
    shard = ShardState(index, pointer, members, primary, requested=requested.get(index) == pointer.epoch)
    service = _service(job, snapshot, index)
    # A former primary cannot succeed itself before it has ended.
    others = (p for p in members if p is not None and p is not primary and p.uid != pointer.demoted)
    ready = next((p for p in others if usable(p)), None)
    if service is None or service.deleting or ready is None:
        return shard
    loss = lost(primary, now, new_term(snapshot))
    if loss is None and shard.requested:
        loss = Loss(LossCause.REQUESTED, now, alive=True)
    return shard if loss is None else replace(shard, loss=loss, successor=ready)


def lost(primary: Pod | None, now: datetime, new_term: datetime | None = None) -> Loss | None:
    """Return why a shard's primary cannot serve; None if it serves or is still starting.

    Args:
        primary: the primary's pod; None without one.
        now: the present time.
        new_term: when the chief was replaced, which restarts every server in place.
    """
    if primary is None:
        return Loss(LossCause.GONE)
    container = primary.container
    end = container.terminated or container.last
    if primary.deleting:
        given_up = is_given_up_with_its_node(primary)
        return Loss(LossCause.NODE_LOST if given_up else LossCause.DELETED, primary.deleted_at)
    if primary.terminal:
        detail = f"with code {end.exit_code}" if end is not None else f"({primary.reason or primary.phase})"
        return Loss(LossCause.ENDED, end.finished_at if end is not None else None, detail)
    if primary.serves:
        return None
    changed, started = primary.ready_changed, container.started_at
    # Before a container is ready for the first time, the last change of its pod is older than its start.
    if changed is not None and started is not None and changed > started:
        is_restarting = new_term is not None and new_term <= changed < new_term + START_GRACE
        if is_restarting and now < changed + START_GRACE:
            return None
        # Kubernetes marks the pods of a silent node not ready at once, long before it deletes them.
        return Loss(LossCause.NODE_LOST if primary.silent else LossCause.NOT_READY, changed, alive=True)
    if end is not None:
        return Loss(LossCause.ENDED, end.finished_at, f"with code {end.exit_code}")
    # The server of a shard that another layout adds waits for it, and starts with the chief's next attempt.
    due = max(primary.created, new_term or primary.created) + START_GRACE
    return Loss(LossCause.NOT_STARTED, due, alive=True) if now >= due else None


def _hot_shard(
    job: PSTrainingJob, snapshot: Snapshot, status: PSTrainingJobStatus, index: int, now: datetime
) -> ShardState:
    """Return the shard; its failovers are counted from the recorded status."""
    recorded = next((s for s in status.shards if s.index == index), ShardStatus(index=index))
    members, name = _members(job, snapshot, index), _hot_primary(job, snapshot, status, index)
    by_name = {p.name: p for p in members if p is not None}
    pointer, former = Pointer(name, recorded.takeovers, recorded.last_cause), by_name.get(recorded.primary)
    if name != recorded.primary and recorded.primary and not (former and usable(former)):
        loss = lost(former, now) or Loss(LossCause.GONE)  # a pod that starts is a new one
        pointer = Pointer(name, recorded.takeovers + 1, loss.words)
    return ShardState(index, pointer, members, by_name.get(name))


def _hot_primary(job: PSTrainingJob, snapshot: Snapshot, status: PSTrainingJobStatus, index: int) -> str:
    """Return the first member in sync, as the chief chooses; the recorded primary if none is."""
    recorded = next((s.primary for s in status.shards if s.index == index), "")
    return next((p.name for p in _members(job, snapshot, index) if p is not None and usable(p)), recorded)


def _members(job: PSTrainingJob, snapshot: Snapshot, index: int) -> tuple[Pod | None, ...]:
    pods = {p.name: p for p in snapshot.pods_of(names.PS, index)}
    return tuple(pods.get(standbys.pod(job, index, m)) for m in range(standbys.members(job)))


def _pointer(job: PSTrainingJob, snapshot: Snapshot, status: PSTrainingJobStatus, index: int) -> Pointer:
    """Return the pointer from the Service, or from status if there is no Service."""
    first = standbys.pod(job, index, 0)
    known = {standbys.pod(job, index, m) for m in range(standbys.members(job))}
    service = _service(job, snapshot, index)
    if service is None:
        recorded = next((s for s in status.shards if s.index == index), None)
        pointer = Pointer(recorded.primary, recorded.takeovers, recorded.last_cause) if recorded else Pointer(first)
    else:
        notes, selector = service.annotations, (service.manifest.get("spec") or {}).get("selector") or {}
        pointer = Pointer(
            str(selector.get(names.LABEL_STS_POD, "")),
            number(notes.get(names.ANNOTATION_EPOCH)) or 0,
            notes.get(names.ANNOTATION_CAUSE, ""),
            notes.get(names.ANNOTATION_DEMOTED, ""),
        )
    if pointer.pod in known:
        return pointer
    counts = standbys.standbys(job) or pointer.epoch
    return Pointer(first, pointer.epoch + 1, LossCause.UNKNOWN_MEMBER) if counts else Pointer(first)


def _service(job: PSTrainingJob, snapshot: Snapshot, index: int) -> Child | None:
    return snapshot.child(Kind.SERVICE, names.ps_service(job.metadata.name, index))


def new_term(snapshot: Snapshot) -> datetime | None:
    """Return when the newest attempt of the chief began, if it is not the first."""
    return max((p.created for p in snapshot.pods_of(names.CHIEF) if p.term > 1), default=None)


def _requested(snapshot: Snapshot) -> dict[int, int]:
    """Return the epoch of each shard for which a user requests a switchover."""
    text = (snapshot.job["metadata"].get("annotations") or {}).get(names.ANNOTATION_TAKEOVER, "")
    index, _, epoch = str(text).partition("@")
    shard, count = number(index), number(epoch)
    return {} if shard is None or count is None else {shard: count}
