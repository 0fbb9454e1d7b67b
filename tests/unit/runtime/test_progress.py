"""Reports of a worker and of the chief, by a clock that the test moves."""

import json
import math
import os
import pty
import subprocess
import sys
import threading
from fractions import Fraction
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from pstraining import progress
from pstraining.api import contract
from pstraining.controller.progress.server import BODY_MAX
from pstraining.progress import MILESTONE_SECONDS, PERIOD_SECONDS, Progress, ProgressReporter, due_in
from pstraining.runtime.telemetry.events import event
from pstraining.runtime.telemetry.progress import STALL_SECONDS, Rate, Seen, StallDetector, StepReports, show


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


def test_the_chief_reports_rate_and_remaining_time() -> None:
    clock = Clock()
    rate = Rate(1000, 1, 1000, clock)
    assert rate.line(Seen(0)) == "step 0/1000"
    clock.now += 2
    assert rate.line(Seen(100, 0.25, done=100)) == "step 100/1000  loss 0.2500  50.0 steps/s  ETA 18 s"
    clock.now += 2
    set_back = rate.line(Seen(40, 0.25, done=40))
    assert set_back.endswith("50.0 steps/s  ETA 19 s"), "set back by a restore: the former rate stands"


def test_the_chief_reports_epochs_samples_and_bytes() -> None:
    clock = Clock()
    rate = Rate(None, 5, 50, clock)  # splits of the data, and no limit of steps
    rate.line(Seen(10, done=5, samples=320, sent=1e3, received=2e6))
    clock.now += 4
    seen = Seen(30, epoch=1, done=15, samples=960, sent=3e3, received=8.44e9)
    expected = "step 30  epoch 2/5  5.0 steps/s  160 samples/s  up 500 B/s  down 2.11 GB/s  ETA 14 s"
    assert rate.line(seen) == expected
    assert rate.fraction(seen) == 0.3
    assert rate.speeds()["samples_per_second"] == 160
    unknown = Rate(None, None, None, clock)
    assert unknown.line(Seen(3, epoch=2)) == "step 3  epoch 3"
    assert unknown.fraction(Seen(3)) is None


@pytest.mark.parametrize(("total", "said"), [(None, "ETA 18 s"), (8000, "ETA 18 s"), (40, "ETA 6 s")])
def test_the_end_is_at_the_first_of_two_limits(total: int | None, said: str) -> None:
    """Assigned data may end before `steps`, or after them; with `steps` alone, the number of its passes is unknown."""
    clock = Clock()
    rate = Rate(1000, None, total, clock)
    rate.line(Seen(0))
    clock.now += 2
    seen = Seen(100, done=10)
    assert rate.line(seen).endswith(said)
    assert rate.fraction(seen) == (0.25 if total == 40 else 0.1)
    assert rate.fraction(Seen(1000, done=30)) == 1.0


def test_a_terminal_has_one_line_with_a_bar_that_other_lines_replace() -> None:
    """A terminal has one line with a bar that other lines replace, on a real pseudo-terminal; through a pipe the same
    program prints plain lines.
    """
    program = (
        "from pstraining.runtime.telemetry.progress import show\n"
        "from pstraining.runtime.telemetry.events import event\n"
        "show('step 1/4', 0.25); show('step 2/4', 0.5); event('checkpoint', step=2); show('step 3', None)"
    )
    command = [sys.executable, "-c", program]
    master, slave = pty.openpty()
    with os.fdopen(master, "rb", buffering=0) as terminal:
        subprocess.run(command, stdout=slave, check=True, env={**os.environ, "COLUMNS": "80"})
        os.close(slave)
        shown = terminal.read(4096).decode()
    first, second, event_line, last = shown.split("\r\x1b[K")[1:]
    assert first == "[#####...............]  25%  step 1/4"
    assert second == "[##########..........]  50%  step 2/4"
    assert event_line.startswith('{"event": "checkpoint"')
    assert event_line.endswith("\r\n")
    assert last == "step 3"
    plain = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    assert plain.splitlines()[:2] == ["step 1/4", "step 2/4"]
    assert "\x1b" not in plain


def test_progress_is_printed_to_a_stream_of_the_program(monkeypatch: pytest.MonkeyPatch) -> None:
    """Such as one that also writes to a file, and has no other methods."""
    written: list[str] = []
    monkeypatch.setattr(sys, "stdout", SimpleNamespace(write=written.append, flush=lambda: None))
    show("step 1/4", 0.25)
    assert written == ["step 1/4\n"]


def test_an_event_is_json_also_for_a_loss_that_is_none(capsys: pytest.CaptureFixture[str]) -> None:
    event("worker", loss=math.nan)
    assert json.loads(capsys.readouterr().out)["loss"] is None


def test_training_is_stalled_after_ten_times_the_usual_time() -> None:
    clock = Clock()
    stall = StallDetector(clock)
    for step in range(0, 50, 10):
        assert stall.observe(step, range(4), 4) == ""
        clock.now += 60.0
    assert stall.observe(50, range(4), 4) == ""
    clock.now += 59.0  # a step takes 6 s
    assert stall.observe(50, range(4), 4) == ""
    clock.now += 2.0
    reason = "No step since step 50 for more than 10 times the usual 6 s; "
    assert stall.observe(50, (0, 2, 3), 4) == reason + "1 of 4 workers is missing: worker-1."
    many = "7 of 8 workers are missing: worker-1, worker-2, worker-3, worker-4, worker-5 and 2 more."
    assert stall.observe(50, (0,), 8) == reason + many
    assert stall.observe(50, range(4), 4) == reason + "all 4 workers take part, so one of them may wait for its data."
    assert stall.observe(51, range(4), 4) == "", "training continues"


def test_a_stall_names_the_usual_time_of_slow_steps_in_seconds() -> None:
    clock = Clock()
    stall = StallDetector(clock)
    for step in range(3):
        assert stall.observe(step, range(4), 4) == ""
        clock.now += 124.0
    clock.now += 10 * 124.0
    assert "10 times the usual 124 s;" in stall.observe(2, range(4), 4), "not 1.2e+02 s"


def test_fast_steps_and_a_first_step_are_not_a_stall() -> None:
    clock = Clock()
    stall = StallDetector(clock)
    assert stall.observe(0, (), 4) == ""
    clock.now += 3600.0
    assert stall.observe(0, (), 4) == "", "without a step, no duration is usual"
    for step in range(1, 100):
        clock.now += 0.001
        stall.observe(step, range(4), 4)
    clock.now += STALL_SECONDS - 1
    assert stall.observe(99, range(4), 4) == ""


@pytest.mark.parametrize(
    ("newest", "seconds", "expected"),
    [
        ({"step": 2, "progressPercentage": 1}, 0, PERIOD_SECONDS),
        ({"step": 2, "progressPercentage": 1}, 100, 0),
        ({"step": 2, "progressPercentage": 5}, 0, MILESTONE_SECONDS),
        ({"step": 2, "epoch": 1}, 1, MILESTONE_SECONDS - 1),
        ({"step": 1, "stalled": "No step."}, 9, 0),
    ],
)
def test_progress_is_sent_once_a_minute_and_at_milestones(
    newest: dict[str, int], seconds: float, expected: float
) -> None:
    assert due_in({"step": 1}, {"epoch": None, **newest}, seconds) == expected
    assert due_in(None, newest, 0.0) == 0


def test_a_period_begins_before_a_report_is_sent(monkeypatch: pytest.MonkeyPatch) -> None:
    """A period begins before a report is sent. Otherwise the time of every response would be added to the report's
    age.
    """
    clock = Clock()

    class Slow(ProgressReporter):
        sent_at: float

        def _next(self, sent: dict[str, Any] | None, sent_at: float) -> dict[str, Any] | None:
            self.sent_at = sent_at
            return {"step": 1} if sent is None else None

        def _send(self, newest: dict[str, Any]) -> None:
            clock.now += 3.0

    monkeypatch.setattr(progress, "time", SimpleNamespace(monotonic=clock))
    before, reporter = clock.now, Slow({})
    reporter._run()
    assert reporter.sent_at == before


def test_a_file_that_cannot_be_written_ends_no_program(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    reporter = ProgressReporter({progress.ENV_FILE: str(tmp_path / "absent" / "progress.json")})
    for step in range(2):
        reporter.report({"step": step})
    (message,) = caplog.messages
    assert "Progress cannot be written to" in message
    assert "No such file" in message


@pytest.mark.parametrize(
    ("metrics", "reported"),
    [
        ({f"m{i}": i for i in range(300)}, 256),
        ({f"{i:03}" + "x" * 250: i for i in range(256)}, 256),
        ({f"{i:03}" + "\N{GREEK SMALL LETTER LAMDA}" * 250: i for i in range(256)}, 64),
        ({"y" * 254: 1, "z": 2}, 1),
    ],
)
def test_a_report_has_the_metrics_that_the_operator_takes_and_names_the_others(
    metrics: dict[str, float], reported: int, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(progress, "_left_out", [])
    content = Progress(step=1, metrics=metrics, stalled="\N{GREEK SMALL LETTER LAMDA}" * 2000).content()
    assert len(content["metrics"]) == reported
    assert len(json.dumps({"trainerStatus": content})) < BODY_MAX - 1024
    left_out = [name for name in metrics if name not in {metric["name"] for metric in content["metrics"]}]
    assert ("are left out: " + ", ".join(left_out[:3]) in caplog.text) == bool(left_out)
    caplog.clear()
    Progress(metrics=metrics).content()
    assert not caplog.text, "once"


def test_outside_a_job_nothing_is_sent() -> None:
    reporter = ProgressReporter({})
    reporter.report(Progress(step=1).content())
    assert reporter._thread is None
    reporter.close()


class TwoElements:
    """A tensor of PyTorch that is no single number."""

    def __float__(self) -> float:
        raise RuntimeError("a Tensor with 2 elements cannot be converted to Scalar")


@pytest.mark.parametrize(
    ("reported", "reason"),
    [
        ({"stp": 1}, "unexpected keyword argument 'stp'"),
        ({"step": "1"}, "must be real number, not str"),
        ({"metrics": {"quality": "good"}}, "must be real number, not str"),
        ({"metrics": [0.5]}, "no attribute 'items'"),
        ({"checkpoint_time": 1e30}, "out of range"),
        ({"checkpoint_time": 1_795_946_438_391_224_000}, "Value too large"),  # nanoseconds
        ({"loss": TwoElements()}, "a Tensor with 2 elements"),
    ],
)
def test_a_report_of_unknown_names_or_types_ends_no_program(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, reported: dict[str, Any], reason: str
) -> None:
    monkeypatch.setattr(progress, "_reporter", ProgressReporter({}))
    for _ in range(2):
        progress.report(**reported)
    (message,) = caplog.messages
    assert message.startswith("Progress cannot be encoded: ")
    assert reason in message
    assert "pstraining.progress.Progress has the names" in message


def test_values_of_a_report_are_json_whatever_their_type(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "progress.json"
    monkeypatch.setattr(progress, "_reporter", ProgressReporter({progress.ENV_FILE: str(file)}))
    progress.report(step=1, layout=Fraction(3), term=2.0, stalled=tmp_path)
    assert json.loads(file.read_text()) == {"step": 1, "layout": 3, "term": 2, "stalled": str(tmp_path)}


@pytest.mark.parametrize(("url", "token"), [("https://host:port/progress", "a"), ("https://127.0.0.1:1/progress", "ä")])
def test_a_report_that_cannot_be_sent_is_a_warning(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, url: str, token: str
) -> None:
    (tmp_path / "token").write_text(token, encoding="utf-8")
    environ = {contract.ENV_SERVER_URL: url, contract.ENV_SERVER_TOKEN: str(tmp_path / "token")}
    reporter = ProgressReporter(environ)
    for step in range(2):
        reporter.report({"step": step})
    reporter.close()
    assert reporter._thread is not None
    assert not reporter._thread.is_alive()
    (message,) = caplog.messages
    assert "Progress cannot be reported to" in message
    assert "Error" in message


def test_a_process_with_too_many_threads_reports_later(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    class Refused(threading.Thread):
        def start(self) -> None:
            raise RuntimeError("can't start new thread")

    reporter = ProgressReporter({contract.ENV_SERVER_URL: "https://127.0.0.1:1/progress"})
    monkeypatch.setattr(threading, "Thread", Refused)
    reporter.report({"step": 1})
    reporter.close()
    assert caplog.messages == ["Progress cannot be reported: can't start new thread"]


def test_steps_may_be_short_numbers_of_numpy() -> None:
    """A hundred times the step is more than int32 holds."""
    step: Any = np.int32(30_000_000)
    assert Progress(step=step, steps=60_000_000).content()["progressPercentage"] == 50


def test_a_forked_process_reports_as_well() -> None:
    """The thread that sends reports is not in it; a report that the parent sends last is sent once."""
    program = (
        "import os, time\n"
        "from pstraining import progress\n"
        "def send(self, newest):\n"
        "    print(os.getpid() == parent, newest['step'], flush=True)\n"
        "parent, progress.ProgressReporter._send = os.getpid(), send\n"
        "progress.report(step=1)\n"
        "time.sleep(0.2)\n"
        "progress.report(step=2)\n"
        "if child := os.fork():\n"
        "    os.waitpid(child, 0)\n"
        "else:\n"
        "    progress.report(step=3)\n"
    )
    environment = {**os.environ, contract.ENV_SERVER_URL: "https://127.0.0.1:1/progress"}
    ended = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True, env=environment, timeout=60
    )
    assert ended.stdout.splitlines() == ["True 1", "False 3", "True 2"]
