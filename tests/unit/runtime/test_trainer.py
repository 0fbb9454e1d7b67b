"""The arguments that `Trainer` rejects at the start, and the folder of its summaries."""

import json
from typing import Any

import pytest

from pstraining.runtime import Ranges, Trainer
from pstraining.runtime.config.settings import SettingsError


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
