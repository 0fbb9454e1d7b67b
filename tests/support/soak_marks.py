"""Marks of tests that only `make test-all` or `make soak` runs: slow tests, and most combinations of several axes."""

import os
from collections.abc import Callable, Iterable, Sequence
from itertools import product
from typing import Any, Final

import pytest

from hack.level import Level, read_level

LEVEL: Final = read_level(os.environ)
ALL: Final[bool] = LEVEL in (Level.ALL, Level.SOAK)
THOROUGH: Final[bool] = LEVEL is Level.SOAK
DEFAULT_EXAMPLES: Final = 100
"""The number of random examples of a property."""
in_soak = pytest.mark.skipif(not THOROUGH, reason="slow: make soak runs it")


def examples(number: int = DEFAULT_EXAMPLES) -> int:
    """Return the number of random examples: `make test` draws a third of them, the same ones in each run."""
    return number if ALL else -(-number // 3)


def in_all(held_by: str) -> pytest.MarkDecorator:
    """Mark a slow test that `make test` skips because another test covers its mechanism.

    Args:
        held_by: that test, as `tests/.../test_file.py::test_name`, written out: hack/tiers.py reads it from the source.
    """
    return pytest.mark.skipif(not ALL, reason=f"slow: make test-all runs it; here {held_by} holds its mechanism")


def some(params: Iterable[Any], here: Callable[..., bool], others: pytest.MarkDecorator) -> list[Any]:
    """Return the parameters, and mark those that are not `here` with the marks `others`.

    Args:
        params: tuples of values, or single ones.
        here: of the values of one.
        others: `in_all(...)`.
    """
    rows = [param if isinstance(param, tuple) else (param,) for param in params]
    return [pytest.param(*row, marks=() if here(*row) else others) for row in rows]


def cover(*axes: Sequence[Any]) -> list[tuple[Any, ...]]:
    """Return combinations of the axes' values: all with THOROUGH, else as many as the longest axis has, with each
    value.

    Shorter axes repeat, each shifted by one at its end, so that the same values do not always meet.
    """
    if THOROUGH:
        return list(product(*axes))
    longest = max(len(axis) for axis in axes)
    return [tuple(axis[(n + n // len(axis)) % len(axis)] for axis in axes) for n in range(longest)]
