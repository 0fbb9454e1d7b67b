"""The times at which an overloaded shard is reported."""

import pytest

from pstraining.runtime.telemetry.load_skew import LEAST_RATE, LOOKS, Load, SkewDetector, heaviest

SECONDS = 5.0
MUCH = LEAST_RATE * SECONDS


def reported(*looks: list[float]) -> list[Load | None]:
    watch = SkewDetector()
    return [watch.observe(moved, SECONDS) for moved in looks]


@pytest.mark.parametrize(
    ("moved", "expected"),
    [
        ([1.0, 1.0], Load(0, 1.0)),
        ([1.0, 3.0], Load(1, 1.5)),
        ([0.0, 0.0, 9.0], Load(2, 3.0)),
        ([0.0, 0.0], Load(0, 1.0)),
        ([7.0], Load(0, 1.0)),
    ],
)
def test_the_heaviest_is_measured_by_the_mean(moved: list[float], expected: Load) -> None:
    assert heaviest(moved) == expected


def test_a_skew_is_reported_once_after_consecutive_observations() -> None:
    heavy = [MUCH, 5 * MUCH]
    assert reported(*[heavy] * (LOOKS + 3)) == [None] * (LOOKS - 1) + [Load(1, 5 / 3)] + [None] * 3


@pytest.mark.parametrize("between", [[2 * MUCH, 2 * MUCH], [5 * MUCH, MUCH]], ids=["even", "the other one"])
def test_the_count_of_observations_restarts(between: list[float]) -> None:
    heavy = [MUCH, 5 * MUCH]
    assert reported(*[heavy] * (LOOKS - 1), between, *[heavy] * (LOOKS - 1)) == [None] * (2 * LOOKS - 1)
    assert reported(*[heavy] * LOOKS, between, *[heavy] * LOOKS)[-1] == Load(1, 5 / 3), "it is reported again"


def test_negligible_traffic_is_not_reported() -> None:
    assert reported(*[[0.0, 1.9 * MUCH]] * 9) == [None] * 9
