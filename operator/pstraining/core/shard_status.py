"""The state of the shards: status.shards, the condition Degraded, and one event per failover."""

from collections.abc import Iterator
from datetime import datetime

from pstraining.api import names
from pstraining.api.conditions import Reason
from pstraining.api.models import PSTrainingJob
from pstraining.api.status import PSTrainingJobStatus, ShardStatus
from pstraining.core.actions import Event
from pstraining.core.facts import Facts
from pstraining.core.policies import failover, node_loss
from pstraining.core.policies.diagnosis import diagnosis_of
from pstraining.core.policies.failover import START_GRACE, LossCause, ShardState
from pstraining.core.snapshot import Pod
from pstraining.resources.standbys import is_hot, pod, standbys


def shard_statuses(facts: Facts) -> list[ShardStatus]:
    """Return the status of every shard; none for a job without standbys."""
    if not standbys(facts.job):
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
        for s in facts.shards
    ]


def takeovers(old: PSTrainingJobStatus, shards: list[ShardStatus]) -> int:
    """Return the number of failovers in all shards, including shards that the job no longer has.

    Args:
        old: the stored status.
        shards: the shards of the new status.
    """
    before = {s.index: s.takeovers for s in old.shards}
    new = sum(max(0, s.takeovers - before.get(s.index, s.takeovers)) for s in shards)
    return max(old.takeovers + new, sum(s.takeovers for s in shards))


def standby_summary(job: PSTrainingJob, shards: list[ShardStatus]) -> str:
    """Return the ready and the desired number of standbys."""
    ready = sum(s.ready_standbys for s in shards)
    return f"{ready}/{standbys(job) * job.spec.ps.replicas}" if shards else ""


def degraded(facts: Facts, *, stored: bool) -> tuple[bool, Reason, str] | None:
    """Return the condition Degraded, with the cause at the first shard that lacks standbys; None if it does not apply.

    Args:
        facts: the facts of this pass.
        stored: whether the status has the condition already, true or false.
    """
    ignored = _ignored_request(facts)
    has_standbys = bool(standbys(facts.job))
    lacking = [s for s in facts.shards if has_standbys and _lacks_standbys(facts, s)]
    if not lacking:
        calm = "Every shard has its standbys" if has_standbys else "The job has no standbys"
        return (False, Reason.STANDBYS_READY, f"{calm}{ignored}.") if stored or ignored else None
    more = f" (and {len(lacking) - 1} more)" if len(lacking) > 1 else ""
    message = f"Shard {lacking[0].index}{more}: {_waits_for(facts, lacking[0])}{ignored}"
    requested = next((s.index for s in lacking if s.awaits_switchover), None)
    if requested is not None:
        withdrawal = f"to withdraw it, remove the job's annotation {names.ANNOTATION_TAKEOVER}"
        message += f"; the requested switchover of shard {requested} waits for a standby: {withdrawal}"
    return True, Reason.STANDBY_MISSING, message


def _ignored_request(facts: Facts) -> str:
    """Return that the operator ignores a requested switchover, and the way out; empty if it ignores none."""
    is_requested = names.ANNOTATION_TAKEOVER in (facts.snapshot.job["metadata"].get("annotations") or {})
    if not is_requested or (standbys(facts.job) and not is_hot(facts.job)):
        return ""
    why = "with hot standbys, the chief selects the primary: to move a member, delete its pod"
    return f"; the job's annotation {names.ANNOTATION_TAKEOVER} has no effect{f': {why}' if is_hot(facts.job) else ''}"


def took_over(old: PSTrainingJobStatus, new: PSTrainingJobStatus) -> Iterator[Event]:
    """Yield one event for every shard that has a new primary."""
    before = {s.index: s.takeovers for s in old.shards}
    for shard in new.shards:
        if shard.takeovers > before.get(shard.index, 0):
            kind = "Normal" if shard.last_cause == LossCause.REQUESTED else "Warning"
            message = f"Shard {shard.index}: {shard.primary} is now the primary ({shard.last_cause})."
            yield Event(kind, Reason.TOOK_OVER, message)


def _ready(shard: ShardState) -> tuple[Pod, ...]:
    return tuple(p for p in shard.standbys if failover.usable(p))


def _lacks_standbys(facts: Facts, shard: ShardState) -> bool:
    """Whether standbys are missing; a standby that starts for the first time counts as missing after its grace, or if a
    requested switchover waits for it."""
    missing = standbys(facts.job) - len(_ready(shard))
    recorded = next((s for s in facts.status.shards if s.index == shard.index), None)
    had_standbys = recorded is not None and (recorded.ready_standbys > 0 or recorded.takeovers > 0)
    if missing <= 0 or had_standbys or shard.awaits_switchover or _was_degraded(facts.status):
        return missing > 0
    pods = [p for p in shard.members if p is not None]
    # Every member has its own StatefulSet: its pod may appear a moment after another member is ready.
    fresh = any(facts.now < p.created + START_GRACE for p in pods)
    starting = sum(_starts(p, facts.now) for p in pods) + fresh * (len(shard.members) - len(pods))
    return starting < missing and bool(pods)


def _was_degraded(status: PSTrainingJobStatus) -> bool:
    return any(c.type == "Degraded" and c.status == "True" for c in status.conditions)


def _starts(server: Pod, now: datetime) -> bool:
    return not failover.usable(server) and server.container.last is None and now < server.created + START_GRACE


def _waits_for(facts: Facts, shard: ShardState) -> str:
    for member, server in enumerate(shard.members):
        name = pod(facts.job, shard.index, member)
        if name == shard.pointer.pod or (server is not None and failover.usable(server)):
            continue
        if server is None:
            return f"there is no pod {name} yet"
        if server.deleting:
            held = node_loss.why_held(facts.job, facts.snapshot, server)
            return held or f"pod {name} is being deleted and will be replaced"
        trouble = diagnosis_of(server, facts.now)
        awaited = "in sync" if is_hot(facts.job) else "ready"
        return trouble.message if trouble is not None else f"pod {name} is not {awaited} yet"
    return f"no member except {shard.pointer.pod} is ready"
