"""The amount by which a role's memory may grow at once, and the obstacles to any growth."""

from decimal import Decimal

import pytest

from pstraining.controller.rate_limit import is_startup_only
from pstraining.core.actions import Resize
from pstraining.core.policies.autoscaling import next_limit
from pstraining.core.usage import RoleUsage
from tests.support.builders import deep_merge
from tests.support.growing_world import MIB, growing, grown, kill, later, reasons, report, sized, use
from tests.support.simulation import running
from tests.unit.core.test_resizing import memory


@pytest.mark.parametrize(
    ("used", "growth", "maximum", "expected"),
    [
        (869, 50, 90_000, None),
        (871, 0, 90_000, 1536),
        (871, 1, 90_000, 1536),
        (871, 2, 90_000, 2071),
        (871, 50, 90_000, 4096),
        (871, 50, 3000, 3000),
        (871, 0, 1024, 1024),
        (871, 0, 512, 512),
    ],
)
def test_the_next_limit(used: int, growth: int, maximum: int, expected: int | None) -> None:
    """The next limit is the maximum if that is lower than the present limit, and is then no growth."""
    usage = RoleUsage("p", memory=used * MIB, peak=used * MIB, growth=growth * MIB)
    found = next_limit(Decimal(1024 * MIB), Decimal(maximum * MIB), usage, is_killed=False, is_rested=True)
    assert found == (None if expected is None else expected * MIB)
    killed = next_limit(Decimal(1024 * MIB), Decimal(maximum * MIB), None, is_killed=True, is_rested=False)
    assert killed == min(2048, maximum) * MIB


def test_a_template_that_kubernetes_does_not_resize_is_reported_once() -> None:
    world = growing()
    assert world.job is not None
    template = deep_merge(world.job["spec"]["worker"]["template"], {"spec": {"resources": {"limits": {"cpu": "4"}}}})
    policy = {"role": "ps", "maxAllowed": {"memory": "4Gi"}}
    sizes = {"ps": {"resources": world.job["spec"]["ps"]["resources"]}, "worker": {"template": template}}
    world = running(**sizes, autoscaling={"mode": "Grow", "rolePolicies": [policy]})
    world.installation = growing().installation
    for used in (900, 1000, 1020):
        use(world, "ps", used, growth=used * MIB // 100)
        world.settle()
    assert "pod-level resources" in grown(world, "ps")["message"]
    assert reasons(world) == ["GrowthRefused"]
    assert not [size for size in memory(world, "ps") if size]


@pytest.mark.parametrize("limit", ["0", "0Gi"])
def test_a_limit_of_0_is_no_limit(limit: str) -> None:
    world = growing(ps={"resources": {"limits": {"memory": limit}}})
    use(world, "ps", 1000)
    world.settle()
    assert report(world) == ("False", "NoMemoryLimit")
    assert reasons(world) == []


def test_a_grown_size_is_written_at_once_also_while_many_jobs_start() -> None:
    before = {"phase": "Running", "autoscaling": []}
    assert is_startup_only(before, before)
    assert not is_startup_only(before, {**before, "autoscaling": [{"role": "ps", "grownMemory": "2Gi"}]})


@pytest.mark.parametrize("killed", ["container", "process"])
def test_a_kill_before_a_change_of_the_spec_does_not_double_the_new_limit(killed: str) -> None:
    at_most = {"rolePolicies": [{"role": "ps", "maxAllowed": {"memory": "1Gi"}}]}
    world = growing(ps={"replicas": 1}, autoscaling=at_most)
    if killed == "container":
        use(world, "ps", 10)
        kill(world, "ps")
    else:
        use(world, "ps", 10, oom_pod="digits-ps-0", oom_at=world.now)
    world.settle()
    assert report(world) == ("False", "MaximumReached")
    later(world, minutes=1)
    larger = {"rolePolicies": [{"role": "ps", "maxAllowed": {"memory": "16Gi"}}]}
    world.edit({"ps": {"resources": sized(3072)}, "autoscaling": larger})
    world.settle()
    assert set(memory(world, "ps")) == {"3072Mi"}
    later(world, minutes=1)
    kill(world, "ps")
    world.settle()
    assert set(memory(world, "ps")) == {"6Gi"}, "a kill with the new limit counts"


def test_after_a_withdrawn_growth_a_smaller_size_of_the_spec_applies() -> None:
    world = growing()
    world.refuse = lambda action: "exceeded quota" if isinstance(action, Resize) else ""
    use(world, "ps", 900)
    world.settle()
    assert reasons(world) == ["MemoryGrown", "GrowthRefused"]
    world.refuse = None
    use(world, "ps", 100)
    world.edit({"ps": {"resources": sized(512)}})
    world.settle()
    assert set(memory(world, "ps")) == {"512Mi"}


def test_a_kill_by_the_clock_of_a_node_that_is_ahead_is_one_change() -> None:
    world = growing()
    use(world, "ps", 10)
    later(world, minutes=2)
    kill(world, "ps")
    later(world, minutes=-2)
    for _ in range(15):
        world.settle()
        later(world, seconds=20)
    assert set(memory(world, "ps")) == {"2Gi"}
    assert reasons(world) == ["MemoryDoubled"]
