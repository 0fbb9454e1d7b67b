"""Which sizes follow from the measurements of a job's pods? Sizes are recommended, and memory limits may grow.

    the working set reaches 85 % of the limit    the limit grows by half, or by the expected growth of ten minutes, to
                                                 at most four times; at most once in ten minutes
    the working set reaches 95 % of the limit    the same, also within ten minutes
    the kernel has killed a process for memory   the limit doubles, also within ten minutes
    the size is refused or cannot be granted     the change is withdrawn, and tried again after ten minutes

In mode Full, parameter servers are also added (policies/server_growth.py).

A limit never exceeds the maximum of spec.autoscaling, and never shrinks by itself. The pass that decides writes the new
limit to status alone. The next pass resizes the pods as after a change of the spec (policies/grown_sizes.py,
policies/resizing.py), so that an operator that dies between the two resumes where it was.
"""

from collections.abc import Iterator
from datetime import datetime, timedelta
from decimal import Decimal
from typing import Final

from pstraining.api import names
from pstraining.api.autoscaling import AutoscalingMode, RoleSizing
from pstraining.api.conditions import Condition, Reason
from pstraining.api.status import StatusCondition
from pstraining.core.actions import Event, Outcome, Resize
from pstraining.core.facts import Facts
from pstraining.core.policies import grown_sizes, resizing, server_growth
from pstraining.core.snapshot import Pod, ResizeState
from pstraining.core.usage import RoleUsage
from pstraining.resources import sizes
from pstraining.resources.resource_requests import parse

HEADROOM: Final = Decimal("1.2")
"""The recommended limit as a multiple of the measured peak."""
NEWS: Final = Decimal("1.1")
"""Factor by which a measurement must change to be written again; status is written a few dozen times at most."""
LAST_SHARE: Final = Decimal("0.95")
"""Share of a limit in use from which a role grows without waiting for anything."""
LEAST_FACTOR: Final = Decimal("1.5")
MOST_FACTOR: Final = Decimal(4)
OOM_FACTOR: Final = Decimal(2)
SETTLE: Final = timedelta(seconds=30)
"""Time after a change during which OOM kills are attributed to the former size."""
OOM_AGE: Final = timedelta(minutes=5)
"""Age above which an OOM kill is ignored, after the operator was away, or when growth has just been allowed."""


def next_limit(
    limit: Decimal, maximum: Decimal, usage: RoleUsage | None, *, is_killed: bool, is_rested: bool, is_refused: bool
) -> Decimal | None:
    """Return the memory limit in bytes that a role needs; None if it may keep its limit.

    The result is at most the maximum. It is not larger than the limit if the maximum does not allow more.

    Args:
        limit: the present limit in bytes.
        maximum: the largest limit that is allowed.
        usage: the role's resource usage; None if it is not known.
        is_killed: whether a process of the role was killed for memory with the present limit.
        is_rested: whether the last change is long enough ago.
        is_refused: whether a growth has been withdrawn, and may not be tried again yet.
    """
    if is_killed:
        wanted = OOM_FACTOR * limit
    elif usage is not None and _must_grow(limit, usage, is_rested=is_rested, is_refused=is_refused):
        until_next = usage.memory + (usage.growth or 0) * Decimal(grown_sizes.REST.total_seconds())
        wanted = min(max(LEAST_FACTOR * limit, until_next), MOST_FACTOR * limit)
    else:
        return None
    return min(sizes.whole_mebibytes(wanted), maximum)


def _must_grow(limit: Decimal, usage: RoleUsage, *, is_rested: bool, is_refused: bool) -> bool:
    if usage.memory >= LAST_SHARE * limit:
        return not is_refused
    # The second measurement arrives within seconds. By the first one alone, a limit would be too small for ten minutes.
    return is_rested and usage.growth is not None and usage.memory >= grown_sizes.GROW_SHARE * limit


def sizings(facts: Facts, refused: Outcome | None) -> list[RoleSizing]:
    """Return status.autoscaling: the measurements of each role, and the memory that it has grown to.

    Args:
        facts: the facts of this pass.
        refused: the outcome of a resize that the API server has refused in this pass.
    """
    stored = facts.status.autoscaling
    if facts.recorded_end is not None:
        return stored
    autoscaling, is_suspended = facts.job.spec.autoscaling, facts.job.spec.run_policy.suspend
    if autoscaling.mode is AutoscalingMode.OFF:
        # Running pods keep their size: with less memory they would be killed at once.
        kept = [] if is_suspended else [s for s in stored if s.grown_memory is not None or s.grown_replicas is not None]
        return [_without_measurements(_withdrawn(facts, sizing, refused) or sizing) for sizing in kept]
    before = {sizing.role: sizing for sizing in stored}
    found = []
    for role in names.ROLES:
        usage = facts.snapshot.usage.get(role)
        sizing = _measured(before.get(role, RoleSizing(role=role)), usage)
        if autoscaling.grows and not is_suspended:
            former, sizing = sizing, _adapted(facts, sizing, usage, refused)
            adds = role == names.PS and autoscaling.mode is AutoscalingMode.FULL and not facts.queue.decides
            is_withdrawn = grown_sizes.infeasible(former, facts.snapshot, facts.now) is not None
            if adds and (is_withdrawn or not _is_tried(facts, former, sizing)):
                sizing = server_growth.adapted(facts, sizing, usage, is_withdrawn=is_withdrawn)
        elif not is_suspended:
            sizing = _withdrawn(facts, sizing, refused) or sizing
        if sizing != RoleSizing(role=role):
            found.append(sizing)
    return found


def takes_back(facts: Facts, refused: Outcome) -> bool:
    """Whether a resize that the API server has refused is a growth, which is then withdrawn."""
    return _taken_back(facts, refused) != ""


def state(facts: Facts, stored: StatusCondition | None, found: list[RoleSizing]) -> tuple[bool, Reason, str] | None:
    """Return the condition Autoscaling of a job that does not end or stop; None if the job has none.

    Args:
        facts: the facts of this pass.
        stored: the condition as stored.
        found: status.autoscaling after this pass.
    """
    mode = facts.job.spec.autoscaling.mode
    if mode is AutoscalingMode.OFF:
        return None if stored is None else (False, Reason.AUTOSCALING_OFF, "")
    if facts.snapshot.installation.progress is None:
        return (
            False,
            Reason.NOT_MEASURED,
            f"The operator accepts no reports ({_CHART}): memory grows only after OOM kills.",
        )
    if not any(sizing.peak_memory for sizing in found):
        message = "No measurement has arrived yet. Pods of an earlier version of the operator send none: suspend the "
        return False, Reason.NOT_MEASURED, f"{message}job and resume it."
    if mode is AutoscalingMode.RECOMMEND:
        return True, Reason.SIZES_RECOMMENDED, "status.autoscaling has the sizes; nothing is changed."
    if (held := _held(facts)) is not None:
        return False, *held
    roles = [role for role in _growing(facts) if sizes.limit_of(facts.sizes[role].text) is None]
    if roles:
        message = f"{', '.join(roles)}: the training container has no memory limit, so there is none to raise."
        return False, Reason.NO_MEMORY_LIMIT, message
    outlook = server_growth.outlook(facts)
    if full := [sizing for sizing in found if sizing.at_maximum]:
        return False, Reason.MAXIMUM_REACHED, " ".join(_full_message(facts, sizing) for sizing in full) + outlook
    return True, Reason.MEMORY_MAY_GROW, _maxima(facts) + outlook


def events(old: list[RoleSizing], new: list[RoleSizing]) -> Iterator[Event]:
    """Yield an event for each change of a size or number, each that was withdrawn, and each maximum that is reached.

    Args:
        old: status.autoscaling before.
        new: status.autoscaling now.
    """
    before = {sizing.role: sizing for sizing in old}
    for sizing in new:
        former = before.get(sizing.role, RoleSizing(role=sizing.role))
        message = f"{sizing.role}: {sizing.message}"
        if sizing.grown_replicas != former.grown_replicas:  # maybe in the second in which memory has grown for it
            yield Event("Normal", Reason.SERVERS_ADDED, message)
        elif sizing.grown_time != former.grown_time:
            if sizing.message.startswith(_KILLED):
                yield Event("Warning", Reason.MEMORY_DOUBLED, message)
            else:
                yield Event("Normal", Reason.MEMORY_GROWN, message)
        elif sizing.message != former.message and sizing.message:
            yield Event("Warning", Reason.GROWTH_REFUSED, message)
        if sizing.at_maximum and not former.at_maximum:
            yield Event("Warning", Reason.MAXIMUM_REACHED, f"{sizing.role}: {_raise_it(sizing.role)}")


_CHART: Final = "progress.enabled of its chart is false"
_KILLED: Final = "After an OOM kill"


def _without_measurements(sizing: RoleSizing) -> RoleSizing:
    gone = {"peak_memory": None, "recommended_memory": None, "recommended_cpu": None, "at_maximum": False}
    return sizing.model_copy(update=gone)


def _measured(sizing: RoleSizing, usage: RoleUsage | None) -> RoleSizing:
    """Return a role's sizing with the newest measurements that differ enough to be written."""
    if usage is None:
        return sizing
    updates: dict[str, str] = {}
    if usage.peak and (sizing.peak_memory is None or usage.peak > NEWS * parse(sizing.peak_memory)):
        peak = Decimal(usage.peak)
        updates = {
            "peak_memory": sizes.memory_text(sizes.whole_mebibytes(peak)),
            "recommended_memory": sizes.memory_text(sizes.whole_mebibytes(HEADROOM * peak)),
        }
    if usage.cpu is not None:
        cpu = Decimal(max(10, -(-usage.cpu // 10) * 10))
        known = None if sizing.recommended_cpu is None else 1000 * parse(sizing.recommended_cpu)
        if known is None or cpu > NEWS * known or known > NEWS * cpu:
            updates["recommended_cpu"] = f"{cpu}m"
    return sizing.model_copy(update=updates) if updates else sizing


def _adapted(facts: Facts, sizing: RoleSizing, usage: RoleUsage | None, refused: Outcome | None) -> RoleSizing:
    """Return a role's sizing with the limit that it needs now."""
    if (withdrawn := _withdrawn(facts, sizing, refused)) is not None:
        return withdrawn
    limit, maximum = sizes.limit_of(facts.sizes[sizing.role].text), facts.job.spec.autoscaling.maximum(sizing.role)
    if limit is None or maximum is None or _held(facts) is not None or _is_being_resized(facts, sizing.role):
        return sizing
    killed = _newest_kill(facts, sizing, usage)
    is_rested = grown_sizes.is_rested(sizing, facts.now)
    # A limit that was just refused has no former one, and waits.
    is_refused = not is_rested and sizing.grown_from is None
    needed = next_limit(
        limit, parse(maximum), usage, is_killed=bool(killed), is_rested=is_rested, is_refused=is_refused
    )
    if not is_refused and server_growth.is_memory_high(facts, sizing.role, usage):
        needed = parse(maximum)
    if needed is None or needed <= limit:
        # The role counts as at its maximum until the maximum is raised or its use has fallen: one report is enough.
        is_full = needed is not None or (sizing.at_maximum and parse(maximum) <= limit and _is_high(usage, limit))
        return sizing.model_copy(update={"at_maximum": is_full})
    return _grown(facts, sizing, usage, (limit, needed), killed)


def _withdrawn(facts: Facts, sizing: RoleSizing, refused: Outcome | None) -> RoleSizing | None:
    """Return a role's sizing without a growth that is refused or cannot be granted; None if there is none.

    The mode may have changed since it grew.
    """
    problem = grown_sizes.infeasible(sizing, facts.snapshot, facts.now)
    if problem is None and refused is not None and _taken_back(facts, refused) == sizing.role:
        problem = refused.message
    if problem is None:
        return None
    message = f"The memory limit {sizing.grown_memory} cannot be granted: {problem}"
    updates = {"grown_memory": _former(facts, sizing), "grown_from": None, "message": message, "at_maximum": False}
    return sizing.model_copy(update=updates)


def _former(facts: Facts, sizing: RoleSizing) -> str | None:
    """Return the memory limit that a role had grown to before its last change; None if it had the spec's limit."""
    own = sizes.memory_limit(grown_sizes.own_resources(facts.queue.job, sizing.role))
    has_grown = sizing.grown_from is not None and (own is None or parse(sizing.grown_from) > own)
    return sizing.grown_from if has_grown else None


def _grown(
    facts: Facts, sizing: RoleSizing, usage: RoleUsage | None, change: tuple[Decimal, Decimal], killed: str
) -> RoleSizing:
    before, after = map(sizes.memory_text, change)
    size, pods = facts.sizes[sizing.role], facts.snapshot.pods_of(sizing.role)
    wanted = sizes.text_with_memory(size.text, change[1])
    obstacle = sizes.refusal(size.text, wanted, size.spec, pods[0].main) if pods else ""
    if obstacle:
        # The message omits the limit, which varies with the measurements, so that status is written once.
        return sizing.model_copy(update={"message": f"Its memory limit cannot be raised: {obstacle}."})
    if killed:
        message = f"{_KILLED} of {killed}: limits.memory {before} -> {after}."
    else:
        used = Decimal(usage.memory if usage is not None else 0)
        share = f"{sizes.memory_text(sizes.whole_mebibytes(used))}, {100 * used / change[0]:.0f} % of its memory limit"
        message = f"{usage.pod if usage is not None else ''} uses {share}: limits.memory {before} -> {after}."
    updates = {"grown_memory": after, "grown_from": before, "grown_time": facts.timestamp, "message": message}
    return sizing.model_copy(update={**updates, "at_maximum": False})


def _held(facts: Facts) -> tuple[Reason, str] | None:
    """Return why no role of the job may grow."""
    if facts.queue.decides:
        message = "Kueue fixes the requests of an admitted job, so its pods cannot grow; sizes are recommended. "
        return Reason.QUEUE_FIXES_SIZES, f"{message}To grow, train without a queue."
    if not facts.snapshot.installation.resizes_pods:
        message = f"Sizes are only recommended: {resizing.NOT_SERVED}.{server_growth.outlook(facts)}"
        return Reason.RESIZE_NOT_SERVED, message
    return None


def _newest_kill(facts: Facts, sizing: RoleSizing, usage: RoleUsage | None) -> str:
    """Return the pod in which the kernel killed a process for memory with the present limit; empty without one."""
    grown = None if sizing.grown_time is None else sizing.grown_time + SETTLE
    # The size of the spec may have changed too, also that of another role: a kill that repeats itself counts then.
    resized = (c for c in facts.status.conditions if c.type == Condition.RESIZING)
    changes = [time for time in (grown, *(c.last_transition_time for c in resized)) if time is not None]

    def counts(at: datetime | None) -> bool:
        # By the clock of a node that is ahead, a kill would be newer than each change that it causes.
        if at is None or not timedelta(0) <= facts.now - at <= OOM_AGE:
            return False
        return all(at > change for change in changes)

    if usage is not None and counts(usage.oom_at):
        return usage.oom_pod
    killed = (pod for pod in facts.snapshot.pods_of(sizing.role) if any(map(counts, _kills(pod))))
    return next((pod.name for pod in killed), "")


def _kills(pod: Pod) -> Iterator[datetime | None]:
    """Yield the times at which the kernel ended runs of a pod's container for lack of memory."""
    ends = (pod.container.terminated, pod.container.last)
    return (end.finished_at for end in ends if end is not None and end.reason == "OOMKilled")


def _is_being_resized(facts: Facts, role: str) -> bool:
    """Whether a pod of a role does not have the present size yet, so that this size is not measured."""
    under_way = (ResizeState.IN_PROGRESS, ResizeState.DEFERRED)
    pods = facts.snapshot.pods_of(role)
    return any((pod.resize in under_way and not pod.deleting) or resizing.has_other_size(facts, pod) for pod in pods)


def _is_tried(facts: Facts, former: RoleSizing, sizing: RoleSizing) -> bool:
    """Whether a memory limit is so new that it may have to be withdrawn: servers that are added replace its record."""
    if sizing.grown_memory != former.grown_memory:
        return True
    is_trial = sizing.grown_from is not None and grown_sizes.is_trial(sizing, facts.now)
    return is_trial and _is_being_resized(facts, sizing.role)


def _is_high(usage: RoleUsage | None, limit: Decimal) -> bool:
    return usage is None or usage.memory >= grown_sizes.GROW_SHARE * limit / NEWS


def _growing(facts: Facts) -> list[str]:
    """Return the roles of the job that may grow."""
    present = {pod.role for pod in facts.snapshot.pods}
    return [r for r in names.ROLES if r in present and facts.job.spec.autoscaling.maximum(r) is not None]


def _maxima(facts: Facts) -> str:
    """Return up to which limits memory may grow, and which roles have a limit that is not below their maximum."""
    grows, stays = [], []
    for role in _growing(facts):
        limit, maximum = sizes.limit_of(facts.sizes[role].text), facts.job.spec.autoscaling.maximum(role)
        if limit is None or maximum is None or limit < parse(maximum):
            grows.append(f"{role} {maximum}")
        else:
            stays.append(f"{role} keeps its limit of {sizes.memory_text(limit)}, because its maximum is {maximum}.")
    return " ".join([f"Memory limits may grow to: {', '.join(grows)}."] * bool(grows) + stays)


def _full_message(facts: Facts, sizing: RoleSizing) -> str:
    limit = sizes.limit_of(facts.sizes[sizing.role].text) or Decimal(0)
    return f"{sizing.role} has {sizes.memory_text(limit)}: {_raise_it(sizing.role)}"


def _raise_it(role: str) -> str:
    return (
        f"it needs more memory than its maximum. Raise maxAllowed.memory of {role} in "
        "spec.autoscaling.rolePolicies, or use more replicas."
    )


def _taken_back(facts: Facts, refused: Outcome) -> str:
    """Return the role whose growth the API server has just refused; empty for any other refusal."""
    action = refused.action
    if not isinstance(action, Resize):
        return ""
    pod = next((pod for pod in facts.snapshot.pods if pod.uid == action.uid), None)
    return pod.role if pod is not None and grown_sizes.is_tried_on(pod, facts.status, facts.now) else ""
