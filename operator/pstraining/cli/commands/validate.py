"""`validate -f FILE`: check jobs as the API server and the operator would, without a cluster.

The rules are the CRD's schema and its CEL rules (pstraining.cli.validation.schema), generated from the same models as
the installed CRD.
"""

from collections.abc import Sequence
from typing import Any

import typer
from rich.console import RenderableType
from rich.text import Text

from pstraining.cli.exit_codes import ExitCode
from pstraining.cli.manifests import documents
from pstraining.cli.options import Files, Format, Recursive
from pstraining.cli.output import Output, PrintedKind, show
from pstraining.cli.validation.documents import CheckedDocument, check_documents, lines
from pstraining.cli.validation.schema import Severity


def validate(files: Files, recursive: Recursive = False, output: Format = Output.TEXT) -> None:
    """Check manifests of jobs against the API server's rules, without a cluster. Exit status 1 if one is invalid.

    The rules of the API cover types, bounds, required fields and combinations of fields. Pod templates are checked for
    errors that Kubernetes would reject in the operator's pods: wrong types and values, such as a quantity of 512MB,
    missing images and volumes. An unknown field is a warning, because a newer CRD or Kubernetes may have it; the API
    server rejects fields that it does not have. Other objects in the files are listed as skipped.
    """
    found = check_documents(documents(files, recursive))
    show(PrintedKind.VALIDATION, report(found), output, lambda: picture(found))
    if any(v.errors for v in found):
        raise typer.Exit(ExitCode.ERROR)


def report(found: Sequence[CheckedDocument]) -> dict[str, Any]:
    """Return the results, for programs."""
    checked = [
        {
            "file": v.document.file,
            "document": v.document.number,
            "kind": v.document.kind,
            "name": v.document.name,
            "verdict": v.word,
            "findings": [{"severity": str(f.severity), "field": f.field, "message": f.message} for f in v.findings],
        }
        for v in found
    ]
    return {"documents": checked, **{f"{s}s": _count(found, s) for s in Severity}}


def picture(found: Sequence[CheckedDocument]) -> RenderableType:
    """Render the results as text: a line for each finding, and for each document without any."""
    text = Text("\n").join(line for v in found for line in lines(v))
    jobs = sum(not v.skipped for v in found)
    counts = (_counted(_count(found, Severity.ERROR), "error"), _counted(_count(found, Severity.WARNING), "warning"))
    return text.append(f"\n{_counted(jobs, 'job')}, {', '.join(counts)}")


def _count(found: Sequence[CheckedDocument], severity: Severity) -> int:
    return sum(f.severity is severity for v in found for f in v.findings)


def _counted(number: int, what: str) -> str:
    return f"{number} {what}{'' if number == 1 else 's'}"
