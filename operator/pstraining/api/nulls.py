"""What null means in the parts of a job that are Kubernetes' own: absent, as in the Kubernetes API.

The API server drops nulls from fields that the CRD's schema names. Below them it keeps what a chart has left empty, and
a reader of templates would have to expect a null everywhere.
"""

from collections.abc import Mapping
from typing import Any, Final

_TEXTS = (
    *("command", "args", "add", "drop", "values", "namespaces", "matchLabelKeys", "mismatchLabelKeys"),
    *("nameservers", "searches", "hostnames", "accessModes", "mountOptions"),
)
_EMPTY: Final[Mapping[str, Any]] = dict.fromkeys(_TEXTS, "") | {"supplementalGroups": 0}
"""What null is in a list that holds nothing else, by the list's name: of texts and numbers; else an empty object."""


def without_nulls(value: Any, name: str = "") -> Any:
    """Return a copy without nulls. An item of a list keeps its place: Kubernetes reads null there as an empty value.

    Args:
        value: any value of JSON.
        name: the field's.
    """
    if isinstance(value, Mapping):
        return {key: without_nulls(item, key) for key, item in value.items() if item is not None}
    if isinstance(value, list):
        return [_empty(value, name) if item is None else without_nulls(item) for item in value]
    return value


def _empty(items: list[Any], name: str) -> Any:
    like = next((item for item in items if item is not None), _EMPTY.get(name, {}))
    return type(like)()
