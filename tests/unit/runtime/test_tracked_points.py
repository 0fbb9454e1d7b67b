"""The points and parameters that experiment trackers get, and how their errors are reported."""

from collections.abc import Callable, Sequence
from typing import Any

import pytest

from pstraining.runtime.tracking.mlflow_run import NAME_MAX, MlflowRun, flat
from pstraining.runtime.tracking.tracker import TrackedPoint, Tracker, newer
from tests.unit.runtime.test_tracking import StubClient, StubRun, events, run_of, stub_mlflow  # noqa: F401 - a fixture


def logged(run: MlflowRun) -> list[tuple[str, float]]:
    found: list[tuple[str, float]] = run._client.logged
    return found


def test_metrics_that_mlflow_would_name_alike_stay_apart(stub_mlflow: Callable[..., MlflowRun]) -> None:  # noqa: F811
    """Each would be logged in the place of the other, without a word."""
    metrics = {"recall@10": 0.1, "recall_10": 0.2, "recall#10": 0.3}
    for order in (metrics, dict(reversed(metrics.items()))):
        run = stub_mlflow()
        run.log([TrackedPoint(1, 0.0, order)])
        assert dict(logged(run)) == {"recall_10": 0.2, "recall_10_226562": 0.1, "recall_10_368ae7": 0.3}
    run.log([TrackedPoint(2, 0.0, {"recall@10": 0.4})])
    assert logged(run)[-1] == ("recall_10_226562", 0.4), "a later point has the same name"


def test_long_names_that_mlflow_cuts_stay_apart(stub_mlflow: Callable[..., MlflowRun]) -> None:  # noqa: F811
    run = stub_mlflow()
    run.log([TrackedPoint(1, 0.0, {"x" * 300: 0.1, "x" * 299: 0.2})])
    (one, other) = (name for name, _ in logged(run))
    assert one != other
    assert (len(one), len(other)) == (NAME_MAX, NAME_MAX)


def test_few_requests_log_many_metrics_after_a_failure(
    stub_mlflow: Callable[..., MlflowRun],  # noqa: F811
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A request for each metric of a run took minutes beside a slow server, and points did not fit into the queue."""
    requests: list[object] = []
    stored: dict[str, int] = {}
    answers = iter([ConnectionError("away")])

    def log_batch(_: StubClient, run: str, metrics: Sequence[Any]) -> None:
        requests.append("log_batch")
        if error := next(answers, None):
            raise error
        for metric in metrics:
            if metric.key == "loss/cls":
                raise NotADirectoryError("loss/cls")
            assert stored.setdefault(metric.key, -1) < metric.step, "no metric twice"
            stored[metric.key] = metric.step

    def get_run(_: StubClient, run: str) -> object:
        requests.append("get_run")
        return run_of(stored, run)

    monkeypatch.setattr(StubClient, "log_batch", log_batch)
    monkeypatch.setattr(StubClient, "get_run", get_run)
    metrics = {f"metric{number}": 0.5 for number in range(64)}
    run = stub_mlflow()
    requests.clear()
    run.log([TrackedPoint(1, 0.0, metrics)])
    assert requests == ["log_batch", "get_run", "log_batch"]
    requests.clear()
    assert stub_mlflow()._last == dict.fromkeys(metrics, 1), "a new connection knows what the run has"
    assert requests == ["get_run"]
    requests.clear()
    run.log([TrackedPoint(2, 0.0, {**metrics, "loss/cls": 0.5})])
    assert stored == dict.fromkeys(metrics, 2)
    assert len(requests) < 40
    assert run._refused == {"loss/cls"}


def test_a_reason_is_reported_once_until_the_tracker_stores_points(capsys: pytest.CaptureFixture[str]) -> None:
    """A store that refuses the artifacts is asked again every second, for a minute."""
    run, refusals = StubRun(), iter([ModuleNotFoundError("boto3")] * 3 + [PermissionError("denied")])

    def connect() -> StubRun:
        return run

    def finish(artifacts: object) -> None:
        if error := next(refusals, None):
            raise error

    run.finish = finish  # type: ignore[method-assign]
    run.failures = 2
    tracker = Tracker(connect, retry=0.01)
    tracker.write(1, {"loss": 1.0})
    tracker.finish([], 30)
    reasons = [event["reason"] for event in events(capsys)]
    assert reasons == ["ConnectionError: away", "ModuleNotFoundError: boto3", "PermissionError: denied"]


def test_a_repeated_step_is_not_logged_again() -> None:
    assert newer(TrackedPoint(5, 0.0, {"loss": 1.0, "epoch/loss": 2.0}), {"loss": 5}) == {"epoch/loss": 2.0}


def test_settings_become_parameters() -> None:
    assert dict(flat({"training": {"steps": 7, "epochs": None, "compression": {"push": "None"}}})) == {
        "training.steps": "7",
        "training.compression.push": "None",
    }
