"""The same amounts in another notation, such as `2000m` instead of `2`, are no other size of running pods."""

from typing import Any

import pytest

from pstraining.resources import sizes
from tests.support.simulation import World
from tests.unit.core.test_hot_standby import hot
from tests.unit.core.test_resizing import LARGE, RESIZES, ROLES, memory, sized

BEFORE = {"requests": {"cpu": 2, "memory": "1Gi"}, "limits": {"memory": "1Gi"}}
AFTER = {"requests": {"cpu": "2000m"}, "limits": {"memory": "1024Mi"}}


def rewritten(world: World, resources: dict[str, Any]) -> tuple[set[str], list[str]]:
    """Give all roles these resources; return the uids of the pods, and the conditions about sizes."""
    world.edit({})
    assert world.job is not None
    for role in ROLES:
        world.job["spec"][role]["resources"] = resources
    world.settle()
    conditions = world.job["status"]["conditions"]
    uids = {pod["metadata"]["uid"] for pod in world.pods.values()}
    return uids, [c["type"] for c in conditions if c["type"] in ("Resizing", "Updating")]


@pytest.mark.parametrize("in_place", [True, False], ids=["resized in place", "not resized in place"])
@pytest.mark.parametrize("standbys", [False, True], ids=["without standbys", "hot standbys"])
def test_no_pod_is_replaced_for_another_notation(in_place: bool, standbys: bool) -> None:
    own: dict[str, Any] = {role: {"resources": BEFORE} for role in ROLES}
    servers = {"replicas": 2, "standby": {"mode": "Hot"}, "resources": BEFORE}
    world = hot(**own | {"ps": servers}) if standbys else sized(**own)
    world.installation = RESIZES if in_place else world.installation
    uids = {pod["metadata"]["uid"] for pod in world.pods.values()}
    assert rewritten(world, AFTER) == (uids, [])
    assert "Resize" not in {verb for verb, _, _ in world.writes}


def test_a_later_change_of_the_size_applies() -> None:
    world = sized(worker={"resources": BEFORE})
    rewritten(world, AFTER)
    world.edit({"worker": {"resources": LARGE | {"requests": {"cpu": 2, "memory": "4Gi"}}}})
    world.settle()
    assert set(memory(world, "worker")) == {"4Gi"}


@pytest.mark.parametrize(
    ("before", "after", "are_equal"),
    [
        (BEFORE, AFTER, True),
        ({"limits": {"cpu": "1"}}, {"limits": {"cpu": 1}, "requests": {"cpu": "1e0"}}, True),
        ({"limits": {"memory": "512M"}}, {"limits": {"memory": "512Mi"}}, False),
        ({}, {"requests": {"cpu": 0}}, False),
        ({"requests": {"cpu": 1}}, {"requests": {"cpu": 1}, "limits": {"cpu": "one"}}, False),
        ({"requests": {"cpu": "one"}}, {"requests": {"cpu": "two"}}, False),
    ],
)
def test_amounts_are_compared(before: dict[str, Any], after: dict[str, Any], are_equal: bool) -> None:
    found = sizes.are_equal(sizes.text({"resources": before}), sizes.text({"resources": after}))
    assert found is are_equal
