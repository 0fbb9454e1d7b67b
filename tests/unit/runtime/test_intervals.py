"""Young's rule, with estimates of how often servers are lost."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pstraining.runtime.checkpoint.interval import (
    LONGEST_SECONDS,
    PRIOR_HOURS,
    SHORTEST_SECONDS,
    is_worth_reporting,
    mean_time_between_losses,
    young,
)

HOUR = 3600.0


def test_the_prior_uses_its_documented_figures() -> None:
    assert pytest.approx(1000 / -math.log(1 - 0.137), rel=0.01) == PRIOR_HOURS


@pytest.mark.parametrize(
    ("servers", "watched", "losses", "expected"),
    [
        (1, 0.0, 0, 6800 * HOUR),
        (4, 100 * HOUR, 0, 1700 * HOUR),
        (2, HOUR, 2, HOUR / 2),
        (2, 10_000 * HOUR, 1, 3400 * HOUR),
    ],
)
def test_losses_shorten_the_prior_and_nothing_lengthens_it(
    servers: int, watched: float, losses: int, expected: float
) -> None:
    assert mean_time_between_losses(servers=servers, watched=watched, losses=losses) == pytest.approx(expected)


@pytest.mark.parametrize(
    ("save_seconds", "mean_time", "expected"),
    [
        (None, HOUR, 10.0),
        (2.0, HOUR, 120.0),  # sqrt(2 x 3600 x 2)
        (0.5, HOUR, 60.0),
        (0.001, HOUR, 5.0),  # not more often than this
        (0.05, 3400 * HOUR, 600.0),  # not less often than this
        (30.0, 3400 * HOUR, 3000.0),  # unless a save takes more than a hundredth of the time
        (30.0, 100 * HOUR, 3000.0),
        (60.0, 60.0, 120.0),  # at most a third of the time for saving
    ],
)
def test_the_interval(save_seconds: float | None, mean_time: float, expected: float) -> None:
    assert young(save_seconds=save_seconds, mean_time=mean_time) == pytest.approx(expected)


def cost(interval: float, save_seconds: float, mean_time: float) -> float:
    """Return Young's first-order share of the lost time: saves, and half an interval of repeated training per loss."""
    return save_seconds / interval + interval / (2 * mean_time)


@given(st.floats(0.001, 1000), st.floats(60, 1e8), st.floats(0.1, 10))
def test_no_other_interval_within_the_bounds_costs_less(save_seconds: float, mean_time: float, factor: float) -> None:
    found = young(save_seconds=save_seconds, mean_time=mean_time)
    shortest, longest = max(SHORTEST_SECONDS, 2 * save_seconds), max(LONGEST_SECONDS, 100 * save_seconds)
    assert shortest <= found <= longest
    other = min(max(found * factor, shortest), longest)
    assert cost(found, save_seconds, mean_time) <= cost(other, save_seconds, mean_time) * (1 + 1e-9)


@pytest.mark.parametrize(
    ("reported", "interval", "expected"),
    [(None, 60.0, True), (60.0, 60.0, False), (60.0, 65.0, False), (60.0, 53.0, True)],
)
def test_only_a_change_is_reported(reported: float | None, interval: float, expected: bool) -> None:
    assert is_worth_reporting(reported, interval) is expected
