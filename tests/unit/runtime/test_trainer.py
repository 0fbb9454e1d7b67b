"""The arguments that `Trainer` rejects at the start, and the folder of its summaries."""

import json
from pathlib import Path
from typing import Any

import pytest

from pstraining.runtime import Ranges, Trainer
from pstraining.runtime.config.settings import SettingsError
from pstraining.runtime.telemetry.summaries_folder import folder_of


def trainer(data: Any = lambda worker, workers: None, **options: Any) -> Trainer:
    return Trainer(lambda: None, lambda: None, "mse", data, **options)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"steps_per_epoch": 0}, "at least 1"),
        ({"validation_every": 0}, "at least 1"),
        (
            {"data": Ranges(10, 5, lambda begin, end: []), "steps_per_epoch": 5},
            "an epoch of Ranges or Files is one pass",
        ),
    ],
)
def test_an_impossible_epoch_is_rejected(options: dict[str, Any], words: str) -> None:
    with pytest.raises(SettingsError, match=words):
        trainer(**options)


def test_epochs_need_a_finite_source(monkeypatch: pytest.MonkeyPatch) -> None:
    cluster = {"cluster": {"worker": ["a:1"], "ps": ["b:1"]}, "task": {"type": "worker", "index": 0}}
    monkeypatch.setenv("TF_CONFIG", json.dumps(cluster))
    with pytest.raises(SettingsError, match="give steps, or steps_per_epoch"):
        trainer(epochs=3).run()
    with pytest.raises(SettingsError, match="one of steps and epochs"):
        trainer(steps_per_epoch=10).run()


@pytest.mark.parametrize(
    ("tensorboard", "checkpoints", "expected"),
    [
        (None, None, None),
        (None, "/c", Path("/c/tensorboard")),
        (False, "/c", None),
        ("/t", None, Path("/t")),
        (Path("/t"), "/c", Path("/t")),
        (None, "s3://bucket/prefix", None),
        ("/t", "s3://bucket/prefix", Path("/t")),
    ],
)
def test_summaries_lie_beside_the_checkpoints(
    tensorboard: str | Path | bool | None, checkpoints: str | None, expected: Path | None
) -> None:
    assert folder_of(tensorboard, checkpoints) == expected
