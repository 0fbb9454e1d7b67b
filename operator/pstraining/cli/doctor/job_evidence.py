"""Reads a job's data for `doctor JOB`. Unreadable parts are left out and reported."""

from collections.abc import Callable, Iterator
from datetime import datetime
from functools import partial
from typing import Final

from pstraining.api.conditions import Condition
from pstraining.cli.client import ClusterClient, Object
from pstraining.cli.doctor.checks import Check, CheckResult, Unavailable
from pstraining.cli.doctor.examination import attempted, definition, operators
from pstraining.cli.doctor.job_causes import JobEvidence
from pstraining.cli.jobs import end_of, is_true
from pstraining.cli.status.pod_state import is_unexplained
from pstraining.cli.tasks import TaskPod, TaskRole, tasks_of
from pstraining.cli.waiting import is_seen

LOGS: Final = 6
"""Maximum number of tasks whose logs are read, unready ones first."""
LINES: Final = 60
"""Number of lines read from the end of each log."""
EVENTS: Final = 5
"""Maximum number of pending pods without a reason in their status whose events are read."""


def gathered(
    cluster: ClusterClient, job: Object, now: datetime, steps_per_second: Callable[[], float | None]
) -> tuple[JobEvidence, list[Check]]:
    """Read a job's pods, events, logs and rate.

    Args:
        cluster: the job's cluster.
        job: the job as it was read.
        now: the present time.
        steps_per_second: measures the rate of a running job.

    Returns:
        The evidence, and a warning for each kind of data that could not be read.
    """
    namespace, name = job["metadata"]["namespace"], job["metadata"]["name"]
    pods = attempted(lambda: cluster.pods(namespace, name))
    tasks = [] if isinstance(pods, Unavailable) else tasks_of(job, pods)
    unknown = [pods.as_check("pods")] if isinstance(pods, Unavailable) else []
    events, logs = {}, {}
    for task in [t for t in tasks if is_unexplained(t)][:EVENTS]:
        found = attempted(partial(cluster.events, namespace, task.pod.uid))
        if isinstance(found, Unavailable):
            unknown.append(found.as_check("events"))
            break
        events[task.pod.uid] = sorted(found, key=_when)
    for task in _interesting(job, tasks):
        lines = attempted(partial(_log, cluster, task))
        if isinstance(lines, Unavailable):
            unknown.append(lines.as_check("logs"))
            break
        logs[task.pod.uid] = lines
    rate = attempted(steps_per_second) if is_true(job, Condition.RUNNING) else None
    if isinstance(rate, Unavailable):
        unknown.append(rate.as_check("rates"))
        rate = None
    elsewhere = namespace if namespace != cluster.namespace else ""
    return JobEvidence(job, tasks, events, logs, rate, list(_installation(cluster, job, now)), elsewhere), unknown


def _interesting(job: Object, tasks: list[TaskPod]) -> list[TaskPod]:
    """Return the running tasks whose logs may show the cause, unready ones and the chief first; none after the end."""
    if end_of(job):
        return []
    begun = [t for t in tasks if t.pod.container.running]
    first = {TaskRole.CHIEF.value: 0, TaskRole.WORKER.value: 1}
    return sorted(begun, key=lambda t: (t.pod.ready, first.get(t.pod.role, 2), t.pod.index))[:LOGS]


def _log(cluster: ClusterClient, task: TaskPod) -> list[str]:
    query = {"container": task.container, "tailLines": str(LINES)}
    return list(cluster.log(task.manifest["metadata"]["namespace"], task.pod.name, query))


def _installation(cluster: ClusterClient, job: Object, now: datetime) -> Iterator[Check]:
    """Yield the failed checks of CRD and operator if no operator has processed the job."""
    if not is_seen(job, int(job["metadata"].get("generation") or 0)):
        found = (definition(cluster), *operators(cluster, job["metadata"]["namespace"], now))
        yield from (check for check in found if check.result is CheckResult.FAIL)


def _when(event: Object) -> str:
    return str(event.get("lastTimestamp") or event.get("eventTime") or event["metadata"]["creationTimestamp"])
