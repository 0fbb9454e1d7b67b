"""The lines that a task prints, and the results that it writes, are JSON for every reader."""

import json
import math

import pytest

from pstraining.runtime.telemetry.events import as_json, event


def test_numbers_that_are_not_finite_are_null() -> None:
    text = as_json({"test_loss": math.nan, "bound": math.inf, "step": 3, "name": "digits"})

    def refused(constant: str) -> float:
        raise AssertionError(f"{constant} is not JSON")

    found = json.loads(text, parse_constant=refused)
    assert found == {"test_loss": None, "bound": None, "step": 3, "name": "digits"}


def test_a_metric_may_have_any_name(capsys: pytest.CaptureFixture[str]) -> None:
    event("epoch", **{"name": 1.0, "event": 2.0, "loss": 3.0})
    found = json.loads(capsys.readouterr().out)
    assert (found["event"], found["name"], found["loss"]) == ("epoch", 1.0, 3.0)
