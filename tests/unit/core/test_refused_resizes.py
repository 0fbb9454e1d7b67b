"""Workers whose new size the API server refuses: a worker is replaced only if a new pod may have the size."""

import pytest

from pstraining.core.actions import Resize
from tests.support.simulation import phase
from tests.unit.core.test_resizing import LARGE, pods_of, report, sized

POD = 'pods "digits-worker-0-0-15" is forbidden:'
OF_NEW_PODS_TOO = (
    f"{POD} exceeded quota: team, requested: limits.memory=3Gi, used: limits.memory=6Gi, limited: limits.memory=7Gi",
    f"{POD} maximum memory usage per Container is 2Gi, but limit is 4Gi",
    f"{POD} memory max limit to request ratio per Pod is 2, but provided ratio is 4.000000",
)


@pytest.mark.parametrize("why", OF_NEW_PODS_TOO)
def test_a_worker_that_could_not_be_created_again_keeps_its_size(why: str) -> None:
    world = sized()
    uids = {p["metadata"]["uid"] for p in world.pods.values()}
    world.refuse = lambda action: why if isinstance(action, Resize) else ""
    world.edit({"worker": {"resources": LARGE}})
    world.settle()
    assert {p["metadata"]["uid"] for p in world.pods.values()} == uids
    assert report(world) == ("False", "ResizeRefused")
    assert why in world.condition("Resizing")["message"]
    assert not world.plan().actions
    assert phase(world) == "Running"


def test_a_worker_is_replaced_if_only_a_running_pod_cannot_get_the_size() -> None:
    world = sized()
    uids = {p["metadata"]["uid"] for p in pods_of(world, "worker")}
    why = "spec.containers[0].resources.limits: Forbidden: memory limits cannot be decreased"
    world.refuse = lambda action: why if isinstance(action, Resize) else ""
    world.edit({"worker": {"resources": LARGE}})
    world.settle()
    assert uids.isdisjoint(p["metadata"]["uid"] for p in pods_of(world, "worker"))
