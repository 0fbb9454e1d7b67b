"""`report JOB`: write an archive of all data that may explain a job's problem, without secrets, to read or to send."""

import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from datetime import UTC, datetime
from itertools import chain
from pathlib import Path
from typing import IO, Annotated, Any, Final

import typer

from pstraining.cli.client import KubeconfigClient
from pstraining.cli.commands.doctor import examine_job
from pstraining.cli.commands.version import cluster_versions
from pstraining.cli.doctor.examination import operator_deployments
from pstraining.cli.errors import ArgumentError, CommandError
from pstraining.cli.formatting import several
from pstraining.cli.jobs import job_named
from pstraining.cli.options import Context, Job, Namespace
from pstraining.cli.output import PrintedKind, for_programs, yaml_text
from pstraining.cli.overview import look
from pstraining.cli.report.archive import write_archive
from pstraining.cli.report.collection import Collection, File
from pstraining.core.observe import parse_time

STANDARD_OUTPUT: Final = "-"


def report(
    job: Job,
    file: Annotated[
        str, typer.Option("--file", help="Archive to write; - is standard output. Default: NAMESPACE-JOB.tar.gz.")
    ] = "",
    tail: Annotated[int, typer.Option(min=1, help="Lines of each log, from its end.")] = 10_000,
    namespace: Namespace = None,
    context: Context = None,
) -> None:
    """Write an archive of data that may explain a job's problem: the job, its objects, pods, events, and all logs.

    It also has the output of `status`, `doctor` and `version`, the nodes, and the operator's log. Secrets are not read.
    Values of environment variables with secret-like names are left out, and removed from logs. Read the archive before
    you send it: a program may have printed other secrets. contents.yaml lists the files, and the unreadable parts.
    """
    if file == STANDARD_OUTPUT and (sys.stdout is None or sys.stdout.isatty()):
        raise ArgumentError("--file -: the archive is not text for a terminal. Name a file, or pipe the output.")
    cluster = KubeconfigClient(context)
    found = job_named(cluster, namespace or cluster.namespace, job)
    root = f"{found['metadata']['namespace']}-{found['metadata']['name']}"
    collection = Collection(cluster, found, tail)
    with opened(file or f"{root}.tar.gz") as out:
        created = parse_time(found["metadata"].get("creationTimestamp"))
        write_archive(out, root, files(collection), int(created.timestamp()) if created else 0)
    for what, why in collection.left_out:
        typer.echo(f"not read: {what}: {why}", err=True)
    if file != STANDARD_OUTPUT:
        typer.echo(
            f"{file or f'{root}.tar.gz'}: written; {several(len(collection.left_out), 'part')} could not be read"
        )


def files(collection: Collection) -> Iterator[File]:
    """Yield all files of a report; the last one lists them."""
    cluster, job = collection.cluster, collection.job
    namespace, name = job["metadata"]["namespace"], job["metadata"]["name"]
    collection.operators = collection.tried("operators", "operators", lambda: operator_deployments(cluster)) or ()
    paths = []
    for path, text in chain(collection.files(), _summaries(collection, namespace, name)):
        paths.append(path)
        yield path, text
    left_out = [{"what": what, "why": why} for what, why in collection.left_out]
    contents = {"job": {"namespace": namespace, "name": name}, "files": sorted(paths), "notRead": left_out}
    yield "contents.yaml", yaml_text(for_programs(PrintedKind.REPORT, contents))


def _summaries(collection: Collection, namespace: str, name: str) -> Iterator[File]:
    """Yield the output of other commands."""
    cluster = collection.cluster
    outputs: Mapping[str, tuple[PrintedKind, Callable[[], dict[str, Any]]]] = {
        "status": (PrintedKind.STATUS, lambda: look(cluster, namespace, name)),
        "doctor": (PrintedKind.DIAGNOSIS, lambda: examine_job(cluster, namespace, name, datetime.now(UTC))),
        "version": (PrintedKind.VERSIONS, lambda: cluster_versions(cluster)),
    }
    for command, (kind, make) in outputs.items():
        try:
            found = make()
        except CommandError as error:
            collection.left_out.append((f"the output of {command}", str(error)))
        else:
            yield f"{command}.yaml", yaml_text(for_programs(kind, collection.redactor.redacted(found)))


@contextmanager
def opened(file: str) -> Iterator[IO[bytes]]:
    """Open the archive for writing, and delete it if writing fails.

    Raises:
        CommandError: the file exists, or cannot be written.
    """
    if file == STANDARD_OUTPUT:
        yield sys.stdout.buffer
        return
    path = Path(file)
    try:
        with path.open("xb") as out:
            try:
                yield out
            except BaseException:
                path.unlink()
                raise
    except FileExistsError as error:
        raise CommandError(f"{file} exists: remove it, or write to another --file.") from error
    except OSError as error:
        raise CommandError(f"{file} cannot be written: {error.strerror}.") from error
