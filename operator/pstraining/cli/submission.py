"""How a manifest becomes the job that is sent: its namespace, and one server-side apply.

The apply has a field manager of its own: fields that a file no longer sets are removed, and fields of other managers
stay unless the file sets them.
"""

from pstraining.api.values import copied
from pstraining.cli.client import ClusterClient, Object
from pstraining.cli.errors import CommandError, ConflictError
from pstraining.cli.manifests import Document


def placed(document: Document, wanted: str | None, default: str) -> Object:
    """The job with its namespace, as it is sent.

    Args:
        document: the manifest.
        wanted: the namespace that was asked for.
        default: the context's.

    Raises:
        CommandError: the manifest has another namespace than was asked for, or no name of its own.
    """
    job = copied(document.body)
    metadata = job["metadata"]
    if not metadata.get("name"):
        raise CommandError(
            f"{document}: metadata.name is required. For a new job each time (generateName), use kubectl create."
        )
    named = metadata.get("namespace")
    if wanted and named and wanted != named:
        raise CommandError(
            f"{document}: metadata.namespace is {named}, but --namespace is {wanted}: remove one of them."
        )
    metadata["namespace"] = wanted or named or default
    # What only the API server and the operator write; exported manifests have it.
    for written in ("managedFields", "resourceVersion", "uid", "creationTimestamp", "generation"):
        metadata.pop(written, None)
    job.pop("status", None)
    return job


def sent(cluster: ClusterClient, job: Object, *, dry_run: bool, force: bool) -> tuple[Object | None, Object]:
    """Apply a job; how it was before, None if it was not, and what is stored then, or would be.

    Raises:
        CommandError: it is refused, is being deleted, or others have set what it sets.
    """
    namespace, name = job["metadata"]["namespace"], job["metadata"]["name"]
    before = cluster.job(namespace, name)
    if before is not None and before["metadata"].get("deletionTimestamp"):
        raise CommandError(f"{name} in {namespace} is being deleted: submit it again after the deletion.")
    try:
        stored = cluster.apply(job, dry_run=dry_run, force=force)
    except ConflictError as error:
        if not error.fields:
            raise
        raise CommandError(
            f"{name} in {namespace}: other field managers own fields that the file changes: "
            f"{', '.join(error.fields)}. Remove these fields from the file, or take ownership with --force."
        ) from error
    except CommandError as error:
        raise CommandError(f"{name} in {namespace} was not submitted. {error}", error.code) from error
    return before, stored
