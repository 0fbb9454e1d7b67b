"""The documentation's jobs are valid: whole manifests, fragments of a spec, patches, and fields by name."""

import re
from collections.abc import Iterator, Mapping
from typing import Any

import pytest
import yaml

from hack.docs.pages import ROOT, Piece, pages
from pstraining.cli.validation.documents import wrong_with
from pstraining.cli.validation.schema import validate
from tests.support.documented import REFUSED, SCHEMA, complete, documents, job_of, where

VALUES = yaml.load((ROOT / "charts" / "pstraining" / "values.yaml").read_text("utf-8"), Loader=yaml.CSafeLoader)
NOT_OURS = {"tfReplicaSpecs": "TFJob's", "containers": "a pod's", "nodeName": "a pod's", "template": "of many kinds"}
"""Fields below `spec` in pages that belong to other kinds."""
_FIELD = re.compile(r"(?:(spec|status)\.|(?=\w+\.))([a-zA-Z]+(?:\[\])?(?:\.[a-zA-Z]+(?:\[\])?)*)(?:: ([\w-]+))?")
_FILE = re.compile(r".*\.(json|md|py|toml|ya?ml)")


DOCUMENTS = list(documents())


def problems(document: Any) -> list[str]:
    """Return the problems of a document: a job must be valid, values of the chart must exist, and other kinds are
    accepted.
    """
    document = complete(document)
    if not isinstance(document, dict):
        return ["neither a manifest nor a part of one"]
    if document.get("kind", "PSTrainingJob") != "PSTrainingJob":
        return [f"{field} is missing" for field in ("apiVersion", "metadata") if field not in document]
    if job := job_of(document):
        return [str(f) for f in validate(job)]
    return [f"{name} is no value of the chart" for name in unknown_values(VALUES, document)]


def unknown_values(known: Any, given: Any) -> Iterator[str]:
    """Return the values that the chart does not have; a value that is empty by default accepts anything."""
    if isinstance(known, dict) and known and isinstance(given, dict):
        for name, item in given.items():
            if name not in known:
                yield name
            else:
                yield from (f"{name}.{below}" for below in unknown_values(known[name], item))


@pytest.mark.parametrize(
    ("place", "first", "document"), DOCUMENTS, ids=[f"{d[0]}-{i}" for i, d in enumerate(DOCUMENTS)]
)
def test_manifests_and_fragments_are_valid(place: str, first: str, document: Any) -> None:
    if (place.partition(":")[0], first) not in REFUSED:
        assert not problems(document), place


CONVERTED = "docs/users/move-from-tfjob.md"
"""Blocks whose job is the conversion of a TFJob, which has no such field."""


def test_a_job_that_is_shown_whole_keeps_its_model() -> None:
    """A job that is shown completely keeps its model, because readers copy it."""
    whole = [(place, found) for place, first, found in DOCUMENTS if isinstance(found, dict) and "kind" in found]
    jobs = [(place, job) for place, found in whole if (job := job_of(found)) and not place.startswith(CONVERTED)]
    assert len(jobs) >= 4
    assert not [place for place, job in jobs if any(f.field.startswith("spec.checkpoint") for f in wrong_with(job))]


@pytest.mark.parametrize(("path", "first"), REFUSED)
def test_deliberately_invalid_examples_are_still_invalid(path: str, first: str) -> None:
    if (ROOT / path).exists():
        found = [d for place, begins, d in DOCUMENTS if (place.partition(":")[0], begins) == (path, first)]
        assert any(problems(document) for document in found)


def test_every_kind_of_example_exists() -> None:
    shapes = [set(document) for _, _, document in DOCUMENTS]
    assert sum("kind" in shape for shape in shapes) >= 2
    assert sum(shape == {"spec"} for shape in shapes) >= 6


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("spec: {ps: {replicas: 2}}", ""),
        ("spec: {worker: {template: ..., replicas: 3}}", ""),
        ("runPolicy: {backoffLimit: 3}", ""),
        ("watch: {namespaces: [a]}\npodLabels: {any: thing}", ""),
        ("apiVersion: v1\nkind: ConfigMap\nmetadata: {name: x}", ""),
        ("kind: ConfigMap\nmetadata: {name: x}", "apiVersion is missing"),
        ("spec: {ps: {replica: 2}}", "spec.ps.replica"),
        ("spec: {ps: {standby: {mode: Hot}}}", "spec.training.mode"),
        ("runPolicy: {backoffLimits: 3}", "spec.runPolicy.backoffLimits"),
        ("kind: PSTrainingJob", "spec: is required"),
        ("watch: {namespace: [a]}", "watch.namespace is no value"),
        ("- a", "neither"),
        ("spec: {}\nother: 1", "spec is no value of the chart"),
    ],
)
def test_problems_are_reported(text: str, words: str) -> None:
    found = problems(yaml.safe_load(text))
    assert any(words in line for line in found) if words else not found


def fields() -> Iterator[tuple[str, Piece]]:
    """Return the code spans that name a field of a job by its path, such as `ps.standby.mode: Hot`."""
    for page in pages().values():
        for span in page.spans:
            found = _FIELD.fullmatch(span.text)
            first = found[2].partition(".")[0] if found else ""
            ours = found and (found[1] or first in SCHEMA["spec"]["properties"]) and first not in NOT_OURS
            if ours and not _FILE.fullmatch(span.text):
                yield where(page, span.line), span


def wrong_field(text: str) -> str:
    """Return the problem of a field's path or value; empty if there is none."""
    found = _FIELD.fullmatch(text)
    assert found
    schema = SCHEMA[found[1] or "spec"]
    for step in found[2].split("."):
        if _opaque(schema):
            return ""
        schema = schema.get("properties", {}).get(step.removesuffix("[]"))
        if schema is None:
            return f"there is no {step}"
        schema = schema.get("items", schema)
    if found[3] and "enum" in schema and found[3] not in schema["enum"]:
        return f"{found[3]} is none of {', '.join(schema['enum'])}"
    return ""


def _opaque(schema: Mapping[str, Any]) -> bool:
    return bool(schema.get("x-kubernetes-preserve-unknown-fields")) or "additionalProperties" in schema


def test_named_fields_exist() -> None:
    found = list(fields())
    assert len(found) > 40
    assert not [f"{place}: {span.text}: {wrong}" for place, span in found if (wrong := wrong_field(span.text))]


@pytest.mark.parametrize(
    ("text", "wrong"),
    [
        ("ps.standby.mode: Hot", ""),
        ("status.shards[].primary", ""),
        ("spec.worker.template.spec.hostNetwork", ""),
        ("ps.standby.modes", "there is no modes"),
        ("status.shard", "there is no shard"),
        ("ps.standby.mode: Cold", "Cold is none of None, Warm, Hot"),
    ],
)
def test_a_missing_field_is_reported(text: str, wrong: str) -> None:
    assert wrong_field(text) == wrong
