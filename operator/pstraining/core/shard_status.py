"""How the shards stand, for people: status.shards, the condition Degraded, and one event a take-over."""

from collections.abc import Iterator
from datetime import datetime

from pstraining.api.conditions import Reason
from pstraining.api.models import PSTrainingJob
from pstraining.api.status import PSTrainingJobStatus, ShardStatus
from pstraining.core.actions import Event
from pstraining.core.policies import failover
from pstraining.core.policies.diagnosis import diagnosis_of
from pstraining.core.policies.failover import START_GRACE, Cause, Shard
from pstraining.core.snapshot import Pod, Snapshot
from pstraining.resources.redundancy import is_hot, pod, standbys


def shard_statuses(
    job: PSTrainingJob, snapshot: Snapshot, old: PSTrainingJobStatus, now: datetime
) -> list[ShardStatus]:
    """Every shard as it stands; nothing where there are no standbys."""
    if not standbys(job):
        return []
    return [
        ShardStatus(
            index=s.index,
            members=sum(p is not None for p in s.members),
            primary=s.pointer.pod,
            ready_standbys=len(_ready(s)),
            takeovers=s.pointer.epoch,
            last_cause=s.pointer.cause,
        )
        for s in failover.shards(job, snapshot, old, now)
    ]


def standby_summary(job: PSTrainingJob, shards: list[ShardStatus]) -> str:
    """Ready standbys of those desired."""
    ready = sum(s.ready_standbys for s in shards)
    return f"{ready}/{standbys(job) * job.spec.ps.replicas}" if shards else ""


def degraded(
    job: PSTrainingJob, snapshot: Snapshot, old: PSTrainingJobStatus, now: datetime, *, told: bool
) -> tuple[bool, Reason, str] | None:
    """Whether a shard lacks standbys, and what the first one waits for; None if there is nothing to say.

    Args:
        job: the job.
        snapshot: what is observed.
        old: the stored status.
        now: the present time.
        told: Degraded was told before, whatever it said.
    """
    if not standbys(job):
        return (False, Reason.STANDBYS_READY, "The job has no standbys.") if told else None
    lacking = [s for s in failover.shards(job, snapshot, old, now) if _lacks(job, s, old, now)]
    if not lacking:
        return (False, Reason.STANDBYS_READY, "Every shard has its standbys.") if told else None
    more = f" (and {len(lacking) - 1} more)" if len(lacking) > 1 else ""
    return True, Reason.STANDBY_MISSING, f"Shard {lacking[0].index}{more}: {_waits_for(job, lacking[0], now)}"


def took_over(old: PSTrainingJobStatus, new: PSTrainingJobStatus) -> Iterator[Event]:
    """One event for every shard that has another primary."""
    before = {s.index: s.takeovers for s in old.shards}
    for shard in new.shards:
        if shard.takeovers > before.get(shard.index, 0):
            kind = "Normal" if shard.last_cause == Cause.REQUESTED else "Warning"
            message = f"Shard {shard.index}: {shard.primary} has taken over ({shard.last_cause})."
            yield Event(kind, Reason.TOOK_OVER, message)


def _ready(shard: Shard) -> tuple[Pod, ...]:
    return tuple(p for p in shard.standbys if failover.usable(p))


def _lacks(job: PSTrainingJob, shard: Shard, old: PSTrainingJobStatus, now: datetime) -> bool:
    """A standby that starts for the first time is not missed before it has had its time."""
    missing = standbys(job) - len(_ready(shard))
    known = next((s for s in old.shards if s.index == shard.index), None)
    had = known is not None and (known.ready_standbys > 0 or known.takeovers > 0)
    if missing <= 0 or had or _was_degraded(old):
        return missing > 0
    there = [p for p in shard.members if p is not None]
    # Every member has a StatefulSet of its own: the pod of one may come a moment after that of the other is ready.
    fresh = any(now < p.created + START_GRACE for p in there)
    starting = sum(_starts(p, now) for p in there) + fresh * (len(shard.members) - len(there))
    return starting < missing and bool(there)


def _was_degraded(old: PSTrainingJobStatus) -> bool:
    return any(c.type == "Degraded" and c.status == "True" for c in old.conditions)


def _starts(found: Pod, now: datetime) -> bool:
    return not failover.usable(found) and found.container.last is None and now < found.created + START_GRACE


def _waits_for(job: PSTrainingJob, shard: Shard, now: datetime) -> str:
    for member, found in enumerate(shard.members):
        name = pod(job, shard.index, member)
        if name == shard.pointer.pod or (found is not None and failover.usable(found)):
            continue
        if found is None:
            return f"there is no pod {name} yet"
        if found.deleting:
            return f"pod {name} is being deleted; another one follows"
        trouble = diagnosis_of(found, now)
        awaited = "in sync" if is_hot(job) else "ready"
        return trouble.message if trouble is not None else f"pod {name} is not {awaited} yet"
    return f"no member is ready but {shard.pointer.pod}"
