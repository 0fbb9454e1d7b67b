"""`status [JOB...]`: show a table of jobs, or one job with its roles, pods, shards and events."""

from datetime import UTC, datetime
from typing import Annotated, Any

import typer

from pstraining.cli.client import KubeconfigClient
from pstraining.cli.errors import ArgumentError
from pstraining.cli.history.folder import From, history_in
from pstraining.cli.jobs import each, job_named
from pstraining.cli.options import Context, Format, Namespace, OptionalJobs
from pstraining.cli.output import Output, PrintedKind, show
from pstraining.cli.overview import look, summary
from pstraining.cli.status.picture import table, tree

AllNamespaces = Annotated[bool, typer.Option("--all-namespaces", "-A", help="Show the jobs of all namespaces.")]


def status(
    jobs: OptionalJobs = None,
    all_namespaces: AllNamespaces = False,
    folder: From = None,
    namespace: Namespace = None,
    context: Context = None,
    output: Format = Output.TEXT,
) -> None:
    """Show the state of jobs. For one job, show every pod and why it waits or has failed."""
    if all_namespaces and (jobs or namespace is not None):
        raise ArgumentError("--all-namespaces shows all jobs: remove the job's name and --namespace.")
    if all_namespaces and folder is not None:
        raise ArgumentError("--from reads the history of one job: remove --all-namespaces.")
    cluster = history_in(folder, context, namespace) if folder else KubeconfigClient(context)
    now = datetime.now(UTC)
    where = namespace or cluster.namespace
    if folder is not None and not jobs:
        jobs = [job["metadata"]["name"] for job in cluster.jobs(where)]
    if jobs and len(jobs) == 1:
        found = look(cluster, where, jobs[0])
        show(PrintedKind.STATUS, found, output, lambda: tree(found, now))
        return
    rows: list[dict[str, Any]] = []
    if jobs:
        try:
            each(jobs, lambda name: rows.append(summary(job_named(cluster, where, name))))
        finally:  # those that exist are shown, as in kubectl
            if rows:
                show(PrintedKind.SUMMARY, rows, output, lambda: table(rows, now, namespaces=False))
        return
    rows = [summary(job) for job in cluster.jobs(None if all_namespaces else where)]
    empty = f"No PSTrainingJobs in {'any namespace' if all_namespaces else f'namespace {where}'}."
    show(PrintedKind.SUMMARY, rows, output, lambda: table(rows, now, namespaces=all_namespaces) if rows else empty)
