"""Commands count the tasks with which a job runs, which may be others than those of its spec."""

from typing import Any

import pytest

from pstraining.api import names
from pstraining.cli import overview
from pstraining.cli.commands.takeover import switch_over
from pstraining.cli.errors import CommandError
from pstraining.cli.planning import bandwidth_table
from pstraining.cli.planning.planned import planned_for
from pstraining.cli.tasks import TaskRole, check_choice
from tests.support.builders import NOW
from tests.support.cli_cluster import Object, WithJobs
from tests.support.growing_world import growing, use
from tests.support.job_cluster import JobCluster
from tests.support.queued_world import queued
from tests.support.simulation import World, running

FULL: dict[str, Any] = {
    "autoscaling": {
        "mode": "Full",
        "rolePolicies": [{"role": "ps", "maxAllowed": {"memory": "1Gi"}, "maxReplicas": 8}],
    },
    "checkpoint": {"volume": {"persistentVolumeClaim": {"claimName": "c"}}},
}


def grown(**ps: Object) -> World:
    """Return a job of two servers to which two were added."""
    world = growing(**FULL, ps=ps)
    use(world, "ps", 512)
    world.settle()
    return world


def job_of(world: World) -> Object:
    assert world.job is not None
    return world.job


def shown(world: World, role: str) -> Object:
    found = overview.look(WithJobs(job_of(world), pods=list(world.pods.values())), "default", "digits")
    (own,) = (one for one in found["roles"] if one["role"] == role)
    return dict(own)


def without_pod(world: World, role: str, *indexes: int) -> None:
    wanted = [{names.LABEL_ROLE: role, names.LABEL_INDEX: str(index)} for index in indexes]
    labels = {name: {names.LABEL_INDEX: "0", **pod["metadata"]["labels"]} for name, pod in world.pods.items()}
    gone = [name for name, own in labels.items() if any(one.items() <= own.items() for one in wanted)]
    assert len(gone) == len(indexes)
    for name in gone:
        del world.pods[name]


def test_status_counts_the_servers_that_were_added() -> None:
    role = shown(grown(), "ps")
    assert (role["ready"], role["desired"], role["withoutPod"]) == (4, 4, [])


def test_status_counts_the_workers_that_kueue_has_admitted() -> None:
    world = queued(quota=5, worker={"replicas": 6, "minReplicas": 2})
    world.run()
    role = shown(world, "worker")
    assert job_of(world)["status"]["worker"]["summary"] == f"{role['ready']}/{role['desired']}"
    assert (role["desired"], role["withoutPod"]) == (3, [])


def test_logs_and_takeover_know_the_servers_that_were_added() -> None:
    job = job_of(grown())
    check_choice(job, [], TaskRole.PS, 3)
    with pytest.raises(CommandError, match=r"digits has no ps with index 4: its indices are 0 to 3\."):
        check_choice(job, [], TaskRole.PS, 4)
    warm = JobCluster(grown(standby={"mode": "Warm"}))
    message = switch_over(warm, "digits", 3, clock=lambda: warm.now, sleep=warm.sleep)
    assert "Shard 3 of digits: switched over" in message


def test_a_new_number_counts_for_logs_before_the_operator_has_processed_it() -> None:
    world = running()
    world.edit({"worker": {"replicas": 5}})
    check_choice(job_of(world), [], TaskRole.WORKER, 4)


def test_the_traffic_of_an_existing_job_is_that_of_all_its_servers() -> None:
    cluster = JobCluster(grown())
    job = {key: value for key, value in job_of(cluster.world).items() if key != "status"}
    planned = planned_for(cluster, job, NOW)
    found = bandwidth_table.carried(planned.job, 1_000_000, None)
    assert {link.task: link.number for link in found.links} == {"worker": 2, "parameter server": 4}


def test_workers_without_a_pod_are_named_beside_those_that_have_succeeded() -> None:
    world = running(worker={"replicas": 4}, successPolicy="AllWorkers")
    world.end("worker", 0)
    world.settle()
    assert job_of(world)["status"]["completedIndexes"] == "0"
    without_pod(world, "worker", 2)
    assert shown(world, "worker")["withoutPod"] == ["worker-2"]
    del job_of(world)["status"]["completedIndexes"]
    assert shown(world, "worker")["withoutPod"] == [], "an earlier operator does not name those that have succeeded"
