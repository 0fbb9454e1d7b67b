"""Containers that restart for another size are not resized in place: a server would lose its part of the model."""

from typing import Any

import pytest

from pstraining.core.actions import Replace, Resize
from tests.support.builders import TEMPLATE, deep_merge
from tests.unit.core.test_resizing import report, resized, size, sized


def restarting(resource: str) -> dict[str, Any]:
    policy = [{"resourceName": resource, "restartPolicy": "RestartContainer"}]
    container: dict[str, Any] = {**TEMPLATE["spec"]["containers"][0], "resizePolicy": policy}
    return {"worker": {"template": {"spec": {"containers": [container]}}}}


@pytest.mark.parametrize(("resource", "in_place"), [("memory", False), ("cpu", True)])
def test_a_server_is_not_restarted_for_its_size(resource: str, in_place: bool) -> None:
    world = sized(**restarting(resource))
    world.edit({"ps": {"resources": size("4Gi")}})
    assert resized(world) == (["digits-ps-0", "digits-ps-1"] if in_place else [])
    world.settle()
    assert report(world) == ("False", "Resized" if in_place else "ResizeInfeasible")
    if not in_place:
        message = world.condition("Resizing")["message"]
        assert "resizePolicy of the template restarts the container when its memory changes. To change it" in message


def test_workers_whose_containers_restart_are_replaced_one_at_a_time() -> None:
    world = sized(**restarting("memory"))
    world.edit({"worker": {"resources": size("4Gi")}})
    actions = [a for a in world.plan().actions if isinstance(a, Replace | Resize)]
    assert [(type(a), a.name) for a in actions] == [(Replace, "digits-worker-0")]


def test_a_chief_is_resized_in_place_whatever_the_workers_template() -> None:
    world = sized(**deep_merge(restarting("memory"), {"worker": {"replicas": 1}}))
    world.edit({"chief": {"resources": size("4Gi")}})
    assert len(resized(world)) == 1
