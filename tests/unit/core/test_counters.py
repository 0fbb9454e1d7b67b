"""Counters of a job's status never fall: replicas and shards that are scaled away stay counted."""

from tests.support.simulation import World, running


def restarts(world: World) -> tuple[int, int]:
    status = (world.job or {})["status"]
    return status["worker"]["restarts"], status["restarts"]


def failovers(world: World) -> int:
    return int((world.job or {})["status"]["takeovers"])


def test_restarts_of_workers_that_were_scaled_away_stay_counted() -> None:
    world = running()
    world.end("worker", 1, code=1)
    world.settle()
    world.edit({"worker": {"replicas": 1}})
    world.settle()
    assert (world.job or {})["status"]["replicaRecords"] == []
    assert restarts(world) == (1, 1)
    world.end("worker", 0, code=1)
    world.settle()
    assert restarts(world) == (2, 2)
    world.edit({"worker": {"replicas": 2}})
    world.settle()
    world.end("worker", 1, code=1)
    world.settle()
    assert restarts(world) == (3, 3)
    writes = world.status_writes
    world.reconcile()
    assert world.status_writes == writes, "nothing counts twice"


def test_restarts_of_an_evaluator_that_was_removed_stay_counted() -> None:
    world = running(evaluator={"enabled": True})
    world.end("evaluator", code=1)
    world.settle()
    for change in ({"runPolicy": {"suspend": True}}, {"evaluator": {"enabled": False}}):
        world.edit(change)
        world.settle()
    assert (world.job or {})["status"]["restarts"] == 1


def test_failovers_of_shards_that_were_scaled_away_stay_counted() -> None:
    world = running(ps={"replicas": 2, "standby": {"mode": "Warm"}})
    world.delete_pod("ps", 1)
    world.settle()
    assert failovers(world) == 1
    world.edit({"ps": {"replicas": 1}})
    world.settle()
    assert len((world.job or {})["status"]["shards"]) == 1
    assert failovers(world) == 1
    world.delete_pod("ps", 0)
    world.settle()
    assert failovers(world) == 2
