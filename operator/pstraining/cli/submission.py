"""Submitting a manifest: selecting its namespace, and one server-side apply.

The apply uses the commands' field manager: it removes fields that a file no longer sets, and keeps fields of other
managers unless the file sets them.
"""

from collections.abc import Iterator, Sequence

from pstraining.api import names
from pstraining.api.values import copied
from pstraining.cli.client import ClusterClient, Object
from pstraining.cli.errors import ArgumentError, CommandError, ConflictError
from pstraining.cli.manifests import LAST_APPLIED, SERVERS_OWN, Document
from pstraining.cli.validation.values import wrong_namespace


def placed(document: Document, wanted: str | None, default: str) -> Object:
    """Return the manifest's job with its namespace, without fields that only the API server writes.

    Args:
        document: the manifest.
        wanted: the value of --namespace.
        default: the namespace of the context.

    Raises:
        CommandError: the manifest's namespace differs from `wanted`, `wanted` is not a name, or metadata.name is
            missing.
    """
    if wanted and (problem := wrong_namespace(wanted)):
        raise ArgumentError(f"--namespace {problem}.")
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
    # Exported manifests have fields that only the API server, kubectl and the operator write.
    for written in SERVERS_OWN:
        metadata.pop(written, None)
    annotations = metadata.get("annotations") or {}
    # The request of `takeover` is that of the exported job: it would fail over the first primary of a new one.
    former = [annotations.pop(name, None) for name in (LAST_APPLIED, names.ANNOTATION_TAKEOVER)]
    if any(former) and not annotations:
        del metadata["annotations"]
    job.pop("status", None)
    return job


def all_placed(documents: Sequence[Document], wanted: str | None, default: str) -> list[Object]:
    """Return the jobs of manifests, as `placed` does.

    Raises:
        CommandError: as `placed`; or two different manifests are of the same job, which would get the last one.
    """
    jobs = [placed(document, wanted, default) for document in documents]
    first: dict[tuple[str, str], tuple[Document, Object]] = {}
    for document, job in zip(documents, jobs, strict=True):
        namespace, name = job["metadata"]["namespace"], job["metadata"]["name"]
        before, other = first.setdefault((namespace, name), (document, job))
        if job != other:
            raise CommandError(
                f"{document}: {before} is another manifest of {name} in {namespace}: remove one of them, or give its "
                "job another name."
            )
    return jobs


def sent(cluster: ClusterClient, job: Object, *, dry_run: bool, force: bool) -> tuple[Object | None, Object]:
    """Apply a job and return its former state, None if it is new, and the stored one (or the one of the dry run).

    Raises:
        ConflictError: other managers own fields of the job.
        CommandError: the API server refused the job, or it is being deleted.
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
        message = (
            f"{name} in {namespace}: other field managers own fields that the file changes: "
            f"{', '.join(error.fields)}. Remove these fields from the file, or take ownership with --force."
        )
        raise ConflictError(message, error.status, error.fields) from error
    except CommandError as error:
        raise CommandError(f"{name} in {namespace} was not submitted. {error}", error.code) from error
    return before, stored


def kept_claims(before: Object, after: Object) -> Iterator[str]:
    """Yield warnings about changed templates of claims: claims that exist stay as they are.

    Args:
        before: the job before the change.
        after: the changed job.
    """
    name, changed = after["metadata"]["name"], "change the claim itself, for example to enlarge it."
    templates = [(job["spec"].get("checkpoint") or {}).get("volumeClaimTemplate") for job in (before, after)]
    if all(templates) and templates[0] != templates[1]:
        claim = names.checkpoint_claim(name)
        yield f"spec.checkpoint.volumeClaimTemplate: if the claim {claim} exists, it stays as it is: {changed}"
    old, new = (
        {item["metadata"]["name"]: item.get("spec") for item in job["spec"]["ps"].get("volumeClaimTemplates") or ()}
        for job in (before, after)
    )
    for item in (item for item in new if item in old and old[item] != new[item]):
        claims = f"{item}-{names.ps_stateful_set(name)}-0 and the like"
        yield f"spec.ps.volumeClaimTemplates: claims that exist ({claims}) stay as they are: {changed}"
