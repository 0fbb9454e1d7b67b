"""Validates the documents of files, and selects the jobs that can be submitted."""

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import typer
from rich.text import Text

from pstraining.api import names
from pstraining.api.models import CheckpointSpec, PSTrainingJob, PSTrainingJobSpec
from pstraining.api.nulls import without_nulls
from pstraining.cli.errors import CommandError
from pstraining.cli.manifests import Document
from pstraining.cli.validation.quantities import tiny_sizes
from pstraining.cli.validation.schema import Finding, Severity, did_you_mean
from pstraining.cli.validation.schema import validate as findings
from pstraining.cli.validation.templates import of_other_effect, refused
from pstraining.core.policies.durability import not_durable
from pstraining.core.policies.ineffective import ineffective
from pstraining.core.policies.inheritance import inherited


@dataclass(frozen=True)
class CheckedDocument:
    """A document with its findings."""

    document: Document
    findings: Sequence[Finding] = field(default=())

    @property
    def skipped(self) -> bool:
        """Whether the document is not a PSTrainingJob."""
        return not self.document.is_job

    @property
    def errors(self) -> list[Finding]:
        """The findings that are errors."""
        return [f for f in self.findings if f.severity is Severity.ERROR]

    @property
    def word(self) -> str:
        """The result in one word."""
        return "skipped" if self.skipped else "wrong" if self.errors else "ok"


def check_documents(found: Sequence[Document]) -> list[CheckedDocument]:
    """Validate each document.

    Raises:
        CommandError: no document is a PSTrainingJob, or one is a kustomization, which changes the others.
    """
    for document in found:
        if _is_kustomization(document):
            raise CommandError(
                f"{document.file} is a kustomization, which changes other files, and is not applied here: render it "
                "first: `kubectl kustomize FOLDER | kubectl pstraining COMMAND -f -`."
            )
    if not any(document.is_job for document in found):
        kinds = list(dict.fromkeys(d.kind for d in found))
        others = f", only {', '.join(kinds)}" if kinds else ""
        hint = " `kubectl pstraining convert` converts TFJobs." if "TFJob" in kinds else ""
        raise CommandError(f"The input has no {names.KIND}{others}.{hint}")
    return [CheckedDocument(d, wrong_with(d.body) if d.is_job else ()) for d in found]


def wrong_with(job: dict[str, Any]) -> list[Finding]:
    """Return all findings for a job's manifest, errors first."""
    for key, right in (("apiVersion", names.API_VERSION), ("kind", names.KIND)):
        if job.get(key) != right:
            return [Finding(key, f"must be {right}, is {job.get(key)}{did_you_mean(str(job.get(key)), [right])}")]
    found = findings(job)
    if not any(f.severity is Severity.ERROR for f in found):
        found += refused(job)
    if not any(f.severity is Severity.ERROR for f in found):
        found += [*lost_with_pods(job), *inherited_settings(job)]
        found += [*of_other_effect(job), *tiny_sizes(("spec",), job["spec"])]
        found += without_effect(job)
    return sorted(found, key=lambda f: f.severity is not Severity.ERROR)


def _is_kustomization(document: Document) -> bool:
    group = str(document.body.get("apiVersion") or "").partition("/")[0]
    is_named = os.path.splitext(os.path.basename(document.file))[0].lower() == "kustomization"
    return group == "kustomize.config.k8s.io" or (is_named and not document.body.get("kind"))


def lost_with_pods(job: Mapping[str, Any]) -> list[Finding]:
    """Warn about checkpoints that do not outlive the job's pods, as the condition CheckpointNotDurable does.

    Args:
        job: a job without errors.
    """
    checkpoint = without_nulls(job["spec"]).get("checkpoint")
    weak = not_durable(None if checkpoint is None else CheckpointSpec.model_validate(checkpoint))
    return [] if weak is None else [Finding(weak.field, weak.message, Severity.WARNING)]


def inherited_settings(job: Mapping[str, Any]) -> list[Finding]:
    """Warn about GPU workers' settings in other roles, as the condition GPUSettingsInherited does.

    Args:
        job: a job without errors.
    """
    spec = PSTrainingJobSpec.model_validate(without_nulls(job["spec"]))
    return [Finding(found.field, found.message, Severity.WARNING) for found in inherited(spec)]


def without_effect(job: Mapping[str, Any]) -> list[Finding]:
    """Warn about fields that other fields make useless, as the condition FieldsWithoutEffect does.

    Args:
        job: a job without errors.
    """
    metadata = {"name": "job", "namespace": "", "uid": "", "labels": job["metadata"].get("labels")}
    typed = PSTrainingJob.model_validate({"metadata": metadata, "spec": without_nulls(job["spec"])})
    return [Finding(found.field, found.message, Severity.WARNING) for found in ineffective(typed)]


def lines(checked: CheckedDocument) -> list[Text]:
    """Render one document's findings as lines."""
    if checked.skipped:
        return [Text(f"{checked.document}: skipped: not a {names.KIND}", style="dim")]
    if not checked.findings:
        return [Text.assemble(f"{checked.document}: ", ("ok", "green"))]
    styles = {Severity.ERROR: "red", Severity.WARNING: "yellow"}
    return [
        Text.assemble(f"{checked.document}: ", (str(f.severity), styles[f.severity]), f": {f}")
        for f in checked.findings
    ]


def require_valid(found: Sequence[CheckedDocument], done: str) -> list[Document]:
    """Return the jobs, and print findings and skipped documents to standard error.

    Args:
        found: the documents.
        done: what happens to valid jobs, for the message, such as `submitted`.

    Raises:
        CommandError: a job has errors.
    """
    for checked in found:
        if checked.skipped or checked.findings:
            for line in lines(checked):
                typer.echo(line.plain, err=True)
    wrong = sum(f.severity is Severity.ERROR for v in found for f in v.findings)
    if wrong:
        raise CommandError(f"Nothing was {done}: the input has {wrong} error{'s' if wrong > 1 else ''}.")
    return [v.document for v in found if not v.skipped]
