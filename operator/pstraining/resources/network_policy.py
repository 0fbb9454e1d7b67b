"""Restricts access to a job's pods: a TensorFlow server executes every request, so only the job may reach its ports.

A pod that a NetworkPolicy selects accepts only the traffic that some rule allows. `Training` therefore allows the job's
own pods on all ports, and all other clients on the port ranges around those of training. The kubelet's probes come from
the pod's node, which Kubernetes always allows. Outgoing traffic is not restricted.
"""

from typing import Any

from pstraining.api import contract, names
from pstraining.api.models import Isolation, PSTrainingJob
from pstraining.resources.metadata import metadata

_LAST_PORT = 65535


def build(job: PSTrainingJob) -> dict[str, Any] | None:
    """Return the NetworkPolicy of all of a job's pods; None without isolation."""
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
    """Return all ports except those of training, which are one TCP range."""
    first, last = contract.TF_PORT, contract.WITNESS_PORT
    return [
        {"protocol": "TCP", "port": 1, "endPort": first - 1},
        {"protocol": "TCP", "port": last + 1, "endPort": _LAST_PORT},
        {"protocol": "UDP"},
        {"protocol": "SCTP"},
    ]
