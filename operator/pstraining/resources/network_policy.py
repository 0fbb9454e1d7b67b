"""Who may reach a job's pods: a TensorFlow server runs whatever it is sent, so its ports are the job's own business.

Policies only ever open: a pod that one selects is closed but for what some rule lets in. So `Training` lets the job's
own pods in everywhere and everyone else in around the ports of training, as ranges. The kubelet's probes come from the
pod's node, which Kubernetes always lets in. What goes out is not limited.
"""

from typing import Any

from pstraining.api import contract, names
from pstraining.api.models import Isolation, PSTrainingJob
from pstraining.resources.metadata import metadata

_LAST_PORT = 65535


def build(job: PSTrainingJob) -> dict[str, Any] | None:
    """The NetworkPolicy of all of a job's pods; None where everybody may reach them."""
    isolation = job.spec.network.isolation
    if isolation is Isolation.NONE:
        return None
    own = {"matchLabels": {names.LABEL_JOB_UID: job.metadata.uid}}
    ingress: list[dict[str, Any]] = [{"from": [{"podSelector": own}]}]
    if isolation is Isolation.TRAINING:
        ingress.append({"ports": _open_ports()})
    return {
        "apiVersion": "networking.k8s.io/v1",
        "kind": "NetworkPolicy",
        "metadata": metadata(job, names.network_policy(job.metadata.name), "network"),
        "spec": {"podSelector": own, "policyTypes": ["Ingress"], "ingress": ingress},
    }


def _open_ports() -> list[dict[str, Any]]:
    """All ports but those of training, which are one range of TCP."""
    first, last = contract.TF_PORT, contract.WITNESS_PORT
    return [
        {"protocol": "TCP", "port": 1, "endPort": first - 1},
        {"protocol": "TCP", "port": last + 1, "endPort": _LAST_PORT},
        {"protocol": "UDP"},
        {"protocol": "SCTP"},
    ]
