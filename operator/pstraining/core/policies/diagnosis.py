"""What keeps a job's pods from running, in words that name the object and the next step?

Messages are stable while the cause is: no counters, no times, no generated names: a waiting job costs no writes.
"""

import re
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from datetime import datetime, timedelta
from itertools import chain

from pstraining.api import names
from pstraining.api.conditions import Condition, Reason
from pstraining.core.actions import Kind
from pstraining.core.observe import parse_time
from pstraining.core.policies.failure_counts import last_line
from pstraining.core.snapshot import Child, Container, Pod, Snapshot

_IMAGE = {"ErrImagePull", "ImagePullBackOff", "InvalidImageName", "ErrImageNeverPull", "ImageInspectError"}
_CONFIG = {"CreateContainerConfigError", "CreateContainerError", "RunContainerError", "StartError"}
UNSCHEDULABLE_GRACE = timedelta(seconds=30)
"""A pod that has just been made is often unschedulable for a moment, such as the 5 to 15 s until a volume is bound."""
PATIENCE = timedelta(seconds=60)
"""What has not begun for so long is told even if nobody knows why."""
_ROLES = (names.PS, names.CHIEF, names.WORKER, names.EVALUATOR)
_WORKLOADS = (Kind.STATEFUL_SET, Kind.JOB, Kind.DEPLOYMENT)
_REFUSED = re.compile(r'pods? "[^"]*" is forbidden: (?P<why>.*)', re.DOTALL)
_QUOTA_MOVES = re.compile(r", used: .*", re.DOTALL)
"""What is used of a quota changes with everybody's pods."""


@dataclass(frozen=True)
class Diagnosis:
    """What does not run, and why."""

    reason: Reason
    message: str
    pod: Pod | None = None


def diagnose(snapshot: Snapshot, now: datetime, among: Iterable[Pod] | None = None) -> Diagnosis | None:
    """The first trouble that is known: of parameter servers first, since everything waits for them.

    Args:
        snapshot: what is observed.
        now: the present time.
        among: the pods that matter; all if not given.
    """
    found = sorted(snapshot.pods if among is None else among, key=by_role)
    pods = [p for p in found if not p.deleting and not p.finished]
    known = (d for p in pods if (d := diagnosis_of(p, now)) is not None)
    unknown = (_unexplained(p) for p in pods if _waits_since(p, now) <= now - PATIENCE)
    return next(chain(known, _refusals(snapshot, now), unknown), None)


def requeue_at(snapshot: Snapshot, now: datetime) -> datetime | None:
    """Return when the next grace period ends, after which a waiting pod is reported."""
    here = [p for p in snapshot.pods if not p.deleting and not p.finished]
    ends = [p.created + UNSCHEDULABLE_GRACE for p in here if p.unschedulable or p.gates]
    ends += [_waits_since(p, now) + PATIENCE for p in here if _waits_since(p, now) <= now]
    ends += [since + PATIENCE for c in _lacking(snapshot) if (since := _lacks_since(snapshot, c)) is not None]
    return min((e for e in ends if e > now), default=None)


def diagnosis_of(pod: Pod, now: datetime) -> Diagnosis | None:
    """What keeps this pod from running, if it is known."""
    if now >= pod.created + UNSCHEDULABLE_GRACE:
        if pod.unschedulable:
            return Diagnosis(Reason.UNSCHEDULABLE, f"Pod {pod.name} cannot be scheduled: {pod.unschedulable}", pod)
        if pod.gates:
            message = f"Pod {pod.name} waits to be admitted: somebody has yet to open its gate {', '.join(pod.gates)}"
            return Diagnosis(Reason.SCHEDULING_GATED, message, pod)
    container = pod.blocked_init or pod.container
    look = f"see `kubectl describe pod {pod.name}`"
    if container.waiting_reason in _IMAGE:
        message = f"Pod {pod.name}: image {container.image!r} cannot be pulled; {look}"
        return Diagnosis(Reason.IMAGE_PULL_FAILED, message, pod)
    if container.waiting_reason in _CONFIG:
        message = f"Pod {pod.name}: its container cannot be started: {container.waiting_message}; {look}"
        return Diagnosis(Reason.CONTAINER_CONFIG_INVALID, message, pod)
    if pod.blocked_init is not None and (pod.blocked_init.terminated or pod.blocked_init.last) is not None:
        return Diagnosis(Reason.INIT_CONTAINER_FAILED, _fails(pod, pod.blocked_init), pod)
    if container.waiting_reason == "CrashLoopBackOff":
        return Diagnosis(Reason.CRASH_LOOP, _fails(pod, container), pod)
    return None


def by_role(pod: Pod) -> tuple[int, int]:
    """What orders pods by how much waits for them."""
    return _ROLES.index(pod.role) if pod.role in _ROLES else len(_ROLES), pod.index


def _fails(pod: Pod, container: Container) -> str:
    who, where = f"Pod {pod.name}", pod.name
    if container is pod.blocked_init:
        who, where = f"{who}: its init container {container.name}", f"{pod.name} -c {container.name}"
    end = container.last or container.terminated
    if end is None:
        return f"{who} keeps failing; see `kubectl logs --previous {where}`"
    line = last_line(end.message)
    said = f": {line}" if line else ""
    return f"{who} keeps failing with exit code {end.exit_code}{said}; see `kubectl logs --previous {where}`"


def _refusals(snapshot: Snapshot, now: datetime) -> Iterator[Diagnosis]:
    """Workloads that have no pod: why Kubernetes makes none, in its own words where it has any."""
    for child in _lacking(snapshot):
        look = f"see `kubectl describe {child.kind.lower()} {child.name}`"
        words, since = _words(child), _lacks_since(snapshot, child)
        if "exceeded quota" in words:
            message = f"{child.kind} {child.name} can have no pod: {words}; raise the quota or ask for less"
            yield Diagnosis(Reason.QUOTA_EXCEEDED, message)
        elif words:
            yield Diagnosis(Reason.PODS_REFUSED, f"{child.kind} {child.name} can have no pod: {words}; {look}")
        elif since is not None and now >= since + PATIENCE:
            message = f"{child.kind} {child.name} has lacked a pod for a minute, and nothing says why; {look}"
            yield Diagnosis(Reason.STILL_WAITING, message)


def _lacking(snapshot: Snapshot) -> Iterator[Child]:
    """Workloads that are to have pods and have too few."""
    # Looked up, not searched for each: a pass over a large job asks this twice.
    pods = [p for p in snapshot.pods if not p.deleting]
    members = Counter((p.role, p.member) for p in pods)
    indices, attempts = {(p.role, p.index) for p in pods}, {(p.role, p.term) for p in pods}
    for child in (c for kind in _WORKLOADS for c in snapshot.of_kind(kind) if not c.deleting):
        role = child.labels.get(names.LABEL_ROLE, "")
        match child.kind:
            case Kind.STATEFUL_SET:
                lacks = members[role, child.number(names.LABEL_MEMBER)] < child.replicas
            case Kind.DEPLOYMENT:
                lacks = child.replicas > 0 and (role, child.number(names.LABEL_INDEX)) not in indices
            case _:
                number = max(child.number(names.LABEL_TERM), child.number(names.LABEL_ATTEMPT))
                lacks = not child.conditions and (role, number) not in attempts
        if lacks:
            yield child


def _words(child: Child) -> str:
    """Why it has no pod, without what changes from one try to the next."""
    failing = child.true_condition("ReplicaFailure")
    said = child.refusal if failing is None else str(failing.get("message", ""))
    found = _REFUSED.search(said)
    return _QUOTA_MOVES.sub("", found["why"] if found else said).strip().rstrip(".")


def _lacks_since(snapshot: Snapshot, child: Child) -> datetime | None:
    """Since when at most a workload can have lacked a pod: while training runs, one is just being replaced."""
    made = parse_time(child.manifest["metadata"].get("creationTimestamp"))
    told = snapshot.status.get("conditions") or ()
    running = next((c for c in told if c.get("type") == Condition.RUNNING), None)
    if made is None or running is None:
        return made
    return None if running.get("status") == "True" else max(made, parse_time(running["lastTransitionTime"]) or made)


def _waits_since(pod: Pod, now: datetime) -> datetime:
    """When a pod that does not serve or run began to wait; the future for one that does, or that has ended."""
    works = pod.ready if pod.role == names.PS else pod.container.running
    if works or pod.container.terminated is not None:
        return now + PATIENCE
    return max(t for t in (pod.created, pod.ready_changed, pod.container.started_at) if t is not None)


def _unexplained(pod: Pod) -> Diagnosis:
    state = pod.container.waiting_reason or ("it runs, and is not ready" if pod.container.running else pod.phase)
    look = f"`kubectl logs {pod.name}`" if pod.container.running else f"`kubectl describe pod {pod.name}`"
    message = f"Pod {pod.name} has not come up for a minute ({state}); see {look}"
    return Diagnosis(Reason.STILL_WAITING, message, pod)
