"""What a worker and the chief tell, by a clock that the test turns."""

import json
import math

import pytest

from pstraining.runtime.progress import Rate, StepReports, event


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def test_a_worker_reports_its_longest_gap_once_a_second(capsys: pytest.CaptureFixture[str]) -> None:
    clock = Clock()
    reports = StepReports(3, clock)
    for number, gap in enumerate([0.1, 0.2, 0.5, 0.3, 0.1, 0.1, 0.9]):
        clock.now += gap
        reports.step(number + 1, 0.5)
    lines = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [(line["event"], line["worker"], line["steps"]) for line in lines] == [("worker", 3, 4), ("worker", 3, 7)]
    assert [line["gap_seconds"] for line in lines] == [0.5, 0.9]
    assert lines[-1]["longest_gap_seconds"] == 0.9


def test_the_chief_tells_rate_and_time_left() -> None:
    clock = Clock()
    rate = Rate(1000, clock)
    assert rate.line(0, math.nan) == "step 0/1000"
    clock.now += 2
    assert rate.line(100, 0.25) == "step 100/1000  loss 0.2500  50.0 steps/s  ETA 18 s"
    clock.now += 2
    assert rate.line(40, 0.25).endswith("50.0 steps/s  ETA 19 s"), "set back by a restore: the former rate stands"


def test_an_event_is_json_also_for_a_loss_that_is_none(capsys: pytest.CaptureFixture[str]) -> None:
    event("worker", loss=math.nan)
    assert json.loads(capsys.readouterr().out)["loss"] is None
