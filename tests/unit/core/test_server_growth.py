"""Parameter servers are added in mode Full, where their memory or CPU does not suffice."""

from dataclasses import replace
from datetime import timedelta
from decimal import Decimal
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pstraining.api import names
from pstraining.cli.validation.schema import validate
from pstraining.core.actions import Resize
from pstraining.core.policies.grown_sizes import GROW_SHARE, REST
from pstraining.core.policies.server_growth import MEMORY_AIM, MEMORY_SHARE, next_number
from pstraining.resources.installation import Installation, KueueSupport
from tests.support.builders import job
from tests.support.growing_world import MAXIMUM, MEASURES, growing, grown, kill, later, report, sized, use
from tests.support.queued_world import queued
from tests.support.simulation import World
from tests.unit.core.test_resizing import kubelet, pods_of

CHECKPOINT = {"volume": {"persistentVolumeClaim": {"claimName": "c"}}}
POLICY = {"role": "ps", "maxAllowed": {"memory": "1Gi"}, "maxReplicas": 8}


def full(**spec: Any) -> World:
    """Return a running job of two servers with 1 Gi of memory, their maximum; up to eight servers may be added."""
    sizing = {"mode": "Full", "rolePolicies": [POLICY]}
    return growing(**{"autoscaling": sizing, "checkpoint": CHECKPOINT, **spec})


def servers(world: World) -> int:
    """Return the number of servers of the StatefulSet."""
    found: int = world.children["StatefulSet", "digits-ps"]["spec"]["replicas"]
    return found


def added(world: World) -> list[str]:
    return [e.message for e in world.reported if e.reason == "ServersAdded"]


@given(servers=st.integers(1, 999), most=st.integers(2, 1000), factor=st.decimals("1.4", 4, places=2))
def test_servers_are_added_up_to_twice_their_number(servers: int, most: int, factor: Decimal) -> None:
    number = next_number(servers, max(most, servers + 1), factor)
    assert servers < number <= min(2 * servers, max(most, servers + 1))
    if number < min(2 * servers, most):
        assert servers * factor <= number


@given(servers=st.integers(1, 999))
def test_a_change_needs_at_most_85_percent_of_the_largest_memory_limit(servers: int) -> None:
    """A server that stays holds its part of both layouts for a while."""
    number = next_number(servers, 1000, MEMORY_SHARE / MEMORY_AIM)
    if number < 1000:
        assert MEMORY_SHARE * (1 + Decimal(servers) / number) <= GROW_SHARE


@pytest.mark.parametrize(
    ("servers", "factor", "number"), [(1, "1.67", 2), (2, "1.67", 4), (3, "1.67", 6), (10, "1.67", 17), (4, "5", 8)]
)
def test_the_servers_then_have_the_use_that_is_the_aim(servers: int, factor: str, number: int) -> None:
    assert next_number(servers, 1000, Decimal(factor)) == number


def test_servers_are_added_at_half_of_the_largest_memory_limit() -> None:
    world = full()
    use(world, "ps", 511)
    world.settle()
    assert servers(world) == 2
    use(world, "ps", 512)
    world.settle()
    assert servers(world) == 4
    assert grown(world, "ps")["grownReplicas"] == 4
    assert added(world) == [
        "ps: digits-ps-0 uses 512Mi, 50 % of the largest memory limit that it may have: ps.replicas 2 -> 4."
    ]
    assert "MaximumReached" not in [e.reason for e in world.reported], "more servers can help"
    assert report(world) == ("True", "MemoryMayGrow")
    assert world.condition("Autoscaling")["message"].endswith("ps.replicas may grow to 8.")
    assert world.job is not None
    assert world.job["spec"]["ps"]["replicas"] == 2, "the spec stays as its user wrote it"


def test_the_largest_memory_limit_is_set_before_servers_are_added() -> None:
    world = full(autoscaling={"mode": "Full", "rolePolicies": [{**POLICY, "maxAllowed": {"memory": "2Gi"}}]})
    use(world, "ps", 900)
    world.settle()
    assert (grown(world, "ps")["grownMemory"], servers(world)) == ("1536Mi", 2), "memory grows as in mode Grow"
    later(world, minutes=1)
    use(world, "ps", 1024)
    world.reconcile()
    assert (grown(world, "ps")["grownMemory"], servers(world)) == ("2Gi", 2)
    world.settle()
    assert servers(world) == 4
    assert [e.reason for e in world.reported if e.reason in ("MemoryGrown", "ServersAdded")] == [
        *("MemoryGrown", "MemoryGrown", "ServersAdded"),
    ]
    later(world, seconds=REST.total_seconds() - 60)
    use(world, "ps", 1300)
    world.settle()
    assert servers(world) == 4, "their number changes at most once in ten minutes"
    later(world, seconds=60)
    use(world, "ps", 1300)
    world.settle()
    assert servers(world) == 8


def test_a_largest_limit_that_is_refused_is_tried_again_after_ten_minutes() -> None:
    world = full(autoscaling={"mode": "Full", "rolePolicies": [{**POLICY, "maxAllowed": {"memory": "2Gi"}}]})
    world.refuse = lambda action: "exceeded quota: q" if isinstance(action, Resize) else ""
    for _ in range(3):
        use(world, "ps", 1024)
        world.settle()
    assert [e.reason for e in world.reported].count("MemoryGrown") == 1
    assert servers(world) == 2
    world.refuse = None
    later(world, seconds=REST.total_seconds())
    use(world, "ps", 1024)
    world.settle()
    assert (grown(world, "ps")["grownMemory"], servers(world)) == ("2Gi", 4)


@pytest.mark.parametrize(("most", "number"), [(8, 4), (2, 2)])
def test_servers_are_added_where_no_node_grants_more_memory(most: int, number: int) -> None:
    policy = {**POLICY, "maxAllowed": {"memory": "16Gi"}, "maxReplicas": most}
    world = full(autoscaling={"mode": "Full", "rolePolicies": [policy]})
    use(world, "ps", 900)
    world.reconcile()
    world.reconcile()
    assert (grown(world, "ps")["grownMemory"], servers(world)) == ("1536Mi", 2)
    kubelet(world, pods_of(world, "ps")[0], "Infeasible", "Node didn't have enough capacity: memory")
    world.reconcile()
    kubelet(world, pods_of(world, "ps")[0])
    world.settle()
    assert servers(world) == number
    assert "grownMemory" not in grown(world, "ps")
    cause = "digits-ps-0 uses 900Mi, 88 % of its memory limit, and a node can grant no larger one"
    assert added(world) == ([f"ps: {cause}: ps.replicas 2 -> 4."] if number > 2 else [])
    assert ("GrowthRefused" in [e.reason for e in world.reported]) is (number == 2)


@pytest.mark.parametrize(("used", "number"), [(849, 2), (850, 3), (1000, 4)])
def test_servers_are_added_when_the_busiest_uses_its_cpu_limit(used: int, number: int) -> None:
    resources = {"limits": {"cpu": "1", "memory": "1Gi"}}
    world = full(ps={"replicas": 2, "resources": resources})
    use(world, "ps", 100, mean_cpu=used)
    world.settle()
    assert servers(world) == number
    if number > 2:
        assert f"has used {used}m, {used // 10} % of its CPU limit, for five minutes" in added(world)[0]


def test_cpu_without_a_limit_adds_no_server() -> None:
    world = full()
    use(world, "ps", 100, mean_cpu=64000)
    world.settle()
    assert servers(world) == 2


def test_servers_are_added_at_most_once_in_ten_minutes_and_up_to_the_maximum() -> None:
    world, numbers = full(), []
    for _ in range(5):
        use(world, "ps", 1020)
        world.settle()
        numbers.append(servers(world))
        later(world, seconds=REST.total_seconds() - 60)
        use(world, "ps", 1020)
        world.settle()
        assert servers(world) == numbers[-1]
        later(world, seconds=60)
    assert numbers == [4, 8, 8, 8, 8]
    assert report(world) == ("False", "MaximumReached")
    assert world.condition("Autoscaling")["message"].endswith("ps.replicas has its maximum of 8.")
    assert [e.reason for e in world.reported].count("MaximumReached") == 1, "reported once"


def test_a_killed_server_at_its_maximum_gets_more_beside_it() -> None:
    world = full()
    use(world, "ps", 300)
    world.settle()
    kill(world, "ps")
    world.settle()
    assert servers(world) == 4


def test_without_resizes_in_place_servers_are_added() -> None:
    world = full(autoscaling={"mode": "Full", "rolePolicies": [{**POLICY, "maxAllowed": {"memory": "4Gi"}}]})
    world.installation = Installation(progress=MEASURES.progress, resizes_pods=False)
    use(world, "ps", 600)
    world.settle()
    assert servers(world) == 4
    assert report(world) == ("False", "ResizeNotServed")
    assert world.condition("Autoscaling")["message"].endswith("ps.replicas may grow to 8.")


def test_without_a_lasting_checkpoint_no_server_is_added() -> None:
    world = full(checkpoint={"volume": {"emptyDir": {}}})
    use(world, "ps", 900)
    world.settle()
    assert servers(world) == 2
    message = world.condition("Autoscaling")["message"]
    assert message.endswith("ps.replicas does not grow, because spec.checkpoint.volume does not outlive its pod.")


@pytest.mark.parametrize("chief", [True, False])
def test_no_server_is_added_once_the_leader_has_succeeded(*, chief: bool) -> None:
    """For the new servers its program would run again."""
    world = full(successPolicy="AllWorkers", chief={"enabled": chief})
    world.end("chief" if chief else "worker")
    world.settle()
    use(world, "ps", 900, mean_cpu=64000)
    world.settle()
    assert servers(world) == 2
    why = f"ps.replicas does not grow, because {'the chief' if chief else 'worker 0'} has succeeded"
    assert why in world.condition("Autoscaling")["message"]


def test_a_memory_limit_that_was_set_with_high_cpu_use_can_be_withdrawn() -> None:
    """Servers that are added replace the record of the former limit, so they wait for the pods' new size."""
    resources = {"limits": {"cpu": "1", "memory": "1Gi"}}
    policy = {**POLICY, "maxAllowed": {"memory": "4Gi"}}
    world = full(ps={"replicas": 2, "resources": resources}, autoscaling={"mode": "Full", "rolePolicies": [policy]})
    use(world, "ps", 900, mean_cpu=950)
    world.reconcile()
    assert [e.reason for e in world.reported if e.reason in ("MemoryGrown", "ServersAdded")] == ["MemoryGrown"]
    world.refuse = lambda action: "exceeded quota: q" if isinstance(action, Resize) else ""
    world.settle()
    assert "grownMemory" not in grown(world, "ps")
    assert servers(world) == 2
    world.refuse = None
    later(world, seconds=REST.total_seconds())
    use(world, "ps", 900, mean_cpu=950)
    world.settle()
    assert (grown(world, "ps")["grownMemory"], servers(world)) == ("1536Mi", 4)


@pytest.mark.parametrize(("used", "number"), [(2047, 2), (2048, 4)])
def test_a_memory_limit_beyond_the_maximum_takes_its_place(used: int, number: int) -> None:
    world = full(ps={"replicas": 2, "resources": sized(4096)})
    use(world, "ps", used)
    world.settle()
    assert servers(world) == number


def test_no_server_is_added_within_ten_minutes_after_a_change_although_memory_has_grown() -> None:
    resources = {"limits": {"cpu": "1", "memory": "512Mi"}, "requests": {"memory": "512Mi"}}
    world = full(ps={"replicas": 2, "resources": resources})
    use(world, "ps", 100, mean_cpu=950)
    world.settle()
    assert servers(world) == 4
    later(world, minutes=2)
    kill(world, "ps")
    world.settle()
    assert grown(world, "ps")["grownMemory"] == "1Gi"
    later(world, minutes=2)
    use(world, "ps", 600, mean_cpu=950)
    world.settle()
    assert servers(world) == 4
    later(world, seconds=REST.total_seconds())
    use(world, "ps", 600, mean_cpu=950)
    world.settle()
    assert servers(world) == 8


def test_a_users_change_of_the_number_counts_as_the_last_one() -> None:
    world = full()
    world.edit({"ps": {"replicas": 3}})
    world.settle()
    use(world, "ps", 900)
    world.settle()
    assert servers(world) == 3
    later(world, seconds=REST.total_seconds())
    use(world, "ps", 900)
    world.settle()
    assert servers(world) == 6


def test_no_server_is_added_while_their_number_changes() -> None:
    world = full()
    world.edit({"ps": {"replicas": 4}})
    world.reconcile()
    use(world, "ps", 1000)
    world.reconcile()
    assert "grownReplicas" not in grown(world, "ps")


@pytest.mark.parametrize("mode", ["Grow", "Recommend", "Off"])
def test_servers_stay_when_the_mode_changes(mode: str) -> None:
    world = full()
    use(world, "ps", 900)
    world.settle()
    world.edit({"autoscaling": {"mode": mode}})
    world.settle()
    assert servers(world) == 4
    later(world, minutes=20)
    use(world, "ps", 1000)
    world.settle()
    assert servers(world) == 4, "no further server"


def test_the_job_starts_with_its_own_number_after_a_suspension_without_autoscaling() -> None:
    world = full()
    use(world, "ps", 900)
    world.settle()
    for spec in ({"autoscaling": {"mode": "Off"}}, {"runPolicy": {"suspend": True}}, {"runPolicy": {"suspend": False}}):
        world.edit(spec)
        world.settle()
    assert servers(world) == 2


@pytest.mark.parametrize(("number", "expected"), [(2, 4), (3, 4), (5, 5)])
def test_the_larger_number_applies(number: int, expected: int) -> None:
    world = full()
    use(world, "ps", 1020)
    world.settle()
    world.edit({"ps": {"replicas": number}})
    world.settle()
    assert servers(world) == expected


def test_a_lower_maximum_removes_servers_that_were_added() -> None:
    world = full()
    use(world, "ps", 1020)
    world.settle()
    assert servers(world) == 4
    use(world, "ps", 100)
    world.edit({"autoscaling": {"rolePolicies": [{**POLICY, "maxReplicas": 3}]}})
    world.settle()
    assert servers(world) == 3


def test_the_message_of_a_change_that_waits_names_the_field_that_withdraws_it() -> None:
    world = full()
    use(world, "ps", 900)
    world.reconcile()
    world.reconcile()
    assert world.condition("Rescaling")["reason"] == "StartingServers"
    withdraw = "Set maxReplicas of ps in spec.autoscaling.rolePolicies to 2 to withdraw the change."
    assert withdraw in world.condition("Rescaling")["message"]
    assert servers(world) == 4
    world.edit({"autoscaling": {"rolePolicies": [{**POLICY, "maxReplicas": 2}]}})
    world.settle()
    assert servers(world) == 2


def test_an_operator_that_restarts_keeps_the_number() -> None:
    world = full()
    use(world, "ps", 900)
    world.settle()
    world.usage = {}
    world.now += timedelta(hours=3)
    world.settle()
    assert servers(world) == 4


def test_a_queued_job_gets_no_server() -> None:
    world = queued(
        ps={"replicas": 1, "resources": sized()},
        autoscaling={"mode": "Full", "rolePolicies": [POLICY]},
        checkpoint=CHECKPOINT,
    )
    world.installation = replace(MEASURES, kueue=KueueSupport.ON)
    world.run()
    use(world, "ps", 1020, mean_cpu=64000)
    world.run()
    assert servers(world) == 1
    assert report(world) == ("False", "QueueFixesSizes")


def test_full_names_what_it_needs() -> None:
    asked = {"mode": "Full", "rolePolicies": [POLICY]}
    assert not validate(job(spec={"autoscaling": asked, "checkpoint": CHECKPOINT}))
    (missing,) = validate(job(spec={"autoscaling": asked}))
    assert "needs spec.checkpoint" in missing.message
    policy = {"role": "ps", "maxAllowed": {"memory": f"{MAXIMUM}Mi"}}
    (unbounded,) = validate(job(spec={"autoscaling": {**asked, "rolePolicies": [policy]}, "checkpoint": CHECKPOINT}))
    assert "needs maxReplicas of role ps" in unbounded.message
    for role in (r for r in names.ROLES if r != names.PS):
        policies = [POLICY, {**POLICY, "role": role}]
        (other,) = validate(job(spec={"autoscaling": {**asked, "rolePolicies": policies}, "checkpoint": CHECKPOINT}))
        assert "only role ps may have maxReplicas" in other.message
