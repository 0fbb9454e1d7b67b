"""`logs JOB`: what the tasks of a job print, each line with its task in front."""

import os
import sys
from collections.abc import Callable
from typing import Annotated

import typer

from pstraining.cli.client import ClusterClient, KubeconfigClient
from pstraining.cli.errors import CommandError, DeniedError, RequestError
from pstraining.cli.formatting import seconds
from pstraining.cli.jobs import job_named, phase, why
from pstraining.cli.logs.following import Follower
from pstraining.cli.logs.log_lines import LogSelection, LogWriter
from pstraining.cli.options import Context, IndexOption, Job, Namespace, RoleOption
from pstraining.cli.tasks import check_choice, chosen, tasks_of


def logs(  # noqa: PLR0913, PLR0917 - one for each option
    job: Job,
    role: RoleOption = None,
    index: IndexOption = None,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Follow the logs until the job ends.")] = False,
    previous: Annotated[
        bool, typer.Option("--previous", "-p", help="Show the previous run of containers that were restarted.")
    ] = False,
    tail: Annotated[
        int | None, typer.Option(min=0, help="Lines to show from the end of each log. Default: all.")
    ] = None,
    since: Annotated[
        str | None, typer.Option(help="Show only lines newer than this, such as 30s, 5m or 1h30m.")
    ] = None,
    namespace: Namespace = None,
    context: Context = None,
) -> None:
    """Print the logs of a job's tasks.

    With --follow, new lines are printed as they arrive, also from pods that start later. The command then ends with the
    job, and its exit status reports whether the job has succeeded.
    """
    try:
        young = None if since is None else seconds(since)
    except ValueError as error:
        raise CommandError(f"--since: {error}.") from error
    if follow and previous:
        raise CommandError("--previous shows runs that have ended: remove --follow.")
    selection = LogSelection(role, index, previous, tail, young)
    writer = LogWriter(coloured=sys.stdout.isatty() and not os.environ.get("NO_COLOR"))
    cluster = KubeconfigClient(context)
    where = namespace or cluster.namespace
    if follow:
        raise typer.Exit(Follower(cluster, where, job, selection, writer).run())
    read(cluster, where, job, selection, writer.line, writer.remark)


def read(
    cluster: ClusterClient,
    namespace: str,
    name: str,
    selection: LogSelection,
    line: Callable[[str, str], None],
    remark: Callable[[str], None],
) -> None:
    """Write what there is, task by task.

    Args:
        cluster: where the job is.
        namespace: the job's.
        name: the job.
        selection: which logs.
        line: takes a task's name and a line of its log.
        remark: takes what is to be said of a task that has none.

    Raises:
        CommandError: there is no such job, role or index, or no pod of it.
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
