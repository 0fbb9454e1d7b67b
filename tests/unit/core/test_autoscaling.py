"""Reactions to measured usage: recommended sizes, and memory that grows in place before a container runs out of it."""

from dataclasses import replace
from typing import Any

import pytest

from pstraining.api import names
from pstraining.cli.validation.schema import validate
from pstraining.core.actions import Resize
from pstraining.core.policies.grown_sizes import REST
from pstraining.resources.installation import Installation, KueueSupport
from tests.support.builders import job, stamp
from tests.support.cluster_maps import cluster_map
from tests.support.growing_world import MEASURES, MIB, growing, grown, kill, later, reasons, report, sized, use
from tests.support.queued_world import queued
from tests.support.simulation import running
from tests.unit.core.test_hot_standby import hot
from tests.unit.core.test_resizing import kubelet, memory, pods_of, resized


def test_without_autoscaling_nothing_is_measured_and_nothing_is_written() -> None:
    world = running()
    world.installation = MEASURES
    world.settle()
    writes = world.status_writes
    use(world, "ps", 1000)
    world.settle()
    assert world.status_writes == writes
    assert "measured" not in cluster_map(world)


def test_launchers_measure_while_the_job_runs() -> None:
    world = running(evaluator={"enabled": True})
    world.edit({"autoscaling": {"mode": "Recommend"}})
    world.settle()
    assert cluster_map(world)["measured"] == {"evaluator": ["digits-evaluator.digits-hs:2222"]}


def test_sizes_are_recommended_and_nothing_is_resized() -> None:
    world = growing("Recommend")
    assert report(world) == ("False", "NotMeasured")
    use(world, "ps", 1000, cpu=433)
    world.settle()
    assert report(world) == ("True", "SizesRecommended")
    found = grown(world, "ps")
    assert (found["peakMemory"], found["recommendedMemory"], found["recommendedCPU"]) == ("1000Mi", "1200Mi", "440m")
    assert not resized(world)
    assert memory(world, "ps") == [None, None]


def test_the_status_is_written_only_for_changes() -> None:
    world = growing("Recommend")
    use(world, "ps", 500, cpu=400)
    world.settle()
    writes = world.status_writes
    for peak, cpu in ((501, 390), (540, 430), (549, 365), (10, 401)):
        use(world, "ps", peak, cpu=cpu)
        world.settle()
    assert world.status_writes == writes
    assert grown(world, "ps")["peakMemory"] == "500Mi"
    use(world, "ps", 551, cpu=400)
    world.settle()
    assert (world.status_writes, grown(world, "ps")["peakMemory"]) == (writes + 1, "551Mi")
    use(world, "ps", 10)
    world.usage = {}
    world.settle()
    assert (world.status_writes, grown(world, "ps")["peakMemory"]) == (writes + 1, "551Mi"), "a peak stays"


@pytest.mark.parametrize("role", ["ps", "worker", "chief"])
def test_memory_grows_in_place_at_85_percent(role: str) -> None:
    world = growing()
    before = {n: p["metadata"]["uid"] for n, p in world.pods.items()}
    use(world, role, 870)
    world.settle()
    assert not [s for s in memory(world, role) if s]
    use(world, role, 871)
    world.settle()
    assert set(memory(world, role)) == {"1536Mi"}
    assert {n: p["metadata"]["uid"] for n, p in world.pods.items()} == before, "no pod was replaced"
    assert grown(world, role)["message"] == (
        f"digits-{role}-0 uses 871Mi, 85 % of its memory limit: limits.memory 1Gi -> 1536Mi."
    )
    assert reasons(world) == ["MemoryGrown"]
    assert report(world) == ("True", "MemoryMayGrow")
    assert world.job is not None
    assert world.job["spec"][role]["resources"] == sized(), "the spec stays the user's"


def test_a_role_without_a_maximum_does_not_grow() -> None:
    world = growing(evaluator={"enabled": True, "resources": sized()})
    use(world, "evaluator", 1024)
    world.settle()
    assert not resized(world)
    assert grown(world, "evaluator")["recommendedMemory"] == "1229Mi"


def test_a_fast_program_gets_what_ten_minutes_need_at_most_fourfold() -> None:
    world = growing()
    use(world, "ps", 900, growth=2 * MIB)
    world.settle()
    assert set(memory(world, "ps")) == {"2100Mi"}
    use(world, "worker", 900, growth=100 * MIB)
    world.settle()
    assert set(memory(world, "worker")) == {"4Gi"}


def test_a_role_changes_at_most_once_in_ten_minutes() -> None:
    world = growing()
    use(world, "ps", 900)
    world.settle()
    use(world, "ps", 1450)
    later(world, seconds=REST.total_seconds() - 1)
    world.settle()
    assert set(memory(world, "ps")) == {"1536Mi"}
    later(world, seconds=1)
    world.settle()
    assert set(memory(world, "ps")) == {"2304Mi"}


@pytest.mark.parametrize("ended", [False, True])
def test_memory_doubles_after_an_oom_kill_also_within_ten_minutes(*, ended: bool) -> None:
    """The kernel kills a container, or a process below its launcher, which restarts that process."""
    world = growing()
    use(world, "ps", 900)
    world.settle()
    later(world, minutes=1)
    if ended:
        kill(world, "ps")
    else:
        use(world, "ps", 10, oom_pod="digits-ps-0", oom_at=world.now)
    world.settle()
    assert set(memory(world, "ps")) == {"3Gi"}
    assert reasons(world) == ["MemoryGrown", "MemoryDoubled"]
    assert grown(world, "ps")["message"] == "After an OOM kill of digits-ps-0: limits.memory 1536Mi -> 3Gi."
    later(world, minutes=1)
    world.settle()
    assert set(memory(world, "ps")) == {"3Gi"}, "one kill is one change"


def test_kills_of_the_former_size_and_of_long_ago_change_nothing() -> None:
    world = growing()
    kill(world, "ps")
    world.settle()
    assert set(memory(world, "ps")) == {"2Gi"}
    later(world, seconds=20)
    kill(world, "ps")
    world.settle()
    assert set(memory(world, "ps")) == {"2Gi"}, "it happened while the size changed"
    world = growing("Recommend")
    kill(world, "ps")
    later(world, minutes=6)
    world.edit({"autoscaling": {"mode": "Grow"}})
    world.settle()
    assert not [s for s in memory(world, "ps") if s]


def test_the_maximum_holds_and_is_reported_once() -> None:
    world = growing()
    for _ in range(6):
        use(world, "ps", 4096, growth=1000 * MIB)
        later(world, minutes=10)
        world.settle()
    assert set(memory(world, "ps")) == {"4Gi"}
    assert reasons(world) == ["MemoryGrown", "MaximumReached"]
    assert report(world) == ("False", "MaximumReached")
    assert "Raise maxAllowed.memory of ps in spec.autoscaling.rolePolicies" in world.condition("Autoscaling")["message"]
    kill(world, "ps")
    world.settle()
    assert set(memory(world, "ps")) == {"4Gi"}
    world.edit({"autoscaling": {"rolePolicies": [{"role": "ps", "maxAllowed": {"memory": "5Gi"}}]}})
    world.settle()
    assert set(memory(world, "ps")) == {"5Gi"}


def test_a_maximum_that_is_lowered_holds_at_once() -> None:
    world = growing()
    use(world, "ps", 900, growth=100 * MIB)
    world.settle()
    world.edit({"autoscaling": {"rolePolicies": [{"role": "ps", "maxAllowed": {"memory": "2Gi"}}]}})
    world.settle()
    assert set(memory(world, "ps")) == {"2Gi"}


def test_a_larger_size_in_the_spec_wins_and_a_smaller_one_does_not() -> None:
    world = growing()
    use(world, "worker", 900)
    world.settle()
    world.edit({"worker": {"resources": sized(1280)}})
    world.settle()
    assert set(memory(world, "worker")) == {"1536Mi"}
    world.edit({"worker": {"resources": sized(5120)}})
    world.settle()
    assert set(memory(world, "worker")) == {"5120Mi"}, "also beyond the maximum"


def test_returning_pods_have_the_grown_size() -> None:
    world = growing()
    for role in ("ps", "worker", "chief"):
        use(world, role, 900)
    world.settle()
    template = world.children["StatefulSet", "digits-ps"]["spec"]["template"]
    assert template["spec"]["containers"][0]["resources"] == sized(1536)
    world.delete_pod("worker", 1)
    world.end("chief", code=1)
    world.settle()
    world.settle()
    assert set(memory(world, "worker")) == {"1536Mi"}
    (chief,) = [p for p in pods_of(world, "chief") if p["status"]["phase"] == "Running"]
    assert '"1536Mi"' in chief["metadata"]["annotations"][names.ANNOTATION_SIZE]


def test_a_restarted_operator_knows_the_grown_size() -> None:
    """The operator crashes after writing the size to the status, before it resizes a pod."""
    world = growing()
    world.now = world.now.replace(microsecond=700_000)
    use(world, "ps", 900)
    world.reconcile()
    assert grown(world, "ps")["grownMemory"] == "1536Mi"
    assert grown(world, "ps")["grownTime"] == stamp(world.now), "without fractions of a second"
    assert not [s for s in memory(world, "ps") if s]
    world.usage = {}
    world.settle()
    assert set(memory(world, "ps")) == {"1536Mi"}


def test_requests_keep_their_share_of_the_limit() -> None:
    world = growing(ps={"resources": sized(1024, memory="256Mi", cpu="500m")})
    use(world, "ps", 900)
    asked = world.plan()
    assert not asked.actions
    world.reconcile()
    found = [a.resources for a in world.plan().actions if isinstance(a, Resize)]
    assert found == [{"limits": {"memory": "1536Mi"}, "requests": {"memory": "384Mi", "cpu": "500m"}}] * 2


def test_a_limit_without_a_request_requests_the_limit_as_in_a_new_pod() -> None:
    world = growing(worker={"template": {"spec": {"containers": [_container()]}}}, ps={"resources": None})
    use(world, "ps", 900)
    world.reconcile()
    found = [a.resources for a in world.plan().actions if isinstance(a, Resize)]
    assert found == [{"limits": {"cpu": "1", "memory": "1536Mi"}, "requests": {"cpu": "1", "memory": "1536Mi"}}] * 2


def _container() -> dict[str, Any]:
    limits = {"limits": {"cpu": "1", "memory": "1Gi"}}
    return {"name": "tensorflow", "image": "i", "command": ["c"], "resources": limits}


def test_hot_standbys_grow_one_of_a_shard_at_a_time() -> None:
    policy = {"role": "ps", "maxAllowed": {"memory": "4Gi"}}
    servers = {"replicas": 1, "standby": {"mode": "Hot"}, "resources": sized()}
    world = hot(ps=servers, autoscaling={"mode": "Grow", "rolePolicies": [policy]})
    world.installation = MEASURES
    before = {n: p["metadata"]["uid"] for n, p in world.pods.items()}
    for used, limit in ((900, "1536Mi"), (1500, "2304Mi")):
        use(world, "ps", used)
        later(world, minutes=10)
        world.reconcile()
        assert resized(world) == ["digits-standby-0"]
        world.settle()
        assert set(memory(world, "ps")) == {limit}
        assert {n: p["metadata"]["uid"] for n, p in world.pods.items()} == before


def test_a_growth_that_the_api_server_rejects_is_reverted_and_retried_later() -> None:
    world = growing()
    before = {n: p["metadata"]["uid"] for n, p in world.pods.items()}
    refused = "digits-worker-1"
    world.refuse = lambda action: "exceeded quota: q" if isinstance(action, Resize) and refused in action.name else ""
    use(world, "worker", 900)
    world.settle()
    assert "exceeded quota: q" in grown(world, "worker")["message"]
    assert set(memory(world, "worker")) <= {"1024Mi", None}, "both workers have the former size"
    assert {n: p["metadata"]["uid"] for n, p in world.pods.items()} == before, "no worker is replaced for it"
    assert reasons(world) == ["MemoryGrown", "GrowthRefused"]
    later(world, minutes=5)
    world.settle()
    assert not resized(world)
    world.refuse = None
    later(world, minutes=5)
    world.settle()
    assert set(memory(world, "worker")) == {"1536Mi"}


@pytest.mark.parametrize("role", ["ps", "worker"])
def test_a_size_that_a_node_can_never_grant_is_reverted(role: str) -> None:
    world = growing()
    before = {n: p["metadata"]["uid"] for n, p in world.pods.items()}
    use(world, role, 900)
    world.reconcile()
    world.reconcile()
    kubelet(world, pods_of(world, role)[0], "Infeasible", "Node didn't have enough capacity: memory")
    world.reconcile()
    kubelet(world, pods_of(world, role)[0])
    world.settle()
    assert set(memory(world, role)) == {"1024Mi"}
    assert {n: p["metadata"]["uid"] for n, p in world.pods.items()} == before, "no pod is replaced for it"
    assert reasons(world) == ["MemoryGrown", "GrowthRefused"]
    assert grown(world, role)["message"].endswith("Node didn't have enough capacity: memory")


def test_nothing_grows_further_while_a_node_has_no_room() -> None:
    world = growing()
    use(world, "ps", 900)
    world.settle()
    kubelet(world, pods_of(world, "ps")[0], "Deferred", "no room")
    use(world, "ps", 1024)
    later(world, minutes=20)
    kill(world, "ps")
    world.settle()
    assert set(memory(world, "ps")) == {"1536Mi"}


def test_sizes_stay_when_growth_is_switched_off() -> None:
    world = growing()
    use(world, "ps", 900)
    world.settle()
    world.edit({"autoscaling": {"mode": "Off"}})
    world.settle()
    assert set(memory(world, "ps")) == {"1536Mi"}
    assert report(world) == ("False", "AutoscalingOff")
    world.edit({"runPolicy": {"suspend": True}})
    world.settle()
    world.edit({"runPolicy": {"suspend": False}})
    world.settle()
    template = world.children["StatefulSet", "digits-ps"]["spec"]["template"]
    assert template["spec"]["containers"][0]["resources"] == sized()


@pytest.mark.parametrize(
    ("installation", "reason", "sizes"),
    [
        (replace(MEASURES, progress=None), "NotMeasured", {"2Gi"}),
        (replace(MEASURES, resizes_pods=False), "ResizeNotServed", {None}),
    ],
)
def test_growth_that_the_installation_does_not_support_is_reported(
    installation: Installation, reason: str, sizes: set[str | None]
) -> None:
    """Without reports, memory still doubles after an OOM kill."""
    world = growing()
    world.installation = installation
    world.usage = {}
    if installation.progress is not None:
        use(world, "ps", 1000)
    kill(world, "ps")
    world.settle()
    assert report(world) == ("False", reason)
    assert set(memory(world, "ps")) == sizes


def test_a_job_that_kueue_has_admitted_does_not_grow() -> None:
    policy = {"role": "ps", "maxAllowed": {"memory": "4Gi"}}
    world = queued(ps={"replicas": 1, "resources": sized()}, autoscaling={"mode": "Grow", "rolePolicies": [policy]})
    world.installation = replace(MEASURES, kueue=KueueSupport.ON)
    world.run()
    use(world, "ps", 1024)
    kill(world, "ps")
    world.run()
    assert report(world) == ("False", "QueueFixesSizes")
    assert "train without a queue" in world.condition("Autoscaling")["message"]
    assert grown(world, "ps")["recommendedMemory"] == "1229Mi"
    assert memory(world, "ps") == [None]
    assert "QueueFixesSizes" in [e.reason for e in world.reported]


def test_a_role_without_a_limit_is_reported() -> None:
    world = growing(ps={"resources": {"limits": None}})
    use(world, "ps", 1000)
    world.settle()
    assert report(world) == ("False", "NoMemoryLimit")
    assert "ps" in world.condition("Autoscaling")["message"]


def test_a_job_that_has_ended_keeps_its_figures() -> None:
    world = growing()
    use(world, "ps", 900)
    world.settle()
    world.end("chief")
    world.settle()
    assert grown(world, "ps")["grownMemory"] == "1536Mi"
    assert report(world) == ("False", "JobFinished")


def test_growth_needs_a_maximum() -> None:
    asked = job(spec={"autoscaling": {"mode": "Grow"}})
    (found,) = validate(asked)
    assert found.field == "spec.autoscaling.rolePolicies"
    assert "set spec.autoscaling.mode to Recommend" in found.message
    more = job(spec={"autoscaling": {"mode": "Shrink"}})
    assert "must be one of Off, Recommend, Grow, Full" in validate(more)[0].message
    policy = {"role": "ps", "maxAllowed": {"memory": "much"}}
    wrong = job(spec={"autoscaling": {"mode": "Grow", "rolePolicies": [policy]}})
    assert "maxAllowed.memory" in validate(wrong)[0].field
    number = job(spec={"autoscaling": {"mode": "Grow", "rolePolicies": [{"role": "ps", "maxAllowed": {"memory": 1}}]}})
    assert not validate(number)
