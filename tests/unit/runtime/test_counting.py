"""The counting program detects samples trained never or twice."""

import numpy as np
import pytest

from tests.support.counting import BATCH, times_trained


@pytest.mark.parametrize(
    ("updates", "expected"),
    [([], 0), ([1], 1), ([2], 1), ([3], 1), ([1, 1], 2), ([2, 2], 2), ([3, 3], 2), ([2, 3], 2), ([1, 3], 2), ([4], 2)],
)
def test_once_is_distinguished_from_never_and_twice(updates: list[int], expected: int) -> None:
    accumulated = np.float32(sum(np.float32(1 / (n * BATCH)) ** 2 for n in updates))
    assert times_trained(np.array([accumulated]), 3) == [expected]
