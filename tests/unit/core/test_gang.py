"""Gangs: their PodGroup, the order of creation, and the conditions of a waiting job."""

from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest

from pstraining.api.conditions import Reason
from pstraining.core.actions import Create, Kind, Outcome, Outcomes, Verdict
from pstraining.core.facts import gather
from pstraining.core.status import events, next_status
from tests.support.builders import deep_merge, job
from tests.support.simulation import World, phase

PLUGINS = {"runPolicy": {"schedulingPolicy": {"gang": "SchedulerPlugins"}}}
VOLCANO = {"runPolicy": {"schedulingPolicy": {"gang": "Volcano"}}}
GROUP, OF_VOLCANO = str(Kind.POD_GROUP), str(Kind.VOLCANO_POD_GROUP)
ELASTIC = {"worker": {"replicas": 4, "minReplicas": 2}, "ps": {"replicas": 2}}
"""Two parameter servers, a chief, two of four workers: a gang of five."""


class Cluster(World):
    """A world in which pods are scheduled only while there is room."""

    room: Callable[[str], bool] = staticmethod(lambda name: False)
    """Whether there is room for the pod of this name."""

    def _start(self, role: str, index: int, term: int, member: int, child: dict[str, Any]) -> None:
        super()._start(role, index, term, member, child)
        made = next(reversed(self.pods.values()))
        if not self.room(made["metadata"]["name"]):
            unplace(made)


def unplace(pod: dict[str, Any]) -> None:
    del pod["spec"]["nodeName"]
    words = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": "0/3 nodes are available"}
    pod["status"] = {"phase": "Pending", "conditions": [words]}


def waiting(spec: dict[str, Any], policy: dict[str, Any] = PLUGINS) -> Cluster:
    world = Cluster(job(spec=deep_merge(spec, policy)))
    world.settle()
    return world


def place(world: World) -> None:
    """Schedule every existing pod."""
    for found in world.pods.values():
        found["spec"]["nodeName"] = "node-1"
        state = {"name": "tensorflow", "image": "img:1", "restartCount": 0, "ready": True, "state": {"running": {}}}
        ready = [{"type": "Ready", "status": "True"}]
        found["status"] = {"phase": "Running", "conditions": ready, "containerStatuses": [state]}


def group(world: World, kind: str = GROUP) -> dict[str, Any]:
    found: dict[str, Any] = world.children[kind, "digits"]["spec"]
    return found


def start(spec: dict[str, Any], policy: dict[str, Any] = PLUGINS) -> World:
    """Return a running gang."""
    world = World(job(spec=deep_merge(spec, policy)))
    world.settle()
    assert phase(world) == "Running"
    return world


@pytest.mark.parametrize(("policy", "kind"), [(PLUGINS, GROUP), (VOLCANO, OF_VOLCANO)])
def test_the_group_is_created_first(policy: dict[str, Any], kind: str) -> None:
    world = World(job(spec=policy))
    world.reconcile()
    assert world.writes[0] == ("Create", kind, "digits")
    assert group(world, kind)["minMember"] == 4


def test_without_a_gang_there_is_no_group() -> None:
    world = World(job())
    world.settle()
    assert not [w for w in world.writes if w[1] in (GROUP, OF_VOLCANO)]


def test_only_the_gang_is_created_until_it_is_scheduled() -> None:
    extra = {"evaluator": {"enabled": True}, "ps": {"standby": {"mode": "Warm"}}}
    world = waiting(deep_merge(ELASTIC, extra))
    assert group(world)["minMember"] == 5
    assert world.names_of("Deployment") == ["digits-worker-0", "digits-worker-1"]
    assert world.names_of("StatefulSet") == ["digits-ps"]
    assert world.names_of("Job") == ["digits-chief-1"]
    assert world.condition("Created")["reason"] == Reason.WAITING_FOR_GANG
    assert world.plan().actions == ()
    place(world)
    world.settle()
    assert len(world.names_of("Deployment")) == 4
    assert world.names_of("StatefulSet") == ["digits-ps", "digits-standby"]
    assert world.names_of("Job") == ["digits-chief-1", "digits-evaluator-1"]
    assert (world.condition("Created")["status"], group(world)["minMember"]) == ("True", 5)
    assert phase(world) == "Running"


def test_all_pods_but_one_are_scheduled() -> None:
    world = waiting(ELASTIC)
    place(world)
    unplace(next(p for name, p in world.pods.items() if "worker-1" in name))
    world.settle()
    assert len(world.names_of("Deployment")) == 2


def test_a_scaled_job_gets_a_larger_group_once_all_are_scheduled() -> None:
    """A scaled job gets a larger group once all pods are scheduled. Until then a lost parameter server would wait for
    room for workers that do not exist yet.
    """
    world = Cluster(job(spec=PLUGINS))
    world.room = lambda name: "worker-2" not in name
    world.settle()
    world.edit({"worker": {"replicas": 3}})
    world.settle()
    assert "digits-worker-2" in world.names_of("Deployment")
    assert group(world)["minMember"] == 4
    place(world)
    world.settle()
    assert group(world)["minMember"] == 5
    world.edit({"worker": {"replicas": 1}})
    world.settle()
    assert group(world)["minMember"] == 3


def test_an_unscheduled_gang_is_resized_at_once() -> None:
    world = waiting({})
    world.edit({"worker": {"replicas": 3}})
    world.settle()
    assert group(world)["minMember"] == 5


def test_finished_members_are_not_waited_for() -> None:
    """Finished members are not waited for. Otherwise a parameter server that is lost late could not be replaced,
    because the group would always lack members.
    """
    spec = {"successPolicy": "AllWorkers", "worker": {"replicas": 3}}
    asks = {"ps": {"resources": {"requests": {"cpu": "1"}}}, "chief": {"resources": {"requests": {"cpu": "10"}}}}
    world = start(deep_merge(spec, asks), VOLCANO)
    assert group(world, OF_VOLCANO) == {"minMember": 5, "minResources": {"cpu": "11"}}
    world.end("chief")
    world.end("worker", 2)
    world.settle()
    assert group(world, OF_VOLCANO) == {"minMember": 3, "minResources": {"cpu": "1"}}


def test_a_lost_member_does_not_change_the_group() -> None:
    world = start(ELASTIC)
    world.delete_pod("ps", 1)
    world.delete_pod("chief")
    world.settle()
    assert not [w for w in world.writes if w[:2] == ("Apply", GROUP)]
    assert phase(world) == "Running"


def test_a_foreign_change_is_reverted() -> None:
    world = start(ELASTIC)
    group(world)["minMember"] = 17
    world.settle()
    assert group(world)["minMember"] == 5
    del world.children[GROUP, "digits"]
    world.settle()
    assert group(world)["minMember"] == 5


def test_a_suspended_job_has_no_group() -> None:
    world = start(ELASTIC)
    world.edit({"runPolicy": {"suspend": True}})
    world.settle()
    deleted = [w[1] for w in world.writes if w[0] == "Delete"]
    assert deleted[-1] == GROUP
    assert (GROUP, "digits") not in world.children
    assert world.condition("Created")["status"] == "True", "as of any job that is suspended"
    world.edit({"runPolicy": {"suspend": False}})
    world.settle()
    assert (phase(world), group(world)["minMember"]) == ("Running", 5)


def test_another_scheduler_gets_a_group_of_its_own() -> None:
    world = start(ELASTIC)
    world.edit({"runPolicy": {"suspend": True}})
    world.settle()
    world.edit(deep_merge(VOLCANO, {"runPolicy": {"suspend": False}}))
    world.settle()
    assert (OF_VOLCANO, "digits") in world.children
    assert (GROUP, "digits") not in world.children


def test_an_ended_job_has_no_group() -> None:
    world = start(ELASTIC)
    world.end("chief")
    world.settle()
    assert phase(world) == "Succeeded"
    assert (GROUP, "digits") not in world.children
    assert world.condition("Created")["status"] == "True", "as of any job that has ended"


def test_a_gang_without_room_is_reported_and_costs_no_writes() -> None:
    world = waiting(ELASTIC)
    world.now += timedelta(seconds=31)
    world.settle()
    reported = world.condition("Running")
    assert reported["reason"] == Reason.WAITING_FOR_GANG
    assert reported["message"] == (
        "The gang of 5 pods waits: there is no room for all of them at once, and none starts without the others. "
        "`kubectl pstraining status digits` shows the scheduler's message for each"
    )
    assert [e.reason for e in world.reported].count(Reason.WAITING_FOR_GANG) == 1
    before = world.status_writes
    for number, pod in enumerate(world.pods.values()):
        pod["status"]["conditions"][0]["message"] = f"pre-filter pod {number} cannot find enough sibling pods"
    world.settle()
    assert world.status_writes == before


def test_pods_without_a_scheduler_are_reported() -> None:
    world = waiting(ELASTIC)
    for pod in world.pods.values():
        pod["status"]["conditions"] = []
    world.now += timedelta(seconds=90)
    world.settle()
    reported = world.condition("Running")
    assert (reported["reason"], "check that scheduler-plugins runs" in reported["message"]) == (
        Reason.WAITING_FOR_GANG,
        True,
    )


def test_a_running_gangs_lost_pod_is_reported_like_any_other() -> None:
    world = start(ELASTIC)
    unplace(next(p for name, p in world.pods.items() if "worker-3" in name))
    world.now += timedelta(seconds=31)
    world.settle()
    assert world.condition("Running")["reason"] == Reason.UNSCHEDULABLE


@pytest.mark.parametrize(("policy", "product"), [(PLUGINS, "install scheduler-plugins"), (VOLCANO, "install Volcano")])
def test_a_missing_scheduler_is_reported_once(policy: dict[str, Any], product: str) -> None:
    world = World(job(spec=policy))
    snapshot, made = world.snapshot(), world.plan()
    first, *rest = made.actions
    assert isinstance(first, Create)
    unknown = Outcome(first, Verdict.NOT_SERVED, "404 page not found")
    outcomes = Outcomes((unknown, *(Outcome(a, Verdict.NOT_TRIED) for a in rest)))
    status = next_status(gather(snapshot, world.now), outcomes)
    created = next(c for c in status["conditions"] if c["type"] == "Created")
    assert (created["status"], created["reason"]) == ("False", Reason.GANG_NOT_INSTALLED)
    assert product in created["message"]
    assert "set spec.runPolicy.schedulingPolicy.gang to None" in created["message"]
    reported = [e for e in events(snapshot, status) if e.reason == Reason.GANG_NOT_INSTALLED]
    assert [(e.type, e.message) for e in reported] == [("Warning", created["message"])]
    assert world.job is not None
    world.job["status"] = status
    assert next_status(gather(world.snapshot(), world.now), outcomes) == status
    world.settle()
    assert phase(world) == "Running"
