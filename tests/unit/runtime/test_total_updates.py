"""The number of updates in a job: with it, a schedule ends when training does."""

import math
from typing import Any

import pytest

from pstraining.runtime import Files, Ranges
from pstraining.runtime.config.settings import SettingsError, TrainingSettings, resolve
from pstraining.runtime.data.total_updates import total_updates

RANGES = Ranges(1000, 100, lambda begin, end: [])
ODD = Ranges(1050, 100, lambda begin, end: [])
FILES = Files(["a", "b", "c", "d"], lambda path: [])


def count(source: Any, given: dict[str, object], workers: int = 4, **more: Any) -> int:
    return total_updates(resolve("training", TrainingSettings, given, {}), workers, source, **more)


@pytest.mark.parametrize(
    ("source", "given", "more", "expected"),
    [
        (None, {"steps": 500}, {}, 500),
        (None, {"epochs": 3}, {"steps_per_epoch": 50}, 150),
        (None, {"epochs": 3, "steps": 120, "mode": "Sync"}, {"steps_per_epoch": 50}, 120),
        (RANGES, {"steps": 500}, {}, 500),
        (RANGES, {"epochs": 2}, {"batch_size": 20}, 100),
        (RANGES, {"epochs": 2}, {"batch_size": 30}, 2 * 10 * 4),  # the last batch of every block is small
        (RANGES, {"epochs": 2}, {"batch_size": 30, "drop_remainder": True}, 2 * 10 * 3),
        (ODD, {"epochs": 1}, {"batch_size": 20}, 10 * 5 + 3),
        (ODD, {"epochs": 1, "mode": "Sync"}, {"batch_size": 20, "drop_remainder": True}, 13),
        (FILES, {"epochs": 2}, {"batch_size": 30, "samples": 399, "drop_remainder": True}, 2 * 4 * 3),
        (RANGES, {"epochs": 2, "mode": "Sync"}, {"batch_size": 20}, 25),
        (RANGES, {"epochs": 2, "mode": "Hybrid"}, {"batch_size": 20}, 25),
        (RANGES, {"epochs": 2, "mode": "Sync", "backup_workers": 2}, {"batch_size": 20}, 50),
        (RANGES, {"epochs": 2, "accumulation_steps": 2}, {"batch_size": 20}, 2 * 10 * 3),
        (RANGES, {"epochs": 2, "steps": 60}, {"batch_size": 20}, 60),
        (FILES, {"epochs": 2}, {"batch_size": 10, "samples": 399}, 2 * 4 * 10),
        (None, {"steps": 100, "local_steps": 8}, {}, 200),  # each worker has its own: a fourth of the batches
        (None, {"steps": 100, "local_steps": 8, "mode": "Sync"}, {}, 800),
    ],
)
def test_updates(source: Any, given: dict[str, object], more: dict[str, int], expected: int) -> None:
    assert count(source, given, **more) == expected


@pytest.mark.parametrize(
    ("source", "given", "more", "words"),
    [
        (None, {"epochs": 3}, {}, "steps_per_epoch"),
        (RANGES, {"epochs": 3}, {}, "give batch_size"),
        (FILES, {"epochs": 3}, {"batch_size": 10}, "give samples"),
    ],
)
def test_missing_inputs_are_named(source: Any, given: dict[str, object], more: dict[str, int], words: str) -> None:
    with pytest.raises(SettingsError, match=words):
        count(source, given, **more)


@pytest.mark.parametrize("number", [math.nan, 32.5, "32", True])
def test_a_number_that_is_not_whole_is_named(number: Any) -> None:
    with pytest.raises(SettingsError, match=f"total_updates: batch_size must be a whole number; it is {number!r}"):
        count(RANGES, {"epochs": 1}, batch_size=number)


@pytest.mark.parametrize(("name", "number"), [("batch_size", 0), ("samples", -1)])
def test_a_number_below_1_is_named(name: str, number: int) -> None:
    with pytest.raises(SettingsError, match=f"total_updates: {name} must be at least 1; it is {number}"):
        count(FILES, {"epochs": 1}, **{"batch_size": 10, "samples": 40, name: number})
