"""`convert -f FILE`: manifests of TFJobs as manifests of PSTrainingJobs, and notes on what is not the same.

Nothing is dropped silently: whatever has not become the same field here is named in a note, with what to do.
"""

import json
import textwrap
from collections.abc import Sequence
from enum import StrEnum
from typing import Annotated

import typer

from pstraining.api import names
from pstraining.cli.errors import CommandError
from pstraining.cli.manifests import documents
from pstraining.cli.options import Files
from pstraining.cli.output import yaml_text
from pstraining.cli.tfjob.job import API_VERSION, KIND, Conversion, converted
from pstraining.cli.tfjob.notes import lines

INCOMPLETE = 3
"""Exit status: something has no counterpart."""
_WIDTH = 118
"""Columns of comments."""


class Manifests(StrEnum):
    """Format of the manifests."""

    YAML = "yaml"
    JSON = "json"


def convert(
    files: Files,
    output: Annotated[Manifests, typer.Option("--output", "-o", help="Format of the manifests.")] = Manifests.YAML,
    no_comments: Annotated[
        bool, typer.Option("--no-comments", help="Do not write the notes as YAML comments above the manifests.")
    ] = False,
    strict: Annotated[
        bool,
        typer.Option("--strict", help="Print no manifest and exit with 1 if a field of a TFJob has no counterpart."),
    ] = False,
) -> None:
    """Convert manifests of TFJobs (kubeflow.org/v1) to manifests of PSTrainingJobs, without a cluster.

    The manifests go to standard output, as in `kubectl pstraining convert -f tfjob.yaml > job.yaml`. Notes on fields
    without an identical counterpart go to standard error, and into comments above each manifest. Each note names the
    TFJob's field, reports whether it is changed, behaves differently or has no counterpart, and what to do.

    Exit status 0: every field has a counterpart. 3: a field has none. 1: a document is not a TFJob, or with --strict.
    """
    found = []
    for document in documents(files):
        try:
            conversion = converted(document.body)
        except CommandError as error:
            raise CommandError(f"{document}: {error}") from error
        found.append(conversion)
        typer.echo("\n".join([f"{document}:", *(f"  {line}" for line in lines(conversion.notes))]), err=True)
    if not found:
        raise CommandError("The input has no TFJob.")
    missing = [note for conversion in found for note in conversion.notes if note.missing]
    if missing and strict:
        raise CommandError(
            f"{len(missing)} of the notes above report fields without a counterpart; "
            "with --strict, no manifest is printed."
        )
    typer.echo(as_json(found) if output is Manifests.JSON else as_yaml(found, not no_comments), nl=False)
    if missing:
        raise typer.Exit(INCOMPLETE)


def as_yaml(found: Sequence[Conversion], comments: bool = True) -> str:
    """The manifests as documents of YAML, with their notes above them as comments."""
    texts = (
        (_comments(one) if comments else "") + ("" if one.manifest is None else yaml_text(one.manifest))
        for one in found
    )
    return "---\n".join(text for text in texts if text)


def as_json(found: Sequence[Conversion]) -> str:
    """The manifest as JSON; of several a List."""
    jobs = [one.manifest for one in found if one.manifest is not None]
    whole = jobs[0] if len(jobs) == 1 else {"apiVersion": "v1", "kind": "List", "items": jobs}
    return json.dumps(whole, indent=2) + "\n"


def _comments(conversion: Conversion) -> str:
    head = f"# {KIND} {conversion.name} ({API_VERSION}) as a {names.KIND}, by kubectl pstraining convert.\n"
    wrapped = textwrap.TextWrapper(
        _WIDTH, initial_indent="# - ", subsequent_indent="#   ", break_on_hyphens=False, break_long_words=False
    )
    return head + "".join(wrapped.fill(line) + "\n" for line in lines(conversion.notes))
