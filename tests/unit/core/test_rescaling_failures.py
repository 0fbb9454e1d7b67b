"""Which ends of pods that stay while the number of parameter servers changes cost a budget."""

from datetime import timedelta

from pstraining.api import names
from tests.support.builders import stamp, terminated
from tests.support.simulation import World, phase, running


def crash(world: World) -> None:
    """Let the program of worker 0 end with code 1, after a run of a second; the kubelet then backs off."""
    world.now += timedelta(minutes=1)
    (found,) = (p for p in world.pods.values() if p["metadata"]["labels"][names.LABEL_ROLE] == names.WORKER)
    state, end = found["status"]["containerStatuses"][0], terminated(1)
    end["terminated"] |= {"startedAt": stamp(world.now - timedelta(seconds=1)), "finishedAt": stamp(world.now)}
    if "waiting" in state["state"]:
        state["restartCount"] += 1
    state |= {"state": {"waiting": {"reason": "CrashLoopBackOff"}}, "lastState": end, "ready": False}


def test_a_worker_that_crashes_after_a_change_spends_its_budget_although_training_never_resumes() -> None:
    world = running(ps={"replicas": 2}, worker={"replicas": 1}, runPolicy={"backoffLimit": 2})
    world.lingering = {"chief"}
    world.now += timedelta(seconds=1)
    world.edit({"ps": {"replicas": 1}})
    world.settle()
    crash(world)  # its chief was deleted
    world.settle()
    world.gone("chief")
    world.settle()
    assert world.condition("Rescaling")["reason"] == "Resuming"
    for failures in (1, 2):
        crash(world)
        world.settle()
        (record,) = (r for r in world.snapshot().typed_status.replica_records if r.role == names.WORKER)
        assert record.failures == failures
    assert world.condition("Rescaling")["reason"] == "Resuming"
    crash(world)
    world.settle()
    assert phase(world) == "Failed"
    assert world.condition("Failed")["reason"] == "BackoffLimitExceeded"
