"""The comparison in pairs can pass, and can fail."""

import random

import pytest

from bench.training.auto import Point
from bench.training.pairs import CONTROL, PLAIN, failures, loss, table
from pstraining.runtime.compression.auto_select import CODED
from pstraining.runtime.compression.auto_select import PLAIN as UNCODED

KEYS = [f"{fold}/{seed}" for fold in range(5) for seed in range(5)]
LIMITS = {"digits": 0.5}


def scores(lost: float, noise: float, seed: int) -> dict[str, float]:
    drawn = random.Random(seed)
    return {key: 96 - lost + drawn.uniform(-noise, noise) for key in KEYS}


def test_the_bound_is_that_of_a_t_interval() -> None:
    found = loss(dict(zip("abcd", [10.0, 11.0, 12.0, 13.0], strict=True)), dict.fromkeys("abcd", 10.0))
    assert (found.mean, found.pairs) == (1.5, 4)
    assert found.deviation == pytest.approx(1.29099, abs=1e-5)
    # the t value of 3 degrees of freedom, from a table
    assert found.bound == pytest.approx(1.5 + 2.35336 * 1.29099 / 2, abs=1e-4)


def variants(codec: float, control: float, noise: float = 0.4) -> dict[str, dict[str, dict[str, float]]]:
    return {
        "digits": {
            PLAIN: scores(0, noise, 1),
            "Int8": scores(codec, noise, 2),
            f"TopK {CONTROL}": scores(control, noise, 3),
        }
    }


def test_a_small_loss_passes_and_the_control_fails() -> None:
    assert failures(variants(0.0, 2.0), LIMITS) == []
    assert "fails, as it has to" in table(variants(0.0, 2.0), LIMITS)


@pytest.mark.parametrize(
    ("codec", "control", "noise", "said"),
    [
        (0.6, 2.0, 0.4, "digits, Int8"),
        (0.0, 2.0, 6.0, "digits, Int8"),  # too much noise for such a statement
        (0.0, 0.0, 0.4, "cannot distinguish a bad codec"),
    ],
)
def test_failed_checks_are_reported(codec: float, control: float, noise: float, said: str) -> None:
    (line,) = failures(variants(codec, control, noise), LIMITS)
    assert said in line


def test_results_of_different_folds_or_seeds_are_not_paired() -> None:
    with pytest.raises(ValueError, match="same folds and seeds"):
        loss({"a": 1.0, "b": 2.0}, {"a": 1.0, "c": 2.0})


@pytest.mark.parametrize(
    ("plain", "coded", "auto", "chosen", "right"),
    [
        (2.0, 1.0, 1.0, CODED, True),
        (2.0, 1.0, 2.0, UNCODED, False),
        (1.0, 2.0, 1.0, UNCODED, True),
        (1.0, 2.0, 2.0, CODED, False),
        (1.0, 1.1, 1.1, CODED, True),
        (1.0, 1.1, 1.3, CODED, False),
    ],
)
def test_a_point_of_the_grid(plain: float, coded: float, auto: float, chosen: int, right: bool) -> None:
    point = Point(100, "m", {"None": plain, "Int8": coded, "Auto": auto}, chosen, 12)
    assert point.is_right is right
