"""The scheduler's placement of a job's pods on fake nodes in three zones: spread, in one zone, or away from GPUs."""

from dataclasses import dataclass

import pytest

from pstraining.api import names
from tests.support.kube import Kube, Object, wait_for
from tests.support.operator_process import OperatorProcess
from tests.support.scripted_program import fake_template

pytestmark = pytest.mark.cluster

ZONE = "topology.kubernetes.io/zone"
ACCELERATOR = "cloud.google.com/gke-accelerator"
GPU_TAINT = {"key": "nvidia.com/gpu", "value": "present", "effect": "NoSchedule"}
GPU_NODE, ITS_ZONE = "kwok-1", "fake-1"


@dataclass(frozen=True)
class Placed:
    """The name, role, node and zone of a pod."""

    role: str
    index: str
    zone: str
    node: str


def pair_job(**network: str) -> Object:
    """Return the spec of a job of two servers with a standby each, four workers and a chief."""
    template = fake_template()
    return {
        "ps": {"replicas": 2, "standby": {"mode": "Warm"}, "template": template},
        "worker": {"replicas": 4, "template": template},
        "network": network,
    }


def placed(kube: Kube, namespace: str, name: str, spec: Object, pods: int) -> list[Placed]:
    """Return every pod of a job, once all have a node."""
    # KWOK ends the chief at once, and with it the job; a hold keeps the other pods until they are read.
    spec = {**spec, "runPolicy": {"cleanPodPolicy": {"onSuccess": "None"}}}
    made = kube.create(
        {
            "apiVersion": names.API_VERSION,
            "kind": names.KIND,
            "metadata": {"name": name, "namespace": namespace},
            "spec": spec,
        }
    )
    zones = {node["metadata"]["name"]: node["metadata"]["labels"].get(ZONE, "") for node in kube.list("Node")}

    def found() -> list[Placed] | None:
        there = kube.list("Pod", namespace, f"{names.LABEL_JOB_UID}={made['metadata']['uid']}")
        bound = [(pod["metadata"]["labels"], pod["spec"].get("nodeName")) for pod in there]
        where = [
            Placed(labels[names.LABEL_ROLE], labels.get(names.LABEL_POD_INDEX, ""), zones[node], node)
            for labels, node in bound
            if node
        ]
        return where if len(where) == pods else None

    return wait_for(found, f"all {pods} pods of {name} have a node", 60)


def test_pods_are_spread_or_kept_together(
    kube: Kube, own_operator: OperatorProcess, namespace: str, fake_nodes: int
) -> None:
    own_operator.start()
    apart = placed(kube, namespace, "apart", pair_job(), 9)
    assert len({pod.node for pod in apart if pod.role == names.WORKER}) == 4
    assert len({pod.zone for pod in apart}) == 3

    together = placed(kube, namespace, "together", pair_job(packTopologyKey=ZONE), 9)
    assert len({pod.zone for pod in together}) == 1, together
    assert len({pod.node for pod in together if pod.role == names.WORKER}) == fake_nodes / 3

    for pods in (apart, together):  # a pair on one node would be lost with it
        for index in "01":
            assert len({pod.node for pod in pods if pod.role == names.PS and pod.index == index}) == 2


@pytest.fixture
def gpu_node(kube: Kube, fake_nodes: int) -> None:
    """Give one of the two fake nodes of its zone the label and the taint of nodes with GPUs."""
    assert fake_nodes == 6
    node = kube.get("Node", "", GPU_NODE)
    assert node is not None
    labels, taints = {ACCELERATOR: "nvidia-l4", "pool": "gpu"}, node["spec"]["taints"]
    kube.merge("Node", "", GPU_NODE, {"metadata": {"labels": labels}, "spec": {"taints": [*taints, GPU_TAINT]}})


def gpu_job(**selector: str) -> Object:
    """Return the spec of a job of a server, two workers with a GPU each, and a chief; all have the workers'
    template.
    """
    made = fake_template(nodeSelector={ZONE: ITS_ZONE, **selector})
    made["spec"]["tolerations"].append({"key": GPU_TAINT["key"], "operator": "Exists"})
    made["spec"]["containers"][0]["resources"] = {"limits": {"nvidia.com/gpu": "1"}}
    return {"ps": {"replicas": 1}, "worker": {"replicas": 2, "template": made}}


@pytest.mark.usefixtures("gpu_node")
def test_only_workers_enter_nodes_with_gpus(kube: Kube, own_operator: OperatorProcess, namespace: str) -> None:
    own_operator.start()
    away = placed(kube, namespace, "away", gpu_job(**{ACCELERATOR: "nvidia-l4"}), 4)
    assert {pod.role for pod in away if pod.node == GPU_NODE} == {names.WORKER}
    assert {(pod.role, pod.zone) for pod in away if pod.node != GPU_NODE} == {
        (names.PS, ITS_ZONE),
        (names.CHIEF, ITS_ZONE),
    }

    # Another label may have any meaning: the copied template keeps all selectors and tolerations, and the job reports
    # it.
    stays = placed(kube, namespace, "stays", gpu_job(pool="gpu"), 4)
    assert {pod.node for pod in stays} == {GPU_NODE}

    def condition(name: str) -> Object | None:
        status = (kube.get(names.KIND, namespace, name) or {}).get("status") or {}
        return next((c for c in status.get("conditions", ()) if c["type"] == "GPUSettingsInherited"), None)

    reported = wait_for(lambda: condition("stays"), "it reports the inherited settings")
    assert "spec.ps.template is not set" in reported["message"]
    assert condition("away") is None
