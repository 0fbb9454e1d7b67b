"""`validate -f FILE`: what the API server and the operator would say to jobs, said without a cluster.

The rules are those of the API server itself: the CRD's schema and its CEL rules (pstraining.api.validation), generated
from the same models as the CRD that is installed.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import RenderableType
from rich.text import Text

from pstraining.api import names
from pstraining.api.validation import Finding, Severity, did_you_mean
from pstraining.api.validation import validate as findings
from pstraining.cli.errors import CommandError
from pstraining.cli.manifests import Document, documents
from pstraining.cli.options import Format
from pstraining.cli.output import Output, show
from pstraining.cli.templates import refused

Files = Annotated[
    list[Path],
    typer.Option(
        "--filename", "-f", help="A file of manifests, YAML or JSON; - for standard input. May be given several times."
    ),
]


@dataclass(frozen=True)
class Verdict:
    """What is to be said of a document."""

    document: Document
    findings: Sequence[Finding] = field(default=())

    @property
    def skipped(self) -> bool:
        """It is no PSTrainingJob."""
        return not self.document.is_job

    @property
    def errors(self) -> list[Finding]:
        """What makes it wrong."""
        return [f for f in self.findings if f.severity is Severity.ERROR]

    @property
    def word(self) -> str:
        """The verdict in a word."""
        return "skipped" if self.skipped else "wrong" if self.errors else "ok"


def validate(files: Files, output: Format = Output.TEXT) -> None:
    """Check manifests of jobs without a cluster, by the API server's own rules; exit status 1 if one is wrong.

    Besides the rules of the API (types, bounds, required fields, and how fields go together), pod templates are checked
    for what the operator's pods would be refused for: wrong types, missing images, volumes that are not there. A field
    that this version does not know is a warning, since a newer CRD or Kubernetes may know it; the API server refuses
    what it does not know itself. Other objects in the files are named and skipped.
    """
    found = verdicts(documents(files))
    show(report(found), output, lambda: picture(found))
    if any(v.errors for v in found):
        raise typer.Exit(1)


def verdicts(found: Sequence[Document]) -> list[Verdict]:
    """What is wrong with each document.

    Raises:
        CommandError: none of them is a PSTrainingJob.
    """
    if not any(document.is_job for document in found):
        others = ", ".join(dict.fromkeys(d.kind for d in found))
        raise CommandError(f"There is no {names.KIND} in what was given{f', only {others}' if others else ''}.")
    return [Verdict(d, wrong_with(d.body) if d.is_job else ()) for d in found]


def wrong_with(job: dict[str, Any]) -> list[Finding]:
    """All that is wrong with a job, as a user writes it: errors first."""
    for key, right in (("apiVersion", names.API_VERSION), ("kind", names.KIND)):
        if job.get(key) != right:
            return [Finding(key, f"must be {right}, is {job.get(key)}{did_you_mean(str(job.get(key)), [right])}")]
    found = findings(job)
    if not any(f.severity is Severity.ERROR for f in found):
        found += refused(job)
    return sorted(found, key=lambda f: f.severity is not Severity.ERROR)


def report(found: Sequence[Verdict]) -> dict[str, Any]:
    """The verdicts, for programs."""
    said = [
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
    return {"documents": said, **{f"{s}s": _count(found, s) for s in Severity}}


def picture(found: Sequence[Verdict]) -> RenderableType:
    """The verdicts, for people: a line for each finding, and for each document without any."""
    told = Text("\n").join(line for v in found for line in lines(v))
    jobs = sum(not v.skipped for v in found)
    counts = (_counted(_count(found, Severity.ERROR), "error"), _counted(_count(found, Severity.WARNING), "warning"))
    return told.append(f"\n{_counted(jobs, 'job')}, {', '.join(counts)}")


def lines(verdict: Verdict) -> list[Text]:
    """What is said of one document."""
    if verdict.skipped:
        return [Text(f"{verdict.document}: skipped: no {names.KIND}", style="dim")]
    if not verdict.findings:
        return [Text.assemble(f"{verdict.document}: ", ("ok", "green"))]
    styles = {Severity.ERROR: "red", Severity.WARNING: "yellow"}
    return [
        Text.assemble(f"{verdict.document}: ", (str(f.severity), styles[f.severity]), f": {f}")
        for f in verdict.findings
    ]


def _count(found: Sequence[Verdict], severity: Severity) -> int:
    return sum(f.severity is severity for v in found for f in v.findings)


def _counted(number: int, what: str) -> str:
    return f"{number} {what}{'' if number == 1 else 's'}"
