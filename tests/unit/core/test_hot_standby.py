"""Hot standbys from the operator's view: the chief chooses the primary, readiness shows it, and the status reports
it.
"""

from typing import Any

import pytest

from pstraining.api import names
from pstraining.controller.metrics import degraded_seconds
from tests.support.builders import terminated
from tests.support.cluster_maps import cluster_map
from tests.support.simulation import World, running

STARTED = {"running": {"startedAt": "2030-01-01T12:00:05Z"}}
TRAINING = {"mode": "Sync"}


def hot(replicas: int = 2, standbys: int = 1, **spec: Any) -> World:
    standby = {"mode": "Hot", "replicasPerShard": standbys}
    return running(**{"ps": {"replicas": replicas, "standby": standby}, "training": TRAINING, **spec})


def turn(world: World, pod: str, *, ready: bool, **status: Any) -> None:
    """Let a member become ready, which means in sync, or not ready."""
    found = world.pods[pod]["status"]
    changed = "2030-01-01T12:00:09Z"
    found["conditions"] = [{"type": "Ready", "status": str(ready), "lastTransitionTime": changed}]
    found["containerStatuses"][0] |= {"ready": ready, "state": STARTED, **status}


def reported(world: World, index: int = 0) -> tuple[str, int, str]:
    assert world.job is not None
    found = world.job["status"]["shards"][index]
    return found["primary"], found["takeovers"], found["lastCause"]


def test_every_member_is_a_task_with_its_own_address() -> None:
    world = hot(standbys=2)
    expected = ["digits-ps-0", "digits-ps-1", "digits-standby-0", "digits-standby-1"]
    expected += ["digits-standby-2-0", "digits-standby-2-1"]
    assert cluster_map(world)["cluster"]["ps"] == [f"{name}:2222" for name in expected]
    assert cluster_map(world)["members"] == 3
    for name in expected:
        service = world.children["Service", name]
        assert service["spec"]["selector"][names.LABEL_STS_POD] == name
        assert service["spec"]["publishNotReadyAddresses"] is True
        assert "annotations" not in service["metadata"]
    for member, name in enumerate(("digits-ps", "digits-standby", "digits-standby-2")):
        container = world.children["StatefulSet", name]["spec"]["template"]["spec"]["containers"][0]
        env = {e["name"]: e.get("value") for e in container["env"]}
        assert env["PSTRAINING_MEMBER"] == str(member)
        assert container["readinessProbe"]["failureThreshold"] == 1
    assert world.names_of("PodDisruptionBudget") == ["digits-ps-0", "digits-ps-1"]
    assert not world.plan().actions


def test_workers_vote_at_an_address_independent_of_their_number() -> None:
    worker = {"replicas": 3, "minReplicas": 2, "addressing": "ClusterIP"}
    world = hot(worker=worker)
    assert cluster_map(world)["witnesses"] == ["digits-worker-0:2239", "digits-worker-1:2239"]
    ports = [
        [port["port"] for port in world.children["Service", f"digits-worker-{index}"]["spec"]["ports"]]
        for index in range(3)
    ]
    assert ports == [[2222, 2223, 2239], [2222, 2223, 2239], [2222, 2223]]
    assert cluster_map(hot())["witnesses"] == ["digits-worker-0.digits-hs:2239", "digits-worker-1.digits-hs:2239"]
    assert cluster_map(world)["seats"] == cluster_map(world)["witnesses"], "an image of a former version reads that"


@pytest.mark.parametrize("mode", ["None", "Warm"])
def test_jobs_without_hot_standbys_have_no_such_fields(mode: str) -> None:
    world = running(ps={"replicas": 2, "standby": {"mode": mode}}, training=TRAINING)
    assert cluster_map(world)["cluster"]["ps"] == ["digits-ps-0:2222", "digits-ps-1:2222"]
    assert not {"members", "witnesses", "seats"} & cluster_map(world).keys()


def test_the_next_member_in_sync_is_primary_and_nothing_is_written_for_it() -> None:
    world = hot()
    world.reconcile()
    assert [reported(world, index) for index in (0, 1)] == [("digits-ps-0", 0, ""), ("digits-ps-1", 0, "")]
    turn(world, "digits-ps-0", ready=False)
    assert not world.plan().actions
    world.reconcile()
    assert reported(world) == ("digits-standby-0", 1, "not ready")
    assert reported(world, 1) == ("digits-ps-1", 0, "")
    event = next(e for e in world.reported if e.reason == "TookOver")
    assert event.message == "Shard 0: digits-standby-0 is now the primary (not ready)."
    degraded = next(c for c in world.job["status"]["conditions"] if c["type"] == "Degraded")  # type: ignore[index]
    assert degraded["message"] == "Shard 0: pod digits-ps-0 is not in sync yet"
    for _ in range(3):
        world.reconcile()
    assert reported(world) == ("digits-standby-0", 1, "not ready"), "it is counted once"


def test_a_primary_that_is_in_sync_again_stays_primary_without_a_failover() -> None:
    world = hot()
    world.reconcile()
    turn(world, "digits-ps-0", ready=False)
    world.reconcile()
    before = dict(world.job["status"])  # type: ignore[index]
    turn(world, "digits-ps-0", ready=True)
    world.reconcile()
    assert reported(world) == ("digits-ps-0", 1, "not ready")
    assert degraded_seconds(before, world.job["status"]) is not None  # type: ignore[index]


def test_a_lost_standby_is_not_a_failover() -> None:
    world = hot()
    world.reconcile()
    turn(world, "digits-standby-1", ready=False)
    world.reconcile()
    assert reported(world, 1) == ("digits-ps-1", 0, "")
    assert world.job["status"]["standbySummary"] == "1/2"  # type: ignore[index]


def test_a_shard_without_a_member_in_sync_remembers_its_last_primary() -> None:
    """A shard without a member in sync remembers its last primary. If the new primary was restored, the operator cannot
    see that, and reports its observation.
    """
    world = hot()
    world.reconcile()
    for pod in ("digits-ps-0", "digits-standby-0"):
        turn(world, pod, ready=False)
    world.reconcile()
    assert reported(world) == ("digits-ps-0", 0, "")
    turn(world, "digits-standby-0", ready=True)
    world.reconcile()
    assert reported(world) == ("digits-standby-0", 1, "not ready")


def test_a_primary_whose_pod_was_replaced_between_two_passes_was_lost() -> None:
    world = hot()
    world.reconcile()
    turn(world, "digits-ps-0", ready=False, state={"waiting": {"reason": "ContainerCreating"}})
    del world.pods["digits-ps-0"]["status"]["conditions"][0]["lastTransitionTime"]
    world.reconcile()
    assert reported(world)[:2] == ("digits-standby-0", 1)


def test_a_job_that_starts_has_no_primary_before_one_is_ready() -> None:
    world = hot()
    turn(world, "digits-ps-0", ready=False, state={"waiting": {"reason": "ContainerCreating"}})
    world.job["status"].pop("shards", None)  # type: ignore[index]
    world.reconcile()
    assert reported(world) == ("digits-standby-0", 0, "")
    turn(world, "digits-ps-0", ready=True)
    world.reconcile()
    assert reported(world) == ("digits-ps-0", 0, "")


def test_an_ended_container_is_reported() -> None:
    world = hot()
    world.reconcile()
    turn(world, "digits-ps-1", ready=False)
    world.pods["digits-ps-1"]["status"]["containerStatuses"][0]["state"] = terminated(137)
    world.reconcile()
    assert reported(world, 1) == ("digits-standby-1", 1, "container ended with code 137")
