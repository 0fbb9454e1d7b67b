"""Preferred placement of pods: soft, and only where the template has none."""

from typing import Any

import pytest

from pstraining.resources import pods
from pstraining.resources.launcher import LauncherMap
from pstraining.resources.placement import FAINT_SKEW
from pstraining.resources.pods import PodTask
from tests.support.builders import TEMPLATE, deep_merge, job, typed

MANY = [("ps", PodTask("ps")), ("worker", PodTask("worker", 0))]
ALL = [*MANY, ("chief", PodTask("chief", term=1))]


def spec_of(task: PodTask, spec: dict[str, Any] | None = None) -> dict[str, Any]:
    found: dict[str, Any] = pods.build(typed(job(spec=spec)), task, LauncherMap("l"))["spec"]
    return found


@pytest.mark.parametrize(("role", "task"), MANY)
def test_a_role_is_spread_among_its_own_kind(role: str, task: PodTask) -> None:
    (spread,) = spec_of(task)["topologySpreadConstraints"]
    assert (spread["maxSkew"], spread["whenUnsatisfiable"]) == (1, "ScheduleAnyway")
    assert spread["topologyKey"] == "kubernetes.io/hostname"
    selector = spread["labelSelector"]["matchLabels"]
    for other, of in ALL:
        labels = pods.build(typed(job()), of, LauncherMap("l"))["metadata"]["labels"]
        assert (selector.items() <= labels.items()) == (other == role)


def test_the_topology_key_is_the_jobs() -> None:
    (spread,) = spec_of(PodTask("ps"), {"network": {"topologyKey": "topology.kubernetes.io/zone"}})[
        "topologySpreadConstraints"
    ]
    assert spread["topologyKey"] == "topology.kubernetes.io/zone"


PACKED = {"network": {"packTopologyKey": "topology.kubernetes.io/zone"}}


@pytest.mark.parametrize(("_role", "task"), ALL)
def test_a_packed_job_keeps_together(_role: str, task: PodTask) -> None:
    assert "podAffinity" not in spec_of(task).get("affinity", {})
    found = spec_of(task, PACKED)["affinity"]["podAffinity"]
    (soft,) = found.pop("preferredDuringSchedulingIgnoredDuringExecution")
    assert not found
    assert soft["podAffinityTerm"]["topologyKey"] == "topology.kubernetes.io/zone"
    selector = soft["podAffinityTerm"]["labelSelector"]["matchLabels"]
    for _, other in ALL:
        assert selector.items() <= pods.build(typed(job()), other, LauncherMap("l"))["metadata"]["labels"].items()
    stranger = job()
    stranger["metadata"]["uid"] = "another"
    assert not selector.items() <= pods.build(typed(stranger), task, LauncherMap("l"))["metadata"]["labels"].items()


def test_members_of_a_shard_are_apart_in_a_packed_job_too() -> None:
    found = spec_of(PodTask("ps"), PACKED | {"ps": {"standby": {"mode": "Warm"}}})["affinity"]
    assert found["podAntiAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]
    assert found["podAffinity"]


SPOT = {"nodeSelector": {"pool": "spot"}, "tolerations": [{"key": "spot", "operator": "Exists"}]}
RELIABLE: dict[str, Any] = {
    "nodeSelector": {"pool": "reliable"},
    "tolerations": [],
    "affinity": {"nodeAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": []}},
}


def placed(member: int, placement: dict[str, Any] | None, template: dict[str, Any] | None = None) -> dict[str, Any]:
    """Return the pod spec of a member of a shard on spot nodes."""
    standby = {"mode": "Warm", "replicasPerShard": 2, **({} if placement is None else {"placement": placement})}
    own = {"template": template or deep_merge(TEMPLATE, {"spec": SPOT})}
    return spec_of(PodTask("ps", member=member), {"ps": {**own, "standby": standby}})


def keys(spec: dict[str, Any]) -> set[str]:
    """Return the keys that the pod tolerates, except those of lost nodes."""
    return {t["key"] for t in spec["tolerations"] if not t["key"].startswith("node.kubernetes.io/")}


def test_standbys_are_placed_apart_from_primaries() -> None:
    primary = placed(0, RELIABLE)
    assert (primary["nodeSelector"], keys(primary)) == ({"pool": "spot"}, {"spot"})
    assert "nodeAffinity" not in primary["affinity"]
    for member in (1, 2):
        standby = placed(member, RELIABLE)
        assert (standby["nodeSelector"], keys(standby)) == ({"pool": "reliable"}, set())
        assert standby["affinity"]["nodeAffinity"] == RELIABLE["affinity"]["nodeAffinity"]
        assert standby["affinity"]["podAntiAffinity"], "members of a shard stay on different nodes"


@pytest.mark.parametrize("placement", [None, {}, {"affinity": {}}])
def test_fields_absent_from_a_placement_come_from_the_template(placement: dict[str, Any] | None) -> None:
    standby = placed(1, placement)
    assert (standby["nodeSelector"], keys(standby)) == ({"pool": "spot"}, {"spot"})


def test_a_placement_of_every_node_removes_the_templates_selector() -> None:
    assert placed(1, {"nodeSelector": {}})["nodeSelector"] == {}


def test_a_placement_also_applies_without_a_template_of_the_servers() -> None:
    """The copy of the worker's template loses the GPU nodes; the servers' placement is not part of the copy, and
    stays.
    """
    gpu = deep_merge(TEMPLATE, {"spec": {"nodeSelector": {"nvidia.com/gpu.present": "true"}}})
    gpu["spec"]["containers"][0]["resources"] = {"limits": {"nvidia.com/gpu": 1}}
    without = {"nodeSelector": {"nvidia.com/gpu.present": "false"}}
    spec = {"worker": {"template": gpu}, "ps": {"standby": {"mode": "Warm", "placement": without}}}
    assert not spec_of(PodTask("ps"), spec).get("nodeSelector")
    assert spec_of(PodTask("ps", member=1), spec)["nodeSelector"] == {"nvidia.com/gpu.present": "false"}


def test_within_a_packed_job_the_spread_counts_less() -> None:
    (spread,) = spec_of(PodTask("worker", 0), PACKED)["topologySpreadConstraints"]
    assert (spread["maxSkew"], spread["topologyKey"]) == (FAINT_SKEW, "kubernetes.io/hostname")


@pytest.mark.parametrize("own", [{}, {"podAntiAffinity": {}}, None])
def test_a_template_without_a_podaffinity_is_packed(own: dict[str, Any] | None) -> None:
    template = deep_merge(TEMPLATE, {"spec": {"affinity": own}})
    assert spec_of(PodTask("worker", 0), PACKED | {"worker": {"template": template}})["affinity"]["podAffinity"]


def test_a_template_with_its_own_placement_is_left_alone() -> None:
    own: dict[str, Any] = {"podAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": []}}
    template = deep_merge(TEMPLATE, {"spec": {"affinity": own}})
    assert spec_of(PodTask("worker", 0), PACKED | {"worker": {"template": template}})["affinity"] == own


def test_the_chief_is_alone() -> None:
    assert "topologySpreadConstraints" not in spec_of(PodTask("chief", term=1))


@pytest.mark.parametrize("own", [[], [{"maxSkew": 2, "topologyKey": "rack", "whenUnsatisfiable": "DoNotSchedule"}]])
def test_a_template_with_its_own_spread_is_left_alone(own: list[dict[str, Any]]) -> None:
    template = deep_merge(TEMPLATE, {"spec": {"topologySpreadConstraints": own}})
    assert spec_of(PodTask("worker", 0), {"worker": {"template": template}})["topologySpreadConstraints"] == own


@pytest.mark.parametrize(("_role", "task"), ALL)
def test_every_pod_has_the_priority_class(_role: str, task: PodTask) -> None:
    policy = {"runPolicy": {"schedulingPolicy": {"priorityClass": "batch-low"}}}
    assert spec_of(task, policy)["priorityClassName"] == "batch-low"
    assert "priorityClassName" not in spec_of(task)
    template = deep_merge(TEMPLATE, {"spec": {"priorityClassName": "mine"}})
    assert spec_of(task, policy | {"worker": {"template": template}})["priorityClassName"] == "mine"
