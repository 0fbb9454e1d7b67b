"""Workers whose new size the API server refuses: a worker is replaced only if a new pod may have the size."""

import pytest

from pstraining.core.actions import Resize
from tests.support.growing_world import growing, grown, reasons, use
from tests.support.simulation import World, phase
from tests.unit.core.test_resizing import LARGE, kubelet, memory, pods_of, report, sized

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


def requests(world: World, passes: int) -> int:
    """Run some passes, each after an event, and return the number of resizes that were requested."""
    before = len(world.writes)
    for _ in range(passes):
        world.reconcile()
    return sum(kind == "Resize" for kind, _, _ in world.writes[before:])


def test_a_refused_size_is_not_requested_again_while_other_pods_wait_for_room() -> None:
    world = sized()
    world.edit({"ps": {"resources": LARGE}})
    world.reconcile()
    kubelet(world, pods_of(world, "ps")[0], "Deferred", "no room")
    world.refuse = lambda action: f"{POD} exceeded quota: team" if isinstance(action, Resize) else ""
    world.edit({"worker": {"resources": LARGE}})
    assert requests(world, 1) == 1
    writes = world.status_writes
    assert requests(world, 6) == 0
    assert world.status_writes == writes
    assert report(world) == ("False", "ResizeRefused")


def test_a_refused_size_is_not_requested_again_while_a_worker_is_replaced() -> None:
    world = sized()
    world.refuse = lambda action: "memory limits cannot be decreased" if isinstance(action, Resize) else ""
    world.edit({"worker": {"resources": LARGE}})
    assert requests(world, 1) == 1
    world.reconcile()
    assert [p["metadata"]["labels"]["pstraining.dev/index"] for p in pods_of(world, "worker")] == ["1"]
    world.reconcile()
    writes = world.status_writes
    assert requests(world, 6) == 0, "the new pod of worker 0 takes a while to start"
    assert world.status_writes == writes
    message = world.condition("Resizing")["message"]
    assert message.endswith("memory limits cannot be decreased. Workers get it by a restart, one at a time.")


@pytest.mark.parametrize("refused", [["ps"], ["chief"], ["ps", "worker"], ["chief", "ps"]])
def test_a_refused_size_of_one_role_does_not_hold_back_the_others(refused: list[str]) -> None:
    world = sized()
    why = f"{POD} exceeded quota: team"
    world.refuse = lambda a: why if isinstance(a, Resize) and a.name.split("-")[1] in refused else ""
    world.edit({role: {"resources": LARGE} for role in ("ps", "worker", "chief")})
    world.settle()
    found = {role: set(memory(world, role)) for role in ("ps", "worker", "chief")}
    assert found == {role: {None if role in refused else "4Gi"} for role in found}
    assert report(world) == ("False", "ResizeRefused")
    message = world.condition("Resizing")["message"]
    assert all(message.count(f"The new size of Pod digits-{role}-") == 1 for role in refused)
    assert requests(world, 4) == 0
    assert not world.plan().actions
    assert world.job is not None
    recorded = {role for role in found if "refusedSize" in world.job["status"][role]}
    assert recorded == set(refused)
    world.refuse = None
    world.edit({})
    world.settle()
    assert {size for role in found for size in memory(world, role)} == {"4Gi"}, "each change of the spec tries again"
    assert not any("refusedSize" in world.job["status"][role] for role in found)


@pytest.mark.parametrize("refused", ["chief", ""])
def test_memory_grows_although_the_size_of_another_role_is_refused(refused: str) -> None:
    world = growing()
    world.refuse = lambda action: "exceeded quota: q" if isinstance(action, Resize) and refused in action.name else ""
    world.edit({"chief": {"resources": {"limits": {"memory": "2Gi"}}}})
    world.settle()
    assert report(world)[1] == "ResizeRefused"
    use(world, "worker", 900)
    world.settle()
    assert report(world)[1] == "ResizeRefused"
    grows = bool(refused)
    assert set(memory(world, "worker")) == {"1536Mi" if grows else None}
    assert ("grownMemory" in grown(world, "worker")) is grows
    assert reasons(world) == (["MemoryGrown"] if grows else ["MemoryGrown", "GrowthRefused"])


def test_the_error_of_a_kubelet_that_cannot_apply_a_size_is_reported() -> None:
    """Kubernetes 1.34 does so for a memory limit below the present use."""
    world = sized()
    world.edit({"chief": {"resources": LARGE}})
    world.reconcile()
    (chief,) = pods_of(world, "chief")
    kubelet(world, chief, "Error", "the limit is below the current usage", kind="PodResizeInProgress")
    world.settle()
    assert report(world) == ("True", "ResizeInProgress")
    why = (
        f"The kubelet of {chief['metadata']['name']} has failed, and tries again: the limit is below the current usage"
    )
    assert world.condition("Resizing")["message"].endswith(f"no container restarts. {why}")
    kubelet(world, chief)
    world.settle()
    assert report(world) == ("False", "Resized")
