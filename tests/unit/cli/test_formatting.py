"""Durations and amounts in a readable form."""

from datetime import timedelta

import pytest

from pstraining.cli import formatting
from tests.support.builders import NOW, stamp


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        *[("30s", 30), ("5m", 300), ("1h30m", 5400), ("2d", 172800), ("0.5s", 0.5), ("1m1s", 61)],
        *[("0", 0), ("+5s", 5), (".5m", 30), ("1.h", 3600), ("500ms", 0.5), ("2\u00b5s", 2e-6), ("1h0.5m", 3630)],
    ],
)
def test_durations_are_read(text: str, seconds: float) -> None:
    assert formatting.seconds(text) == seconds


@pytest.mark.parametrize("text", ["", "5", "5x", "m", "-5m", "5m ", "1h 30m"])
def test_invalid_durations_are_rejected(text: str) -> None:
    with pytest.raises(ValueError, match="is not a duration such as 30s, 5m, 1h30m or 2d"):
        formatting.seconds(text)


@pytest.mark.parametrize("text", ["2562048h", f"{'9' * 400}s", f"{'9' * 400}d9s"])
def test_durations_that_are_too_long_are_rejected(text: str) -> None:
    with pytest.raises(ValueError, match="is longer than 9223372036 s"):
        formatting.seconds(text)


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (-3, "0s"),
        (59.9, "59s"),
        (60, "1m"),
        (200, "3m20s"),
        (3600, "1h"),
        (5400, "1h30m"),
        (86399, "23h59m"),
        (183600, "2d3h"),
    ],
)
def test_durations_are_written_to_two_units(seconds: float, text: str) -> None:
    assert formatting.duration(seconds) == text


def test_how_long_ago() -> None:
    assert formatting.since(stamp(NOW), NOW + timedelta(seconds=61)) == "1m1s"
    assert formatting.since(None, NOW) == ""


@pytest.mark.parametrize(
    ("value", "text"),
    [(None, "-"), (0, "0 B/s"), (999.4, "999 B/s"), (999.6, "1 kB/s"), (1.5e6, "1.5 MB/s"), (2e15, "2000 TB/s")],
)
def test_bytes_each_second(value: float | None, text: str) -> None:
    assert formatting.bytes_rate(value) == text


@pytest.mark.parametrize("text", ["0", "-1", "9" * 400, f"{'9' * 307}T"])
def test_numbers_are_finite_and_positive(text: str) -> None:
    with pytest.raises(ValueError, match="is not a number such as"):
        formatting.count(text)


@pytest.mark.parametrize(
    ("value", "text"),
    [(0.0, "0"), (3.21e-5, "0.0000321"), (0.08192, "0.0819"), (99.96, "100"), (999.6, "1000"), (2.24e6, "2240000")],
)
def test_numbers_have_no_exponent(value: float, text: str) -> None:
    assert formatting.plain(value, 3) == text
    assert formatting.rate(value) == text
