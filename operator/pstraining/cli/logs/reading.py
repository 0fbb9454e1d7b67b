"""Reads the current logs of a job's tasks, one task after another."""

from collections.abc import Callable

from pstraining.cli.client import ClusterClient
from pstraining.cli.errors import CommandError, DeniedError, RequestError
from pstraining.cli.jobs import job_named, phase, why
from pstraining.cli.logs.log_lines import LogSelection
from pstraining.cli.tasks import check_choice, chosen, tasks_of


def read(
    cluster: ClusterClient,
    namespace: str,
    name: str,
    selection: LogSelection,
    line: Callable[[str, str], None],
    remark: Callable[[str], None],
) -> None:
    """Read the current logs, task by task.

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
        raise CommandError(f"{name} currently has no pods{which}, and its phase is {phase(job)}. {why(job)}".rstrip())
    for task in wanted:
        count = 0
        try:
            for text in cluster.log(namespace, task.pod.name, selection.query(task.container)):
                line(task.name, text)
                count += 1
        except DeniedError:
            raise
        except RequestError as error:
            if not error.status:
                raise
            remark(f"{task.name} ({task.pod.name}): no log: {error}")
        else:
            if not count:
                remark(f"{task.name} ({task.pod.name}): the log is empty")
