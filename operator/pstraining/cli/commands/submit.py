"""`submit -f FILE`: check jobs offline, then create them, or change those that exist.

Both are one server-side apply under a field manager of our own, so that what a file no longer says is taken away, and
what others have set is left to them unless the file says otherwise.
"""

from enum import StrEnum
from typing import Annotated

import typer

from pstraining.cli.client import ClusterClient, KubeconfigClient, Object
from pstraining.cli.manifests import documents
from pstraining.cli.options import Context, Files, Namespace, Timeout, Wait
from pstraining.cli.submission import placed, sent
from pstraining.cli.validation.documents import check_documents, require_valid
from pstraining.cli.waiting import Patience, follow, running_or_ended


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
    found = require_valid(check_documents(documents(files)))
    if dry_run is DryRun.CLIENT:
        for document in found:
            typer.echo(f"{document.name}: would be submitted (checked offline)")
        return
    cluster = KubeconfigClient(context)
    jobs = [placed(document, namespace, cluster.namespace) for document in found]
    stored = [apply(cluster, job, dry_run=dry_run is not None, force=force) for job in jobs]
    for job in stored if wait and dry_run is None else ():
        typer.echo(follow(cluster, job, running_or_ended, Patience(timeout)))


def apply(cluster: ClusterClient, job: Object, *, dry_run: bool, force: bool) -> Object:
    """Create a job or change it, and say which.

    Raises:
        CommandError: it is refused, is being deleted, or others have set what it sets.
    """
    before, stored = sent(cluster, job, dry_run=dry_run, force=force)
    namespace, name = job["metadata"]["namespace"], job["metadata"]["name"]
    typer.echo(f"{name} in {namespace}: {outcome(before, stored)}{' (dry run)' if dry_run else ''}")
    return stored


def outcome(before: Object | None, after: Object) -> str:
    """What an apply has done."""
    if before is None:
        return "created"
    was, now = ((o["spec"], *(o["metadata"].get(f) for f in ("labels", "annotations"))) for o in (before, after))
    return "unchanged" if was == now else "changed"
