"""Reports of a lost node that returns: its pods were given up, so neither their success nor their failures count."""

from datetime import datetime, timedelta
from typing import Any

import pytest

from pstraining.api import names
from tests.support.builders import job, stamp, terminated
from tests.support.simulation import World, phase


def two_nodes(**spec: Any) -> World:
    world = World(job(workers=2, spec=spec), nodes={"node-0": "True", "node-1": "True"})
    world.settle()
    return world


def pod_of(world: World, role: str, index: int) -> dict[str, Any]:
    """Return the oldest pod of a task."""
    found = (p for p in world.pods.values() if p["metadata"]["labels"][names.LABEL_ROLE] == role)
    mine = [p for p in found if p["metadata"]["labels"].get(names.LABEL_INDEX) == str(index)]
    return min(mine, key=lambda p: str(p["metadata"]["creationTimestamp"]))


def status(world: World) -> dict[str, Any]:
    assert world.job is not None
    found: dict[str, Any] = world.job["status"]
    return found


def ended(found: dict[str, Any], code: int, after: int) -> None:
    """Report a pod's end, a number of seconds after it was given up, as the kubelet does."""
    state = terminated(code)
    metadata = found["metadata"]
    deleted = datetime.fromisoformat(metadata["deletionTimestamp"]) - timedelta(
        seconds=metadata["deletionGracePeriodSeconds"]
    )
    state["terminated"]["finishedAt"] = stamp(deleted + timedelta(seconds=after))
    found["status"]["phase"] = "Failed" if code else "Succeeded"
    found["status"]["containerStatuses"][0]["state"] = state


@pytest.mark.parametrize(("after", "counts"), [(-1, True), (1, False)])
def test_a_worker_that_exits_with_0_after_it_was_given_up_has_not_succeeded(after: int, counts: bool) -> None:
    world = two_nodes()
    old = pod_of(world, "worker", 1)
    world.cut(old["spec"]["nodeName"])
    world.settle()
    ended(old, 0, after)
    world.reconcile()
    assert status(world)["worker"]["succeeded"] == int(counts)
    assert world.children["Deployment", "digits-worker-1"]["spec"]["replicas"] == (0 if counts else 1)


def test_a_leader_that_exits_with_0_after_it_was_given_up_does_not_end_the_job() -> None:
    world = two_nodes(chief={"enabled": False})
    old = pod_of(world, "worker", 0)
    world.cut(old["spec"]["nodeName"])
    world.settle()
    ended(old, 0, 1)
    world.settle()
    assert phase(world) == "Running"


def test_failures_on_a_lost_node_do_not_count() -> None:
    world = two_nodes(runPolicy={"backoffLimit": 0})
    old = pod_of(world, "worker", 1)
    world.cut(old["spec"]["nodeName"])
    world.settle()
    old["status"]["containerStatuses"][0]["restartCount"] = 3
    ended(old, 1, 10)
    world.settle()
    assert phase(world) == "Running"
    records = {(r["role"], r["index"]): r for r in status(world)["replicaRecords"]}
    assert records["worker", 1]["failures"] == 0


def restarted() -> World:
    """Return a job after one restart, with a pod of its first run on a node that is lost."""
    rules = [{"role": "ps", "exitCodes": {"values": [7]}, "action": "RestartJob"}]
    world = two_nodes(failurePolicy={"rules": rules})
    old = pod_of(world, "worker", 1)
    world.cut(old["spec"]["nodeName"])
    world.settle()
    world.end("ps", code=7)
    world.settle()
    assert status(world)["jobRestarts"] == 1
    assert phase(world) == "Running"
    assert old["metadata"]["name"] in world.pods
    return world


def test_a_success_before_a_restart_of_the_job_does_not_count() -> None:
    world = restarted()
    old = pod_of(world, "worker", 1)
    # This holds even for a success before its node was lost.
    ended(old, 0, -1)
    world.settle()
    assert status(world)["worker"]["succeeded"] == 0
    assert world.children["Deployment", "digits-worker-1"]["spec"]["replicas"] == 1


def test_an_annotation_from_before_a_restart_of_the_job_does_not_count() -> None:
    """An annotation from before a restart of the job does not count: the Deployment that records its worker's success
    is deleted with its run.
    """
    rules = [{"role": "ps", "exitCodes": {"values": [7]}, "action": "RestartJob"}]
    world = World(job(spec={"failurePolicy": {"rules": rules}}))
    world.settle()
    world.end("worker", 1)
    world.settle()
    assert status(world)["worker"]["succeeded"] == 1
    world.end("ps", code=7)
    world.reconcile()
    assert status(world)["jobRestarts"] == 1
    world.reconcile()
    assert "digits-worker-1" in world.names_of("Deployment"), "the leader is deleted first"
    assert status(world)["worker"]["succeeded"] == 0
    world.settle()
    assert phase(world) == "Running"


@pytest.mark.parametrize("seen", ["pod", "Job"])
def test_a_chief_that_succeeded_before_a_restart_of_the_job_does_not_count(seen: str) -> None:
    rules = [{"role": "worker", "exitCodes": {"values": [7]}, "action": "RestartJob"}]
    world = World(job(spec={"successPolicy": "AllWorkers", "failurePolicy": {"rules": rules}}))
    world.settle()
    world.end("chief")
    if seen == "Job":
        done = {"conditions": [{"type": "Complete", "status": "True"}]}
        world.children["Job", "digits-chief-1"]["status"] = done
        world.pods = {n: p for n, p in world.pods.items() if p["status"]["phase"] == "Running"}
    world.reconcile()
    assert status(world)["chief"]["succeeded"] == 1
    world.end("worker", 1, code=7)
    world.reconcile()
    assert status(world)["jobRestarts"] == 1
    world.reconcile()
    assert status(world)["chief"]["succeeded"] == 0
    world.settle()
    assert (phase(world), status(world)["term"]) == ("Running", 2)
