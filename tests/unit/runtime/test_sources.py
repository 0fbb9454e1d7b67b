"""Assigned data: every sample once per epoch, in an order that all processes share."""

from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pstraining.runtime.config.settings import SettingsError
from pstraining.runtime.data.sources import Files, Order, Ranges, check_workers, place


@given(size=st.integers(1, 500), block=st.integers(1, 60), epoch=st.integers(0, 5), seed=st.none() | st.integers(0, 99))
def test_every_sample_once_an_epoch(size: int, block: int, epoch: int, seed: int | None) -> None:
    ranges = Ranges(size, block, range, seed=seed)
    positions = range(epoch * ranges.count, (epoch + 1) * ranges.count)
    seen: Counter[Any] = Counter()
    for position in positions:
        seen.update(ranges.open(position))
    assert seen == Counter(range(size))


def test_the_order_differs_between_epochs_and_not_between_processes() -> None:
    first = [place(position, 50, 7) for position in range(50)]
    second = [place(position, 50, 7) for position in range(50, 100)]
    assert sorted(first) == sorted(second) == list(range(50))
    assert first != second
    assert first == [place(position, 50, 7) for position in range(50)]
    assert [place(position, 50, None) for position in range(50, 100)] == list(range(50))


def test_each_position_is_one_file() -> None:
    files = Files(["a", "b", "c"], lambda path: path.upper(), seed=None)
    assert [files.open(position) for position in range(4)] == ["A", "B", "C", "A"]


def test_the_order_is_that_of_equal_splits() -> None:
    """The order is equal where a position means the same samples, wherever the files are mounted."""
    files = Files(["/data/a", "/data/b"], str).order
    assert files == Files(["/mnt/a", "/mnt/b"], str).order == Order.of(files.text())
    others = (Files(["/data/b", "/data/a"], str), Files(["/data/a"], str), Files(["/data/a", "/data/b"], str, seed=1))
    assert all(other.order != files for other in others)
    assert Ranges(60, 10, range).order != Ranges(60, 15, range).order != Ranges(58, 15, range).order
    days = Files(["/data/1/part-0", "/data/2/part-0"], str).order
    assert days == Files(["/mnt/1/part-0", "/mnt/2/part-0"], str).order
    assert days != Files(["/data/2/part-0", "/data/1/part-0"], str).order


def test_workers_with_another_order_are_refused() -> None:
    """Such as that of an unsorted list of a folder's files: some would be trained twice, and others never."""
    order = Files(["/data/a", "/data/b"], str).order
    same, other = (Files(paths, str).order.text() for paths in (["/mnt/a", "/mnt/b"], ["/data/b", "/data/a"]))
    check_workers({0: same, 1: ""}, order)
    check_workers({0: same}, None)
    with pytest.raises(SettingsError, match=r"^data: worker 1 has other splits .* order \(.*files .*Files\(sorted\("):
        check_workers({0: same, 1: other}, order)


def test_blocks_of_a_fraction_are_rejected() -> None:
    with pytest.raises(ValueError, match=r"Ranges: block must be a whole number; it is 7\.5"):
        Ranges(60, 60 / 8, range)  # type: ignore[arg-type]


def test_a_path_in_place_of_paths_is_rejected() -> None:
    with pytest.raises(ValueError, match=r"Files: give a list of paths, such as \['/data/a.tfrecord'\]"):
        Files("/data/a.tfrecord", str)


@pytest.mark.parametrize("paths", [(path for path in "ab"), {"a", "b"}, np.array(["a", "b"])])
def test_paths_without_an_order_or_a_length_are_rejected(paths: Any) -> None:
    with pytest.raises(SettingsError, match=r"Files: give a list of paths, such as sorted\(paths\); it is a \w+"):
        Files(paths, str)


@pytest.mark.parametrize("seed", [-1, 1.5, "1"])
def test_a_seed_that_workers_cannot_use_is_rejected(seed: Any) -> None:
    for make in (lambda: Ranges(60, 10, range, seed=seed), lambda: Files(["a"], str, seed=seed)):
        with pytest.raises(
            SettingsError, match=f": seed must be a whole number of at least 0, or None; it is {seed!r}"
        ):
            make()
    zero: Any = np.int64(0)
    assert Ranges(60, 10, range, seed=zero).order == Ranges(60, 10, range, seed=0).order


@pytest.mark.parametrize("make", [lambda: Files([], str), lambda: Ranges(0, 1, range), lambda: Ranges(1, 0, range)])
def test_an_empty_source_is_rejected(make: Any) -> None:
    with pytest.raises(ValueError, match=r"Files|Ranges"):
        make()


def test_blocks_may_be_short_numbers_of_numpy() -> None:
    """Their products, indices of samples, are more than these types hold."""
    block: Any = np.int32(1_000_000)
    assert Ranges(4_000_000_000, block, range, seed=None).bounds(3000) == (3_000_000_000, 3_001_000_000)
    size: Any = np.uint8(250)
    small: Any = np.uint8(100)
    assert [Ranges(size, small, range, seed=None).bounds(place) for place in (1, 2)] == [(100, 200), (200, 250)]


@pytest.mark.parametrize("path", [b"/data/b", 1, None])
def test_paths_that_are_no_text_are_rejected(path: Any) -> None:
    """Such as the elements of a dataset of names, which are bytes."""
    with pytest.raises(SettingsError, match=rf"^Files: each path must be a text; {path!r} is of the type \w+"):
        Files(["/data/a", path], str)
    assert Files([Path("/data/a")], str).order == Files(["/data/a"], str).order  # type: ignore[list-item]
