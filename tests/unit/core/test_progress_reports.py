"""Progress reports: their content, the pods that may send them, and when they are written."""

import math
from typing import Any

import pytest

from pstraining.api.contract import METRIC_NAME_MAX, METRICS_MAX
from pstraining.core.progress import (
    MILESTONE_SECONDS,
    TrainerStatus,
    may_report,
    progress_of,
    read_report,
    write_delay,
)
from pstraining.progress import PERIOD_SECONDS, Progress
from tests.support.builders import job, pod


def read(content: dict[str, Any]) -> TrainerStatus:
    found = read_report({"trainerStatus": content})
    assert isinstance(found, TrainerStatus), found
    return found


def test_a_report_of_the_runtime_is_the_status() -> None:
    sent = Progress(
        step=120,
        steps=400,
        epoch=2,
        loss=0.123456789,
        metrics={"accuracy": 0.9, "auc": float("nan")},
        samples_per_second=1234.5,
        remaining_seconds=61.7,
        checkpoint_step=100,
        checkpoint_time=0.0,
        layout=2,
        term=3,
    )
    assert progress_of(read(sent.content())) == {
        "step": 120,
        "steps": 400,
        "epoch": 2,
        "progressPercentage": 30,
        "estimatedRemainingSeconds": 61,
        "loss": "0.12346",
        "metrics": [{"name": "accuracy", "value": "0.9"}],
        "samplesPerSecond": "1234.5",
        "checkpointStep": 100,
        "checkpointTime": "1970-01-01T00:00:00Z",
        "layout": 2,
        "term": 3,
        "lastUpdatedTime": None,
    }


def test_a_program_with_too_many_metrics_still_reports_its_step_and_its_layout() -> None:
    """The operator refuses a whole report; it follows training to another number of servers by the layout."""
    metrics = {"x" * (METRIC_NAME_MAX + 1): 1.0, "x" * METRIC_NAME_MAX: 2.0}
    metrics |= {f"class-{number}": 3.0 for number in range(METRICS_MAX)}
    found = read(Progress(step=120, layout=2, metrics=metrics).content())
    assert (found.step, found.layout, len(found.metrics)) == (120, 2, METRICS_MAX)
    assert [metric.value for metric in found.metrics[:2]] == ["2", "3"]


@pytest.mark.parametrize(
    ("odd", "known"),
    [
        ({"percentage": math.nan}, {}),  # such as 100 * 0 / 0, at the start
        ({"percentage": math.inf}, {}),
        ({"percentage": 100.4}, {"progressPercentage": 100}),
        ({"steps": 2**64}, {"progressPercentage": 0}),
        ({"remaining_seconds": 1e300}, {}),
        ({"stalled": "x" * 2000}, {}),
    ],
)
def test_an_odd_value_costs_no_other_value_of_a_report(odd: dict[str, Any], known: dict[str, Any]) -> None:
    found = progress_of(read(Progress(step=120, **odd).content()))
    assert {name: value for name, value in found.items() if value not in (None, [])} == {"step": 120, **known}


@pytest.mark.parametrize(
    ("metrics", "step", "loss"),
    [
        ({"loss": "0.5", "global_step": "17"}, 17, "0.5"),
        ({"step": "3.0", "lr": "1e-3"}, 3, None),
        ({"step": "nan", "global_step": "4"}, 4, None),
        ({"step": "-1"}, None, None),
        ({"step": "inf", "global_step": "1e19"}, None, None),
        ({}, None, None),
    ],
)
def test_step_and_loss_of_other_clients_are_metrics(metrics: dict[str, str], step: int | None, loss: str) -> None:
    found = read({"metrics": [{"name": name, "value": value} for name, value in metrics.items()]})
    assert (found.step, found.loss) == (step, loss)


@pytest.mark.parametrize(
    ("body", "words"),
    [
        ([], "the body"),
        ({}, "trainerStatus: Field required"),
        ({"trainerStatus": {"progressPercentage": 101}}, r"trainerStatus\.progressPercentage: .*100"),
        ({"trainerStatus": {"step": -1}}, r"trainerStatus\.step: "),
        ({"trainerStatus": {"metrics": [{"name": "a", "value": "x" * 65}]}}, r"trainerStatus\.metrics\[0\]\.value: "),
        ({"trainerStatus": {"metrics": [{"name": "a", "value": "1"}] * 257}}, r"trainerStatus\.metrics: .*256"),
        ({"trainerStatus": {"stalled": "x" * 2000}}, r"trainerStatus\.stalled: "),
        # The API server stores neither, so the operator would try again and again to write them.
        ({"trainerStatus": {"step": 2**63}}, r"trainerStatus\.step: .*64 bits"),
        ({"trainerStatus": {"checkpointTime": "2030-01-01T00:00:00"}}, r"trainerStatus\.checkpointTime: .*time zone"),
    ],
)
def test_an_invalid_report_is_rejected_by_field(body: object, words: str) -> None:
    import re

    refused = read_report(body)
    assert isinstance(refused, str)
    assert re.match(words, refused)
    assert refused.endswith("as in KEP-2779.")


ALONE = job(spec={"chief": {"enabled": False}})


@pytest.mark.parametrize(
    ("of", "sender", "expected"),
    [
        (job(), pod("chief", term=2), True),
        (job(), pod("chief", term=3), True),
        (job(), pod("chief", term=1), False),
        (job(), pod("chief", term=2, deleting=True), False),
        (job(), pod("worker", 0), False),
        (job(), pod("ps", 0), False),
        (ALONE, pod("worker", 0), True),
        (ALONE, pod("worker", 1), False),
        (ALONE, pod("ps", 0), False),
    ],
)
def test_the_newest_pod_with_the_chiefs_duty_reports(of: dict[str, Any], sender: Any, expected: bool) -> None:
    assert may_report({**of, "status": {"term": 2}}, sender) is expected


OLD = {"step": 10, "epoch": 0, "progressPercentage": 11, "lastUpdatedTime": "2030-01-01T00:00:00Z"}


@pytest.mark.parametrize(
    ("changes", "seconds", "expected"),
    [
        ({"lastUpdatedTime": "2030-01-01T00:05:00Z"}, 300, None),
        ({"step": 11}, 0, PERIOD_SECONDS),
        ({"step": 11, "progressPercentage": 14}, 20, PERIOD_SECONDS - 20),
        ({"step": 11}, 70, 0),
        ({"step": 11, "epoch": 1}, 0, MILESTONE_SECONDS),
        ({"step": 11, "epoch": 1}, 30, 0),
        ({"step": 15, "progressPercentage": 15}, 4, MILESTONE_SECONDS - 4),
        ({"step": 99, "progressPercentage": 100}, 0, 0),
    ],
)
def test_progress_is_written_once_a_minute_at_milestones_and_at_the_end(
    changes: dict[str, Any], seconds: float, expected: float | None
) -> None:
    assert write_delay(OLD, {**OLD, **changes}, seconds) == expected


def test_the_first_progress_is_written_at_once() -> None:
    assert write_delay(None, OLD, 0) == 0
