"""Copies and merges of JSON values, which are dicts, lists and scalars, and the paths of their parts."""

from collections.abc import Iterable, Mapping
from typing import Any, TypeVar, cast

_T = TypeVar("_T")


def copied(value: _T) -> _T:
    """Return a copy of a JSON value. It is faster than `copy.deepcopy`, which supports any objects and cycles.

    Args:
        value: any JSON value.
    """
    found: Any = value
    if isinstance(found, dict):
        found = {key: copied(item) for key, item in found.items()}
    elif isinstance(found, list):
        found = [copied(item) for item in found]
    return cast(_T, found)


def merged(under: Mapping[str, Any], over: Mapping[str, Any]) -> dict[str, Any]:
    """Merge two JSON values, field by field. The second one's values take precedence.

    Args:
        under: a JSON value.
        over: a JSON value. Its lists replace those of `under`.
    """
    found = dict(under)
    for name, value in over.items():
        former = found.get(name)
        both = isinstance(value, Mapping) and isinstance(former, Mapping)
        found[name] = merged(former, value) if both else value  # type: ignore[arg-type]
    return found


def path_of(steps: Iterable[str | int]) -> str:
    """Return a path in the API server's notation: numbers are indices of lists."""
    path = ""
    for step in steps:
        path = f"{path}[{step}]" if isinstance(step, int) else join(path, step)
    return path


def join(path: str, name: str) -> str:
    """Return the path of a field below a path."""
    return f"{path}.{name}" if path else name
