"""Validates quantities, the amounts of resources in Kubernetes' objects."""

import re
from collections.abc import Iterator, Mapping
from typing import Any, Final

from pstraining.api.values import path_of
from pstraining.cli.validation.schema import Finding, Severity
from pstraining.resources.resource_requests import parse

Steps = tuple[str | int, ...]

STANDARD: Final = ("cpu", "memory", "ephemeral-storage", "storage")
DEVICE: Final = re.compile(r"hugepages-.+|.+/.+")
"""Resources that are not overcommitted: a request equals the limit."""
_UNIT: Final = re.compile(r"\s*([0-9.]+)\s*([kmgt])(i?)b?\s*", re.IGNORECASE)
_AMOUNTS: Final = ("limits", "requests", "maxAllowed")
"""Fields with amounts of resources."""
_MILLI: Final = re.compile(r"([0-9.]+)m")
_BYTES: Final = re.compile(r"([0-9]+)|[0-9.]+([eE][+-]?[0-9]+)?")
"""A quantity without a unit. The group is a whole number."""
_LEAST: Final = 2**20
"""Bytes of memory or storage below which a quantity without a unit is a mistake."""


def tiny_sizes(steps: Steps, value: Any) -> Iterator[Finding]:
    """Yield the amounts of memory and storage without a unit, or with a wrong one, as warnings.

    Args:
        steps: the path of the value.
        value: a value of a job.
    """
    if isinstance(value, Mapping):
        for name, item in value.items():
            is_size = name == "sizeLimit" or (steps[-1] in _AMOUNTS and name in STANDARD[1:])
            if is_size and (message := _tiny(str(item))):
                yield Finding(path_of((*steps, name)), message, Severity.WARNING)
            yield from tiny_sizes((*steps, name), item)
    elif isinstance(value, list):
        for index, item in enumerate(value):
            yield from tiny_sizes((*steps, index), item)


def _tiny(quantity: str) -> str:
    """Return the problem of an amount of memory or storage that is far too small for a program; empty without one."""
    if found := _MILLI.fullmatch(quantity):
        return f"is in thousandths of a byte, {quantity!r}; did you mean {found[1]}Mi?"
    found = _BYTES.fullmatch(quantity)
    if found is None or not 0 < parse(quantity) < _LEAST:
        return ""
    near = f"did you mean {quantity}Gi?" if found[1] and int(quantity) < 1024 else "write a unit, such as Mi or Gi"
    return f"has no unit, and is {quantity} bytes; {near}"


def wrong_quantity(value: Any) -> str:
    """Return the problem of a quantity; empty without one."""
    try:
        fits = parse(value) >= 0 and str(value) == str(value).strip()
    except ValueError:
        fits = False
    if fits:
        return ""
    near = _UNIT.fullmatch(str(value))
    if near is None:
        return f"must be a quantity such as 500m or 1Gi, is {value!r}"
    binary = f"{near[1]}{near[2].upper()}i"
    return f"must be a quantity such as 500m or 1Gi, is {value!r}; did you mean {binary}?"
