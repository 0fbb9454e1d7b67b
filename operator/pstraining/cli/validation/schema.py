"""What an API server with this CRD says to a job, said without one: its schema, its defaults, and its CEL rules.

It evaluates the generated CRD alone, so that every change of the models or of cel_rules.py applies here as well. Like
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
from pstraining.api.values import copied
from pstraining.cli.validation import cel

Schema = Mapping[str, Any]


class Severity(StrEnum):
    """How bad a finding is."""

    ERROR = "error"
    """The API server refuses the job, or the operator does."""
    WARNING = "warning"
    """It looks wrong; a newer version may know better."""


@dataclass(frozen=True)
class Finding:
    """One thing that is wrong with a job."""

    field: str
    """The path of the field, as in spec.ps.replicas."""
    message: str
    severity: Severity = Severity.ERROR

    def __str__(self) -> str:
        """For people; the messages of rules begin with a field themselves."""
        begins = self.message.startswith(("spec.", "metadata."))
        return self.message if begins or not self.field else f"{self.field}: {self.message}"


def validate(job: Mapping[str, Any], old: Mapping[str, Any] | None = None) -> list[Finding]:
    """What is wrong with a job.

    Args:
        job: as a user writes it, defaults left out, or as it is stored.
        old: as it is stored, for the rules about changes; None for a job that is new.

    Returns:
        All that is wrong with its fields; if nothing is, all that is wrong with how they go together.
    """
    schema, job = _schema(), _named(job)
    found = [*_checked(_checkable(schema), job, "")]
    if any(f.severity is Severity.ERROR for f in found):
        return found
    full = defaulted(schema, job)
    found += _broken(schema, full, None if old is None else defaulted(schema, old), "")
    if not any(f.severity is Severity.ERROR for f in found):
        found += _unreadable(full["spec"])
    return found


def defaulted(schema: Schema, value: Any) -> Any:
    """The value as the API server stores it: with its defaults, without nulls."""
    if isinstance(value, list) and "items" in schema:
        return [defaulted(schema["items"], item) for item in value]
    if not isinstance(value, Mapping):
        return value
    given = {name: item for name, item in value.items() if item is not None or not _known(schema, name)}
    for name, below in (schema.get("properties") or {}).items():
        if name not in given and "default" in below:
            given[name] = below["default"]
    return {name: defaulted(_below(schema, name), item) for name, item in given.items()}


def with_defaults(job: Mapping[str, Any]) -> dict[str, Any]:
    """The job as the API server would store it, its defaults filled in; a copy."""
    return copied(dict(defaulted(_schema(), job)))


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """A hint for a word that was perhaps mistyped; empty if none comes near."""
    options = {option.lower(): option for option in known}
    near = difflib.get_close_matches(word.lower(), options, n=1, cutoff=0.7)
    return f"; did you mean {options[near[0]]}?" if near else ""


def _schema() -> Schema:
    version = crd.custom_resource_definition()["spec"]["versions"][0]
    found: Schema = version["schema"]["openAPIV3Schema"]
    return found


def _named(job: Mapping[str, Any]) -> Mapping[str, Any]:
    """The job with the name that it will have: what the API server adds to generateName is as long as this."""
    metadata = job.get("metadata")
    if isinstance(metadata, Mapping) and not metadata.get("name") and metadata.get("generateName"):
        return {**job, "metadata": {**metadata, "name": f"{metadata['generateName']}xxxxx"}}
    return job


def _checkable(schema: Schema) -> Schema:
    """Metadata is every object's, and status is not the user's: what a manifest says of it has no effect."""
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
    """What the schema says of a value and of all below it."""
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
            yield Finding(_join(path, name), "is required")
    for name, item in value.items():
        if closed and not _known(schema, name):
            hint = did_you_mean(name, schema["properties"])
            yield Finding(_join(path, name), f"is not a field of this version{hint}", Severity.WARNING)
        elif item is not None:
            yield from _checked(_below(schema, name), item, _join(path, name))


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
    ("minimum", "must be at least {}, is {}", lambda value, bound: value < bound),
    ("maximum", "must be at most {}, is {}", lambda value, bound: value > bound),
    ("minLength", "must have at least {} characters: {}", lambda value, bound: len(value) < bound),
    ("maxLength", "must have at most {} characters: {}", lambda value, bound: len(value) > bound),
    ("minItems", "must have at least {} items: {}", lambda value, bound: len(value) < bound),
    ("maxItems", "must have at most {} items: {}", lambda value, bound: len(value) > bound),
    ("pattern", "must match {}: {}", lambda value, bound: isinstance(value, str) and not re.search(bound, value)),
)


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
        identities = [tuple(item.get(k) for k in keys) if keys else item for item in value]
        twice = next((item for item in identities if identities.count(item) > 1), None)
        return "" if twice is None else f"has {_shown(twice)} twice"
    return ""


def _broken(schema: Schema, value: Any, old: Any, path: str) -> Iterator[Finding]:
    """The CEL rules that a value and all below it break."""
    yield from _broken_here(schema.get("x-kubernetes-validations") or (), value, old, path)
    if isinstance(value, list) and "items" in schema:
        # Items of lists have no counterpart in the former object that could be identified for certain.
        for index, item in enumerate(value):
            yield from _broken(schema["items"], item, None, f"{path}[{index}]")
    elif isinstance(value, Mapping):
        for name, item in value.items():
            before = old.get(name) if isinstance(old, Mapping) else None
            yield from _broken(_below(schema, name), item, before, _join(path, name))


def _broken_here(rules: Iterable[Schema], value: Any, old: Any, path: str) -> Iterator[Finding]:
    # As in the API server, only a change is checked by the rules that compare with the old object.
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
    """What the operator cannot read although the CRD lets it pass: nothing, unless the two have come apart."""
    try:
        PSTrainingJobSpec.model_validate(spec)
    except ValidationError as error:
        for one in error.errors(include_url=False):
            yield Finding(path_of(("spec", *one["loc"])), f"cannot be read by the operator: {one['msg']}")


def path_of(steps: Iterable[str | int]) -> str:
    """A path as the API server writes it: numbers are indices of lists."""
    path = ""
    for step in steps:
        path = f"{path}[{step}]" if isinstance(step, int) else _join(path, step)
    return path


def _join(path: str, name: str) -> str:
    return f"{path}.{name}" if path else name


def _shown(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 80 else f"{text[:77]}..."
