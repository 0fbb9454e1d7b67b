"""`convert -f FILE`: convert manifests of TFJobs to PSTrainingJobs, with notes on the differences.

No field is dropped silently: every field without an identical counterpart has a note with the action to take.
"""

import shlex
from collections.abc import Sequence
from enum import StrEnum
from typing import Annotated

import typer

from pstraining.cli.errors import ArgumentError, CommandError
from pstraining.cli.exit_codes import ExitCode
from pstraining.cli.manifests import Document, read
from pstraining.cli.options import Files, Recursive
from pstraining.cli.output import Output, PrintedKind, show
from pstraining.cli.tfjob import results
from pstraining.cli.tfjob.notes import lines
from pstraining.cli.tfjob.results import Converted, as_json, as_yaml, convert_documents
from pstraining.cli.tfjob.versions import KIND


class Manifests(StrEnum):
    """Format of the manifests."""

    YAML = "yaml"
    JSON = "json"


def convert(
    files: Files,
    recursive: Recursive = False,
    output: Annotated[
        Manifests | None,
        typer.Option(
            "--output", "-o", help="Format of the manifests or the report. Default: yaml, and a table with --report."
        ),
    ] = None,
    no_comments: Annotated[
        bool, typer.Option("--no-comments", help="Do not write the notes as YAML comments above the manifests.")
    ] = False,
    strict: Annotated[
        bool,
        typer.Option("--strict", help="Print no manifest and exit with 1 if a field of a TFJob has no counterpart."),
    ] = False,
    report: Annotated[
        bool, typer.Option("--report", help="Print a table of files and jobs with the results, and no manifest.")
    ] = False,
    command: Annotated[
        str,
        typer.Option(help="Entrypoint of the images, such as 'python -m train', for containers without a command."),
    ] = "",
) -> None:
    """Convert manifests of TFJobs (kubeflow.org/v1 to v1alpha2) to manifests of PSTrainingJobs, without a cluster.

    The manifests go to standard output, as in `kubectl pstraining convert -f tfjob.yaml > job.yaml`. Other objects are
    passed on unchanged. Notes on fields without an identical counterpart go to standard error, and into comments above
    each manifest. Each note names the TFJob's field, reports whether it is changed, behaves differently, has no
    counterpart or is refused, and what to do. All notes on all files come in one run.

    Exit status 0: every field has a counterpart. 3: a field has no counterpart. 1: a document cannot be read or is
    refused, or, with --strict, a field has no counterpart. With 1, no manifest is printed.
    """
    _check_command(command)
    given = list(read(files, recursive))
    problems = [str(one) for one in given if isinstance(one, CommandError)]
    found = convert_documents([one for one in given if isinstance(one, Document)], command)
    if report:
        form = Output.TEXT if output is None else Output(output)
        show(PrintedKind.CONVERSION, results.report(found, problems), form, lambda: results.table(found))
    _print_notes(found, problems)
    _require_convertible(found, len(problems), strict)
    if not report:
        text = as_json(found) if output is Manifests.JSON else as_yaml(found, not no_comments)
        typer.echo(text, nl=False)
    if _missing(found):
        raise typer.Exit(ExitCode.INCOMPLETE)


def _check_command(command: str) -> None:
    try:
        shlex.split(command)
    except ValueError as error:
        raise ArgumentError(f"--command: {error}") from None


def _print_notes(found: Sequence[Converted], problems: Sequence[str]) -> None:
    for problem in problems:
        typer.echo(f"refused: {problem}", err=True)
    for one in found:
        if one.conversion is not None or one.notes:
            typer.echo("\n".join([f"{one.document}:", *(f"  {line}" for line in lines(one.notes))]), err=True)
        else:
            typer.echo(f"{one.document}: passed on", err=True)


def _require_convertible(found: Sequence[Converted], unreadable: int, strict: bool) -> None:
    """Raise a CommandError if no manifest may be printed."""
    wrong = sum(any(note.refused for note in one.notes) for one in found) + unreadable
    if wrong:
        raise CommandError(
            f"{wrong} document{'s' if wrong > 1 else ''} must be changed first, as above: no manifest is printed."
        )
    if not any(one.conversion is not None for one in found):
        kinds = ", ".join(dict.fromkeys(one.document.kind for one in found))
        raise CommandError(f"The input has no {KIND}{f', only {kinds}' if kinds else ''}.")
    if strict and (missing := _missing(found)):
        raise CommandError(
            f"{missing} of the notes above report fields without a counterpart; with --strict, no manifest is printed."
        )


def _missing(found: Sequence[Converted]) -> int:
    return sum(note.missing for one in found for note in one.notes)
