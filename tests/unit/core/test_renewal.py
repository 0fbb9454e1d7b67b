"""Parameter servers with hot standbys are recreated one at a time, while the others keep the state."""

from typing import Any

import pytest

from pstraining.api import names
from pstraining.api.conditions import Reason
from pstraining.core.actions import Delete, Kind, Replace
from tests.support.simulation import World, phase
from tests.unit.core.test_hot_standby import hot, turn

SMALL, LARGE = ({"requests": {"memory": size}} for size in ("1Gi", "4Gi"))


def resources(found: dict[str, Any]) -> Any:
    return found["spec"]["template"]["spec"]["containers"][0].get("resources")


def gone(world: World) -> list[str]:
    """Return the pods that the next pass ends."""
    return [a.name for a in world.plan().actions if isinstance(a, Delete) and a.kind is Kind.POD]


def replace_next(world: World) -> str:
    """End one server and let it return, without the state at first."""
    (name,) = gone(world)
    world.reconcile()
    assert not gone(world), "one at a time"
    world.controllers()
    turn(world, name, ready=False)
    assert not gone(world), "no other server ends while it receives the state"
    world.reconcile()
    turn(world, name, ready=True)
    return name


def enlarged(**spec: Any) -> World:
    """Return a job whose servers are to be larger, after the update of its StatefulSets."""
    world = hot(**spec)
    world.edit({"ps": {"resources": LARGE}})
    world.reconcile()
    return world


def test_servers_are_replaced_one_at_a_time_standbys_first() -> None:
    world = hot(ps={"replicas": 2, "standby": {"mode": "Hot"}, "resources": SMALL})
    before = dict(world.pods)
    world.edit({"ps": {"resources": LARGE}})
    replaced = [a for a in world.plan().actions if isinstance(a, Replace)]
    assert [a.name for a in replaced] == ["digits-ps", "digits-standby"]
    assert not gone(world), "a returning server would be unchanged"
    world.reconcile()
    assert {n: resources(world.children["StatefulSet", n]) for n in ("digits-ps", "digits-standby")} == {
        "digits-ps": LARGE,
        "digits-standby": LARGE,
    }
    assert world.condition("Updating")["status"] == "True"
    assert "0 of 4 parameter servers" in world.condition("Updating")["message"]
    order = [replace_next(world) for _ in range(4)]
    assert order == ["digits-standby-0", "digits-standby-1", "digits-ps-0", "digits-ps-1"]
    world.settle()
    assert world.condition("Updating")["status"] == "False"
    assert world.condition("Updating")["reason"] == "ServersUpdated"
    assert [e.reason for e in world.reported if e.reason in ("ReplacingServers", "ServersUpdated")] == [
        "ReplacingServers",
        "ServersUpdated",
    ]
    others = {n for n, p in before.items() if p["metadata"]["labels"][names.LABEL_ROLE] != names.PS}
    assert {n for n in before if world.pods[n] is before[n]} == others, "no other pod was changed"
    assert phase(world) == "Running"


def test_the_current_primary_is_replaced_last() -> None:
    world = hot(replicas=1)
    world.reconcile()
    turn(world, "digits-ps-0", ready=False)
    world.reconcile()
    world.edit({"ps": {"resources": LARGE}})
    world.reconcile()
    assert not gone(world)
    turn(world, "digits-ps-0", ready=True)
    assert gone(world) == ["digits-standby-0"], "one that is in sync again is primary again"


@pytest.mark.parametrize("lost", ["digits-ps-0", "digits-standby-1"])
def test_no_server_is_replaced_while_a_member_is_not_in_sync(lost: str) -> None:
    world = enlarged()
    turn(world, lost, ready=False)
    assert not gone(world)
    del world.pods[lost]
    assert not gone(world)
    turn_all = [n for n in world.pods if "ps" in n or "standby" in n]
    assert len(turn_all) == 3
    world.controllers()
    assert len(gone(world)) == 1


def test_a_server_that_does_not_run_is_replaced_at_once() -> None:
    """A server that does not run is replaced at once: it requested too much memory, and the next change of the spec
    corrects that.
    """
    world = enlarged()
    (name,) = gone(world)
    world.reconcile()
    world.controllers()
    turn(world, name, ready=False)
    world.pods[name]["status"]["containerStatuses"] = []
    world.pods[name]["status"]["phase"] = "Pending"
    assert not gone(world)
    world.edit({"ps": {"resources": SMALL}})
    world.reconcile()
    assert gone(world) == [name]
    world.settle()
    assert world.condition("Updating")["status"] == "False"


def test_a_rejected_template_changes_nothing() -> None:
    world = hot()
    world.reconcile()
    before = dict(world.pods)
    world.refuse = lambda action: "requests: Invalid value" if isinstance(action, Replace) else ""
    world.edit({"ps": {"resources": LARGE}})
    world.settle()
    reported = world.condition("Updating")
    assert (reported["status"], reported["reason"]) == ("False", "UpdateRefused")
    assert "StatefulSet digits-ps was refused" in reported["message"]
    assert "requests: Invalid value" in reported["message"]
    assert phase(world) == "Running"
    assert all(world.pods[name] is found for name, found in before.items())
    assert any(e.type == "Warning" and e.reason == "UpdateRefused" for e in world.reported)
    world.refuse = None
    assert not world.plan().actions, "it is not tried again and again"
    world.edit({"ps": {"resources": SMALL}})
    world.settle(40)
    assert world.condition("Updating")["reason"] == "ServersUpdated"
    assert {str(resources(world.children["StatefulSet", n])) for n in world.names_of("StatefulSet")} == {str(SMALL)}


def test_a_further_change_during_the_update_is_followed() -> None:
    world = enlarged()
    replace_next(world)
    world.edit({"ps": {"resources": SMALL}})
    world.settle(40)
    assert {str(resources(world.children["StatefulSet", n])) for n in world.names_of("StatefulSet")} == {str(SMALL)}
    assert len({p["metadata"]["annotations"][names.ANNOTATION_SERVER_TEMPLATE] for p in servers(world)}) == 1


def servers(world: World) -> list[dict[str, Any]]:
    return [p for p in world.pods.values() if p["metadata"]["labels"][names.LABEL_ROLE] == names.PS]


def test_servers_without_a_recorded_template_are_left_alone() -> None:
    """Servers without a recorded template, of a job from an older operator, are left alone."""
    world = enlarged()
    for child in (world.children["StatefulSet", n] for n in world.names_of("StatefulSet")):
        del child["spec"]["template"]["metadata"]["annotations"][names.ANNOTATION_SERVER_TEMPLATE]
    for found in servers(world):
        del found["metadata"]["annotations"][names.ANNOTATION_SERVER_TEMPLATE]
    assert not world.plan().actions


def test_a_rolling_update_ends_with_the_job() -> None:
    world = enlarged()
    assert world.condition("Updating")["status"] == "True"
    world.edit({"runPolicy": {"suspend": True}})
    world.settle()
    assert (world.condition("Updating")["status"], world.condition("Updating")["reason"]) == ("False", "Suspended")
    world.edit({"runPolicy": {"suspend": False}})
    world.settle()
    world.end("chief")
    world.settle()
    assert (world.condition("Updating")["status"], world.condition("Updating")["reason"]) == ("False", "JobFinished")


@pytest.mark.parametrize("mode", ["None", "Warm"])
def test_servers_without_hot_standbys_are_never_replaced(mode: str) -> None:
    """Servers without hot standbys are never replaced. The API's rules reject such a change while the job runs; an
    unobserved one stops the job in order.
    """
    world = hot(ps={"replicas": 1, "standby": {"mode": mode}})
    world.edit({"ps": {"template": world.job["spec"]["worker"]["template"]}})  # type: ignore[index]
    assert [(action.kind, action.reason) for action in world.plan().actions] == [(Kind.JOB, Reason.SPEC_CHANGED)]
