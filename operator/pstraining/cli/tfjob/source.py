"""Reads a TFJob field by field, so that unread fields can be named."""

import json
import math
import re
from collections.abc import Iterator, Mapping
from typing import Any, TypeVar

from pstraining.cli.errors import CommandError
from pstraining.cli.tfjob.notes import Notes
from pstraining.cli.tfjob.placeholders import placeholder

Value = TypeVar("Value", bool, int, str, dict[str, Any], list[Any])
QUOTES = "Put it in quotes."
DEEPEST = 64
"""Levels of an object; deeper is a loop of YAML's aliases."""
_WORDS: Mapping[type, str] = {
    bool: "true or false",
    int: "a whole number",
    str: "text",
    dict: "a mapping",
    list: "a list",
}


class Fields:
    """A mapping of the TFJob, of which each field is taken once."""

    def __init__(self, value: Mapping[str, Any], path: str, notes: Notes) -> None:
        self._left = dict(value)
        self.path, self._notes = path, notes

    def has(self, name: str) -> bool:
        """Whether the field is there and not taken yet."""
        return name in self._left

    def take(self, name: str, kind: type[Value]) -> Value | None:
        """The field's value; None if it is not there, or of another type, which is refused."""
        return checked(self._left.pop(name), kind, self.at(name), self._notes) if name in self._left else None

    def number(self, name: str) -> int | None:
        """The number; None if it is not there, or negative or no number, which is refused."""
        found = self.take(name, int)
        if found is not None and found < 0:
            self._notes.refused(self.at(name), f"it must not be negative, is {found}.")
            return None
        return found

    def drop(self, name: str) -> Any:
        """The field's value, of any type; it counts as taken."""
        return self._left.pop(name)

    def put(self, name: str, value: Any) -> None:
        """Add a field that is found elsewhere."""
        self._left[name] = value

    def names(self) -> list[str]:
        """The fields that are not taken yet."""
        return list(self._left)

    def below(self, name: str) -> "Fields":
        """The fields below a field; none if it is not there."""
        return Fields(self.take(name, dict) or {}, self.at(name), self._notes)

    def has_below(self, name: str, inner: str) -> bool:
        """Whether the field is there, and has this one; neither counts as taken."""
        found = self._left.get(name)
        return isinstance(found, dict) and inner in found

    def at(self, name: str) -> str:
        """The path of a field."""
        return join(self.path, name)

    def close(self, said: str = "there is no such field here.", todo: str = "") -> None:
        """Name the fields that were not read."""
        for name in self._left:
            self._notes.none(self.at(name), said, todo)


def checked(value: Any, kind: type[Value], path: str, notes: Notes) -> Value | None:
    """The value, if it is of this type; else None, and it is refused."""
    if isinstance(value, kind) and not (kind is int and isinstance(value, bool)):
        return value
    found = placeholder(value) if isinstance(value, str) else None
    todo = "" if found is None else f"{found}: fill it in first, and pass on what comes out, with -f -."
    if kind is str and isinstance(value, (bool, int, float)):
        todo = QUOTES
    notes.refused(path, f"it must be {_WORDS[kind]}, is {shown(value)}.", todo)
    return None


def sound(holder: dict[str, Any], name: str, kind: type[Value], path: str, notes: Notes) -> Value:
    """The field's value; an empty one if it is not there, or of another type, which is refused and taken away."""
    found = checked(holder[name], kind, join(path, name), notes) if name in holder else None
    if found is None:
        holder.pop(name, None)
        return kind()
    return found


def join(path: str, name: str) -> str:
    """The path of a field below a path."""
    if not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_-]*", name):
        return f"{path}[{json.dumps(name)}]"
    return f"{path}.{name}" if path else name


def texts(value: Any, path: str) -> Iterator[tuple[str, str]]:
    """All texts below a value, names of fields among them, with their paths."""
    if isinstance(value, str):
        yield path, value
    elif isinstance(value, list):
        for index, item in enumerate(value):
            yield from texts(item, f"{path}[{index}]")
    elif isinstance(value, dict):
        for name, item in value.items():
            yield join(path, name), name
            yield from texts(item, join(path, name))


def shown(value: Any) -> str:
    """A value for people, not too long."""
    text = json.dumps(value, default=str)
    return text if len(text) <= 60 else f"{text[:57]}..."


def cleaned(value: Any, path: str = "", level: int = 0) -> Any:
    """A copy without nulls, which mean the same as nothing to Kubernetes.

    Raises:
        CommandError: it holds what no JSON can hold.
    """
    if level > DEEPEST:
        raise CommandError(f"{path[:60]}...: more than {DEEPEST} levels.")
    if isinstance(value, dict):
        if wrong := next((key for key in value if not isinstance(key, str)), None):
            raise CommandError(f"{path}: a field's name must be text, is {shown(wrong)}: put it in quotes.")
        return {k: cleaned(v, join(path, k), level + 1) for k, v in value.items() if v is not None}
    if isinstance(value, list):
        return [cleaned(v, f"{path}[{index}]", level + 1) for index, v in enumerate(value)]
    if not isinstance(value, (str, int, float)) or (isinstance(value, float) and not math.isfinite(value)):
        raise CommandError(f"{path} must be a value of JSON, is {value}.")
    return value
