"""What keeps a pod from running, in words that name the pod and the next step?

Messages are stable while the cause is: no counters, no times, so that a waiting job costs no writes.
"""

from dataclasses import dataclass
from datetime import datetime, timedelta

from pstraining.api import names
from pstraining.api.conditions import Reason
from pstraining.core.policies.attempts import last_line
from pstraining.core.snapshot import Container, Pod, Snapshot

_IMAGE = {"ErrImagePull", "ImagePullBackOff", "InvalidImageName", "ErrImageNeverPull", "ImageInspectError"}
_CONFIG = {"CreateContainerConfigError", "CreateContainerError", "RunContainerError", "StartError"}
UNSCHEDULABLE_GRACE = timedelta(seconds=30)
"""A pod that has just been made is often unschedulable for a moment, such as the 5 to 15 s until a volume is bound."""
_ROLES = (names.PS, names.CHIEF, names.WORKER, names.EVALUATOR)


@dataclass(frozen=True)
class Diagnosis:
    """One pod that does not run, and why."""

    pod: Pod
    reason: Reason
    message: str


def diagnose(snapshot: Snapshot, now: datetime) -> Diagnosis | None:
    """The first pod with a known trouble: parameter servers first, since everything waits for them."""
    pods = sorted(snapshot.pods, key=lambda p: (_ROLES.index(p.role) if p.role in _ROLES else 9, p.index))
    return next(
        (d for p in pods if not p.deleting and not p.terminal and (d := diagnosis_of(p, now)) is not None), None
    )


def look_again_at(snapshot: Snapshot, now: datetime) -> datetime | None:
    """When a pod that is still within its grace has to be told, if nothing happens until then."""
    ends = (p.created + UNSCHEDULABLE_GRACE for p in snapshot.pods if p.unschedulable and not p.deleting)
    return min((e for e in ends if e > now), default=None)


def diagnosis_of(pod: Pod, now: datetime) -> Diagnosis | None:
    """What keeps this pod from running, if it is known."""
    if pod.unschedulable and now >= pod.created + UNSCHEDULABLE_GRACE:
        return Diagnosis(pod, Reason.UNSCHEDULABLE, f"Pod {pod.name} cannot be scheduled: {pod.unschedulable}")
    container = pod.blocked_init or pod.container
    look = f"see `kubectl describe pod {pod.name}`"
    if container.waiting_reason in _IMAGE:
        message = f"Pod {pod.name}: image {container.image!r} cannot be pulled; {look}"
        return Diagnosis(pod, Reason.IMAGE_PULL_FAILED, message)
    if container.waiting_reason in _CONFIG:
        message = f"Pod {pod.name}: its container cannot be started: {container.waiting_message}; {look}"
        return Diagnosis(pod, Reason.CONTAINER_CONFIG_INVALID, message)
    if container.waiting_reason == "CrashLoopBackOff":
        return Diagnosis(pod, Reason.CRASH_LOOP, _crash(pod, container))
    return None


def _crash(pod: Pod, container: Container) -> str:
    end = container.last or container.terminated
    if end is None:
        return f"Pod {pod.name} keeps failing; see `kubectl logs --previous {pod.name}`"
    line = last_line(end.message)
    said = f": {line}" if line else ""
    return (
        f"Pod {pod.name} keeps failing with exit code {end.exit_code}{said}; see `kubectl logs --previous {pod.name}`"
    )
