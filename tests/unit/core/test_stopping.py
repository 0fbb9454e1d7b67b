"""The order in which a job's tasks stop, in a simulated world, one scenario per test."""

import pytest

from pstraining.api import names
from tests.support.simulation import World, phase, running


def roles_left(world: World) -> set[str]:
    return {p["metadata"]["labels"][names.LABEL_ROLE] for p in world.pods.values()}


def test_the_chief_stops_while_the_parameter_servers_still_serve() -> None:
    world = running()
    world.lingering = {"chief"}
    world.edit({"runPolicy": {"suspend": True}})
    assert [a.name for a in world.plan().actions] == ["digits-chief-1"]
    world.settle()
    assert world.names_of("Job") == []
    assert len(world.names_of("Deployment")) == 2
    assert world.names_of("StatefulSet") == ["digits-ps"]
    assert roles_left(world) == {"chief", "worker", "ps"}
    world.gone("chief")
    assert [a.kind for a in world.plan().actions] == ["Deployment", "Deployment", "StatefulSet"], "the PSs last"
    world.settle()
    assert not world.pods


def test_a_terminal_chief_delays_no_other_task() -> None:
    world = running()
    world.lingering = {"chief"}
    world.edit({"runPolicy": {"suspend": True}})
    world.settle()
    for found in world.pods.values():
        if found["metadata"]["labels"][names.LABEL_ROLE] == "chief":
            found["status"]["phase"] = "Failed"
    assert [a.kind for a in world.plan().actions] == ["Deployment", "Deployment", "StatefulSet"]


def test_without_a_chief_worker_zero_stops_first() -> None:
    world = running(chief={"enabled": False})
    world.lingering = {"worker"}
    world.edit({"runPolicy": {"suspend": True}})
    assert [a.name for a in world.plan().actions] == ["digits-worker-0"]
    world.settle()
    assert world.names_of("Deployment") == ["digits-worker-1"]
    assert world.names_of("StatefulSet") == ["digits-ps"]
    world.gone("worker")
    world.settle()
    assert not world.pods
    assert phase(world) == "Suspended"


def test_suspended_is_true_only_when_nothing_runs() -> None:
    world = running()
    world.lingering = {"chief", "worker"}
    world.edit({"runPolicy": {"suspend": True}})
    for waits_for in ("chief", "worker"):
        world.settle()
        suspended = world.condition("Suspended")
        assert (suspended["status"], suspended["reason"]) == ("False", "Stopping")
        assert "the chief stops first" in suspended["message"]
        assert phase(world) == "Stopping"
        world.gone(waits_for)
    world.settle()
    assert (world.condition("Suspended")["status"], world.condition("Suspended")["reason"]) == ("True", "Suspended")
    assert phase(world) == "Suspended"
    reported = [e.reason for e in world.reported if e.reason in ("Stopping", "Suspended", "Resumed")]
    assert reported == ["Stopping", "Suspended"], "one event each"


def test_a_job_that_stops_does_not_rescale() -> None:
    world = running(ps={"replicas": 2})
    world.lingering = {"chief"}
    world.edit({"ps": {"replicas": 1}})
    world.reconcile()
    assert phase(world) == "Rescaling"
    world.edit({"runPolicy": {"suspend": True}})
    world.settle()
    assert phase(world) == "Stopping"
    world.gone("chief")
    world.settle()
    assert phase(world) == "Suspended"


def test_a_job_that_ends_while_it_stops_is_not_resumed() -> None:
    world = running()
    world.lingering = {"chief"}
    world.edit({"runPolicy": {"suspend": True}})
    world.settle()
    world.end("chief")  # it had made its last step when it was told to stop
    world.settle()
    assert [e.reason for e in world.reported if e.reason != "Created"][-2:] == ["Stopping", "Succeeded"]
    assert (world.condition("Suspended")["status"], world.condition("Suspended")["reason"]) == ("False", "NotSuspended")


def test_what_a_stop_or_the_end_withdraws_is_no_event() -> None:
    """The stop and the end have their own events; others of the same reason came before the job was suspended."""
    world = running(ps={"replicas": 2})
    world.edit({"ps": {"replicas": 1}})
    world.reconcile()
    world.reported.clear()
    world.edit({"runPolicy": {"suspend": True}})
    world.settle()
    assert [e.reason for e in world.reported] == ["Stopping", "Suspended"]
    world.edit({"runPolicy": {"suspend": False}})
    world.settle()
    world.reported.clear()
    world.end("chief")
    world.settle()
    assert [e.reason for e in world.reported] == ["Succeeded"]


@pytest.mark.parametrize("late", ["chief", "worker", "ps"])
def test_a_suspended_condition_does_not_flap(late: str) -> None:
    world = running()
    pods = {n: p for n, p in world.pods.items() if p["metadata"]["labels"][names.LABEL_ROLE] == late}
    world.edit({"runPolicy": {"suspend": True}})
    world.settle()
    world.pods |= pods  # a watch that lags
    world.reconcile()
    assert world.condition("Suspended")["status"] == "True"


def test_a_stop_can_be_resumed_before_it_is_complete() -> None:
    world = running()
    world.lingering = {"chief"}
    world.edit({"runPolicy": {"suspend": True}})
    world.settle()
    world.edit({"runPolicy": {"suspend": False}})
    world.settle()
    assert world.names_of("Job") == [], "no second chief beside one that may still write"
    world.gone("chief")
    world.settle()
    assert world.names_of("Job") == ["digits-chief-2"]
    assert phase(world) == "Running"
    assert (world.job or {})["status"]["restarts"] == 0
    assert [e.reason for e in world.reported][-2:] == ["Resumed", "Running"]


def test_an_operator_crash_between_two_deletions_keeps_the_order() -> None:
    world = running()
    world.edit({"runPolicy": {"suspend": True}})
    world.reconcile(stop_after=1)
    assert world.names_of("Job") == []
    world.controllers()
    world.reconcile(stop_after=1)
    assert world.names_of("StatefulSet") == ["digits-ps"]
    world.settle()
    assert not world.pods
    assert phase(world) == "Suspended"
