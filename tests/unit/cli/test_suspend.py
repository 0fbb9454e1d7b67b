"""`suspend` and `resume`: one field, both ways, and no request without a change."""

import pytest

from pstraining.cli.commands.suspend import set_suspended
from pstraining.cli.errors import CommandError
from tests.support.job_cluster import JobCluster
from tests.support.simulation import running


def reported(capsys: pytest.CaptureFixture[str]) -> list[str]:
    return capsys.readouterr().out.splitlines()


def test_suspend_and_resume_are_idempotent(capsys: pytest.CaptureFixture[str]) -> None:
    cluster = JobCluster(running())
    for suspended in (False, True, True, False):
        set_suspended(cluster, ["digits"], suspended)
    assert reported(capsys) == [
        "digits in default: is not suspended: nothing to do",
        "digits in default: suspended",
        "digits in default: is suspended: nothing to do",
        "digits in default: resumed",
    ]
    changes = [{"spec": {"runPolicy": {"suspend": suspended}}} for suspended in (True, False)]
    assert cluster.asked == [("patch", change) for change in changes]


def test_suspend_waits_until_nothing_runs_and_resume_until_the_job_runs(capsys: pytest.CaptureFixture[str]) -> None:
    cluster = JobCluster(running())
    set_suspended(cluster, ["digits"], True, patience=cluster.patience)
    assert not cluster.world.pods
    set_suspended(cluster, ["digits"], False, patience=cluster.patience)
    assert cluster.world.pods
    assert reported(capsys) == [
        "digits in default: suspended",
        "digits is suspended.",
        "digits in default: resumed",
        "digits is running.",
    ]


def test_pods_that_stop_slowly(capsys: pytest.CaptureFixture[str]) -> None:
    cluster = JobCluster(running())
    cluster.world.lingering = {"chief"}
    with pytest.raises(CommandError, match=r"digits: timed out after 10 s\. digits: Stopping"):
        set_suspended(cluster, ["digits"], True, patience=cluster.patience)
    cluster.world.gone("chief")
    set_suspended(cluster, ["digits"], True, patience=cluster.patience)
    assert reported(capsys)[-2:] == ["digits in default: is suspended: nothing to do", "digits is suspended."]


def test_a_finished_job_and_a_missing_job(capsys: pytest.CaptureFixture[str]) -> None:
    cluster = JobCluster(running())
    with pytest.raises(CommandError, match="There is no PSTrainingJob other in namespace default"):
        set_suspended(cluster, ["other"], True)
    cluster.world.end("chief")
    cluster.world.settle()
    set_suspended(cluster, ["digits"], True)
    assert reported(capsys) == ["digits in default: has ended (Succeeded): nothing to do"]
    assert not cluster.asked
