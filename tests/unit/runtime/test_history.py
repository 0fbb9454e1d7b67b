"""The history of a job: written at its end and at a failure, without secrets, bounded, and by one chief."""

import json
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from pstraining.api import contract
from pstraining.api.summary import LOGS_FOLDER, SUMMARY_FILE, HistoryPolicy, JobOutcome, LogEnd, Summary
from pstraining.runtime.checkpoint import files
from pstraining.runtime.checkpoint.fencing import Writer, take
from pstraining.runtime.checkpoint.state import SupersededError
from pstraining.runtime.checkpoint.storage import Checkpoints
from pstraining.runtime.config.cluster import Cluster, Task
from pstraining.runtime.config.settings import CheckpointSettings, SettingsError
from pstraining.runtime.history.gathering import gather, share, shortened
from pstraining.runtime.history.operator import Known, LogRun, OperatorError
from pstraining.runtime.history.recorder import HistoryRecorder

UID = "0123"
PASSWORD = "correct horse"
ENV = [{"name": "DB_PASSWORD", "value": PASSWORD}, {"name": "EPOCHS", "value": "30"}]
FAILED = {"type": "Failed", "status": "True", "reason": "BackoffLimitExceeded", "message": "worker 1 failed 4 times"}


def job(*conditions: Mapping[str, str]) -> dict[str, Any]:
    template = {"spec": {"containers": [{"name": "tensorflow", "env": ENV}]}}
    metadata = {"name": "digits", "namespace": "team", "uid": UID, "managedFields": [{}]}
    return {"metadata": metadata, "spec": {"worker": {"template": template}}, "status": {"conditions": [*conditions]}}


class StubOperator:
    """Answers with a job and logs; `asked` has the requests."""

    def __init__(self, job: dict[str, Any] | None = None, logs: Mapping[str, bytes | None] | None = None) -> None:
        self.is_there, self.current, self.logs = True, job, dict(logs or {})
        self.asked: list[str] = []

    def job(self) -> Known:
        self.asked.append("job")
        if self.current is None:
            raise OperatorError("503 Service Unavailable: the operator is busy")
        logs: list[LogRun] = [{"task": name, "pod": f"digits-{name}", "previous": False} for name in self.logs]
        return Known(self.current, [{"metadata": {"name": log["pod"]}} for log in logs], logs)

    def log(self, pod: str, *, previous: bool) -> LogEnd:
        self.asked.append(pod)
        content = self.logs[pod.removeprefix("digits-")]
        if content is None:
            raise OperatorError("404 Not Found: the job has no such pod")
        return LogEnd(content, whole=True)


def cluster(term: int = 1) -> Cluster:
    return Cluster(
        "digits", Task("chief", 0), {"chief": ("digits-chief:2222",)}, term=term, job_uid=UID, namespace="team"
    )


def recorder(folder: Path, operator: StubOperator, **settings: Any) -> HistoryRecorder:
    return HistoryRecorder(cluster(), CheckpointSettings(path=str(folder), **settings), operator)


def summary(folder: Path) -> Summary:
    return Summary.model_validate_json((folder / SUMMARY_FILE).read_text())


def leave(found: HistoryRecorder) -> None:
    """Let the workers leave, and wait until their logs are read."""
    found.workers_left()
    assert found._workers is not None
    assert found._workers.result(30) is not None


def raising(error: BaseException) -> Any:
    def run() -> None:
        raise error

    return run


def test_training_that_has_ended_leaves_everything_without_secrets(tmp_path: Path) -> None:
    logs = {"worker-0": f"connecting with {PASSWORD}\nstep 1\n".encode(), "ps-0": None}
    found = recorder(tmp_path, StubOperator(job(), logs))
    found.settings = {"training": {"steps": 7}}
    found.report(step=7, steps=7, loss=0.5)
    assert found.recorded(lambda: {"step": 7.0, "test_loss": 0.25}) == {"step": 7.0, "test_loss": 0.25}
    kept = summary(tmp_path)
    assert (kept.outcome, kept.result, kept.uid, kept.term) == (
        JobOutcome.SUCCEEDED,
        {"step": 7, "test_loss": 0.25},
        UID,
        1,
    )
    assert kept.training is not None
    assert (kept.training["step"], kept.training["loss"]) == (7, "0.5")
    assert kept.job is not None
    assert "managedFields" not in kept.job["metadata"]
    (container,) = kept.job["spec"]["worker"]["template"]["spec"]["containers"]
    assert container["env"][1] == {"name": "EPOCHS", "value": "30"}
    worker, server = kept.logs
    assert (tmp_path / worker.file).read_text() == "connecting with <left out: secret-like>\nstep 1\n"
    assert (worker.whole, server.file, server.missing) == (True, "", "404 Not Found: the job has no such pod")
    assert not any(PASSWORD in path.read_text() for path in tmp_path.rglob("*") if path.is_file())
    assert not [path for path in tmp_path.iterdir() if path.name.startswith(".tmp")]


@pytest.mark.parametrize("waits", [f"launcher: the program has ended with 0; {contract.IDLES}\n".encode(), b""])
def test_the_log_of_a_worker_that_was_restarted_meanwhile_is_kept(waits: bytes) -> None:
    """The log of a worker that was restarted meanwhile is kept. The kubelet restarts a finished program's container
    before it reports the end to the operator. The new run's log is empty at first.
    """

    class Restarted(StubOperator):
        def log(self, pod: str, *, previous: bool) -> LogEnd:
            found = super().log(pod, previous=previous)
            return LogEnd(b"step 7\n", whole=True) if previous else found

    found = gather(Restarted(job(), {"worker-0": waits, "ps-0": b"serves\n"}), seconds=60)
    assert found.texts == {
        "digits-worker-0.log": waits,
        "digits-worker-0.previous.log": b"step 7\n",
        "digits-ps-0.log": b"serves\n",
    }
    runs = [(log.task, log.previous) for log in found.logs]
    assert runs == [("worker-0", False), ("ps-0", False), ("worker-0", True)]


def test_a_program_that_has_logged_nothing_has_no_earlier_log() -> None:
    class First(StubOperator):
        def log(self, pod: str, *, previous: bool) -> LogEnd:
            if previous:
                raise OperatorError("502 Bad Gateway: previous terminated container not found")
            return super().log(pod, previous=previous)

    found = gather(First(job(), {"worker-0": b"", "ps-0": b"serves\n"}), seconds=60)
    assert [(log.task, log.previous, log.missing) for log in found.logs] == [
        ("worker-0", False, ""),
        ("ps-0", False, ""),
    ]


@pytest.mark.parametrize("later", [{"ps-0": b"later\n"}, {"worker-0": None, "ps-0": b"later\n"}], ids=["no", "deleted"])
def test_logs_of_pods_that_are_deleted_during_the_evaluation_are_kept(
    later: Mapping[str, bytes | None], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pstraining.runtime.history.recorder.LEAVING_SECONDS", 0)
    operator = StubOperator(job(), {"worker-0": b"step 1\n", "ps-0": b"sooner\n"})
    found = recorder(tmp_path, operator)

    def evaluation() -> int:
        leave(found)
        operator.logs = dict(later)
        return 1

    found.recorded(evaluation)
    kept = {log.task: (tmp_path / log.file).read_bytes() for log in summary(tmp_path).logs}
    assert kept == {"worker-0": b"step 1\n", "ps-0": b"later\n"}


def test_logs_are_read_once_if_the_evaluation_is_short(tmp_path: Path) -> None:
    operator = StubOperator(job(), {"ps-0": b"serves\n"})
    found = recorder(tmp_path, operator)
    found.recorded(found.workers_left)
    assert operator.asked == ["job", "digits-ps-0"]
    assert [log.missing for log in summary(tmp_path).logs] == [""]


def test_an_earlier_reading_completes_a_stopped_chief_and_an_operator_that_is_away(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pstraining.runtime.history.recorder.LEAVING_SECONDS", 0)
    operator = StubOperator(job(), {"worker-0": b"step 1\n", "worker-1": b"step 1\n"})
    found = recorder(tmp_path, operator)

    def stopped() -> None:
        leave(found)
        operator.logs = {"worker-1": b"step 1\nstep 2\n"}  # it trains and leaves again after the loss of a server
        leave(found)
        operator.current, operator.logs = job(FAILED), {"ps-0": b"serves\n"}
        raise SystemExit(143)

    with pytest.raises(SystemExit):
        found.recorded(stopped)
    kept = {log.task: (tmp_path / log.file).read_bytes() for log in summary(tmp_path).logs}
    assert kept == {"worker-0": b"step 1\n", "worker-1": b"step 1\nstep 2\n", "ps-0": b"serves\n"}
    operator.current = None
    with pytest.raises(OSError, match="reset"):
        found.recorded(raising(OSError(f"reset by {PASSWORD}")))
    assert summary(tmp_path).job is not None
    assert PASSWORD not in summary(tmp_path).message


def test_an_earlier_reading_keeps_the_order_and_the_size_of_all_logs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pstraining.runtime.history.gathering.TOTAL_BYTES", 20)
    text = b"step 1\nstep 2\n"
    found = gather(StubOperator(job(), {"worker-0": None, "ps-0": text}), seconds=60)
    found.complete(gather(StubOperator(job(), {"worker-0": text}), seconds=60))
    assert [(log.task, log.whole, log.missing) for log in found.logs] == [("worker-0", False, ""), ("ps-0", False, "")]
    assert set(found.texts.values()) == {b"step 2\n"}


def test_no_log_is_read_once_training_is_recorded() -> None:
    operator = StubOperator(job(), dict.fromkeys("abcdef", b"x\n"))
    found = gather(operator, seconds=60, is_over=lambda: len(operator.asked) > 1)
    assert {log.missing for log in found.logs} == {"", "there was no time left to read it"}


@pytest.mark.parametrize(
    ("conditions", "outcome"),
    [([FAILED], JobOutcome.FAILED), ([{"type": "Suspended", "status": "True"}], None), ([], None)],
    ids=["failed", "suspended", "drained"],
)
def test_a_chief_that_is_stopped_writes_the_end_of_a_failed_job_alone(
    conditions: list[Mapping[str, str]], outcome: JobOutcome | None, tmp_path: Path
) -> None:
    operator = StubOperator(job(*conditions), {"worker-1": b"ValueError: no data\n"})
    with pytest.raises(SystemExit):
        recorder(tmp_path, operator).recorded(raising(SystemExit(143)))
    if outcome is None:
        assert (list(tmp_path.iterdir()), operator.asked) == ([], ["job"])
        return
    kept = summary(tmp_path)
    assert (kept.outcome, kept.message) == (outcome, "BackoffLimitExceeded: worker 1 failed 4 times")
    assert (tmp_path / kept.logs[0].file).read_bytes() == b"ValueError: no data\n"


def test_a_chief_that_trained_on_after_a_failed_save_writes_the_end_of_a_job_that_failed_later(tmp_path: Path) -> None:
    operator = StubOperator(job())
    found = recorder(tmp_path, operator)

    def stopped() -> None:
        found.stopping()  # for another layout, for which the state cannot be saved
        assert found._stop is not None
        assert found._stop.result(30) is not None
        found.tend()
        operator.current = job(FAILED)
        raise SystemExit(143)

    with pytest.raises(SystemExit):
        found.recorded(stopped)
    assert summary(tmp_path).outcome is JobOutcome.FAILED


@pytest.mark.parametrize(
    ("error", "outcome"), [(SettingsError("steps"), JobOutcome.FAILED), (OSError("reset"), JobOutcome.UNFINISHED)]
)
def test_a_failed_chief_writes_the_reason_and_whether_it_is_final(
    error: Exception, outcome: JobOutcome, tmp_path: Path
) -> None:
    with pytest.raises(type(error)):
        recorder(tmp_path, StubOperator(job())).recorded(raising(error))
    kept = summary(tmp_path)
    assert kept.outcome is outcome
    assert f"{type(error).__name__}: {error}" in kept.message


def test_at_its_start_a_chief_writes_the_known_state(tmp_path: Path) -> None:
    operator = StubOperator(job(), {"worker-0": b"step 1\n"})
    found = recorder(tmp_path, operator)
    checkpoints = Checkpoints(tmp_path, keep=1, writer=Writer(UID, 1))
    checkpoints.open()
    found.attach(checkpoints)
    assert found._start is not None
    found._start.result(30)
    found.tend()
    found.tend()
    kept = summary(tmp_path)
    assert (kept.outcome, kept.logs, operator.asked) == (JobOutcome.UNFINISHED, [], ["job"])
    assert kept.job is not None


def test_the_history_can_be_turned_off_and_needs_a_folder(tmp_path: Path) -> None:
    operator = StubOperator(job())
    for settings in (CheckpointSettings(path=str(tmp_path), history=HistoryPolicy.NONE), CheckpointSettings()):
        found = HistoryRecorder(cluster(), settings, operator)
        assert found.recorded(lambda: 1) == 1
        with pytest.raises(SystemExit):
            found.recorded(raising(SystemExit(143)))
        with pytest.raises(OSError, match="reset"):
            found.recorded(raising(OSError("reset")))
    assert (list(tmp_path.iterdir()), operator.asked) == ([], [])


def test_an_unwritable_history_fails_no_job(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "folder").write_text("a file")
    assert recorder(tmp_path / "folder", StubOperator(job())).recorded(lambda: 1) == 1
    (reported,) = (json.loads(line) for line in capsys.readouterr().out.splitlines())
    assert reported["event"] == "history_failed"
    assert "NotADirectoryError" in reported["reason"]


def test_an_unexpected_error_fails_no_job_and_is_a_note(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What was read before the error is kept."""
    operator = StubOperator(job(), {"worker-0": b"read\n", "worker-1": b"lost\n"})
    read = operator.log

    def log(pod: str, *, previous: bool) -> LogEnd:
        if pod == "digits-worker-1":
            raise RuntimeError("can't start new thread")
        return read(pod, previous=previous)

    monkeypatch.setattr(operator, "log", log)
    assert recorder(tmp_path, operator).recorded(lambda: 1) == 1
    kept = summary(tmp_path)
    assert kept.job is not None
    assert [log.task for log in kept.logs if log.file] == ["worker-0"]
    assert kept.notes == ["The job and its logs are not complete here: RuntimeError: can't start new thread"]


def test_without_a_thread_the_history_of_the_start_is_a_note(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class NoThread(threading.Thread):
        def start(self) -> None:
            raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading, "Thread", NoThread)
    found = recorder(tmp_path, StubOperator(job()))
    checkpoints = Checkpoints(tmp_path, keep=1, writer=Writer(UID, 1))
    checkpoints.open()
    found.attach(checkpoints)
    found.tend()
    assert "can't start new thread" in summary(tmp_path).notes[0]


def test_a_chief_that_is_superseded_writes_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    found = recorder(tmp_path, StubOperator(job(), {"worker-0": b"old\n"}))
    checkpoints = Checkpoints(tmp_path, keep=1, writer=Writer(UID, 1))
    checkpoints.open()
    found.attach(checkpoints)
    take(tmp_path, Writer(UID, 2))
    found.recorded(lambda: 1)
    assert "SupersededError" in capsys.readouterr().out
    assert not (tmp_path / SUMMARY_FILE).exists()
    assert not (tmp_path / LOGS_FOLDER).exists()


def test_without_an_operator_the_file_lists_the_missing_parts(tmp_path: Path) -> None:
    operator = StubOperator()
    recorder(tmp_path, operator).recorded(lambda: 1)
    assert "the operator is busy" in summary(tmp_path).notes[0]
    operator.is_there = False
    recorder(tmp_path, operator).recorded(lambda: 1)
    kept = summary(tmp_path)
    assert (kept.job, kept.logs) == (None, [])
    assert "watch.namespaces" in kept.notes[0]


def test_logs_share_a_bounded_size() -> None:
    assert share(1) == share(64) == 1 << 20
    assert share(1000) * 1000 <= 64 << 20
    log = LogEnd(b"first\nsecond\nthird\n", whole=True)
    assert shortened(log, 100) is log
    assert shortened(log, 10) == LogEnd(b"third\n", whole=False)
    assert shortened(LogEnd(b"rst\nsecond\n", whole=False), 100) == LogEnd(b"second\n", whole=False)
    assert shortened(LogEnd(b"x" * 20 + b"\n", whole=False), 10) == LogEnd(b"x" * 9 + b"\n", whole=False)


def test_logs_that_take_too_long_are_named() -> None:
    moments = iter(range(100))
    found = gather(StubOperator(job(), dict.fromkeys("abcdef", b"x\n")), seconds=3, clock=lambda: float(next(moments)))
    assert {log.missing for log in found.logs} == {"", "there was no time left to read it"}


def test_a_folder_is_replaced_as_a_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    checkpoints = Checkpoints(tmp_path, keep=1, writer=Writer(UID, 1))
    checkpoints.open()
    checkpoints.write_folder_whole("history", {"a.log": b"1", "b.log": b"2"})
    checkpoints.write_folder_whole("history", {"a.log": b"3"})
    assert {path.name: path.read_bytes() for path in (tmp_path / "history").iterdir()} == {"a.log": b"3"}
    monkeypatch.setattr(files, "exchange", lambda one, other: False)
    checkpoints.write_folder_whole("history", {"a.log": b"4"})

    def full(path: Path, write: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(files, "write_durably", full)
    with pytest.raises(OSError, match="No space left"):
        checkpoints.write_folder_whole("history", {"a.log": b"5"})
    monkeypatch.undo()
    assert (tmp_path / "history" / "a.log").read_bytes() == b"4"
    assert not [path for path in tmp_path.iterdir() if path.name.startswith(".tmp")]
    take(tmp_path, Writer(UID, 2))
    with pytest.raises(SupersededError):
        checkpoints.write_folder_whole("history", {"a.log": b"6"})
    assert (tmp_path / "history" / "a.log").read_bytes() == b"4"
