"""Validates jobs by the CRD, as an API server does: its schema, its defaults, and its CEL rules.

It only evaluates the generated CRD, so that every change of the models or of cel_rules.py applies here as well. Like
the API server, it evaluates the rules only for a job that is valid by the schema.
"""

import difflib
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from pydantic import ValidationError

from pstraining.api import crd
from pstraining.api.models import PSTrainingJobSpec
from pstraining.api.read_fields import WRONG_TYPE
from pstraining.api.values import copied, join, path_of
from pstraining.cli.validation import cel

Schema = Mapping[str, Any]


class Severity(StrEnum):
    """Severity of a finding."""

    ERROR = "error"
    """The API server or the operator rejects the job."""
    WARNING = "warning"
    """Probably an error, unless a newer version accepts it."""


@dataclass(frozen=True)
class Finding:
    """A problem of a job."""

    field: str
    """The path of the field, such as spec.ps.replicas."""
    message: str
    severity: Severity = Severity.ERROR

    def __str__(self) -> str:
        """Return path and message. Messages of CEL rules begin with a path themselves."""
        begins = self.message.startswith(("spec.", "metadata."))
        return self.message if begins or not self.field else f"{self.field}: {self.message}"


def validate(job: Mapping[str, Any], old: Mapping[str, Any] | None = None) -> list[Finding]:
    """Validate a job.

    Args:
        job: the job as in a manifest, without defaults, or as stored.
        old: the stored job, for the rules about changes; None for a new job.

    Returns:
        All findings for single fields; without errors among them, also all findings of the CEL rules.
    """
    schema, job = _schema(), _named(job)
    found = [*_checked(_checkable(schema), job, "")]
    if any(f.severity is Severity.ERROR for f in found):
        return found
    full = defaulted(schema, job)
    found += _violated(schema, full, None if old is None else defaulted(schema, old), "")
    if not any(f.severity is Severity.ERROR for f in found):
        found += _unreadable(full["spec"])
    return found


def defaulted(schema: Schema, value: Any) -> Any:
    """Return the value as the API server stores it: with defaults, without nulls."""
    if isinstance(value, list) and "items" in schema:
        return [defaulted(schema["items"], item) for item in value]
    if not schema or not isinstance(value, Mapping):
        return value
    given = {name: item for name, item in value.items() if item is not None or not _known(schema, name)}
    for name, below in (schema.get("properties") or {}).items():
        if name not in given and "default" in below:
            given[name] = below["default"]
    return {name: defaulted(_below(schema, name), item) for name, item in given.items()}


def with_defaults(job: Mapping[str, Any]) -> dict[str, Any]:
    """Return a copy of the job with the defaults that the API server would set."""
    return copied(dict(defaulted(_schema(), job)))


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """Return a hint for a mistyped word; empty if no known word is close."""
    options = {option.lower(): option for option in known}
    near = difflib.get_close_matches(word.lower(), options, n=1, cutoff=0.7)
    return f"; did you mean {options[near[0]]}?" if near else ""


def _schema() -> Schema:
    version = crd.custom_resource_definition()["spec"]["versions"][0]
    found: Schema = version["schema"]["openAPIV3Schema"]
    return found


def _named(job: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the job with a name. The suffix is as long as the one that the API server adds to generateName."""
    metadata = job.get("metadata")
    if isinstance(metadata, Mapping) and not metadata.get("name") and metadata.get("generateName"):
        return {**job, "metadata": {**metadata, "name": f"{metadata['generateName']}xxxxx"}}
    return job


def _checkable(schema: Schema) -> Schema:
    """Return the schema for manifests: it requires metadata.name and accepts any status, which has no effect."""
    anything = {"type": "object", "x-kubernetes-preserve-unknown-fields": True}
    metadata = {**anything, **schema["properties"]["metadata"], "required": ["name"]}
    properties = {**schema["properties"], "metadata": metadata, "status": anything}
    return {**schema, "properties": properties, "required": ["metadata", "spec"]}


def _known(schema: Schema, name: str) -> bool:
    return name in (schema.get("properties") or {}) or isinstance(schema.get("additionalProperties"), Mapping)


def _below(schema: Schema, name: str) -> Schema:
    found: Schema = (schema.get("properties") or {}).get(name) or schema.get("additionalProperties") or {}
    return found


def _checked(schema: Schema, value: Any, path: str) -> Iterator[Finding]:
    """Yield the schema's findings for a value and all values below it."""
    if not schema:
        return  # most of a pod template: the CRD does not know it
    problem = _wrong_type(schema, value) or _out_of_bounds(schema, value)
    if problem:
        yield Finding(path, problem)
    elif isinstance(value, list):
        for index, item in enumerate(value):
            yield from _checked(schema.get("items") or {}, item, f"{path}[{index}]")
    elif isinstance(value, Mapping):
        yield from _checked_fields(schema, value, path)


def _checked_fields(schema: Schema, value: Mapping[str, Any], path: str) -> Iterator[Finding]:
    closed = "properties" in schema and not schema.get("x-kubernetes-preserve-unknown-fields")
    for name in schema.get("required") or ():
        if value.get(name) is None and "default" not in _below(schema, name):
            yield Finding(join(path, name), "is required")
    for name, item in value.items():
        if closed and not _known(schema, name):
            hint = did_you_mean(name, schema["properties"])
            yield Finding(join(path, name), f"is not a field of this version{hint}", Severity.WARNING)
        elif item is not None:
            yield from _checked(_below(schema, name), item, join(path, name))


_TYPES: Mapping[str, Any] = {"object": Mapping, "array": list, "string": str, "boolean": bool, "integer": (int, float)}


def _wrong_type(schema: Schema, value: Any) -> str:
    wanted = schema.get("type")
    if schema.get("x-kubernetes-int-or-string"):
        fits = isinstance(value, (int, str)) and not isinstance(value, bool)
        return "" if fits else f"must be an integer or a string, is {_shown(value)}"
    if wanted is None:
        return ""
    fits = isinstance(value, _TYPES[wanted])
    if wanted == "integer":
        fits = fits and not isinstance(value, bool) and (isinstance(value, int) or value.is_integer())
    article = "an" if wanted[0] in "aio" else "a"
    return "" if fits else f"must be {article} {wanted}, is {_shown(value)}"


_BOUNDS: tuple[tuple[str, str, Callable[[Any, Any], bool]], ...] = (
    ("minimum", "must be at least {}, is {}", lambda value, bound: not isinstance(value, str) and value < bound),
    ("maximum", "must be at most {}, is {}", lambda value, bound: value > bound),
    ("minLength", "must have at least {} characters: {}", lambda value, bound: len(value) < bound),
    ("maxLength", "must have at most {} characters: {}", lambda value, bound: len(value) > bound),
    ("minItems", "must have at least {} items: {}", lambda value, bound: len(value) < bound),
    ("maxItems", "must have at most {} items: {}", lambda value, bound: len(value) > bound),
    ("maxProperties", "must have at most {} fields: {}", lambda value, bound: len(value) > bound),
    ("pattern", "must match {}: {}", lambda value, bound: isinstance(value, str) and not _matches(bound, value)),
)


def _matches(pattern: str, text: str) -> bool:
    """Whether a text matches as in the API server, where `$` is the end of the text, not also before a last newline."""
    as_in_go = re.sub(r"(\\.|\[(?:\\.|[^\]\\])*\])|\$", lambda found: found[1] or r"\Z", pattern)
    return re.search(as_in_go, text) is not None


def _out_of_bounds(schema: Schema, value: Any) -> str:
    if "enum" in schema and value not in schema["enum"]:
        options = [str(option) for option in schema["enum"]]
        return f"must be one of {', '.join(options)}, is {_shown(value)}{did_you_mean(str(value), options)}"
    for name, words, out in _BOUNDS:
        if name in schema and out(value, schema[name]):
            return words.format(schema[name], _shown(value))
    kind = schema.get("x-kubernetes-list-type")
    if kind in ("set", "map"):
        keys = schema.get("x-kubernetes-list-map-keys")
        items = [item for item in value if isinstance(item, Mapping)] if keys else value  # wrong types are found below
        identities = [tuple(item.get(k) for k in keys) if keys else item for item in items]
        twice = next((item for item in identities if identities.count(item) > 1), None)
        return "" if twice is None else f"has {_shown(twice)} twice"
    return ""


def _violated(schema: Schema, value: Any, old: Any, path: str) -> Iterator[Finding]:
    """Yield the CEL rules that a value and all values below it violate."""
    if not schema:
        return
    yield from _violated_here(schema.get("x-kubernetes-validations") or (), value, old, path)
    if isinstance(value, list) and "items" in schema:
        # Items of lists cannot be matched with those of the old object.
        for index, item in enumerate(value):
            yield from _violated(schema["items"], item, None, f"{path}[{index}]")
    elif isinstance(value, Mapping):
        for name, item in value.items():
            before = old.get(name) if isinstance(old, Mapping) else None
            yield from _violated(_below(schema, name), item, before, join(path, name))


def _violated_here(rules: Iterable[Schema], value: Any, old: Any, path: str) -> Iterator[Finding]:
    # As in the API server, rules with oldSelf apply only to changes.
    asked = [rule for rule in rules if old is not None or "oldSelf" not in rule["rule"]]
    if not asked:
        return
    variables = cel.context({"self": value} if old is None else {"self": value, "oldSelf": old})
    for rule in asked:
        below = rule.get("fieldPath", "")
        try:
            if cel.evaluate(rule["rule"], variables) is not True:
                yield Finding(path + below if path else below[1:], rule["message"])
        except cel.CelError as error:
            yield Finding(path, f"rule: {error}: {rule['rule']}")


def _unreadable(spec: Mapping[str, Any]) -> Iterator[Finding]:
    """Yield fields that the CRD accepts and the operator cannot read: none, unless the two are inconsistent.

    Kubernetes' own objects are not among them: `templates.refused` reports all that is wrong with these at once.
    """
    try:
        PSTrainingJobSpec.model_validate(spec)
    except ValidationError as error:
        for one in error.errors(include_url=False):
            if one["type"] != WRONG_TYPE:
                yield Finding(path_of(("spec", *one["loc"])), f"cannot be read by the operator: {one['msg']}")


def _shown(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 80 else f"{text[:77]}..."
