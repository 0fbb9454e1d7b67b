"""The command that requests a switchover: its write, its output, and its errors."""

from typing import Any

import pytest

from pstraining.api import names
from pstraining.cli.commands.takeover import switch_over
from pstraining.cli.errors import CommandError, RequestError
from tests.support.job_cluster import JobCluster
from tests.support.simulation import running


class FakeCluster(JobCluster):
    def switch_over(self, name: str = "digits", shard: int = 0, namespace: str | None = None) -> str:
        return switch_over(self, name, shard, namespace, 10, lambda: self.now, self.sleep)


def warm() -> FakeCluster:
    return FakeCluster(running(ps={"replicas": 2, "standby": {"mode": "Warm"}}))


def test_takeover_requests_once_and_reports_the_new_primary() -> None:
    cluster = warm()
    assert cluster.switch_over(shard=1) == (
        "Shard 1 of digits: switched over from digits-ps-1 to digits-standby-1 (epoch 1)."
    )
    assert cluster.world.job is not None
    assert cluster.world.job["metadata"]["annotations"] == {names.ANNOTATION_TAKEOVER: "1@0"}
    cluster.world.settle()
    assert "switched over from digits-standby-1 to digits-ps-1 (epoch 2)" in cluster.switch_over(shard=1)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"name": "other"}, "There is no PSTrainingJob other in namespace default. Jobs in this namespace: digits."),
        ({"namespace": "team"}, "There is no PSTrainingJob digits in namespace team. The namespace has no jobs."),
        ({"shard": 2}, "digits has no shard 2: its shards are 0 to 1."),
        ({"shard": -1}, "digits has no shard -1: its shards are 0 to 1."),
    ],
)
def test_missing_jobs_and_shards(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(CommandError) as caught:
        warm().switch_over(**arguments)
    assert str(caught.value) == message


def test_a_job_without_standbys() -> None:
    with pytest.raises(CommandError, match=r"has no standbys: spec\.ps\.standby\.mode is None"):
        FakeCluster(running()).switch_over()


def test_a_job_whose_chief_chooses() -> None:
    world = running(ps={"replicas": 2, "standby": {"mode": "Hot"}}, training={"mode": "Sync"})
    with pytest.raises(CommandError, match=r"has hot standbys, and its chief selects the primary.* delete its pod"):
        FakeCluster(world).switch_over()
    assert names.ANNOTATION_TAKEOVER not in (world.job or {})["metadata"].get("annotations", {})


def test_a_shard_with_an_unready_standby_is_rejected_with_the_reason() -> None:
    cluster = warm()
    found = cluster.world.pods["digits-standby-0"]["status"]
    found["conditions"] = [{"type": "Ready", "status": "False"}]
    cluster.world.settle()
    with pytest.raises(CommandError) as caught:
        cluster.switch_over()
    assert str(caught.value) == (
        "Shard 0 of digits has no ready standby. Shard 0: pod digits-standby-0 is not ready yet"
    )
    assert "annotations" not in (cluster.world.job or {})["metadata"], "nothing was asked"


def test_a_finished_job() -> None:
    cluster = warm()
    cluster.world.end("chief")
    cluster.world.settle()
    with pytest.raises(CommandError, match="is not running: it is Succeeded"):
        cluster.switch_over()


def test_an_unavailable_operator() -> None:
    cluster = warm()
    cluster.away = True
    with pytest.raises(
        CommandError, match=r"within 10 s: digits-ps-0 is still the primary\. Check that the operator is running\."
    ):
        cluster.switch_over()


def test_an_api_server_that_does_not_respond_for_a_moment(monkeypatch: pytest.MonkeyPatch) -> None:
    cluster, asked = warm(), 0
    service = cluster.service

    def silent(namespace: str, name: str) -> dict[str, Any] | None:
        nonlocal asked
        asked += 1
        if asked in (2, 3):
            raise RequestError("No answer.", 0)
        return service(namespace, name)

    monkeypatch.setattr(cluster, "service", silent)
    assert cluster.switch_over(shard=1).endswith("switched over from digits-ps-1 to digits-standby-1 (epoch 1).")


def test_a_job_that_is_deleted_meanwhile(monkeypatch: pytest.MonkeyPatch) -> None:
    cluster = warm()
    annotate = cluster.annotate

    def then_deleted(namespace: str, name: str, annotations: dict[str, str]) -> None:
        annotate(namespace, name, annotations)
        cluster.world.children.clear()
        cluster.world.job = None

    monkeypatch.setattr(cluster, "annotate", then_deleted)
    with pytest.raises(CommandError, match="digits was deleted in the meantime"):
        cluster.switch_over()


@pytest.mark.parametrize("policy", ["All", "None"])
def test_a_job_that_ends_meanwhile(policy: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its Services are deleted, or stay with its pods: the switchover never comes."""
    spec = {"ps": {"replicas": 2, "standby": {"mode": "Warm"}}, "runPolicy": {"cleanPodPolicy": {"onSuccess": policy}}}
    cluster = FakeCluster(running(**spec))
    annotate = cluster.annotate

    def then_ended(namespace: str, name: str, annotations: dict[str, str]) -> None:
        cluster.world.end("chief")
        cluster.world.settle()
        annotate(namespace, name, annotations)

    monkeypatch.setattr(cluster, "annotate", then_ended)
    with pytest.raises(CommandError, match=r"^digits is not running: it is Succeeded"):
        cluster.switch_over()
