"""Names of jobs and durations in the forms that kubectl accepts."""

from typing import Any

import pytest
import typer

from pstraining.cli.commands import status, suspend
from pstraining.cli.commands.scale import scale_to
from pstraining.cli.commands.suspend import set_suspended
from pstraining.cli.errors import CommandError
from pstraining.cli.jobs import each
from pstraining.cli.main import app
from pstraining.cli.options import duration_option, interval_option, job_argument
from tests.support.builders import job
from tests.support.cli_cluster import WithJobs
from tests.support.command_runner import CliRunner
from tests.support.job_cluster import JobCluster
from tests.support.simulation import running


@pytest.mark.parametrize(
    "text",
    [
        "x",
        "pstj/x",
        "pstrainingjob/x",
        "pstrainingjobs/x",
        "PSTrainingJob/x",
        "pstrainingjobs.pstraining.dev/x",
        "pstrainingjobs.v1alpha1.pstraining.dev/x",
    ],
)
def test_a_type_may_come_before_the_name(text: str) -> None:
    assert job_argument(text) == "x"


@pytest.mark.parametrize("text", ["pod/x", "pstj/", "/x", "pstrainingjobs.example.com/x", "pstj/x/y"])
def test_a_name_that_is_not_a_job_is_rejected(text: str) -> None:
    with pytest.raises(typer.BadParameter, match="is not a job: write NAME or pstj/NAME"):
        job_argument(text)


@pytest.mark.parametrize(
    ("text", "seconds"), [("90s", 90), ("5m", 300), ("90", 90), ("0.5", 0.5), (2.5, 2.5), ("0", 0)]
)
def test_durations_are_kubectls_or_seconds(text: Any, seconds: float) -> None:
    assert duration_option(text) == seconds


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("50ms", "shorter than 0.1 s"),
        ("-1s", "is not a duration"),
        ("nan", "is not a duration"),
        ("300y", "is not a duration"),
        ("110000d", "is longer than 9223372036 s"),
        ("9" * 400, "is longer than"),
    ],
)
def test_an_invalid_interval_is_rejected(text: str, words: str) -> None:
    with pytest.raises(typer.BadParameter, match=words):
        interval_option(text)


def test_several_jobs_are_suspended_and_resumed_at_once(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    cluster = JobCluster(running())
    monkeypatch.setattr(suspend, "KubeconfigClient", lambda context: cluster)
    monkeypatch.setattr(suspend, "Patience", lambda seconds: cluster.patience)
    result = CliRunner().invoke(app, ["suspend", "other", "pstj/digits", "--wait", "--timeout", "1m"])
    assert (
        str(result.exception) == "There is no PSTrainingJob other in namespace default. Jobs in this namespace: digits."
    )
    assert result.stdout == "digits in default: suspended\ndigits is suspended.\n"
    set_suspended(cluster, ["digits", "digits"], False, patience=cluster.patience)
    assert capsys.readouterr().out.splitlines() == [
        "digits in default: resumed",
        "digits in default: is not suspended: nothing to do",
        *["digits is running."] * 2,
    ]


def test_several_jobs_are_scaled(capsys: pytest.CaptureFixture[str]) -> None:
    cluster = JobCluster(running())
    with pytest.raises(CommandError, match=r"other in namespace default.*\nError: .*another in namespace default"):
        scale_to(cluster, ["other", "digits", "another"], 3)
    assert cluster.asked == [("scale", 3)]
    with pytest.raises(CommandError, match="other in namespace default"):
        scale_to(cluster, ["other", "digits"], 1, patience=cluster.patience)
    assert capsys.readouterr().out.splitlines()[-1] == "digits: 1 of 1 worker ready."


def test_several_jobs_are_shown_in_a_table(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(status, "KubeconfigClient", lambda context: WithJobs(job("a"), job("b"), job("c")))
    status.status(jobs=["c", "a"])
    assert [line.split()[0] for line in capsys.readouterr().out.splitlines()] == ["NAME", "c", "a"]
    with pytest.raises(CommandError, match="There is no PSTrainingJob d in namespace default"):
        status.status(jobs=["c", "d", "a"])
    assert [line.split()[0] for line in capsys.readouterr().out.splitlines()] == ["NAME", "c", "a"]


def test_a_shared_error_is_reported_once() -> None:
    def failing(name: str) -> None:
        raise CommandError("The API server did not respond.")

    with pytest.raises(CommandError) as caught:
        each("abc", failing)
    assert str(caught.value) == "The API server did not respond."
