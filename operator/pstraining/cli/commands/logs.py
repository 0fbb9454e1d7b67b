"""`logs JOB`: print the logs of a job's tasks, each line prefixed with its task."""

from typing import Annotated

import typer

from pstraining.cli.client import KubeconfigClient
from pstraining.cli.errors import ArgumentError, CommandError
from pstraining.cli.formatting import seconds
from pstraining.cli.history.folder import From, history_in
from pstraining.cli.logs.following import Follower
from pstraining.cli.logs.log_lines import LogSelection, LogWriter
from pstraining.cli.logs.reading import read
from pstraining.cli.options import Context, IndexOption, Job, Namespace, RoleOption
from pstraining.cli.output import is_coloured


def logs(  # noqa: PLR0913, PLR0917 - one for each option
    job: Job,
    role: RoleOption = None,
    index: IndexOption = None,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Follow the logs until the job ends.")] = False,
    previous: Annotated[
        bool, typer.Option("--previous", "-p", help="Show the previous run of containers that were restarted.")
    ] = False,
    tail: Annotated[
        int | None, typer.Option(min=-1, help="Lines to show from the end of each log. Default, and -1: all.")
    ] = None,
    since: Annotated[
        str | None, typer.Option(help="Show only lines newer than this, such as 30s, 5m or 1h30m.")
    ] = None,
    folder: From = None,
    namespace: Namespace = None,
    context: Context = None,
) -> None:
    """Print the logs of a job's tasks.

    With --follow, new lines are printed as they arrive, including those of pods that start later. The command then
    returns when the job has ended, and its exit status reports whether the job has succeeded.
    """
    try:
        young = None if since is None else seconds(since)
    except ValueError as error:
        raise ArgumentError(f"--since: {error}.") from error
    if follow and previous:
        raise ArgumentError("--previous shows runs that have ended: remove --follow.")
    if folder is not None and (follow or young is not None):
        raise ArgumentError("--from reads logs that have ended, without times of lines: remove --follow and --since.")
    selection = LogSelection(role, index, previous, None if tail == -1 else tail, young)
    writer = LogWriter(coloured=is_coloured())
    cluster = history_in(folder, context, namespace) if folder else KubeconfigClient(context)
    where = namespace or cluster.namespace
    if follow:
        raise typer.Exit(Follower(cluster, where, job, selection, writer).run())
    if not read(cluster, where, job, selection, writer.line, writer.remark):
        raise CommandError("No log could be read, for the reasons above.")
