"""Trackers: one run over several chiefs, no repeated metric, and no delay by an unreachable tracker."""

import json
import posixpath
import re
import subprocess
import sys
import tempfile
import threading
import time
from collections import namedtuple
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from pstraining.api import contract
from pstraining.runtime.checkpoint.objects.choice import local_files
from pstraining.runtime.checkpoint.state import SupersededError
from pstraining.runtime.config.cluster import Cluster, Task
from pstraining.runtime.config.settings import SettingsError
from pstraining.runtime.tracking import mlflow_run
from pstraining.runtime.tracking import tracker as tracker_module
from pstraining.runtime.tracking import tracking as tracking_module
from pstraining.runtime.tracking.mlflow_run import ENV_URI, TAG, MlflowRun, tracker_of
from pstraining.runtime.tracking.tracker import TrackedPoint, Tracker
from pstraining.runtime.tracking.tracking import Tracking
from tests.support.extra_packages import add_packages
from tests.support.soak_marks import in_all

ADDRESSES = {"chief": ("a:1",), "worker": ("b:1", "c:1"), "ps": ("d:1",)}


def cluster() -> Cluster:
    return Cluster("digits", Task("chief", 0), ADDRESSES, job_uid="0123", namespace="team")


class StubRun:
    """Keeps the logged values; fails while it is unreachable."""

    def __init__(self) -> None:
        self.points: list[TrackedPoint] = []
        self.artifacts: list[Path] | None = None
        self.failures = 0
        self.status = "RUNNING"

    def log(self, points: Sequence[TrackedPoint]) -> None:
        if self.failures:
            self.failures -= 1
            raise ConnectionError("away")
        self.points += points

    def finish(self, artifacts: Sequence[Path]) -> None:
        self.artifacts = [*artifacts]

    def fail(self) -> None:
        self.status = "FAILED"

    def stop(self) -> None:
        self.status = "KILLED"


def events(capsys: pytest.CaptureFixture[str]) -> list[dict[str, Any]]:
    return [json.loads(line) for line in capsys.readouterr().out.splitlines()]


def test_points_reach_the_run_in_their_order_and_artifacts_end_it(tmp_path: Path) -> None:
    run = StubRun()
    tracker = Tracker(lambda: run)
    for step in range(5):
        tracker.write(step, {"loss": 1.0})
    tracker.finish([tmp_path], 30)
    assert [point.step for point in run.points] == [0, 1, 2, 3, 4]
    assert run.artifacts == [tmp_path]


def test_a_failed_batch_is_logged_again_and_a_closed_tracker_ends_no_run(capsys: pytest.CaptureFixture[str]) -> None:
    run = StubRun()
    run.failures = 1
    tracker = Tracker(lambda: run, retry=0.01)
    tracker.write(1, {"loss": 1.0})
    tracker.close(30)
    assert [point.step for point in run.points] == [1]
    assert run.artifacts is None
    assert [(event["event"], event["reason"]) for event in events(capsys)] == [
        ("tracker_failed", "ConnectionError: away")
    ]


@pytest.mark.parametrize(
    ("error", "status"),
    [
        (SettingsError("training.steps: wrong"), "FAILED"),
        (ConnectionError("a server is lost"), "FAILED"),
        (SystemExit(143), "KILLED"),
        (KeyboardInterrupt(), "KILLED"),
        (SystemExit(contract.EXIT_SAVED), "RUNNING"),
        (SupersededError("term 1 is over"), "RUNNING"),
    ],
)
def test_a_run_ends_with_its_chief_unless_another_one_leads_the_job(
    monkeypatch: pytest.MonkeyPatch, error: BaseException, status: str
) -> None:
    """No chief may follow: the budget is spent, a worker's program was refused, or the job is suspended or deleted."""
    run = StubRun()
    monkeypatch.setattr(tracking_module, "tracker_of", lambda *_: Tracker(lambda: run))

    def train() -> None:
        with Tracking(cluster(), lambda *_: []) as tracking:
            tracking.start({})
            tracking.write(1, {"loss": 1.0})
            raise error

    with pytest.raises(type(error)):
        train()
    assert [point.step for point in run.points] == [1]
    assert (run.status, run.artifacts) == (status, None)


def test_a_full_disk_at_the_end_fails_no_job(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Results of an object store are copied to a temporary folder, which cannot be created."""
    run = StubRun()
    monkeypatch.setattr(tracking_module, "tracker_of", lambda *_: Tracker(lambda: run))
    monkeypatch.setattr(tempfile, "tempdir", "/absent")
    with Tracking(cluster(), lambda *_: [Path("/results")]) as tracking:
        tracking.start({})
    assert run.artifacts == []
    (reported,) = events(capsys)
    assert (reported["event"], "/absent" in reported["reason"]) == ("tracker_failed", True)


def test_a_refusal_that_another_error_wraps_ends_the_run_as_failed(monkeypatch: pytest.MonkeyPatch) -> None:
    run = StubRun()
    monkeypatch.setattr(tracking_module, "tracker_of", lambda *_: Tracker(lambda: run))

    def train() -> None:
        with Tracking(cluster(), lambda *_: []) as tracking:
            tracking.start({})
            raise SystemExit(143) from SettingsError("training.steps: wrong")

    with pytest.raises(SystemExit):
        train()
    assert run.status == "FAILED"


def test_a_hung_tracker_delays_nothing_and_dropped_points_are_counted(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(tracker_module, "WAITING", 3)
    answer = threading.Event()

    def connect() -> StubRun:
        answer.wait()
        return StubRun()

    tracker = Tracker(connect)
    began = time.monotonic()
    for step in range(10):
        tracker.write(step, {"loss": 1.0})
    tracker.close(0.1)
    assert time.monotonic() - began < 5
    (event,) = events(capsys)
    assert (event["event"], event["dropped"]) == ("tracker_incomplete", 7 + 3 + 1)
    answer.set()
    tracker._thread.join(30)


def test_a_missing_package_is_named(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setitem(sys.modules, "mlflow", None)
    monkeypatch.setitem(sys.modules, "mlflow.tracking", None)
    found = tracker_of(cluster(), {}, {ENV_URI: "http://127.0.0.1:9"})
    assert found is not None
    found._thread.join(30)
    (event,) = events(capsys)
    assert event["event"] == "no_tracker"
    assert "install mlflow-skinny" in event["reason"]
    for step in range(5):
        found.write(step, {})
    found.close()
    assert events(capsys) == [], "the missing package was reported once"


def test_without_the_variable_nothing_is_tracked() -> None:
    assert tracker_of(cluster(), {}, {}) is None
    with Tracking(cluster(), lambda names, folder: []) as tracking:
        tracking.write(1, {"loss": 1.0})


def run_of(steps: Mapping[str, int], run: str = "1") -> object:
    """Return a run of MLflow with metrics that have these last steps."""
    message = SimpleNamespace(metrics=[SimpleNamespace(key=name, step=step) for name, step in steps.items()])
    params = {"ps": "1", "workers": "2"}
    data = SimpleNamespace(params=params, tags=StubClient.tags, to_proto=lambda: message)
    return SimpleNamespace(info=SimpleNamespace(run_id=run, status=StubClient.status), data=data)


class StubClient:
    """A client of MLflow with a run without metrics. As MLflow, it refuses whole batches, by the names in them."""

    tags: Mapping[str, str] = {}
    status = "RUNNING"

    def __init__(self, uri: str) -> None:
        self.logged: list[tuple[str, float]] = []

    def search_runs(self, *_: object, **__: object) -> list[object]:
        return [self.get_run("1")]

    def get_run(self, run: str) -> object:
        return run_of({}, run)

    def set_tag(self, run: str, name: str, value: str) -> None:
        StubClient.tags = {**StubClient.tags, name: value}

    def update_run(self, run: str, status: str) -> None:
        StubClient.status = status

    def set_terminated(self, run: str, status: str) -> None:
        StubClient.status = status

    def log_batch(self, run: str, metrics: Sequence[Any]) -> None:
        for metric in metrics:
            name = metric.key
            if not re.fullmatch(r"[/\w.\- :]{1,250}", name) or posixpath.normpath(name) != name or name.startswith("/"):
                raise ValueError(f"Invalid value {name!r} for parameter 'metrics[0].name'")
        self.logged += [(metric.key, metric.value) for metric in metrics]


@pytest.fixture
def stub_mlflow(monkeypatch: pytest.MonkeyPatch) -> Callable[..., MlflowRun]:
    """Return a function that returns a chief's run of a stub of MLflow."""
    metric = namedtuple("metric", "key value timestamp step")
    monkeypatch.setattr(StubClient, "tags", {})
    monkeypatch.setattr(StubClient, "status", "RUNNING")
    monkeypatch.setitem(sys.modules, "mlflow", SimpleNamespace())
    monkeypatch.setitem(sys.modules, "mlflow.tracking", SimpleNamespace(MlflowClient=StubClient))
    monkeypatch.setitem(sys.modules, "mlflow.entities", SimpleNamespace(Metric=metric, Param=None))
    environ = {ENV_URI: "http://mlflow", "MLFLOW_EXPERIMENT_ID": "0"}
    return lambda uid="0123", term=1: MlflowRun({TAG: uid}, {"ps": "1"}, environ, term=term)


def test_a_chief_that_was_replaced_does_not_end_the_run_of_its_successor(
    stub_mlflow: Callable[..., MlflowRun],
) -> None:
    """A chief whose node is cut off fails minutes later, or reconnects to the tracker."""
    old, new = stub_mlflow(term=1), stub_mlflow(term=2)
    for end in (old.fail, old.stop, stub_mlflow(term=1).fail, partial(old.finish, [])):
        end()
        assert StubClient.status == "RUNNING"
    new.fail()
    assert StubClient.status == "FAILED"
    stub_mlflow("another job, with the same MLFLOW_RUN_ID", term=1).stop()
    assert StubClient.status == "KILLED"


def test_a_worker_0_that_was_replaced_does_not_end_the_run_of_its_successor(
    stub_mlflow: Callable[..., MlflowRun], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The pods of a job without a chief have no terms."""
    monkeypatch.setattr(mlflow_run, "Tracker", lambda connect: connect())
    leader = Cluster("digits", Task("worker", 0), {"worker": ("b:1", "c:1"), "ps": ("d:1",)}, job_uid="0123")
    environ = {ENV_URI: "http://mlflow", "MLFLOW_EXPERIMENT_ID": "0"}
    old, new = (cast("MlflowRun", tracker_of(leader, {}, environ)) for _ in range(2))
    old.stop()
    assert StubClient.status == "RUNNING"
    new.stop()
    assert StubClient.status == "KILLED"


def test_metrics_whose_name_mlflow_refuses_keep_no_others_back(stub_mlflow: Callable[..., MlflowRun]) -> None:
    run = stub_mlflow()
    names = ["epoch/recall@10", "epoch/top(5)", "a//b", "../up", "/", "x" * 300, "epoch/größe 1.5:a-b"]
    run.log([TrackedPoint(1, 0.0, dict.fromkeys(names, 0.5) | {"loss": 1.0})])
    expected = ["epoch/recall_10", "epoch/top_5_", "a/b", "up", "_", "x" * 250, names[-1]]
    assert run._client.logged == [*((name, 0.5) for name in expected), ("loss", 1.0)]
    run.log([TrackedPoint(1, 0.0, {"epoch/recall@10": 0.7})])
    assert len(run._client.logged) == 8, "the step has the metric already"


def test_a_metric_that_the_store_refuses_keeps_no_others_back_and_is_reported_once(
    stub_mlflow: Callable[..., MlflowRun], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """MLflow's file store has a file of each metric's name, and stores the metrics before the one that it refuses."""
    stored: list[tuple[int, str]] = []

    def log_batch(_: StubClient, run: str, metrics: Sequence[Any]) -> None:
        for metric in metrics:
            if metric.key == "loss/cls":
                raise NotADirectoryError("[Errno 20] Not a directory: '/runs/metrics/loss/cls'")
            stored.append((metric.step, metric.key))

    def get_run(_: StubClient, run: str) -> object:
        return run_of({name: step for step, name in stored}, run)

    monkeypatch.setattr(StubClient, "log_batch", log_batch)
    monkeypatch.setattr(StubClient, "get_run", get_run)
    tracker, until = Tracker(stub_mlflow), time.monotonic() + 10
    for step in (1, 2, 3):
        tracker.write(step, {"loss": 0.5, "loss/cls": 0.5, "rate": 1.0})
        while len(stored) < 2 * step and time.monotonic() < until:
            time.sleep(0.01)
    tracker.finish([], 10)
    assert sorted(stored) == [(step, name) for step in (1, 2, 3) for name in ("loss", "rate")]
    (reported,) = events(capsys)
    assert (reported["event"], reported["metric"]) == ("metric_refused", "loss/cls")
    assert "Not a directory" in reported["reason"]
    assert StubClient.tags[mlflow_run.TAG_REFUSED] == "loss/cls"
    assert StubClient.status == "FINISHED"


def test_an_unavailable_store_refuses_no_metric(
    stub_mlflow: Callable[..., MlflowRun], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """It fails some requests, and answers others."""
    failures = iter([*[ConnectionError("away")] * 3, None])
    log_batch = StubClient.log_batch
    stored: list[str] = []

    def flaky(self: StubClient, run: str, metrics: Sequence[Any]) -> None:
        if error := next(failures, None):
            raise error
        log_batch(self, run, metrics)
        stored.extend(metric.key for metric in metrics)

    def set_tag(self: StubClient, run: str, name: str, value: str) -> None:
        if name == mlflow_run.TAG_REFUSED:
            raise ConnectionError("away")

    monkeypatch.setattr(StubClient, "log_batch", flaky)
    monkeypatch.setattr(StubClient, "set_tag", set_tag)
    tracker = Tracker(stub_mlflow, retry=0.01)
    tracker.write(1, {"loss": 0.5, "rate": 1.0, "workers": 2.0})
    tracker.finish([], 30)
    assert {*stored} == {"loss", "rate", "workers"}
    assert [event["event"] for event in events(capsys)] == ["tracker_failed"]


def test_a_run_whose_artifacts_are_refused_ends(
    stub_mlflow: Callable[..., MlflowRun], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The store of artifacts is a bucket, and the chief's image lacks the bucket's client."""

    def log_artifact(self: StubClient, run: str, path: str) -> None:
        raise ModuleNotFoundError("No module named 'boto3'")

    monkeypatch.setattr(StubClient, "log_artifact", log_artifact, raising=False)
    with pytest.raises(ModuleNotFoundError, match="boto3"):
        stub_mlflow().finish([tmp_path])
    assert StubClient.status == "FINISHED"


CHIEF = """
import sys, time
from tests.unit.runtime.test_tracking import cluster, tracker_of
tracker = tracker_of(cluster(), {"training": {"steps": 20}})
for step in range(1, 11):
    tracker.write(step, {"loss": 1 / step})
while tracker._points.qsize():
    time.sleep(0.05)
print("logged", flush=True)
time.sleep(600)
"""


@in_all(
    "tests/unit/runtime/test_tracking.py::test_a_failed_batch_is_logged_again_and_a_closed_tracker_ends_no_run"
)  # installs MLflow
def test_a_killed_chiefs_run_of_mlflow_is_continued_without_a_metric_twice(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    add_packages(tmp_path / "packages", monkeypatch, "mlflow-skinny>=3,<4")
    from mlflow.tracking import MlflowClient

    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")  # without a database, which mlflow-skinny lacks
    monkeypatch.setenv(ENV_URI, f"file://{tmp_path}/runs")
    chief = subprocess.Popen([sys.executable, "-c", CHIEF], stdout=subprocess.PIPE, text=True)
    assert chief.stdout is not None
    assert chief.stdout.readline() == "logged\n"
    chief.kill()
    chief.wait()
    (tmp_path / "result.json").write_text("{}")
    with Tracking(cluster(), partial(local_files, str(tmp_path))) as tracking_job:
        tracking_job.start({"training": {"steps": 30}})
        for step in range(6, 21):  # from the last checkpoint
            tracking_job.write(step, {"loss": 1 / step, "epoch/recall@10": 0.5})
    client = MlflowClient()
    (run,) = client.search_runs(["0"], f"tags.`{TAG}` = '0123'")
    steps = [metric.step for metric in client.get_metric_history(run.info.run_id, "loss")]
    assert sorted(steps)[-10:] == [*range(11, 21)]
    assert len(steps) == len({*steps}) >= 15
    assert run.data.params["training.steps"] == "20"
    assert run.data.metrics["epoch/recall_10"] == 0.5
    assert run.info.status == "FINISHED"
    assert [item.path for item in client.list_artifacts(run.info.run_id)] == ["result.json"]
