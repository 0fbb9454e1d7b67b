"""Logs of a job that has ended: all lines until the end, from the container's previous run if the current one waits."""

import threading
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime, timedelta

import pytest

from pstraining.api import contract
from pstraining.cli.errors import CommandError
from pstraining.cli.exit_codes import ExitCode
from pstraining.cli.logs.following import LATEST, QUIET, STALLED, Follower, in_thread
from pstraining.cli.logs.log_lines import LogSelection, LogWriter
from pstraining.cli.logs.reading import read
from pstraining.kube.events import CONTROLLER
from tests.support.builders import job, pod, terminated
from tests.support.cli_cluster import Object, WithJobs

WAITS = f"launcher: the program has ended with 0; {contract.IDLES}"
ENDED = job() | {"status": {"phase": "Succeeded", "conditions": [{"type": "Succeeded", "status": "True"}]}}


class Idling(WithJobs):
    """Has a restarted container, which the pod's status may not show yet."""

    def __init__(self, made: Object, worker: Object) -> None:
        super().__init__(made, pods=[worker])
        self.requests = 0

    def log(self, namespace: str, pod: str, query: Mapping[str, str]) -> Iterator[str]:
        self.requests += 1
        moment = "2030-01-01T12:00:01.000000000Z " if "timestamps" in query else ""
        yield moment + ("step 7" if "previous" in query else WAITS)


def lines_of(cluster: Idling, selection: LogSelection | None = None) -> list[str]:
    found: list[str] = []
    read(cluster, "default", "digits", selection or LogSelection(), lambda task, text: found.append(text), found.append)
    return found


@pytest.mark.parametrize(
    ("made", "worker", "expected"),
    [
        (ENDED, pod("worker", 0), ["step 7", WAITS]),
        (job(), pod("worker", 0, restarts=1), ["step 7", WAITS]),
        (job(), pod("worker", 0), [WAITS]),
    ],
    ids=["ended", "restarted", "running"],
)
def test_the_run_before_is_read_first(made: Object, worker: Object, expected: list[str]) -> None:
    assert lines_of(Idling(made, worker)) == expected


def test_the_run_before_is_followed_first(capsys: pytest.CaptureFixture[str]) -> None:
    Follower(Idling(ENDED, pod("worker", 0)), "default", "digits", LogSelection(), LogWriter(coloured=False)).run()
    assert capsys.readouterr().out.splitlines() == ["worker-0: step 7", f"worker-0: {WAITS}"]


def test_the_previous_run_alone_is_read_on_request() -> None:
    cluster = Idling(ENDED, pod("worker", 0))
    assert lines_of(cluster, LogSelection(previous=True)) == ["step 7"]
    assert cluster.requests == 1


BEGIN = datetime(2030, 1, 1, tzinfo=UTC)
LINES = 20_000
"""Lines before the job's end, more than the follower's queue holds."""


class Long(WithJobs):
    """Has a job that ended after LINES seconds, and a pod with a line for each second."""

    def __init__(self, worker: Object, further: int = 0) -> None:
        end = (BEGIN + timedelta(seconds=LINES)).isoformat()
        status = ENDED["status"] | {"completionTime": end}
        super().__init__(ENDED | {"status": status}, pods=[worker])
        self.lines = LINES + further

    def log(self, namespace: str, pod: str, query: Mapping[str, str]) -> Iterator[str]:
        if "tailLines" in query:
            return
        for number in range(self.lines):
            yield f"{(BEGIN + timedelta(seconds=number)).isoformat()} {number}"


class SlowWriter(LogWriter):
    """Takes some time for each line, as a pager or a slow terminal does, and counts the lines."""

    def __init__(self, seconds: float, pause: float = 0.0) -> None:
        super().__init__(coloured=False)
        self.now, self.seconds, self.pause, self.lines = 0.0, seconds, pause, 0

    def line(self, task: str, text: str) -> None:
        self.now += self.seconds + (self.pause if self.lines == 1 else 0.0)
        self.lines += 1

    def remark(self, text: str) -> None:
        pass


@pytest.mark.parametrize(
    ("seconds", "pause"), [(10 * LATEST / LINES, 0.0), (0.0, 10 * max(QUIET, STALLED))], ids=["slow", "paused"]
)
@pytest.mark.parametrize("state", [None, terminated(0)], ids=["kept", "ended"])
def test_a_slow_reader_gets_the_whole_log(state: Object | None, seconds: float, pause: float) -> None:
    worker = pod("worker", 0) if state is None else pod("worker", 0, state=state, phase="Succeeded")
    writer = SlowWriter(seconds, pause)
    Follower(Long(worker), "default", "digits", LogSelection(), writer, clock=lambda: writer.now).run()
    assert writer.lines == LINES


def test_a_log_that_goes_on_is_closed_after_the_end() -> None:
    writer = SlowWriter(10 * LATEST / LINES)
    cluster = Long(pod("worker", 0), further=10**9)
    Follower(cluster, "default", "digits", LogSelection(), writer, clock=lambda: writer.now).run()
    assert LINES < writer.lines < 3 * LINES


def test_more_logs_than_threads_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", refused)
    with pytest.raises(CommandError, match=r"can't start new thread\): choose --role and --index"):
        in_thread(lambda: None)


@pytest.mark.parametrize(("end", "expected"), [("Succeeded", ExitCode.SUCCESS), ("Failed", ExitCode.JOB_FAILED)])
def test_a_job_that_is_deleted_right_after_its_end(
    end: str, expected: ExitCode, capsys: pytest.CaptureFixture[str]
) -> None:
    """With ttlSecondsAfterFinished 0 the operator deletes it before the command looks again."""

    class Deleted(Idling):
        def log(self, namespace: str, pod: str, query: Mapping[str, str]) -> Iterator[str]:
            self.there.clear()
            return super().log(namespace, pod, query)

    cluster = Deleted(job(), pod("worker", 0))
    events = [{"reason": end, "reportingComponent": CONTROLLER}, {"reason": "Succeeded", "reportingComponent": "other"}]
    cluster.there_events = {job()["metadata"]["uid"]: events}
    follower = Follower(cluster, "default", "digits", LogSelection(), LogWriter(coloured=False), every=0.01)
    assert follower.run() is expected
    assert f"digits has ended: {end}. It was deleted afterwards." in capsys.readouterr().err
