"""The results of conversions: tables for people, data for programs, and manifests."""

import json
import textwrap
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Any

from rich.table import Table
from rich.text import Text

from pstraining.api import names
from pstraining.api.text import printable
from pstraining.cli.manifests import Document
from pstraining.cli.output import yaml_text
from pstraining.cli.reading.texts import first_document
from pstraining.cli.tfjob.job import Conversion, converted
from pstraining.cli.tfjob.notes import Note, NoteKind, lines, worst_first
from pstraining.cli.tfjob.others import notes_on, notes_on_part
from pstraining.cli.tfjob.versions import is_tfjob

_WIDTH = 118
"""Width of comments, in columns."""


class ConversionResult(StrEnum):
    """The result of a document's conversion."""

    CONVERTED = "converted"
    NOTES = "converted, with notes"
    MISSING = "converted, incomplete"
    REFUSED = "refused"
    PASSED = "passed on"


@dataclass(frozen=True)
class Converted:
    """A document and its conversion."""

    document: Document
    conversion: Conversion | None = None
    """The conversion; None if the document is not a TFJob."""
    others: tuple[Note, ...] = ()
    """Notes on a document that is not a TFJob."""

    @property
    def notes(self) -> tuple[Note, ...]:
        """All notes on the document."""
        return self.others if self.conversion is None else self.conversion.notes

    @property
    def body(self) -> dict[str, Any] | None:
        """The printed manifest; None if there is none."""
        return self.document.body if self.conversion is None else self.conversion.manifest

    @property
    def result(self) -> ConversionResult:
        """The document's result."""
        if self.body is None or any(note.refused for note in self.notes):
            return ConversionResult.REFUSED
        if self.conversion is None:
            return ConversionResult.PASSED
        if any(note.missing for note in self.notes):
            return ConversionResult.MISSING
        return (
            ConversionResult.NOTES
            if any(note.kind is NoteKind.DIFFERENT for note in self.notes)
            else ConversionResult.CONVERTED
        )


def as_yaml(found: Sequence[Converted], comments: bool = True) -> str:
    """Return the manifests as YAML documents, with their notes as comments above them."""
    texts = ((_comments(one) if comments else "") + _manifest(one) for one in found)
    return "---\n".join(text for text in texts if text)


def as_json(found: Sequence[Converted]) -> str:
    """Return a manifest as JSON, or several as a List."""
    bodies = [one.body for one in found if one.body is not None]
    whole = bodies[0] if len(bodies) == 1 else {"apiVersion": "v1", "kind": "List", "items": bodies}
    return json.dumps(whole, indent=2) + "\n"


def convert_documents(documents: Sequence[Document], command: str = "") -> list[Converted]:
    """Convert documents. `command` is as in `converted`."""
    jobs = {document.name for document in documents if is_tfjob(document.body)} - {""}
    first: dict[tuple[str, str], Document] = {}
    return [_named_twice(convert_document(document, command, jobs), first) for document in documents]


def convert_document(document: Document, command: str = "", jobs: Collection[str] = ()) -> Converted:
    """Convert a document. `command` is as in `converted`, and `jobs` are the names of all TFJobs."""
    if is_tfjob(document.body):
        found = converted(document.body, document.lines, command)
        if found.manifest is None:
            found = replace(found, notes=found.notes + notes_on_part(document.body))
        return Converted(document, found)
    return Converted(document, None, notes_on(document.body, jobs))


def _named_twice(one: Converted, first: dict[tuple[str, str], Document]) -> Converted:
    """Return the result, with a note if its job has the name of an earlier one.

    Args:
        one: the result.
        first: the first document of each job, by namespace and name; this job is added.
    """
    body = one.body or {}
    metadata = body.get("metadata")
    if body.get("kind") != names.KIND or not isinstance(metadata, dict) or not metadata.get("name"):
        return one
    before = first.setdefault((str(metadata.get("namespace") or ""), str(metadata["name"])), one.document)
    if before is one.document:
        return one
    note = Note(
        "metadata.name",
        NoteKind.DIFFERENT,
        f"it is the name of the job of {before}, too. `kubectl create` refuses the second job, and `kubectl apply` "
        "changes the first one into it, also while it runs.",
        "Remove one of them, or give it another name.",
    )
    if one.conversion is None:
        return replace(one, others=(*one.others, note))
    return replace(one, conversion=replace(one.conversion, notes=(*one.conversion.notes, note)))


def _manifest(one: Converted) -> str:
    """Return the manifest's YAML. Objects that are not converted keep their source, with its comments."""
    document = one.document
    if one.conversion is None:
        for text in (document.text.rstrip("\n") + "\n", document.text):
            # The last lines may belong to a text that keeps them, as |+ does.
            if text.endswith("\n") and first_document(document.file, text) == document.body:
                return text
    return "" if one.body is None else yaml_text(one.body)


def _comments(one: Converted) -> str:
    document = one.document
    if one.conversion is None and not one.notes:
        return ""
    action = "passed on" if one.conversion is None else f"as a {names.KIND}"
    version = document.body.get("apiVersion")
    name = document.name if one.conversion is None else one.conversion.name
    head = " ".join(f"# {document.kind} {name} ({version}) {action}, by kubectl pstraining convert.".split())
    wrapped = textwrap.TextWrapper(
        _WIDTH, initial_indent="# - ", subsequent_indent="#   ", break_on_hyphens=False, break_long_words=False
    )
    # YAML allows no control characters, not even in comments.
    return printable("\n".join([head, *map(wrapped.fill, lines(one.notes)), ""]), keep="\n")


def report(found: Sequence[Converted], problems: Sequence[str]) -> dict[str, Any]:
    """Return the results, for programs."""
    documents = [
        {
            "file": one.document.file,
            "document": one.document.number,
            "kind": one.document.kind,
            "name": one.document.name,
            "result": str(one.result),
            "notes": [
                {"field": n.path, "what": str(n.kind), "message": n.message, "todo": n.todo}
                for n in worst_first(one.notes)
            ],
        }
        for one in found
    ]
    return {"documents": documents, "unreadable": list(problems)}


def table(found: Sequence[Converted]) -> Table:
    """Render the results as a table with a row for each document."""
    rows = Table("FILE", "DOCUMENT", "KIND", "NAME", "RESULT", *(str(kind).upper() for kind in NoteKind), box=None)
    for one in found:
        counts = [sum(note.kind is kind for note in one.notes) for kind in NoteKind]
        document = one.document
        words = (document.file, document.number, document.kind, document.name, one.result)
        rows.add_row(*(Text(word) for word in words), *(str(number or "") for number in counts))
    return rows
