"""`submit -f FILE`: check jobs offline, then create or change them.

A submission is one server-side apply; see pstraining.cli.submission.
"""

from enum import StrEnum
from typing import Annotated

import typer
from pydantic import ValidationError

from pstraining.api.models import PSTrainingJobSpec
from pstraining.api.nulls import without_nulls
from pstraining.cli.client import ClusterClient, KubeconfigClient, Object
from pstraining.cli.errors import ArgumentError
from pstraining.cli.jobs import attempted, raise_all
from pstraining.cli.manifests import documents
from pstraining.cli.options import Context, Files, Namespace, Recursive, Timeout, Wait
from pstraining.cli.submission import all_placed, kept_claims, sent
from pstraining.cli.validation.documents import check_documents, require_valid
from pstraining.cli.waiting import Patience, follow, follow_each, is_held, running_or_ended, unchanged
from pstraining.resources import kueue


class DryRun(StrEnum):
    """The place of a dry run's checks."""

    NONE = "none"
    CLIENT = "client"
    SERVER = "server"


def submit(
    files: Files,
    recursive: Recursive = False,
    namespace: Namespace = None,
    context: Context = None,
    dry_run: Annotated[
        DryRun | None,
        typer.Option(help="Do not store the jobs. client: check without a cluster. server: let the API server check."),
    ] = None,
    force: Annotated[
        bool,
        typer.Option("--force", help="Take ownership of fields that other managers have set, such as an autoscaler."),
    ] = False,
    wait: Wait = False,
    timeout: Timeout = 300,
) -> None:
    """Create jobs, or change existing ones, after an offline check of all of them (see validate).

    If one job is invalid, none is sent. If the API server refuses one, the others are still sent. With --wait, the
    command waits until each job runs or has ended. The exit status is 0 if the job runs, has succeeded, or is suspended
    by its manifest.
    """
    if dry_run is DryRun.NONE:  # kubectl's default
        dry_run = None
    if wait and dry_run is not None:
        raise ArgumentError("--wait waits for what --dry-run does not store: remove one of them.")
    found = require_valid(check_documents(documents(files, recursive)), "submitted")
    if dry_run is DryRun.CLIENT:
        for job in all_placed(found, namespace, "default"):
            typer.echo(f"{job['metadata']['name']}: would be submitted (checked offline)")
        return
    cluster = KubeconfigClient(context)
    jobs = all_placed(found, namespace, cluster.namespace)
    stored, errors = attempted(jobs, lambda job: apply(cluster, job, dry_run=dry_run is not None, force=force))
    if wait:
        errors = follow_each(cluster, stored, awaited, Patience(timeout), errors)
    raise_all(errors)


def awaited(cluster: ClusterClient, job: Object, patience: Patience) -> str:
    """Wait until a submitted job runs, has ended or is suspended, and return the message about it.

    Raises:
        CommandError: the job has failed, was deleted, or the timeout has expired.
    """
    return (
        f"{job['metadata']['name']} is suspended." if is_held(job) else follow(cluster, job, running_or_ended, patience)
    )


def apply(cluster: ClusterClient, job: Object, *, dry_run: bool, force: bool) -> Object:
    """Create or change a job, print the outcome, and return the stored job, for `follow`.

    Raises:
        CommandError: the API server refused the job, it is being deleted, or other managers own its fields.
    """
    before, stored = sent(cluster, job, dry_run=dry_run, force=force)
    namespace, name = job["metadata"]["namespace"], job["metadata"]["name"]
    typer.echo(f"{name} in {namespace}: {outcome(before, stored)}{' (dry run)' if dry_run else ''}")
    for warning in kept_claims(before, stored) if before is not None else ():
        typer.echo(f"{name} in {namespace}: warning: {warning}", err=True)
    return stored if before is None or _differ(before, stored) else unchanged(stored)


def _differ(before: Object, after: Object) -> bool:
    """Return whether MultiKueue sends the changed job again: the spec, the queue or its priority class differs.

    Defaults that one of the specs writes out are no difference.
    """
    labels = [one["metadata"].get("labels") or {} for one in (before, after)]
    queues = [[own.get(name, "") for name in (kueue.LABEL_QUEUE, kueue.LABEL_PRIORITY_CLASS)] for own in labels]
    if queues[0] != queues[1]:
        return True
    specs = [one["spec"] for one in (before, after)]
    try:
        read = [PSTrainingJobSpec.model_validate(without_nulls(spec)) for spec in specs]
    except ValidationError:  # of another version
        return bool(specs[0] != specs[1])
    return read[0] != read[1]


def outcome(before: Object | None, after: Object) -> str:
    """Return the outcome of an apply: created, changed or unchanged."""
    if before is None:
        return "created"
    was, now = ((o["spec"], *(o["metadata"].get(f) for f in ("labels", "annotations"))) for o in (before, after))
    return "unchanged" if was == now else "changed"
