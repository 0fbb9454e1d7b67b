"""Jobs as `status`, the dashboard and reports show them: a summary per job, or its roles, pods and events."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from pstraining.api import names
from pstraining.api.packed_records import numbers
from pstraining.cli.client import ClusterClient, Object
from pstraining.cli.errors import DeniedError
from pstraining.cli.jobs import end_of, is_sent, job_named, manager, one_line, phase, why
from pstraining.cli.metrics.scraping import devices_of, trains
from pstraining.cli.sizing import words
from pstraining.cli.status.pod_state import is_unexplained, state
from pstraining.cli.status.pod_state import why as why_pod
from pstraining.cli.tasks import TaskPod, TaskRole, desired, tasks_of

EVENTS: Final = 5
"""Number of the job's events shown."""
ASKED_PODS: Final = 5
"""Maximum number of pending pods without a reason in their status whose events are read."""


def summary(job: Object) -> dict[str, Any]:
    """Return a job's row in the list of jobs, for programs."""
    reported = job.get("status") or {}
    return {
        "namespace": job["metadata"]["namespace"],
        "name": job["metadata"]["name"],
        "phase": phase(job),
        "ps": (reported.get("ps") or {}).get("summary", ""),
        "workers": (reported.get("worker") or {}).get("summary", ""),
        "standbys": reported.get("standbySummary", ""),
        "restarts": reported.get("restarts", 0),
        "takeovers": reported.get("takeovers", 0),
        "created": job["metadata"]["creationTimestamp"],
        "why": why(job),
    }


def look(cluster: ClusterClient, namespace: str, name: str) -> dict[str, Any]:
    """Read a job, its pods and events, and describe them. Without the right to list pods or events, a note names it.

    Raises:
        CommandError: the job does not exist, or a request failed.
    """
    job = job_named(cluster, namespace, name)
    denied: dict[str, str] = {}

    def allowed(what: str, read: Callable[[], list[Object]]) -> list[Object]:
        try:
            return [] if what in denied else read()
        except DeniedError as error:
            denied[what] = str(error)
            return []

    def events(uid: str) -> list[Object]:
        return allowed("events", lambda: cluster.events(namespace, uid))

    tasks = tasks_of(job, allowed("pods", lambda: cluster.pods(namespace, name)))
    unexplained = [t for t in tasks if is_unexplained(t)][:ASKED_PODS]
    pod_events = {t.pod.uid: events(t.pod.uid) for t in unexplained}
    found = _Found(job, tasks, pod_events, devices_of(cluster, tasks), not ("pods" in denied or is_sent(job)))
    shown = describe(found, events(job["metadata"]["uid"]))
    return shown | {"notes": [*shown["notes"], *denied.values()]}


@dataclass(frozen=True)
class _Found:
    """A job with its tasks, events and devices."""

    job: Object
    tasks: Sequence[TaskPod]
    pod_events: Mapping[str, Iterable[Object]]
    """Events of pending pods without a reason in their status, by uid."""
    devices: Mapping[str, Mapping[str, int]]
    """Number of devices that a task computes on, by the pod's uid and by type; only of pods that report it."""
    pods_known: bool
    """Whether the pods could be read, and are in this cluster."""


def describe(found: _Found, events: Iterable[Object]) -> dict[str, Any]:
    """Return a job with its roles, pods, shards and newest events, for programs."""
    job, tasks = found.job, found.tasks
    reported = job.get("status") or {}
    return {
        **summary(job),
        "startTime": reported.get("startTime"),
        "completionTime": reported.get("completionTime"),
        "term": reported.get("term", 0),
        "notes": _notes(job),
        "conditions": reported.get("conditions") or [],
        "roles": [_role(found, role) for role in TaskRole if _has(job, role, tasks)],
        "shards": [{**shard, "standbys": _standbys(job)} for shard in reported.get("shards") or ()],
        "events": _newest(events)[-EVENTS:],
    }


def _notes(job: Object) -> list[str]:
    """Return hints about a job that the operator has not processed, or that it does not manage."""
    metadata, reported = job["metadata"], job.get("status") or {}
    found, field = manager(job)
    if found == names.MULTIKUEUE:
        return [f"Kueue sends this job to another cluster ({field}). Its pods are there; its status is a copy."]
    if found != names.MANAGED_BY:
        return [f"{found} manages this job ({field})."]
    if metadata.get("deletionTimestamp"):
        return ["The job is being deleted."]
    if not reported:
        return ["The operator has not processed this job yet. Check that it is running and watches this namespace."]
    if reported.get("observedGeneration", 0) < metadata.get("generation", 0):
        return ["The operator has not processed the last change of the spec yet. Check that it is running."]
    return []


def _has(job: Object, role: TaskRole, tasks: Sequence[TaskPod]) -> bool:
    return desired(job, role) > 0 or any(t.pod.role == role for t in tasks)


def _role(found: _Found, role: TaskRole) -> dict[str, Any]:
    job = found.job
    reported = (job.get("status") or {}).get(role.value) or {}
    own = [t for t in found.tasks if t.pod.role == role]
    return {
        "role": role.value,
        "desired": desired(job, role),
        "ready": reported.get("ready", 0),
        "succeeded": reported.get("succeeded", 0),
        "restarts": reported.get("restarts", 0),
        "lastFailure": reported.get("lastFailure"),
        "sizing": _sizing(found, role, own),
        "pods": [_pod(found, t) for t in own],
        "givenUp": _given_up(job, role),
        "withoutPod": _without_pod(job, role, own) if found.pods_known else [],
    }


def _sizing(found: _Found, role: TaskRole, own: Sequence[TaskPod]) -> str:
    """Return a role's measurements and its present size as text; empty if the role is not measured."""
    items = (found.job.get("status") or {}).get("autoscaling") or ()
    item = next((item for item in items if item["role"] == role.value), None)
    size = next((task.pod.size for task in reversed(own)), "") if found.pods_known else None
    return "" if item is None else words(item, size)


def _pod(found: _Found, task: TaskPod) -> dict[str, Any]:
    pod, events = task.pod, _newest(found.pod_events.get(task.pod.uid, ()))
    warnings = [f"{e['reason']}: {one_line(e['message'])}" for e in events if e["type"] == "Warning"]
    shown: dict[str, Any] = {
        "task": task.name,
        "pod": pod.name,
        "state": state(task),
        "ready": pod.ready and not pod.deleting,
        "node": pod.node,
        "restarts": pod.container.restarts,
        "created": task.manifest["metadata"]["creationTimestamp"],
        "why": why_pod(task) or warnings[-1:],
    }
    if trains(task):
        shown["devices"] = found.devices.get(pod.uid)
    shards = (found.job.get("status") or {}).get("shards") or ()
    if pod.role == names.PS and (shard := next((s for s in shards if s["index"] == pod.index), None)):
        shown["primary"] = shard.get("primary") == pod.name
    return shown


def _given_up(job: Object, role: TaskRole) -> list[str]:
    status = job.get("status") or {}
    full = (r["index"] for r in status.get("replicaRecords") or () if r["role"] == role and r.get("givenUp"))
    ranges = (p.get("givenUp", "") for p in status.get("packedRecords") or () if p["role"] == role)
    return [names.task_name(role, index) for index in sorted((*full, *(n for r in ranges for n in numbers(r))))]


def _without_pod(job: Object, role: TaskRole, own: Iterable[TaskPod]) -> list[str]:
    """Return the desired tasks without a pod. Empty if tasks have succeeded and the status does not name them."""
    status = job.get("status") or {}
    done = set(numbers(status.get("completedIndexes") or "")) if role is TaskRole.WORKER else set[int]()
    is_unknown = int((status.get(role.value) or {}).get("succeeded") or 0) > len(done)
    if end_of(job) or is_unknown or (job["spec"].get("runPolicy") or {}).get("suspend"):
        return []
    there = {t.name for t in own} | set(_given_up(job, role)) | {names.task_name(role, index) for index in done}
    return [name for index in range(desired(job, role)) if (name := names.task_name(role, index)) not in there]


def _standbys(job: Object) -> int:
    """Return the desired number of standbys per shard."""
    standby = job["spec"]["ps"].get("standby") or {}
    return 0 if standby.get("mode", "None") == "None" else int(standby.get("replicasPerShard", 1))


def _newest(events: Iterable[Object]) -> list[dict[str, Any]]:
    """Return events by the time of their last occurrence, the newest last."""
    found = [
        {
            "time": _last_time(event),
            "type": event.get("type", ""),
            "reason": event.get("reason", ""),
            "message": event.get("message", ""),
            "count": int((event.get("series") or {}).get("count") or event.get("count") or 1),
        }
        for event in events
    ]
    return sorted(found, key=lambda e: e["time"])


def _last_time(event: Object) -> str:
    """Return the time of an event's last occurrence, to the second, so that strings compare."""
    series = (event.get("series") or {}).get("lastObservedTime")
    moment = series or event.get("lastTimestamp") or event.get("eventTime") or event["metadata"]["creationTimestamp"]
    return f"{str(moment)[:19]}Z"
