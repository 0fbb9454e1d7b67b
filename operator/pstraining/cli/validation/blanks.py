"""Warnings about nulls in a job, in whose place a value may be meant: templates without a value render them."""

from collections.abc import Collection, Iterator, Mapping
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


def blanks(value: Any, steps: Steps, others: Collection[str] = ()) -> Iterator[Steps]:
    """Yield the paths of labels, amounts, sources of volumes and the like that are null.

    Args:
        value: an object, or a part of it.
        steps: the value's path.
        others: further fields whose entries are the user's own.
    """
    if isinstance(value, Mapping):
        paths = {(*steps, name): item for name, item in value.items()}
        yield from (path for path, item in paths.items() if item is None and _is_meant(path, others))
        for path, item in paths.items():
            yield from blanks(item, path, others)
    elif isinstance(value, list):
        for index, item in enumerate(value):
            yield from blanks(item, (*steps, index), others)


def _is_meant(steps: Steps, others: Collection[str]) -> bool:
    """Return whether a value may be meant in place of a null at a path."""
    if steps[-3:-2] == (_VOLUMES,):
        return steps[-1] != _SAME
    return len(steps) > 1 and steps[-2] in (*_TEXTS, *_AMOUNTS, *others)


def blank(value: Any, steps: Steps) -> Iterator[Finding]:
    """Yield the labels, amounts and volumes of a job that are null. A job leaves nulls out.

    Args:
        value: a value of a job.
        steps: the value's path.
    """
    for found in blanks(value, steps):
        yield Finding(path_of(found), _message(found), Severity.WARNING)


def _message(steps: Steps) -> str:
    """Return the effect of a field that is null."""
    if steps[-2] in _TEXTS:
        return 'is null, and is left out: write "" for the empty value, or remove it'
    if steps[-2] in _AMOUNTS:
        return "is null, and is left out: write an amount, or remove it"
    return "is null, so that the volume is an empty folder of the pod: write its fields, or remove it"
