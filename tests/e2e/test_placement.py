"""Where the scheduler puts a job's pods: apart, or together in one zone; on fake nodes in three zones."""

from dataclasses import dataclass

import pytest

from pstraining.api import names
from tests.support.kube import Kube, wait_for
from tests.support.operator_process import OperatorProcess
from tests.support.scripted_program import fake_template

pytestmark = pytest.mark.cluster

ZONE = "topology.kubernetes.io/zone"


@dataclass(frozen=True)
class Placed:
    """A pod's whereabouts."""

    role: str
    index: str
    zone: str
    node: str


def placed(kube: Kube, namespace: str, name: str, **network: str) -> list[Placed]:
    """Every pod of a job of two servers with a standby each, four workers and a chief."""
    template = fake_template()
    made = kube.create(
        {
            "apiVersion": names.API_VERSION,
            "kind": names.KIND,
            "metadata": {"name": name, "namespace": namespace},
            "spec": {
                "ps": {"replicas": 2, "standby": {"mode": "Warm"}, "template": template},
                "worker": {"replicas": 4, "template": template},
                "network": network,
                # KWOK ends the chief at once, and the job with it: the others are to stay until they were seen.
                "runPolicy": {"cleanPodPolicy": {"onSuccess": "None"}},
            },
        }
    )
    zones = {node["metadata"]["name"]: node["metadata"]["labels"].get(ZONE, "") for node in kube.list("Node")}

    def found() -> list[Placed] | None:
        pods = kube.list("Pod", namespace, f"{names.LABEL_JOB_UID}={made['metadata']['uid']}")
        bound = [(pod["metadata"]["labels"], pod["spec"].get("nodeName")) for pod in pods]
        where = [
            Placed(labels[names.LABEL_ROLE], labels.get(names.LABEL_POD_INDEX, ""), zones[node], node)
            for labels, node in bound
            if node
        ]
        return where if len(where) == 9 else None

    return wait_for(found, f"all nine pods of {name} have a node", 60)


def test_pods_are_spread_or_kept_together(
    kube: Kube, own_operator: OperatorProcess, namespace: str, fake_nodes: int
) -> None:
    own_operator.start()
    apart = placed(kube, namespace, "apart")
    assert len({pod.node for pod in apart if pod.role == names.WORKER}) == 4
    assert len({pod.zone for pod in apart}) == 3

    together = placed(kube, namespace, "together", packTopologyKey=ZONE)
    assert len({pod.zone for pod in together}) == 1, together
    assert len({pod.node for pod in together if pod.role == names.WORKER}) == fake_nodes / 3

    for pods in (apart, together):  # whoever keeps a pair together loses both with a node
        for index in "01":
            assert len({pod.node for pod in pods if pod.role == names.PS and pod.index == index}) == 2
