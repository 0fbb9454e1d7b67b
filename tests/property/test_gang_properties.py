"""Invariants of the gang of every job, in every history."""

from decimal import Decimal
from typing import Any

from hypothesis import given, note
from hypothesis import strategies as st

from pstraining.cli.validation.schema import validate
from pstraining.core.actions import Kind
from pstraining.resources import gang, pods, resource_requests
from tests.property.test_planner_properties import HISTORIES, THOROUGH, play
from tests.support.builders import TEMPLATE, job, typed
from tests.support.simulation import World

LABEL = "scheduling.x-k8s.io/pod-group"
AMOUNTS = st.dictionaries(
    st.sampled_from(["cpu", "memory", "nvidia.com/gpu"]), st.sampled_from(["1", "250m", "2Gi", "0.5", 3]), max_size=3
)


@st.composite
def gangs(draw: st.DrawFn) -> dict[str, Any]:
    """Draw a job with a gang, as the API server accepts it."""
    workers = draw(st.integers(1, 6))
    fewest = draw(st.none() | st.integers(1, workers))
    ps, chief = draw(st.integers(1, 4)), draw(st.booleans())
    policy: dict[str, Any] = {"gang": draw(st.sampled_from(["SchedulerPlugins", "Volcano"]))}
    always = ps + chief
    if draw(st.booleans()):
        policy["minAvailable"] = draw(st.integers(always + (fewest or workers), always + workers))
    container = TEMPLATE["spec"]["containers"][0] | {"resources": {"requests": draw(AMOUNTS)}}
    spec: dict[str, Any] = {
        "ps": {"replicas": ps, "standby": {"mode": draw(st.sampled_from(["None", "Warm"]))}},
        "chief": {"enabled": chief},
        "evaluator": {"enabled": draw(st.booleans())},
        "worker": {"replicas": workers, "template": {"spec": {"containers": [container]}}},
        "runPolicy": {"schedulingPolicy": policy},
    }
    if fewest is not None:
        spec["worker"]["minReplicas"] = fewest
    if (own := draw(st.none() | AMOUNTS)) is not None:
        spec["ps"]["resources"] = {"requests": own}
    found = job(spec=spec)
    assert not validate(found)
    return found


@THOROUGH
@given(gangs())
def test_a_group_can_be_filled_by_what_is_created_for_it(found: dict[str, Any]) -> None:
    """The group's members are exactly the pods of the first pass, and it requests exactly their resources."""
    world = World(found)
    world.reconcile()
    group = next(body for (kind, _), body in world.children.items() if kind in map(str, Kind.pod_groups()))
    count, asked = 0, []
    for (kind, _), body in world.children.items():
        if kind in ("StatefulSet", "Deployment", "Job"):
            template, replicas = body["spec"]["template"], body["spec"].get("replicas", 1)
            marks = {**template["metadata"]["labels"], **template["metadata"]["annotations"]}
            assert "digits" in (marks.get(LABEL), marks.get("scheduling.k8s.io/group-name"))
            assert template["spec"]["schedulerName"]
            count += replicas
            asked.append((replicas, resource_requests.of_pod(template["spec"])))
    assert group["spec"]["minMember"] == count
    reported = resource_requests.total(asked) if group["apiVersion"].startswith("scheduling.volcano.sh/") else {}
    assert group["spec"].get("minResources", {}) == reported


@THOROUGH
@given(gangs(), st.integers(0, 6), st.integers(0, 4), st.booleans())
def test_fewer_members_request_no_more_resources(found: dict[str, Any], workers: int, ps: int, chief: bool) -> None:
    made = typed(found)
    scheduler, start = gang.provider(made), gang.members(made)
    assert scheduler is not None
    fewer = gang.GangMembers(min(ps, start.ps), min(int(chief), start.chief), min(workers, start.workers))
    small, large = (
        gang.build(made, scheduler, some, pods.gang_requests(made, some))["spec"] for some in (fewer, start)
    )
    assert 1 <= small["minMember"] <= large["minMember"]
    for name, amount in small.get("minResources", {}).items():
        assert Decimal(0) < resource_requests.parse(amount) <= resource_requests.parse(large["minResources"][name])


@THOROUGH
@given(gangs(), HISTORIES)
def test_a_running_gang_never_asks_for_more_pods_than_there_are(found: dict[str, Any], history: list[Any]) -> None:
    """A running gang never requires more pods than exist; a scheduler that counts pods would otherwise never place a
    lost pod's successor.
    """
    found["spec"]["worker"].pop("minReplicas", None)  # a history scales without a limit
    found["spec"]["runPolicy"]["schedulingPolicy"].pop("minAvailable", None)
    world = World(found)
    for step in history:
        note(str(step))
        play(world, step)
    world.settle(40)
    assert world.plan().actions == (), "the plan on the result of a plan is empty"
    groups = [body for (kind, _), body in world.children.items() if kind in map(str, Kind.pod_groups())]
    running = [p for p in world.pods.values() if p["status"]["phase"] == "Running"]
    assert all(group["spec"]["minMember"] <= max(1, len(running)) for group in groups)
