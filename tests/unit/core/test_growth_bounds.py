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
from tests.unit.core.test_resizing import kubelet, memory, pods_of


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
    bounds = Decimal(1024 * MIB), Decimal(maximum * MIB)
    found = next_limit(*bounds, usage, is_killed=False, is_rested=True, is_refused=False)
    assert found == (None if expected is None else expected * MIB)
    killed = next_limit(*bounds, None, is_killed=True, is_rested=False, is_refused=True)
    assert killed == min(2048, maximum) * MIB


@pytest.mark.parametrize(
    ("used", "growth", "is_rested", "is_refused", "expected"),
    [
        (972, None, True, False, None),
        (973, None, True, False, 1536),
        (973, None, False, False, 1536),
        (973, 2, False, False, 2173),
        (973, 2, False, True, None),
        (972, 2, False, False, None),
    ],
)
def test_near_the_limit_memory_grows_without_waiting(
    used: int, growth: int | None, is_rested: bool, is_refused: bool, expected: int | None
) -> None:
    """Neither for a second measurement nor for ten minutes, unless the last growth was refused."""
    usage = RoleUsage("p", memory=used * MIB, peak=used * MIB, growth=None if growth is None else growth * MIB)
    found = next_limit(
        Decimal(1024 * MIB), Decimal(4096 * MIB), usage, is_killed=False, is_rested=is_rested, is_refused=is_refused
    )
    assert found == (None if expected is None else expected * MIB)


def test_a_role_that_is_about_to_be_killed_grows_again_within_ten_minutes() -> None:
    world = growing()
    use(world, "ps", 900)
    world.settle()
    later(world, seconds=5)
    use(world, "ps", 1460)
    world.settle()
    assert set(memory(world, "ps")) == {"2304Mi"}
    assert reasons(world) == ["MemoryGrown", "MemoryGrown"]


def test_the_first_measurement_alone_grows_nothing() -> None:
    """By one measurement, a fast program would get a limit that is too small for ten minutes."""
    world = growing()
    use(world, "ps", 900, growth=None)
    world.settle()
    assert not [s for s in memory(world, "ps") if s]
    use(world, "ps", 910, growth=2 * MIB)
    world.settle()
    assert set(memory(world, "ps")) == {"2110Mi"}


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


@pytest.mark.parametrize("mode", ["Off", "Recommend"])
@pytest.mark.parametrize("is_refused", [True, False])
def test_a_growth_is_withdrawn_although_the_mode_has_changed_meanwhile(mode: str, is_refused: bool) -> None:
    world = growing()
    use(world, "worker", 900)
    world.reconcile()
    world.edit({"autoscaling": {"mode": mode}})
    if is_refused:
        world.refuse = lambda action: "exceeded quota" if isinstance(action, Resize) else ""
    else:
        world.reconcile()
        kubelet(world, pods_of(world, "worker")[0], "Infeasible", "no capacity")
        world.reconcile()
        kubelet(world, pods_of(world, "worker")[0])
    world.settle()
    later(world, minutes=5)
    world.settle()
    assert set(memory(world, "worker")) == {None if is_refused else "1024Mi"}
    assert "grownMemory" not in grown(world, "worker")
    assert reasons(world) == ["MemoryGrown", "GrowthRefused"]


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


def test_the_condition_names_no_maximum_below_the_present_limit() -> None:
    world = growing(worker={"resources": sized(8192)}, chief={"resources": sized(4096)})
    assert report(world) == ("False", "NotMeasured")
    use(world, "ps", 100)
    world.settle()
    assert report(world) == ("True", "MemoryMayGrow")
    assert world.condition("Autoscaling")["message"] == (
        "Memory limits may grow to: ps 4096Mi. chief keeps its limit of 4Gi, because its maximum is 4096Mi. "
        "worker keeps its limit of 8Gi, because its maximum is 4096Mi."
    )
