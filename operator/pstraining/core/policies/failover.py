"""Who is each shard's primary, and who takes over from one that is lost?

With warm standbys the shard's Service is the truth: its selector names the primary, and the annotation written in the
same request counts the take-overs, so that one epoch never has two primaries. The write has the observed version of the
Service as its precondition: of two that were planned from one picture only one happens.

With hot standbys the chief decides, and needs nobody for it: a member is ready while it is in sync, and the first one
that is in sync is primary. What is told here follows from that; nothing is written but status.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from enum import StrEnum

from pstraining.api import names
from pstraining.api.conditions import Reason
from pstraining.api.models import PSTrainingJob
from pstraining.api.status import PSTrainingJobStatus, ShardStatus
from pstraining.core.actions import Apply, Delete, Kind
from pstraining.core.policies.failure_counts import FailureCounts
from pstraining.core.policies.failures import is_given_up_with_its_node
from pstraining.core.snapshot import Child, Pod, Snapshot
from pstraining.resources import redundancy, services
from pstraining.resources.services import Pointer

START_GRACE = timedelta(seconds=30)
"""For so long a pod may start. What has never been ready has nothing to lose, and a chief may just be dialling it."""


class Cause(StrEnum):
    """Why a standby takes over; told in status and in metrics."""

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
    """Why a primary is not to be one any more."""

    cause: Cause
    since: datetime | None = None
    """When the kubelet, or whoever it was, said so."""
    detail: str = ""
    alive: bool = False
    """Its server may still run, and clients still hold connections to it."""

    @property
    def words(self) -> str:
        """For people."""
        return f"{self.cause} {self.detail}".strip()


@dataclass(frozen=True)
class Shard:
    """One shard: who is its primary, who stands by, and what is to change."""

    index: int
    pointer: Pointer
    """As it stands."""
    members: tuple[Pod | None, ...]
    """By number; None where a member has no pod."""
    primary: Pod | None
    loss: Loss | None = None
    successor: Pod | None = None
    """Who takes over now."""

    @property
    def standbys(self) -> tuple[Pod, ...]:
        """The pods of the members that are not primary."""
        return tuple(p for p in self.members if p is not None and p is not self.primary)

    @property
    def next_pointer(self) -> Pointer:
        """As it is to stand."""
        if self.successor is None or self.loss is None:
            return self.pointer
        demoted = self.primary.uid if self.primary is not None and self.loss.alive else ""
        return Pointer(self.successor.name, self.pointer.epoch + 1, self.loss.words, demoted)


def shards(job: PSTrainingJob, snapshot: Snapshot, status: PSTrainingJobStatus, now: datetime) -> tuple[Shard, ...]:
    """Every shard, as it stands and as it is to stand."""
    if redundancy.is_hot(job):
        return tuple(_hot_shard(job, snapshot, status, index, now) for index in range(job.spec.ps.replicas))
    asked = _asked(snapshot)
    return tuple(_shard(job, snapshot, status, index, asked, now) for index in range(job.spec.ps.replicas))


def usable(pod: Pod) -> bool:
    """Whether clients may be sent to it."""
    return pod.ready and not pod.deleting and not pod.terminal


def take_overs(job: PSTrainingJob, snapshot: Snapshot, found: tuple[Shard, ...]) -> Iterator[Apply]:
    """The writes that make standbys primary."""
    for shard in found:
        service = _service(job, snapshot, shard.index)
        if shard.successor is not None and shard.loss is not None and service is not None:
            body = services.build_ps(job, shard.index, shard.next_pointer)
            version = service.manifest["metadata"].get("resourceVersion")
            body["metadata"] |= {"uid": service.uid} | ({"resourceVersion": version} if version else {})
            yield Apply(Kind.SERVICE, service.name, service.uid, body, Reason.TAKE_OVER, shard.loss.since)


def fence(
    snapshot: Snapshot, status: PSTrainingJobStatus, counted: FailureCounts, found: tuple[Shard, ...]
) -> Iterator[Delete]:
    """Ends former primaries that still run: clients that are connected to them would go on with them."""
    if not counted.is_told(status):
        return  # what they did is told first
    for shard in found:
        for pod in snapshot.pods_of(names.PS, shard.index):
            if pod.uid == shard.next_pointer.demoted and not pod.deleting:
                yield Delete(Kind.POD, pod.name, pod.uid, Reason.TAKE_OVER)


def look_again_at(found: tuple[Shard, ...], now: datetime) -> datetime | None:
    """When a member that starts, or has no pod yet, has had its time, if nothing happens until then."""
    several = [s for s in found if len(s.members) > 1]
    members = (p for s in several for p in s.members if p is not None and (not usable(p) or None in s.members))
    moments = (moment for p in members for moment in (p.created, p.ready_changed) if moment is not None)
    return min((end for m in moments if (end := m + START_GRACE) > now), default=None)


def primaries_only(job: PSTrainingJob, snapshot: Snapshot, status: PSTrainingJobStatus) -> Snapshot:
    """The snapshot without standbys, for those who ask whether the job is served."""
    find = _hot_primary if redundancy.is_hot(job) else _primary
    serving = {find(job, snapshot, status, index) for index in range(job.spec.ps.replicas)}
    kept = (p for p in snapshot.pods if p.role != names.PS or p.name in serving)
    return replace(snapshot, pods=tuple(kept)) if redundancy.standbys(job) else snapshot


def _shard(
    job: PSTrainingJob,
    snapshot: Snapshot,
    status: PSTrainingJobStatus,
    index: int,
    asked: dict[int, int],
    now: datetime,
) -> Shard:
    pointer = _pointer(job, snapshot, status, index)
    members = _members(job, snapshot, index)
    primary = next((p for p in snapshot.pods_of(names.PS, index) if p.name == pointer.pod), None)
    shard = Shard(index, pointer, members, primary)
    service = _service(job, snapshot, index)
    # The former primary is not its own successor before it has ended.
    others = (p for p in members if p is not None and p is not primary and p.uid != pointer.demoted)
    ready = next((p for p in others if usable(p)), None)
    if service is None or service.deleting or ready is None:
        return shard
    loss = lost(primary, now, _new_term(snapshot))
    if loss is None and asked.get(index) == pointer.epoch:
        loss = Loss(Cause.REQUESTED, now, alive=True)
    return shard if loss is None else replace(shard, loss=loss, successor=ready)


def lost(primary: Pod | None, now: datetime, new_term: datetime | None = None) -> Loss | None:
    """Why a shard's primary cannot serve; None if it does, or is still starting.

    Args:
        primary: its pod.
        now: the present time.
        new_term: when the chief was replaced, which makes every server start anew in place.
    """
    if primary is None:
        return Loss(Cause.GONE)
    container = primary.container
    end = container.terminated or container.last
    if primary.deleting:
        given_up = is_given_up_with_its_node(primary)
        return Loss(Cause.NODE_LOST if given_up else Cause.DELETED, primary.deleted_at)
    if primary.terminal:
        detail = f"with code {end.exit_code}" if end is not None else f"({primary.reason or primary.phase})"
        return Loss(Cause.ENDED, end.finished_at if end is not None else None, detail)
    if primary.ready:
        return None
    changed, started = primary.ready_changed, container.started_at
    # Until a container is ready for the first time, its pod last "changed" before it began.
    if changed is not None and started is not None and changed > started:
        anew = new_term is not None and new_term <= changed < new_term + START_GRACE
        if anew and now < changed + START_GRACE:
            return None
        # Kubernetes calls the pods of a silent node not ready at once, long before it deletes them.
        return Loss(Cause.NODE_LOST if primary.silent else Cause.NOT_READY, changed, alive=True)
    if end is not None:
        return Loss(Cause.ENDED, end.finished_at, f"with code {end.exit_code}")
    if now >= primary.created + START_GRACE:
        return Loss(Cause.NOT_STARTED, primary.created + START_GRACE, alive=True)
    return None


def _hot_shard(job: PSTrainingJob, snapshot: Snapshot, status: PSTrainingJobStatus, index: int, now: datetime) -> Shard:
    """The shard as it is to be told: take-overs are counted from what was told before."""
    recorded = next((s for s in status.shards if s.index == index), ShardStatus(index=index))
    members, name = _members(job, snapshot, index), _hot_primary(job, snapshot, status, index)
    by_name = {p.name: p for p in members if p is not None}
    pointer, former = Pointer(name, recorded.takeovers, recorded.last_cause), by_name.get(recorded.primary)
    if name != recorded.primary and recorded.primary and not (former and usable(former)):
        loss = lost(former, now) or Loss(Cause.GONE)  # a pod that starts is another one
        pointer = Pointer(name, recorded.takeovers + 1, loss.words)
    return Shard(index, pointer, members, by_name.get(name))


def _hot_primary(job: PSTrainingJob, snapshot: Snapshot, status: PSTrainingJobStatus, index: int) -> str:
    """The first member in sync, as the chief chooses; if none is, the one that was told before."""
    recorded = next((s.primary for s in status.shards if s.index == index), "")
    return next((p.name for p in _members(job, snapshot, index) if p is not None and usable(p)), recorded)


def _members(job: PSTrainingJob, snapshot: Snapshot, index: int) -> tuple[Pod | None, ...]:
    pods = {p.name: p for p in snapshot.pods_of(names.PS, index)}
    return tuple(pods.get(redundancy.pod(job, index, m)) for m in range(redundancy.members(job)))


def _primary(job: PSTrainingJob, snapshot: Snapshot, status: PSTrainingJobStatus, index: int) -> str:
    return _pointer(job, snapshot, status, index).pod


def _pointer(job: PSTrainingJob, snapshot: Snapshot, status: PSTrainingJobStatus, index: int) -> Pointer:
    """What the Service says; what status remembers, where there is none."""
    first = redundancy.pod(job, index, 0)
    known = {redundancy.pod(job, index, m) for m in range(redundancy.members(job))}
    service = _service(job, snapshot, index)
    if service is None:
        recorded = next((s for s in status.shards if s.index == index), None)
        found = Pointer(recorded.primary, recorded.takeovers, recorded.last_cause) if recorded else Pointer(first)
    else:
        notes, selector = service.annotations, (service.manifest.get("spec") or {}).get("selector") or {}
        epoch = notes.get(names.ANNOTATION_EPOCH, "")
        found = Pointer(
            str(selector.get(names.LABEL_STS_POD, "")),
            int(epoch) if epoch.isdecimal() else 0,
            notes.get(names.ANNOTATION_CAUSE, ""),
            notes.get(names.ANNOTATION_DEMOTED, ""),
        )
    if found.pod in known:
        return found
    counts = redundancy.standbys(job) or found.epoch
    return Pointer(first, found.epoch + 1, Cause.UNKNOWN_MEMBER) if counts else Pointer(first)


def _service(job: PSTrainingJob, snapshot: Snapshot, index: int) -> Child | None:
    return snapshot.child(Kind.SERVICE, names.ps_service(job.metadata.name, index))


def _new_term(snapshot: Snapshot) -> datetime | None:
    """When the newest attempt of the chief began, if it is not the first."""
    return max((p.created for p in snapshot.pods_of(names.CHIEF) if p.term > 1), default=None)


def _asked(snapshot: Snapshot) -> dict[int, int]:
    """The take-over that somebody asks for: in which epoch of which shard."""
    text = (snapshot.job["metadata"].get("annotations") or {}).get(names.ANNOTATION_TAKEOVER, "")
    index, _, epoch = str(text).partition("@")
    return {int(index): int(epoch)} if index.isdecimal() and epoch.isdecimal() else {}
