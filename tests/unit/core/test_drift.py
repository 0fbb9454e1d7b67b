"""Corrections of children that another client has changed: they end, and leave what server-side apply leaves."""

from typing import Any

import pytest

from pstraining.api import names
from pstraining.core.actions import Apply, Kind
from tests.support.simulation import World, running

PORT = {"name": "metrics", "port": 9000, "protocol": "TCP", "targetPort": 9000}
OWNER = {"apiVersion": "v1", "kind": "ConfigMap", "name": "theirs", "uid": "theirs"}


def service(world: World) -> dict[str, Any]:
    return world.children["Service", "digits-ps-0"]


def lists(found: dict[str, Any]) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    return found["spec"]["ports"], found["metadata"]["ownerReferences"]


def test_what_other_clients_add_to_a_service_causes_no_writes() -> None:
    """An apply keeps their ports and owners, so it would be sent again and again."""
    world = running()
    ports, owners = lists(service(world))
    ports.insert(0, PORT)
    owners.append(OWNER)
    assert world.plan().actions == ()


@pytest.mark.parametrize("place", [0, 1], ids=["ports", "owners"])
def test_a_changed_port_or_owner_is_corrected_beside_those_of_other_clients(place: int) -> None:
    world = running()
    changed = lists(service(world))[place]
    changed[0] |= {"targetPort": 9000, "blockOwnerDeletion": False}
    changed.append((PORT, OWNER)[place])
    (action,) = world.plan().actions
    assert isinstance(action, Apply)
    assert action.name == "digits-ps-0"
    world.settle()
    ports, owners = lists(service(world))
    assert {port["name"]: port["targetPort"] for port in ports if port != PORT} == {"tf": 2222, "status": 2223}
    assert [owner["blockOwnerDeletion"] for owner in owners if owner != OWNER] == [True]
    assert (PORT, OWNER)[place] in lists(service(world))[place]


def test_a_missing_port_is_corrected() -> None:
    world = running()
    lists(service(world))[0].pop()
    assert [action.name for action in world.plan().actions if isinstance(action, Apply)] == ["digits-ps-0"]


TASKS = {
    ("Job", "digits-chief-1"): {names.LABEL_ROLE: "chief", names.LABEL_TERM: "1"},
    ("Job", "digits-evaluator-1"): {names.LABEL_ROLE: "evaluator", names.LABEL_ATTEMPT: "1"},
    ("Deployment", "digits-worker-1"): {names.LABEL_ROLE: "worker", names.LABEL_INDEX: "1"},
    ("StatefulSet", "digits-ps"): {names.LABEL_ROLE: "ps", names.LABEL_MEMBER: "0"},
    ("StatefulSet", "digits-standby"): {names.LABEL_ROLE: "ps", names.LABEL_MEMBER: "1"},
    ("StatefulSet", "digits-standby-2"): {names.LABEL_ROLE: "ps", names.LABEL_MEMBER: "2"},
}


@pytest.mark.parametrize("changed", [{"role": "7", "index": "7"}, {}], ids=["changed", "missing"])
def test_a_workload_is_known_by_its_name_whatever_its_labels(changed: dict[str, str]) -> None:
    standbys = {"standby": {"mode": "Hot", "replicasPerShard": 2}}
    world = running(evaluator={"enabled": True}, ps=standbys, training={"mode": "Sync"})
    for key, own in TASKS.items():
        metadata = world.children[key]["metadata"]
        others = {label: value for label, value in metadata["labels"].items() if label not in own}
        metadata["labels"] = others | {f"{names.GROUP}/{name}": value for name, value in changed.items()}
        found = world.snapshot().children[Kind(key[0]), key[1]]
        assert own.items() | others.items() <= found.labels.items()
    assert world.plan().actions == ()
    world.edit({"runPolicy": {"suspend": True}})
    assert [a.name for a in world.plan().actions] == ["digits-chief-1"], "the chief was never stopped"
