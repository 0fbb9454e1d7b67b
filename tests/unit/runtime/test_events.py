"""The lines that a task prints, and the results that it writes, are JSON for every reader."""

import json
import math
import time

import pytest

from pstraining.runtime.telemetry.events import as_json, event
from pstraining.runtime.telemetry.long_evaluation import noting_long


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


def test_an_evaluation_that_does_not_end_is_reported_ever_less_often(capsys: pytest.CaptureFixture[str]) -> None:
    """A dataset that never ends, such as a generator's, is known to nobody, and the job waited without a word."""
    with noting_long("evaluate", 0.05):
        time.sleep(0.3)
    with noting_long("validation"):
        pass
    found = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert {(one["event"], one["argument"]) for one in found} == {("evaluation_continues", "evaluate")}
    assert 1 <= len(found) <= 3
    assert found[0]["seconds"] < 0.3
