"""`submit -f FILE`: check jobs offline, then create them, or change those that exist.

Both are one server-side apply under a field manager of our own, so that what a file no longer says is taken away, and
what others have set is left to them unless the file says otherwise.
"""

import copy
from collections.abc import Sequence
from enum import StrEnum
from typing import Annotated

import typer

from pstraining.api.validation import Severity
from pstraining.cli.cluster import Cluster, KubeconfigCluster, Object
from pstraining.cli.errors import CommandError, ConflictError
from pstraining.cli.manifests import Document, documents
from pstraining.cli.options import Context, Namespace
from pstraining.cli.validate import Files, Verdict, lines, verdicts
from pstraining.cli.waiting import Patience, Timeout, Wait, follow, running_or_ended


class DryRun(StrEnum):
    """Who is asked, if nothing is to be stored."""

    CLIENT = "client"
    SERVER = "server"


def submit(
    files: Files,
    namespace: Namespace = None,
    context: Context = None,
    dry_run: Annotated[
        DryRun | None,
        typer.Option(
            help="Store nothing. client: check offline, without a cluster. server: have the API server check."
        ),
    ] = None,
    force: Annotated[
        bool, typer.Option("--force", help="Take over fields that others have set since, such as an autoscaler.")
    ] = False,
    wait: Wait = False,
    timeout: Timeout = 300,
) -> None:
    """Create jobs, or change those that exist, once all of them have been checked offline (see validate).

    If one is wrong, none is sent. With --wait, follow each until it runs or has ended: exit status 0 once it runs, has
    succeeded, or is suspended as its manifest says; 1 if it has failed, cannot start, or time is up.
    """
    found = checked(verdicts(documents(files)))
    if dry_run is DryRun.CLIENT:
        for document in found:
            typer.echo(f"{document.name}: would be submitted (checked offline)")
        return
    cluster = KubeconfigCluster(context)
    jobs = [placed(document, namespace, cluster.namespace) for document in found]
    stored = [apply(cluster, job, dry_run=dry_run is not None, force=force) for job in jobs]
    for job in stored if wait and dry_run is None else ():
        typer.echo(follow(cluster, job, running_or_ended, Patience(timeout)))


def checked(found: Sequence[Verdict]) -> list[Document]:
    """The jobs among what was checked; what else is to be said goes to standard error.

    Raises:
        CommandError: a job is wrong.
    """
    for verdict in found:
        if verdict.skipped or verdict.findings:
            for line in lines(verdict):
                typer.echo(line.plain, err=True)
    wrong = sum(f.severity is Severity.ERROR for v in found for f in v.findings)
    if wrong:
        raise CommandError(f"Nothing was submitted: {wrong} error{'s' if wrong > 1 else ''} in what was given.")
    return [v.document for v in found if not v.skipped]


def placed(document: Document, wanted: str | None, default: str) -> Object:
    """The job with its namespace, as it is sent.

    Args:
        document: the manifest.
        wanted: the namespace that was asked for.
        default: the context's.

    Raises:
        CommandError: the manifest has another namespace than was asked for, or no name of its own.
    """
    job = copy.deepcopy(document.body)
    metadata = job["metadata"]
    if not metadata.get("name"):
        raise CommandError(
            f"{document}: metadata.name is needed: generateName gives a new job each time; kubectl create does."
        )
    named = metadata.get("namespace")
    if wanted and named and wanted != named:
        raise CommandError(
            f"{document}: metadata.namespace is {named}, and --namespace {wanted}: leave one of them out."
        )
    metadata["namespace"] = wanted or named or default
    # What only the API server and the operator write; exported manifests have it.
    for written in ("managedFields", "resourceVersion", "uid", "creationTimestamp", "generation"):
        metadata.pop(written, None)
    job.pop("status", None)
    return job


def apply(cluster: Cluster, job: Object, *, dry_run: bool, force: bool) -> Object:
    """Create a job or change it, and say which.

    Raises:
        CommandError: it is refused, is being deleted, or others have set what it sets.
    """
    before, stored = sent(cluster, job, dry_run=dry_run, force=force)
    namespace, name = job["metadata"]["namespace"], job["metadata"]["name"]
    typer.echo(f"{name} in {namespace}: {outcome(before, stored)}{' (dry run)' if dry_run else ''}")
    return stored


def sent(cluster: Cluster, job: Object, *, dry_run: bool, force: bool) -> tuple[Object | None, Object]:
    """Apply a job; how it was before, None if it was not, and what is stored then, or would be.

    Raises:
        CommandError: it is refused, is being deleted, or others have set what it sets.
    """
    namespace, name = job["metadata"]["namespace"], job["metadata"]["name"]
    before = cluster.job(namespace, name)
    if before is not None and before["metadata"].get("deletionTimestamp"):
        raise CommandError(f"{name} in {namespace} is being deleted: submit again once it is gone.")
    try:
        stored = cluster.apply(job, dry_run=dry_run, force=force)
    except ConflictError as error:
        if not error.fields:
            raise
        raise CommandError(
            f"{name} in {namespace}: others have set what the file sets otherwise: {', '.join(error.fields)}. Leave "
            "these fields out of the file, or take them over with --force."
        ) from error
    except CommandError as error:
        raise CommandError(f"{name} in {namespace} was not submitted. {error}") from error
    return before, stored


def outcome(before: Object | None, after: Object) -> str:
    """What an apply has done."""
    if before is None:
        return "created"
    was, now = ((o["spec"], *(o["metadata"].get(f) for f in ("labels", "annotations"))) for o in (before, after))
    return "unchanged" if was == now else "changed"
