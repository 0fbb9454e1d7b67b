"""The logs of a job's tasks: their selection, the format of lines, and following."""

import threading
from collections.abc import Callable, Iterator, Mapping
from datetime import UTC, datetime
from typing import Any

import pytest

from pstraining.cli.commands import logs
from pstraining.cli.errors import CommandError, DeniedError, RequestError
from pstraining.cli.exit_codes import ExitCode
from pstraining.cli.logs import reading
from pstraining.cli.logs.following import PATIENCE, QUIET, Follower, LogCursor, in_thread, opens, stamped
from pstraining.cli.logs.log_lines import LogSelection, LogWriter
from pstraining.cli.main import app
from pstraining.cli.tasks import TaskRole, tasks_of
from tests.support.builders import job, pod, terminated
from tests.support.cli_cluster import Object, WithJobs
from tests.support.command_runner import CliRunner

PODS = (pod("worker", 1), pod("worker", 0), pod("ps", 0), pod("ps", 0, member=1), pod("chief", term=1))
STAMP = "2030-01-01T12:00:{:02d}.000000000Z"


def line(second: int, text: str) -> str:
    return f"{STAMP.format(second)} {text}"


def ended(made: Object, kind: str = "Succeeded") -> Object:
    return made | {"status": {"phase": kind, "conditions": [{"type": kind, "status": "True", "reason": "R"}]}}


class Logged(WithJobs):
    """Pods whose logs have the lines that a test sets."""

    def __init__(self, *jobs: Object, pods: list[Object] | None = None) -> None:
        super().__init__(*jobs, pods=list(PODS) if pods is None else pods)
        self.logs: dict[str, list[str] | CommandError] = {}
        self.asked: list[tuple[str, dict[str, str]]] = []

    def log(self, namespace: str, pod: str, query: Mapping[str, str]) -> Iterator[str]:
        self.asked.append((pod, dict(query)))
        found = self.logs.get(pod, [])
        if isinstance(found, CommandError):
            raise found
        yield from found


def read(cluster: Logged, selection: LogSelection | None = None, name: str = "digits") -> tuple[list[str], list[str]]:
    said: list[str] = []
    remarks: list[str] = []
    reading.read(
        cluster, "default", name, selection or LogSelection(), lambda t, x: said.append(f"{t}: {x}"), remarks.append
    )
    return said, remarks


def test_tasks_are_in_order_and_empty_logs_are_reported() -> None:
    cluster = Logged(job())
    cluster.logs = {
        "digits-worker-1": ["a", "b"],
        "digits-standby-0": ["stands by"],
        "digits-ps-0": RequestError("The API server rejected the request: container is waiting to start", 400),
    }
    said, remarks = read(cluster)
    assert said == ["standby-0: stands by", "worker-1: a", "worker-1: b"]
    assert remarks == [
        "chief-0 (digits-chief-1): the log is empty",
        "ps-0 (digits-ps-0): no log: The API server rejected the request: container is waiting to start",
        "worker-0 (digits-worker-0): the log is empty",
    ]


@pytest.mark.parametrize(
    ("role", "index", "asked"),
    [
        (None, None, ["digits-chief-1", "digits-ps-0", "digits-standby-0", "digits-worker-0", "digits-worker-1"]),
        (TaskRole.WORKER, None, ["digits-worker-0", "digits-worker-1"]),
        (TaskRole.WORKER, 1, ["digits-worker-1"]),
        (TaskRole.PS, 0, ["digits-ps-0", "digits-standby-0"]),
        (TaskRole.CHIEF, 0, ["digits-chief-1"]),
    ],
)
def test_which_tasks(role: TaskRole | None, index: int | None, asked: list[str]) -> None:
    cluster = Logged(job())
    read(cluster, LogSelection(role, index))
    assert [name for name, _ in cluster.asked] == asked


def test_how_much_of_a_log() -> None:
    assert LogSelection().query("c") == {"container": "c"}
    assert LogSelection(previous=True, tail=0, since=0.2).query("c") == {
        "container": "c",
        "previous": "true",
        "tailLines": "0",
        "sinceSeconds": "1",
    }


@pytest.mark.parametrize(
    ("role", "index", "said"),
    [
        (None, 0, "--index requires --role"),
        (TaskRole.WORKER, 2, r"digits has no worker with index 2: its indices are 0 to 1\."),
        (TaskRole.WORKER, -1, "digits has no worker with index -1"),
        (TaskRole.CHIEF, 1, r"digits has no chief with index 1: its only index is 0\."),
        (TaskRole.EVALUATOR, None, r"digits has no evaluator: spec\.evaluator\.enabled is false\."),
    ],
)
def test_tasks_that_the_job_lacks(role: TaskRole | None, index: int | None, said: str) -> None:
    with pytest.raises(CommandError, match=said):
        read(Logged(job()), LogSelection(role, index))
    with pytest.raises(CommandError, match=said):
        Follower(Logged(job()), "default", "digits", LogSelection(role, index), LogWriter(coloured=False)).run()


def test_a_scaled_down_job_still_has_its_running_tasks() -> None:
    cluster = Logged(job(workers=1))
    cluster.logs["digits-worker-1"] = ["goes"]
    assert read(cluster, LogSelection(TaskRole.WORKER, 1))[0] == ["worker-1: goes"]


def test_no_job_and_no_pods() -> None:
    with pytest.raises(CommandError, match=r"Did you mean digits\?"):
        read(Logged(job()), name="digit")
    gone = ended(job(), "Failed")
    with pytest.raises(
        CommandError, match=r"digits currently has no pods with role worker, and its phase is Failed\. R"
    ):
        read(Logged(gone, pods=[]), LogSelection(TaskRole.WORKER))


@pytest.mark.parametrize("error", [DeniedError("You may not", 403), RequestError("No answer", 0)])
def test_what_ends_the_command(error: RequestError) -> None:
    cluster = Logged(job())
    cluster.logs["digits-ps-0"] = error
    with pytest.raises(RequestError, match=str(error)):
        read(cluster)


def test_the_writer_uses_colours_only_on_request(capsys: pytest.CaptureFixture[str]) -> None:
    plain, coloured = LogWriter(coloured=False), LogWriter(coloured=True)
    plain.line("worker-0", "x [red]")
    plain.remark("no log")
    found = capsys.readouterr()
    assert (found.out, found.err) == ("worker-0: x [red]\n", "no log\n")
    for task in ("worker-0", "worker-1", "worker-0"):
        coloured.line(task, "x")
    first, other, again = capsys.readouterr().out.splitlines()
    assert first == again
    assert first.split("worker")[0] != other.split("worker")[0]
    assert first.startswith("\x1b[")


@pytest.mark.parametrize(
    ("made", "before", "expected"),
    [
        (pod("worker"), None, True),
        (pod("worker", state={"waiting": {"reason": "ContainerCreating"}}), None, False),
        (pod("worker", state={"waiting": {"reason": "CrashLoopBackOff"}}, restarts=1), None, True),
        (pod("chief", term=1, state=terminated(0), phase="Succeeded"), None, True),
        (pod("worker"), LogCursor(open=True), False),
        (pod("worker"), LogCursor(open=False), True),
        (pod("worker", state=terminated(1)), LogCursor(open=False), False),
        (pod("worker", state=terminated(1), restarts=1), LogCursor(open=False), True),
        (pod("worker", state=terminated(1), restarts=1), LogCursor(restarts=1, open=False), False),
    ],
)
def test_when_a_log_is_opened(made: Object, before: LogCursor | None, expected: bool) -> None:
    (task,) = tasks_of(job(), [made])
    assert opens(task.pod, before) is expected


def test_timestamps_are_removed() -> None:
    moment = datetime(2030, 1, 1, 12, 0, 3, 123456, UTC)
    assert stamped("2030-01-01T12:00:03.123456789Z two words") == (moment, "two words")
    assert stamped("2030-01-01T14:00:03.123456789+02:00 ") == (moment, "")
    assert stamped("failed to open the log") == (None, "failed to open the log")
    assert stamped("20300101 says the kubelet") == (None, "20300101 says the kubelet")


class Script(Logged):
    """A cluster that is described by a list of polls: each has the job's pods and their logs, and perhaps the job's
    end.

    A log is read to its end when it is opened.
    """

    def __init__(self, *looks: tuple[list[Object], dict[str, list[str] | CommandError]]) -> None:
        super().__init__(job(), pods=[])
        self.looks = list(looks)
        self.number = -1

    def job(self, namespace: str, name: str) -> Object | None:
        self.number += 1
        last = self.number >= len(self.looks)
        if not last:
            self.there_pods, self.logs = self.looks[self.number]
        return ended(self.there[0]) if last else self.there[0]


def at_once(work: Callable[[], None]) -> None:
    work()


def follow(cluster: Logged, selection: LogSelection | None = None, **settings: Any) -> ExitCode:
    settings = {"every": 0.01, "start": at_once, **settings}
    writer = LogWriter(coloured=False)
    return Follower(cluster, "default", "digits", selection or LogSelection(), writer, **settings).run()


def test_a_replaced_worker_is_followed_until_the_job_ends(capsys: pytest.CaptureFixture[str]) -> None:
    old, new = pod("worker", 0, uid="old"), pod("worker", 0, uid="new")
    old["metadata"]["name"], new["metadata"]["name"] = "digits-worker-0-a", "digits-worker-0-b"
    waits = pod("worker", 0, uid="new", state={"waiting": {"reason": "ContainerCreating"}}, ready=False)
    waits["metadata"]["name"] = "digits-worker-0-b"
    over = pod("worker", 0, uid="old", state=terminated(143), phase="Failed")
    over["metadata"]["name"] = "digits-worker-0-a"
    cluster = Script(
        ([old], {"digits-worker-0-a": [line(1, "one")]}),
        ([over, waits], {}),
        ([new], {"digits-worker-0-b": [line(2, "two"), line(2, "three")]}),
    )
    follow(cluster, LogSelection(TaskRole.WORKER, tail=1, since=60))
    found = capsys.readouterr()
    assert found.out.splitlines() == ["worker-0: one", "worker-0: two", "worker-0: three"]
    assert found.err.splitlines() == [
        "worker-0 (digits-worker-0-b): no log yet: ContainerCreating",
        "digits has ended: Succeeded.",
    ]
    first, *_ = cluster.asked
    assert first[1] == {
        "container": "tensorflow",
        "tailLines": "1",
        "sinceSeconds": "60",
        "follow": "true",
        "timestamps": "true",
    }
    fresh = next(query for name, query in cluster.asked if name == "digits-worker-0-b")
    assert "tailLines" not in fresh
    assert "sinceSeconds" not in fresh, "all that a new pod has printed"


def test_a_broken_log_stream_resumes_without_duplicates(capsys: pytest.CaptureFixture[str]) -> None:
    alive = [pod("worker", 0)]
    name = "digits-worker-0"
    cluster = Script(
        (alive, {name: [line(1, "one"), line(2, "two")]}),
        (alive, {name: RequestError("No answer", 0)}),
        (alive, {name: [line(1, "one"), line(2, "two"), line(3, "three"), line(3, "four")]}),
        ([], {}),
    )
    follow(cluster)
    assert capsys.readouterr().out.splitlines() == [f"worker-0: {n}" for n in ("one", "two", "three", "four")]
    again = cluster.asked[-1][1]
    assert again["sinceTime"] == "2030-01-01T12:00:02Z"


def test_lines_of_many_pods_stay_whole(capsys: pytest.CaptureFixture[str]) -> None:
    count, text = 300, "x" * 200
    pods = [pod("worker", n, state=terminated(0), phase="Succeeded") for n in range(8)]
    every = [line(1, f"{n} {text}") for n in range(count)]
    cluster = Script((pods, {p["metadata"]["name"]: list(every) for p in pods}))
    # With real threads and a stopped clock, no pod is given up because the machine is slow.
    follow(cluster, start=in_thread, clock=lambda: 0.0)
    found = capsys.readouterr().out.splitlines()
    for n in range(8):
        own = [one for one in found if one.startswith(f"worker-{n}: ")]
        assert own == [f"worker-{n}: {i} {text}" for i in range(count)]
    assert len(found) == 8 * count


def test_an_unreadable_log_is_reported_once_and_others_continue(capsys: pytest.CaptureFixture[str]) -> None:
    pods = [pod("worker", 0), pod("worker", 1)]

    def refused(port: int) -> dict[str, list[str] | CommandError]:
        away = RequestError(f"The kubelet is away (from port {port})", 502)
        return {"digits-worker-0": away, "digits-worker-1": [line(1, "on")]}

    follow(Script((pods, refused(1)), (pods, refused(2)), (pods, refused(3)), ([], {})))
    found = capsys.readouterr()
    assert found.out.splitlines() == ["worker-1: on"]
    assert found.err.count("worker-0 (digits-worker-0): The kubelet is away") == 1


def test_a_missing_right_to_read_logs_is_reported() -> None:
    with pytest.raises(DeniedError, match="may not get pods/log"):
        follow(Script(([pod("worker", 0)], {"digits-worker-0": DeniedError("You may not get pods/log", 403)}), *EMPTY))


def test_credentials_that_are_gone_end_the_command() -> None:
    cluster = Logged(job(), pods=[pod("worker", 0)])
    cluster.logs["digits-worker-0"] = CommandError("The credential plugin of user jane failed.")
    with pytest.raises(CommandError, match="The credential plugin of user jane failed"):
        follow(cluster, start=in_thread, clock=iter(range(1000)).__next__)


EMPTY: list[tuple[list[Object], dict[str, list[str] | CommandError]]] = [([], {})] * 3


def test_a_job_without_pods_is_waited_for(capsys: pytest.CaptureFixture[str]) -> None:
    follow(Script(*EMPTY))
    assert capsys.readouterr().err.splitlines() == [
        "digits has no matching pods yet. Waiting for them.",
        "digits has ended: Succeeded.",
    ]


class Away(Script):
    """Answers a few times, and then not for a number of seconds."""

    def __init__(self, seconds: float) -> None:
        super().__init__(*EMPTY)
        self.now, self.seconds = 0.0, seconds

    def job(self, namespace: str, name: str) -> Object | None:
        self.now += 1
        if 1 < self.now <= 1 + self.seconds:
            raise RequestError("No answer.", 0)
        return super().job(namespace, name)


def test_an_unreachable_api_server_is_retried_for_a_while(capsys: pytest.CaptureFixture[str]) -> None:
    short = Away(10)
    follow(short, clock=lambda: short.now)
    assert capsys.readouterr().err.count("No answer. Retrying.") == 1
    long = Away(PATIENCE + 10)
    with pytest.raises(RequestError, match=r"No answer\."):
        follow(long, clock=lambda: long.now)
    assert long.now == PATIENCE + 2


def test_a_pod_that_outlives_the_job_is_not_followed(capsys: pytest.CaptureFixture[str]) -> None:
    printed, released = threading.Event(), threading.Event()

    class Kept(Logged):
        """Has a pod that idles, so that its log has no end."""

        def log(self, namespace: str, pod: str, query: Mapping[str, str]) -> Iterator[str]:
            yield line(1, "failed")
            if "follow" in query:
                printed.set()
                released.wait()

    def start(work: Callable[[], None]) -> None:
        in_thread(work)
        printed.wait()

    clock = iter(n / 100 for n in range(10**6))
    follow(Kept(ended(job(), "Failed"), pods=[pod("worker", 0)]), clock=lambda: next(clock), start=start)
    released.set()
    found = capsys.readouterr()
    assert found.out == "worker-0: failed\n"
    assert found.err == "digits has ended: Failed.\n"
    assert next(clock) >= QUIET


@pytest.mark.parametrize(
    "left", [None, ended(job()) | {"metadata": job()["metadata"] | {"uid": "another"}}], ids=["gone", "created again"]
)
def test_a_job_deleted_meanwhile(left: Object | None, capsys: pytest.CaptureFixture[str]) -> None:
    class Deleted(Script):
        def job(self, namespace: str, name: str) -> Object | None:
            found = super().job(namespace, name)
            return found if self.number == 0 else left

    cluster = Deleted(([pod("worker", 0)], {"digits-worker-0": [line(1, "one")]}))
    assert follow(cluster) is ExitCode.JOB_DELETED
    assert "digits has ended: it was deleted." in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ({"since": "5"}, "--since: '5' is not a duration"),
        ({"follow": True, "previous": True}, "remove --follow"),
    ],
)
def test_contradicting_options(arguments: dict[str, Any], said: str) -> None:
    with pytest.raises(CommandError, match=said):
        logs.logs("digits", **arguments)


def test_the_command_prints(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    cluster = Logged(job())
    cluster.logs["digits-worker-0"] = ["\x1b[31mred\x1b[0m"]
    monkeypatch.setattr(logs, "KubeconfigClient", lambda context: cluster)
    logs.logs("digits", role=TaskRole.WORKER, index=0, since="1m")
    assert capsys.readouterr().out == "worker-0: \x1b[31mred\x1b[0m\n", "a pipe gets lines as they are"
    assert cluster.asked[-1][1]["sinceSeconds"] == "60"
    assert CliRunner().invoke(app, ["logs", "digits", "--tail=-1"]).exit_code == 0
    assert "tailLines" not in cluster.asked[-1][1], "as in kubectl, -1 selects all lines"
