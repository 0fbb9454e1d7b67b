"""What `make test` leaves to `make soak`: slow tests, and most combinations of several axes."""

import os
from collections.abc import Sequence
from itertools import product
from typing import Any, Final

import pytest

THOROUGH: Final = bool(os.environ.get("PSTRAINING_THOROUGH"))
in_soak = pytest.mark.skipif(not THOROUGH, reason="slow: make soak runs it")


def cover(*axes: Sequence[Any]) -> list[tuple[Any, ...]]:
    """The combinations to try; without THOROUGH each value at least once, as many as the longest axis has.

    Shorter axes are gone through again and again, each shifted by one at its end, so that it is not always the same
    values that meet.
    """
    if THOROUGH:
        return list(product(*axes))
    longest = max(len(axis) for axis in axes)
    return [tuple(axis[(n + n // len(axis)) % len(axis)] for axis in axes) for n in range(longest)]
