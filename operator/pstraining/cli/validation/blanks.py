"""Warnings about nulls in a job, in whose place a value may be meant: templates without a value render them."""

from collections.abc import Iterator, Mapping
from typing import Any, Final

from pstraining.api.values import path_of
from pstraining.cli.validation.quantities import Steps
from pstraining.cli.validation.schema import Finding, Severity

_TEXTS: Final = ("labels", "annotations", "nodeSelector", "matchLabels")
"""Mappings whose values are texts."""
_AMOUNTS: Final = ("limits", "requests")
_VOLUMES: Final = "volumes"
_SAME: Final = "emptyDir"
"""The source that a volume without a source has."""


def blank(value: Any, steps: Steps) -> Iterator[Finding]:
    """Yield the labels, amounts and volumes that are null. A job leaves nulls out.

    Args:
        value: a value of a job.
        steps: the value's path.
    """
    if isinstance(value, Mapping):
        for name, item in value.items():
            if item is None and (message := _message(steps, name)):
                yield Finding(path_of((*steps, name)), message, Severity.WARNING)
            yield from blank(item, (*steps, name))
    elif isinstance(value, list):
        for index, item in enumerate(value):
            yield from blank(item, (*steps, index))


def _message(steps: Steps, name: str) -> str:
    """Return the effect of a field that is null; empty if it has the one that is meant."""
    if steps[-1] in _TEXTS:
        return 'is null, and is left out: write "" for the empty value, or remove it'
    if steps[-1] in _AMOUNTS:
        return "is null, and is left out: write an amount, or remove it"
    if steps[-2:-1] == (_VOLUMES,) and name != _SAME:
        return "is null, so that the volume is an empty folder of the pod: write its fields, or remove it"
    return ""
