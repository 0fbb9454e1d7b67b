"""`scale`: its change, rejections by the API's rules, and its wait."""

from typing import Any

import pytest

from pstraining.cli.commands.scale import scale_to
from pstraining.cli.errors import CommandError
from pstraining.cli.exit_codes import ExitCode
from pstraining.cli.waiting import Patience
from tests.support import queued_world
from tests.support.job_cluster import JobCluster
from tests.support.simulation import running


def scaled(cluster: JobCluster, workers: int, name: str = "digits", *, wait: bool = False) -> None:
    scale_to(cluster, [name], workers, None, cluster.patience if wait else None)


def test_the_number_is_changed_once(capsys: pytest.CaptureFixture[str]) -> None:
    cluster = JobCluster(running())
    scaled(cluster, 1)
    scaled(cluster, 1)
    assert cluster.asked == [("scale", 1)]
    assert capsys.readouterr().out.splitlines() == [
        "digits in default: scaled from 2 to 1 worker",
        "digits in default: already has 1 worker: nothing to do",
    ]


HOT: dict[str, Any] = {"ps": {"standby": {"mode": "Hot"}}, "training": {"mode": "Sync"}}


@pytest.mark.parametrize(
    ("spec", "workers", "message"),
    [
        ({}, 0, "digits cannot have 0 workers: spec.worker.replicas: must be at least 1, is 0"),
        ({}, 10001, "digits cannot have 10001 workers: spec.worker.replicas: must be at most 10000, is 10001"),
        (
            {"worker": {"minReplicas": 2}},
            1,
            "digits cannot have 1 worker: spec.worker.minReplicas must not be greater than spec.worker.replicas",
        ),
        (
            HOT,
            3,
            "digits cannot have 3 workers: spec.worker: with hot standbys the first minReplicas workers, or all, ",
        ),
    ],
)
def test_a_change_that_the_rules_reject_is_not_sent(spec: dict[str, Any], workers: int, message: str) -> None:
    cluster = JobCluster(running(**spec))
    with pytest.raises(CommandError) as caught:
        scaled(cluster, workers)
    assert str(caught.value).startswith(message)
    assert not cluster.asked


def test_workers_without_quota_are_waited_for_with_the_reason() -> None:
    cluster = JobCluster(queued_world.running(quota=4))
    with pytest.raises(CommandError) as caught:
        scaled(cluster, 4, wait=True)
    assert caught.value.code == ExitCode.TIMED_OUT
    [line] = cluster.reported
    assert line.startswith("digits: Running: ClusterQueue cq has admitted the job with 2 of 4 workers; Workload ")
    assert line in str(caught.value)


def test_the_size_of_a_gang_is_changed_in_a_suspension() -> None:
    """The message about it names the suspension, without which the API server refuses the advised change, too."""
    cluster = JobCluster(running(runPolicy={"schedulingPolicy": {"gang": "Volcano", "minAvailable": 4}}))
    with pytest.raises(CommandError, match=r"minAvailable must be at least .* set runPolicy\.suspend to true first"):
        scaled(cluster, 4)


def test_earlier_violations_do_not_block_the_change() -> None:
    cluster = JobCluster(running())
    assert cluster.world.job is not None
    cluster.world.job["spec"]["network"] = {"isolation": "Nonsense"}
    scaled(cluster, 3)
    assert cluster.asked == [("scale", 3)]


def test_a_missing_job_and_a_finished_job() -> None:
    cluster = JobCluster(running())
    with pytest.raises(CommandError, match="There is no PSTrainingJob other in namespace default"):
        scaled(cluster, 3, "other")
    cluster.world.end("chief")
    cluster.world.settle()
    with pytest.raises(CommandError, match=r"digits has ended \(Succeeded\) and has no workers"):
        scaled(cluster, 3)


def test_scale_waits_until_workers_are_ready(capsys: pytest.CaptureFixture[str]) -> None:
    cluster = JobCluster(running())
    scaled(cluster, 4, wait=True)
    assert capsys.readouterr().out.splitlines()[-1] == "digits: 4 of 4 workers ready."
    assert cluster.now > 0, "it was not so at once"
    scaled(cluster, 1, wait=True)
    assert capsys.readouterr().out.splitlines()[-1] == "digits: 1 of 1 worker ready."


def test_scale_does_not_wait_for_finished_workers(capsys: pytest.CaptureFixture[str]) -> None:
    cluster = JobCluster(running())
    cluster.world.children["Deployment", "digits-worker-1"]["metadata"]["annotations"] = {
        "pstraining.dev/succeeded": "true"
    }
    cluster.world.settle()
    scaled(cluster, 3, wait=True)
    assert capsys.readouterr().out.splitlines()[-1] == "digits: 2 of 3 workers ready, 1 done."


def test_a_suspended_job_is_not_waited_for(capsys: pytest.CaptureFixture[str]) -> None:
    cluster = JobCluster(running())
    cluster.world.edit({"runPolicy": {"suspend": True}})
    scaled(cluster, 4, wait=True)
    assert capsys.readouterr().out.splitlines()[-1] == "digits is suspended and will start its workers when it resumes."


@pytest.mark.parametrize("code", [0, 3])
def test_a_job_that_finishes_meanwhile(capsys: pytest.CaptureFixture[str], code: int) -> None:
    cluster = JobCluster(running(chief={"restartPolicy": "Never"}))
    cluster.world.end("chief", code=code, message="no data")
    if code:
        with pytest.raises(CommandError, match=r"digits has failed in the meantime: .*no data"):
            scaled(cluster, 4, wait=True)
    else:
        scaled(cluster, 4, wait=True)
        assert capsys.readouterr().out.splitlines()[-1] == "digits has succeeded in the meantime."


def test_a_job_whose_template_is_invalid() -> None:
    cluster = JobCluster(running())
    invalid = {"type": "InvalidTemplate", "status": "True", "reason": "TemplateRefused", "message": "spec.ps: bad"}

    def refused(seconds: float) -> None:
        made = cluster.world.job
        assert made is not None
        cluster.now += seconds
        made["status"] |= {"observedGeneration": made["metadata"]["generation"], "conditions": [invalid]}

    with pytest.raises(CommandError, match=r"digits cannot start: spec\.ps: bad") as caught:
        scale_to(cluster, ["digits"], 4, None, Patience(10, lambda: cluster.now, refused))
    assert caught.value.code is ExitCode.JOB_FAILED


def test_an_unavailable_operator() -> None:
    cluster = JobCluster(running())
    cluster.away = True
    with pytest.raises(CommandError, match="digits: timed out after 10 s"):
        scaled(cluster, 4, wait=True)
