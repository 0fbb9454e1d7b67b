"""The same amounts in another notation, such as `2000m` instead of `2`, are no other size of running pods."""

from typing import Any

import pytest

from pstraining.api import names
from pstraining.resources import kueue, sizes
from tests.support import queued_world
from tests.support.builders import job, typed
from tests.support.simulation import World, phase
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


def test_a_job_in_a_queue_runs_on_with_another_notation() -> None:
    """Its Workload requests the same quota. The job stopped, and queued again."""
    world = queued_world.running(worker={"replicas": 2, "resources": BEFORE})
    workload, uids = world.workload["metadata"]["uid"], {pod["metadata"]["uid"] for pod in world.pods.values()}
    world.edit({"worker": {"resources": AFTER}})
    world.run()
    assert phase(world) == "Running"
    assert {pod["metadata"]["uid"] for pod in world.pods.values()} == uids
    assert world.workload["metadata"]["uid"] == workload


PLACES: dict[str, Any] = {
    "a role": lambda amounts: {"ps": {"resources": {"requests": amounts}}},
    "a pod": lambda amounts: {"ps": {"template": {"spec": {"containers": [], "resources": {"limits": amounts}}}}},
    "a container": lambda amounts: {
        "ps": {"template": {"spec": {"containers": [{"name": "a", "resources": {"limits": amounts}}]}}}
    },
    "an overhead": lambda amounts: {"ps": {"template": {"spec": {"containers": [], "overhead": amounts}}}},
}


@pytest.mark.parametrize("place", PLACES)
def test_the_hashes_of_a_workload_know_amounts_in_each_place(place: str) -> None:
    several = [{"cpu": "2", "memory": "1Gi"}, {"cpu": 2, "memory": "1024Mi"}, {"cpu": "2000m", "memory": 2**30}]
    jobs = [typed(job(spec=PLACES[place](amounts))) for amounts in several]
    other = typed(job(spec=PLACES[place]({"cpu": "2001m", "memory": "1Gi"})))
    for digest in (kueue.digest, kueue.spec_digest):
        assert len({*map(digest, jobs)}) == 1
        assert digest(other) != digest(jobs[0])


def test_labels_keep_their_texts() -> None:
    """Only amounts have notations; a label named `limits` has none."""
    found = {"labels": {"limits": "2000m", "cpu": "1.0"}, "requests": {"cpu": "0.10", names.PS: "one"}}
    assert sizes.without_notations([found]) == [
        {"labels": {"limits": "2000m", "cpu": "1.0"}, "requests": {"cpu": "0.1", names.PS: "one"}}
    ]
