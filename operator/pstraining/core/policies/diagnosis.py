"""Which object keeps a job's pods from running, and what is the next step?

A message is stable while its cause lasts: it has no counters, times or generated names, so a waiting job causes no
writes.
"""

import re
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from itertools import chain

from pstraining.api import names
from pstraining.api.conditions import Condition, Reason
from pstraining.core.actions import Kind
from pstraining.core.observe import parse_time
from pstraining.core.policies.failure_counts import last_line
from pstraining.core.snapshot import Child, Container, Pod, Snapshot

_IMAGE = {
    *("ErrImagePull", "ImagePullBackOff", "InvalidImageName", "ErrImageNeverPull", "ImageInspectError"),
    *("RegistryUnavailable", "SignatureValidationFailed"),  # before the back-off, as ErrImagePull
}
_CONFIG = {"CreateContainerConfigError", "CreateContainerError", "RunContainerError", "StartError"}
UNSCHEDULABLE_GRACE = timedelta(seconds=30)
"""A new pod is often unschedulable for a moment, such as the 5 to 15 s until a volume is bound."""
UNEXPLAINED_GRACE = timedelta(seconds=60)
"""A pod that does not start for this time is reported even without a known cause."""
_ROLES = (names.PS, names.CHIEF, names.WORKER, names.EVALUATOR)
_WORKLOADS = (Kind.STATEFUL_SET, Kind.JOB, Kind.DEPLOYMENT)
_REFUSED = re.compile(r'pods? "[^"]*" is forbidden: (?P<why>.*)', re.DOTALL)
_QUOTA_MOVES = re.compile(r", used: .*", re.DOTALL)
"""The used part of a quota changes with every pod of the namespace."""


@dataclass(frozen=True)
class Diagnosis:
    """The cause of a pod that does not run, with the message for users."""

    reason: Reason
    message: str
    pod: Pod | None = None


def diagnose(snapshot: Snapshot, now: datetime, among: Iterable[Pod] | None = None) -> Diagnosis | None:
    """Return the first problem; None without one. All other roles depend on parameter servers, which come first.

    Args:
        snapshot: the observed state.
        now: the current time.
        among: the pods to diagnose; None for all pods.
    """
    candidates = sorted(snapshot.pods if among is None else among, key=by_role)
    pods = [p for p in candidates if not p.deleting and not p.finished]
    known = (d for p in pods if (d := diagnosis_of(p, now)) is not None)
    unknown = (_unexplained(p) for p in pods if _is_overdue(p, now))
    return next(chain(known, _refusals(snapshot, now), unknown), None)


def unexplained(snapshot: Snapshot, now: datetime) -> list[Pod]:
    """Return the pods that have waited for a minute without a known cause, presumably for their volumes."""
    pods = (p for p in snapshot.pods if not (p.mounted or p.deleting or p.finished) and _is_overdue(p, now))
    # Sorted last, because every pass calls this and hardly any pods are left.
    return sorted((p for p in pods if diagnosis_of(replace(p, mount_failure=""), now) is None), key=by_role)


def requeue_at(snapshot: Snapshot, now: datetime) -> datetime | None:
    """Return when the next grace period ends, after which a waiting pod is reported."""
    pods = [p for p in snapshot.pods if not p.deleting and not p.finished]
    ends = [p.created + UNSCHEDULABLE_GRACE for p in pods if p.unschedulable or p.gates]
    ends += [_waits_since(p, now) + UNEXPLAINED_GRACE for p in pods if _waits_since(p, now) <= now]
    ends += [since + UNEXPLAINED_GRACE for c in _lacking(snapshot) if (since := _lacks_since(snapshot, c)) is not None]
    return min((e for e in ends if e > now), default=None)


def diagnosis_of(pod: Pod, now: datetime) -> Diagnosis | None:
    """Return the known cause that keeps a pod from running; None without one."""
    if now >= pod.created + UNSCHEDULABLE_GRACE:
        if pod.unschedulable:
            return Diagnosis(Reason.UNSCHEDULABLE, f"Pod {pod.name} cannot be scheduled: {pod.unschedulable}", pod)
        if pod.gates:
            gates = ", ".join(pod.gates)
            message = f"Pod {pod.name} waits for admission: a controller must remove its scheduling gate {gates}"
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
    if pod.mount_failure and not pod.mounted:  # the event remains for an hour after a mount that succeeded later
        message = f"Pod {pod.name}: a volume cannot be mounted: {pod.mount_failure}; {look}"
        return Diagnosis(Reason.VOLUME_NOT_MOUNTED, message, pod)
    if container.waiting_reason == "CrashLoopBackOff":
        return Diagnosis(Reason.CRASH_LOOP, _fails(pod, container), pod)
    return None


def by_role(pod: Pod) -> tuple[int, int]:
    """Return the sort key that puts pods with more dependents first."""
    return _ROLES.index(pod.role) if pod.role in _ROLES else len(_ROLES), pod.index


def _fails(pod: Pod, container: Container) -> str:
    subject, target = f"Pod {pod.name}", pod.name
    if container is pod.blocked_init:
        subject, target = f"{subject}: its init container {container.name}", f"{pod.name} -c {container.name}"
    end = container.last or container.terminated
    if end is None:
        return f"{subject} keeps failing; see `kubectl logs --previous {target}`"
    line = last_line(end.message)
    detail = f": {line}" if line else ""
    return f"{subject} keeps failing with exit code {end.exit_code}{detail}; see `kubectl logs --previous {target}`"


def _refusals(snapshot: Snapshot, now: datetime) -> Iterator[Diagnosis]:
    """Yield the diagnoses of workloads without a pod, with Kubernetes' message if it has one."""
    for child in _lacking(snapshot):
        look = f"see `kubectl describe {child.kind.lower()} {child.name}`"
        refusal, since = _refusal(child), _lacks_since(snapshot, child)
        if "exceeded quota" in refusal:
            message = f"{child.kind} {child.name} can have no pod: {refusal}; raise the quota or request less"
            yield Diagnosis(Reason.QUOTA_EXCEEDED, message)
        elif refusal:
            yield Diagnosis(Reason.PODS_REFUSED, f"{child.kind} {child.name} can have no pod: {refusal}; {look}")
        elif since is not None and now >= since + UNEXPLAINED_GRACE:
            message = f"{child.kind} {child.name} has lacked a pod for a minute without a reported cause; {look}"
            yield Diagnosis(Reason.STILL_WAITING, message)


def _lacking(snapshot: Snapshot) -> Iterator[Child]:
    """Yield the workloads with fewer pods than they must have."""
    # Sets instead of a search per workload: a pass over a large job does this twice.
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


def _refusal(child: Child) -> str:
    """Return why a workload has no pod, without the parts that change with every attempt."""
    failing = child.true_condition("ReplicaFailure")
    message = child.refusal if failing is None else str(failing.get("message", ""))
    match = _REFUSED.search(message)
    return _QUOTA_MOVES.sub("", match["why"] if match else message).strip().rstrip(".")


def _lacks_since(snapshot: Snapshot, child: Child) -> datetime | None:
    """Return the earliest time since which a workload can lack a pod; None while training runs and replaces it."""
    created = parse_time(child.manifest["metadata"].get("creationTimestamp"))
    conditions = snapshot.status.get("conditions") or ()
    running = next((c for c in conditions if c.get("type") == Condition.RUNNING), None)
    if created is None or running is None:
        return created
    if running.get("status") == "True":
        return None
    return max(created, parse_time(running["lastTransitionTime"]) or created)


def _waits_since(pod: Pod, now: datetime) -> datetime:
    """Return when a pod began to wait; a time in the future if the pod works or has ended."""
    works = pod.serves if pod.role == names.PS else pod.container.runs_program
    if works or pod.container.terminated is not None:
        return now + UNEXPLAINED_GRACE
    return max(t for t in (pod.created, pod.ready_changed, pod.container.started_at) if t is not None)


def _is_overdue(pod: Pod, now: datetime) -> bool:
    return _waits_since(pod, now) <= now - UNEXPLAINED_GRACE


def _unexplained(pod: Pod) -> Diagnosis:
    if pod.container.running:
        others = "its launcher waits, or its readiness probe fails"
        waits, look = "it runs, but is not ready" if pod.role == names.PS else others, f"`kubectl logs {pod.name}`"
    else:
        waits, look = pod.container.waiting_reason or pod.phase, f"`kubectl describe pod {pod.name}`"
    message = f"Pod {pod.name} has not come up for a minute ({waits}); see {look}"
    return Diagnosis(Reason.STILL_WAITING, message, pod)
