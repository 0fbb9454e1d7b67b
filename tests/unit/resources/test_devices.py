"""A GPU worker's template in roles without GPUs: settings of GPU nodes are removed, or kept and reported."""

import copy
from typing import Any

import pytest

from pstraining.api import names
from pstraining.core.policies.inheritance import inherited
from pstraining.resources import devices, pods
from pstraining.resources.launcher import LauncherMap
from pstraining.resources.pods import PodTask
from tests.support.builders import job, typed

GKE, ZONE = "cloud.google.com/gke-accelerator", "topology.kubernetes.io/zone"
TOLERATES = {"key": "nvidia.com/gpu", "operator": "Exists"}
OTHER = {"key": "team", "operator": "Exists"}
REQUESTS = {"limits": {"nvidia.com/gpu": 1, "memory": "256Gi"}, "requests": {"cpu": 32}}


def pod(**spec: Any) -> dict[str, Any]:
    container = {"name": "tensorflow", "image": "img:1", "command": ["train"], "resources": copy.deepcopy(REQUESTS)}
    return {"containers": [container], **copy.deepcopy(spec)}


def required(*terms: list[dict[str, Any]], kind: str = "matchExpressions") -> dict[str, Any]:
    found = {"nodeSelectorTerms": [{kind: term} for term in terms]}
    return {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": found}}


def has(key: str, operator: str = "Exists") -> dict[str, Any]:
    return {"key": key, "operator": operator}


def preferred(*keys: str) -> dict[str, Any]:
    terms = [{"weight": 1, "preference": {"matchExpressions": [has(key)]}} for key in keys]
    return {"nodeAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": terms}}


@pytest.mark.parametrize(
    ("given", "left"),
    [
        ({"nodeSelector": {GKE: "nvidia-l4", ZONE: "a"}}, {"nodeSelector": {ZONE: "a"}}),
        ({"nodeSelector": {"nvidia.com/gpu.product": "H100"}, "tolerations": [TOLERATES, OTHER]},
         {"tolerations": [OTHER]}),
        ({"tolerations": [TOLERATES], "runtimeClassName": "nvidia-legacy"}, {}),
        ({"runtimeClassName": "gvisor"}, {"runtimeClassName": "gvisor"}),
        ({"tolerations": [{"operator": "Exists"}]}, {"tolerations": [{"operator": "Exists"}]}),
        ({"affinity": required([has(GKE), has(ZONE)])}, {"affinity": required([has(ZONE)])}),
        ({"affinity": required([has(GKE)], [has(ZONE)])}, {"affinity": {"nodeAffinity": {}}}),
        ({"affinity": required([has("nvidia.com/mig", "DoesNotExist")])},
         {"affinity": required([has("nvidia.com/mig", "DoesNotExist")])}),
        ({"affinity": preferred(GKE, "disk")}, {"affinity": preferred("disk")}),
    ],
)  # fmt: skip
def test_a_copy_leaves_the_nodes_that_only_gpus_select(given: dict[str, Any], left: dict[str, Any]) -> None:
    spec = pod(**given)
    devices.drop(spec)
    assert spec.pop("containers")[0]["resources"] == {"limits": {"memory": "256Gi"}, "requests": {"cpu": 32}}
    assert spec == left


@pytest.mark.parametrize(
    "given",
    [
        {"nodeSelector": {"pool": "gpu", GKE: "nvidia-l4"}, "tolerations": [TOLERATES], "runtimeClassName": "nvidia"},
        {"affinity": required([has("pool")]), "tolerations": [TOLERATES]},
    ],
)
def test_a_copy_that_other_labels_bind_to_the_nodes_keeps_all(given: dict[str, Any]) -> None:
    spec = pod(**given)
    devices.drop(spec)
    del spec["containers"]
    assert spec == given


def test_a_template_without_devices_is_left_alone() -> None:
    spec = pod(nodeSelector={GKE: "nvidia-l4"}, tolerations=[TOLERATES])
    del spec["containers"][0]["resources"]["limits"]["nvidia.com/gpu"]
    before = copy.deepcopy(spec)
    devices.drop(spec)
    assert spec == before


@pytest.mark.parametrize(
    "given",
    [
        {"nodeSelector": "a", "tolerations": "b", "affinity": "c", "runtimeClassName": 1},
        {"tolerations": ["a", {"key": 1}], "affinity": {"nodeAffinity": "a"}},
        {"affinity": required([{"key": 1}, {}])},
        {"affinity": required([has(GKE)], kind="matchFields")},
        {
            "affinity": {
                "nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": ["a"]}}
            }
        },
        {"affinity": {"nodeAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": ["a", {"preference": 1}]}}},
    ],
)
def test_invalid_templates_are_left_to_the_api_server(given: dict[str, Any]) -> None:
    spec = pod(**given)
    devices.drop(spec)
    del spec["containers"]
    assert spec == given


@pytest.mark.parametrize("listed", [{"resourceClaims": [{"name": "gpu"}]}, {}], ids=["listed", "by a container only"])
def test_claimed_devices_are_devices(listed: dict[str, Any]) -> None:
    spec = pod(nodeSelector={GKE: "x"}, **listed)
    spec["containers"][0]["resources"] = {"claims": [{"name": "gpu"}]}
    devices.drop(spec)
    assert spec == {"containers": [{**pod()["containers"][0], "resources": {}}]}


def messages(spec: dict[str, Any], **roles: Any) -> list[str]:
    made = job(spec={"worker": {"template": {"spec": spec}}, **roles})
    return [f"{item.field} {item.message}" for item in inherited(typed(made).spec)]


def test_devices_of_workers_may_be_in_the_resources_of_their_role() -> None:
    bare = pod(nodeSelector={GKE: "nvidia-l4"}, tolerations=[TOLERATES], runtimeClassName="nvidia")
    bare["containers"][0]["resources"] = {"requests": {"cpu": 32}}
    workers = {"template": {"spec": bare}, "resources": REQUESTS}
    for role, stays in (("worker", True), ("ps", False), ("chief", False)):
        made = pods.build(typed(job(spec={"worker": workers})), PodTask(role), LauncherMap("l"))["spec"]
        assert [f in made for f in ("nodeSelector", "runtimeClassName")] == [stays] * 2, role
        assert (TOLERATES in made["tolerations"]) is stays, role
    elsewhere = typed(job(spec={"worker": workers | {"template": {"spec": bare | {"nodeSelector": {"pool": "gpu"}}}}}))
    first = inherited(elsewhere.spec)[0]
    assert first.field == "spec.ps.template"
    assert "only on nodes with the label pool" in first.message


def test_remaining_settings_are_reported_by_field() -> None:
    ps, ps_size, chief, chief_size = messages(pod(nodeSelector={"pool": "gpu"}))
    assert ps.startswith("spec.ps.template is not set: ")
    assert "only on nodes with the label pool" in ps
    assert ps_size.startswith("spec.ps.resources is not set: ")
    assert "cpu: 32, memory: 256Gi" in ps_size
    assert chief.startswith("spec.chief.template is not set")
    assert chief_size.startswith("spec.chief.resources is not set")
    own = {"resources": {"requests": {"cpu": 1}}}
    (message,) = messages(pod(runtimeClassName="gvisor"), ps={"replicas": 1, **own}, chief={"enabled": False})
    assert message.startswith("spec.ps.template is not set")
    assert "runtimeClassName gvisor" in message


@pytest.mark.parametrize("given", [REQUESTS, {}])
def test_devices_that_a_role_requests_and_its_copied_template_hides_are_reported(given: dict[str, Any]) -> None:
    workers = pod()
    workers["containers"][0]["resources"] = given
    (message,) = messages(workers, chief={"resources": REQUESTS}, ps={"replicas": 1, "resources": {}})
    assert message.startswith("spec.chief.template is not set: the chief's pods request nvidia.com/gpu, but")
    own = {"enabled": True, "template": {"spec": pod()}, "resources": REQUESTS}
    assert not messages(workers, chief={"enabled": False}, ps={"replicas": 1, "resources": {}}, evaluator=own)


def test_roles_with_explicit_settings_or_no_gpu_are_not_reported() -> None:
    own = {"resources": {"requests": {"cpu": 1}}}
    gpu = pod(nodeSelector={GKE: "nvidia-l4"}, tolerations=[TOLERATES])
    assert not messages(gpu, ps={"replicas": 1, **own}, chief=own)
    cpu = pod(nodeSelector={"pool": "big"})
    del cpu["containers"][0]["resources"]["limits"]["nvidia.com/gpu"]
    assert not messages(cpu)
    template = {"template": {"spec": pod(nodeSelector={"pool": "gpu"})}}
    assert not messages(pod(nodeSelector={"pool": "gpu"}), ps={"replicas": 1, **template}, chief=template)


@pytest.mark.parametrize("task", [PodTask(names.PS), PodTask(names.CHIEF, term=1), PodTask(names.EVALUATOR, term=1)])
def test_pods_of_roles_without_gpus_leave(task: PodTask) -> None:
    spec = {"spec": pod(nodeSelector={GKE: "nvidia-l4"}, tolerations=[TOLERATES])}
    made = typed(job(spec={"worker": {"template": spec}, "evaluator": {"enabled": True}}))
    built = pods.build(made, task, LauncherMap("l"))["spec"]
    assert "nodeSelector" not in built
    assert TOLERATES not in built["tolerations"]
    worker = pods.build(made, PodTask(names.WORKER, 0), LauncherMap("l"))["spec"]
    assert worker["nodeSelector"] == {GKE: "nvidia-l4"}
    assert TOLERATES in worker["tolerations"]
