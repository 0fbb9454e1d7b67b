"""Removes nulls from the Kubernetes objects in a job. As in the Kubernetes API, null means absent.

The API server drops nulls only from fields that the CRD's schema names. In the opaque fields below, such as templates,
it keeps the nulls of fields that a chart has left empty.
"""

from collections.abc import Mapping
from typing import Any, Final

_TEXTS = (
    *("command", "args", "add", "drop", "values", "namespaces", "matchLabelKeys", "mismatchLabelKeys"),
    *("nameservers", "searches", "hostnames", "accessModes", "mountOptions"),
)
_EMPTY: Final[Mapping[str, Any]] = dict.fromkeys(_TEXTS, "") | {"supplementalGroups": 0}
"""Replacements of nulls in lists that only have nulls, by the list's name. The default is an empty object."""


def without_nulls(value: Any, name: str = "") -> Any:
    """Return a copy without nulls. Null items of lists become empty values, as in Kubernetes.

    Args:
        value: any JSON value.
        name: the name of the value's field.
    """
    if isinstance(value, Mapping):
        return {key: without_nulls(item, key) for key, item in value.items() if item is not None}
    if isinstance(value, list):
        return [_empty(value, name) if item is None else without_nulls(item) for item in value]
    return value


def _empty(items: list[Any], name: str) -> Any:
    like = next((item for item in items if item is not None), _EMPTY.get(name, {}))
    return type(like)()
