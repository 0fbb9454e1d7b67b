"""Reads the logs of a job's tasks, one task after another.

The log of a task is that of its container's current run. When a program has ended, the kubelet restarts its container,
whose launcher then only waits. The program's log is then that of the previous run, which is also read.
"""

from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import replace

from pstraining.api import contract
from pstraining.cli.client import ClusterClient
from pstraining.cli.errors import CommandError, DeniedError, RequestError
from pstraining.cli.jobs import end_of, job_named, without
from pstraining.cli.logs.log_lines import LogSelection
from pstraining.cli.tasks import TaskPod, check_choice, chosen, tasks_of


def read(
    cluster: ClusterClient,
    namespace: str,
    name: str,
    selection: LogSelection,
    line: Callable[[str, str], None],
    remark: Callable[[str], None],
) -> int:
    """Read the logs, task by task, and return the number of those that could be read.

    Args:
        cluster: the job's cluster.
        namespace: the job's namespace.
        name: the job's name.
        selection: the selected logs.
        line: receives a task's name and a line of its log.
        remark: receives the reason that a task has no log.

    Raises:
        CommandError: the job, role or index does not exist, or has no pods.
    """
    job = job_named(cluster, namespace, name)
    tasks = tasks_of(job, cluster.pods(namespace, name))
    check_choice(job, tasks, selection.role, selection.index)
    wanted = chosen(tasks, selection.role, selection.index)
    if not wanted:
        which = f" with role {selection.role}" if selection.role else ""
        raise CommandError(without(job, f"no pods{which}"))
    found = 0
    for task in wanted:
        count = 0
        try:
            for query in program_log(cluster, namespace, task, selection, is_over=bool(end_of(job))):
                for text in cluster.log(namespace, task.pod.name, query):
                    line(task.name, text)
                    count += 1
        except DeniedError:
            raise
        except RequestError as error:
            if not error.status:
                raise
            found += count > 0  # of the previous run
            remark(f"{task.name} ({task.pod.name}): no log: {error}")
        else:
            found += 1
            if not count and selection.tail != 0:
                why = "the log has no lines of this time" if selection.since else "the log is empty"
                remark(f"{task.name} ({task.pod.name}): {why}")
    return found


def program_log(
    cluster: ClusterClient, namespace: str, task: TaskPod, selection: LogSelection, *, is_over: bool
) -> Iterator[dict[str, str]]:
    """Yield the query of the current run's log, preceded by that of the previous run if the current one only waits.

    The pod's status may not show a restart yet, because the kubelet reports it with a delay. The log of a run that has
    just started is empty, or cannot be read.

    Args:
        cluster: the job's cluster.
        namespace: the job's namespace.
        task: the task.
        selection: the selected logs.
        is_over: whether the job has ended.
    """
    if not selection.previous and (is_over or task.pod.container.restarts):
        last = LogSelection(tail=1)
        lines, before = _lines(cluster, namespace, task, last), replace(last, previous=True)
        if any(contract.IDLES in text for text in lines) or (not lines and _lines(cluster, namespace, task, before)):
            yield replace(selection, previous=True).query(task.container)
    yield selection.query(task.container)


def _lines(cluster: ClusterClient, namespace: str, task: TaskPod, selection: LogSelection) -> list[str]:
    """Return the lines of a log; none if it cannot be read, which the reader of all lines reports."""
    with suppress(RequestError):
        return list(cluster.log(namespace, task.pod.name, selection.query(task.container)))
    return []
