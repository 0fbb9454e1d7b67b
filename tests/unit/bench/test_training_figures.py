"""The training benchmark's verdict: figures beyond their limits or missing are named; the page shows the file."""

import json
import math
from pathlib import Path

import pytest

from bench.training import figures, models
from bench.training.__main__ import FIGURES, OUT, PAGE
from bench.training.figures import Check, Limit
from bench.training.registry import MEASUREMENTS

HELD_TO = figures.limits('["ratio"]\nleast = 2\n["bytes"]\nmost = 1.05\n["reported"]\n')


def failures(values: dict[str, float]) -> list[str]:
    kept = {"figures": {name: {"value": value} for name, value in values.items()}}
    return [str(check) for check in figures.checks(kept, HELD_TO) if not check.ok]


@pytest.mark.parametrize(
    ("values", "said"),
    [
        ({"ratio": 2.0, "bytes": 1.05, "reported": 7}, []),
        ({"ratio": 1.99, "bytes": 1.0, "reported": 7}, ["beyond its limit: ratio: 1.99, not ≥ 2"]),
        ({"ratio": 3, "bytes": 1.06, "reported": 7}, ["beyond its limit: bytes: 1.06, not ≤ 1.05"]),
        ({"ratio": math.nan, "bytes": 1, "reported": 7}, ["beyond its limit: ratio: NaN, not ≥ 2"]),
        ({"ratio": 2, "bytes": 1}, ["missing: reported"]),
        ({}, ["missing: ratio", "missing: bytes", "missing: reported"]),
    ],
)
def test_a_figure_beyond_its_limit_or_missing_fails(values: dict[str, float], said: list[str]) -> None:
    assert failures(values) == said


def test_an_unknown_key_in_the_thresholds_is_rejected() -> None:
    with pytest.raises(TypeError):
        figures.limits('["ratio"]\nat_least = 2\n')


def test_the_median_of_the_rounds_counts_and_earlier_figures_are_kept() -> None:
    one, other = list(figures.limits())[:2]
    kept = figures.add(figures.add({}, {one: 7.0}), {other: [3.0, 1.0, 2.0]})
    assert kept["figures"][one]["value"] == 7.0
    assert kept["figures"][other]["value"] == 2.0
    assert kept["figures"][other]["each"] == [3.0, 1.0, 2.0]


def test_a_figure_that_is_no_longer_expected_is_deleted() -> None:
    assert figures.add({"figures": {"former": {"value": 1.0}}}, {})["figures"] == {}


def test_an_unexpected_figure_is_rejected() -> None:
    with pytest.raises(KeyError, match="unheard of"):
        figures.add({}, {"unheard of": 1.0})


def test_every_threshold_has_one_load_and_every_figure_one_row() -> None:
    measured = [name for measurement in MEASUREMENTS for name in measurement.figures]
    assert sorted(measured) == sorted(figures.limits())
    assert len(set(measured)) == len(measured)


def test_the_page_is_that_of_the_file() -> None:
    kept = json.loads((Path(OUT) / FIGURES).read_text())
    assert (Path(OUT) / PAGE).read_text() == figures.page(kept), "rewrite it: python -m bench.training --only ..."


def test_the_page_marks_failed_figures() -> None:
    names = list(figures.limits())
    held = next(name for name, limit in figures.limits().items() if limit.least)
    text = figures.page({"figures": {held: {"value": 0.0, "taken": "today"}}})
    assert f"| {held} | 0 |" in text
    assert text.count("**beyond**") == 1
    assert text.count("**missing**") == len(names) - 1


def test_a_limit_may_be_a_minimum_or_a_maximum() -> None:
    assert str(Check("x", Limit(least=1, most=2), 3.0)) == "beyond its limit: x: 3, not ≥ 1, ≤ 2"


def test_the_models_have_the_sizes_of_the_limits() -> None:
    tensors = {name: sum(1 + bias for _, _, bias in layers) for name, layers in models.SHAPES.items()}
    assert tensors["small"] >= 60
    assert models.bytes_of("dense") >= 10e6
    assert models.bytes_of("big") == 100e6
    assert models.touched_rows() == models.IDS_PER_BATCH // 2
