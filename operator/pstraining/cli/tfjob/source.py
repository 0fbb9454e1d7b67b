"""Reads a TFJob field by field, so that unread fields can be noted."""

import json
import math
import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, TypeVar

from pstraining.cli.tfjob.notes import Notes
from pstraining.cli.tfjob.placeholders import placeholder

Value = TypeVar("Value", bool, int, str, dict[str, Any], list[Any])
QUOTES = "Put it in quotes."
DEEPEST = 64
"""Maximum number of nested levels. A loop of YAML aliases exceeds it."""
_QUOTED: Mapping[type, re.Pattern[str]] = {bool: re.compile("true|false"), int: re.compile("[0-9]+")}
"""Texts that are values of a type without their quotes."""
_WORDS: Mapping[type, str] = {
    bool: "true or false",
    int: "a whole number",
    str: "text",
    dict: "a mapping",
    list: "a list",
}


class Fields:
    """A mapping of the TFJob, each of whose fields is taken once."""

    def __init__(self, value: Mapping[str, Any], path: str, notes: Notes) -> None:
        self._left, self._given = dict(value), dict(value)
        self.path, self._notes = path, notes

    def has(self, name: str) -> bool:
        """Return whether the field exists and was not taken yet."""
        return name in self._left

    def is_set(self, name: str) -> bool:
        """Return whether the field exists, also if it was taken or refused; an empty text counts as absent."""
        return name in self._given and self._given[name] != ""

    def take(self, name: str, kind: type[Value]) -> Value | None:
        """Take a field's value; None if it does not exist, or has another type, which is refused."""
        return checked(self._left.pop(name), kind, self.at(name), self._notes) if name in self._left else None

    def number(self, name: str) -> int | None:
        """Take a number; None if it does not exist, or is negative or not a number, which is refused."""
        found = self.take(name, int)
        if found is not None and found < 0:
            self._notes.refused(self.at(name), f"it must not be negative, is {found}.")
            return None
        return found

    def drop(self, name: str) -> Any:
        """Take a field's value of any type."""
        return self._left.pop(name)

    def put(self, name: str, value: Any) -> None:
        """Add a field from elsewhere."""
        self._left[name] = self._given[name] = value

    def names(self) -> list[str]:
        """Return the names of fields that were not taken yet."""
        return list(self._left)

    def below(self, name: str) -> "Fields":
        """Take a mapping's fields; none if it does not exist."""
        return Fields(self.take(name, dict) or {}, self.at(name), self._notes)

    def has_below(self, name: str, inner: str) -> bool:
        """Return whether a field exists and contains another. Neither is taken."""
        found = self._left.get(name)
        return isinstance(found, dict) and inner in found

    def prune(self, name: str) -> None:
        """Remove the empty texts and mappings in a field, which TFJob's API reads as absent."""
        if isinstance(found := self._left.get(name), dict):
            self._left[name] = {inner: value for inner, value in found.items() if value not in ("", {})}

    def at(self, name: str) -> str:
        """Return the path of a field."""
        return join(self.path, name)

    def close(
        self,
        message: str = "a PSTrainingJob has no such field; it is left out.",
        todo: str = "Correct its name or its place, or remove it.",
    ) -> None:
        """Note the fields that were not read."""
        for name in self._left:
            self._notes.none(self.at(name), message, todo)


def checked(value: Any, kind: type[Value], path: str, notes: Notes) -> Value | None:
    """Return the value if it has the type; else refuse it and return None."""
    if isinstance(value, kind) and not (kind is int and isinstance(value, bool)):
        return value
    found = placeholder(value) if isinstance(value, str) else None
    todo = "" if found is None else f"{found}: fill it in first, and pass the result to -f -."
    if kind is str and isinstance(value, (bool, int, float)):
        todo = QUOTES
    elif not todo and isinstance(value, str) and kind in _QUOTED and _QUOTED[kind].fullmatch(value):
        todo = "Remove its quotes."
    notes.refused(path, f"it must be {_WORDS[kind]}, is {shown(value)}.", todo)
    return None


def sound(holder: dict[str, Any], name: str, kind: type[Value], path: str, notes: Notes) -> Value:
    """Return the field's value, or an empty one if it is missing. A value of another type is refused and removed."""
    found = checked(holder[name], kind, join(path, name), notes) if name in holder else None
    if found is None:
        holder.pop(name, None)
        return kind()
    return found


def keep_items(holder: dict[str, Any], name: str, kept: list[int], path: str, notes: Notes) -> None:
    """Leave only some items in a list, and remember their indices for notes.

    Args:
        holder: the mapping with the list, which is changed.
        name: the list's field.
        kept: indices of the items that stay.
        path: the mapping's path.
        notes: gets the indices.
    """
    items = holder.get(name)
    if items and len(kept) < len(items):
        notes.kept[f"{path}.{name}"] = kept
    if kept:
        holder[name] = [holder[name][index] for index in kept]
    elif items:
        del holder[name]


def join(path: str, name: str) -> str:
    """Return the path of a field below a path."""
    if not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_-]*", name):
        return f"{path}[{json.dumps(name)}]"
    return f"{path}.{name}" if path else name


def path_to(steps: Iterable[str | int]) -> str:
    """Return the path of a value; numbers are indices of lists."""
    path = ""
    for step in steps:
        path = f"{path}[{step}]" if isinstance(step, int) else join(path, step)
    return path


def texts(value: Any, path: str) -> Iterator[tuple[str, str]]:
    """Yield all texts below a value, including field names, with their paths."""
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
    """Format a value for messages, with 60 characters at most."""
    text = json.dumps(value, default=str)
    return text if len(text) <= 60 else f"{text[:57]}..."


def cleaned(value: Any) -> Any:
    """Return a copy without nulls, which Kubernetes treats as absent."""
    if isinstance(value, dict):
        return {k: cleaned(v) for k, v in value.items() if v is not None}
    return [cleaned(v) for v in value] if isinstance(value, list) else value


def unreadable(value: Any, path: str = "", level: int = 0) -> Iterator[tuple[str, str]]:
    """Yield the paths of values that no TFJob can have, such as nulls in lists, each with a message.

    Args:
        value: an object, or a part of it.
        path: the value's path.
        level: the value's number of levels in the object.
    """
    if level > DEEPEST:
        yield f"{path[:60]}...", f"more than {DEEPEST} levels."
    elif isinstance(value, dict):
        for name, item in value.items():
            if not isinstance(name, str):
                yield path, f"a field's name must be text, is {shown(name)}: put it in quotes."
            elif item is not None:
                yield from unreadable(item, join(path, name), level + 1)
    elif isinstance(value, list):
        for index, item in enumerate(value):
            yield from unreadable(item, f"{path}[{index}]", level + 1)
    elif value is None:
        yield path, "it is null: write a value, in quotes if it is the text null, or remove it."
    elif not isinstance(value, (str, int, float)) or (isinstance(value, float) and not math.isfinite(value)):
        yield path, f"it must be a JSON value, is {value}."
