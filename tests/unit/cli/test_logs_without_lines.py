"""Logs of which no line is printed: their remarks, and a closed output."""

import sys
from collections.abc import Iterator, Mapping

import pytest

from pstraining.cli.commands import logs
from pstraining.cli.errors import CommandError, RequestError
from pstraining.cli.logs.log_lines import LogSelection
from pstraining.cli.tasks import TaskRole
from tests.support.builders import job, pod
from tests.unit.cli.test_logs import Logged, read


@pytest.mark.parametrize(
    ("tail", "since", "remarks"),
    [
        (None, None, ["chief-0 (digits-chief-1): the log is empty"]),
        (5, 0, ["chief-0 (digits-chief-1): the log is empty"]),
        (None, 60, ["chief-0 (digits-chief-1): the log has no lines of this time"]),
        (0, None, []),
    ],
)
def test_a_log_is_called_empty_only_if_it_is(tail: int | None, since: float | None, remarks: list[str]) -> None:
    assert read(Logged(job()), LogSelection(TaskRole.CHIEF, tail=tail, since=since)) == ([], remarks)


def test_a_closed_output_is_no_error(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    cluster = Logged(job())
    cluster.logs["digits-chief-1"] = ["a line"]
    monkeypatch.setattr(logs, "KubeconfigClient", lambda context: cluster)
    monkeypatch.setattr(sys, "stdout", None)
    logs.logs("digits")
    assert "digits-ps-0): the log is empty" in capsys.readouterr().err


def test_a_command_that_can_read_no_log_fails(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    cluster = Logged(job())
    cluster.logs = {"digits-worker-0": RequestError("container is waiting to start", 400), "digits-worker-1": []}
    monkeypatch.setattr(logs, "KubeconfigClient", lambda context: cluster)
    with pytest.raises(CommandError, match=r"^No log could be read, for the reasons above\.$"):
        logs.logs("digits", role=TaskRole.WORKER, index=0)
    assert "worker-0 (digits-worker-0): no log: container is waiting to start" in capsys.readouterr().err
    logs.logs("digits", role=TaskRole.WORKER)


class StartingAgain(Logged):
    """The logs are those of previous runs: the present ones have just started."""

    def log(self, namespace: str, pod: str, query: Mapping[str, str]) -> Iterator[str]:
        if not query.get("previous"):
            raise RequestError("container is waiting to start", 400)
        yield from super().log(namespace, pod, query)


def test_the_log_of_a_previous_run_is_one_that_could_be_read(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    cluster = StartingAgain(job(), pods=[pod("worker", 0, restarts=1)])
    cluster.logs = {"digits-worker-0": ["Traceback"]}
    monkeypatch.setattr(logs, "KubeconfigClient", lambda context: cluster)
    logs.logs("digits", role=TaskRole.WORKER)
    said = capsys.readouterr()
    assert said.out == "worker-0: Traceback\n"
    assert "worker-0 (digits-worker-0): no log: container is waiting to start" in said.err
