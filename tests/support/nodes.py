"""Nodes of the cluster that lose their connection and reconnect."""

from datetime import datetime

from localcluster import faults
from tests.support.kube import Kube, Object, wait_for


def ready(kube: Kube, node: str) -> Object:
    found = kube.get("Node", "", node)
    assert found is not None
    condition: Object = next(c for c in found["status"]["conditions"] if c["type"] == "Ready")
    return condition


def cut(kube: Kube, node: str) -> datetime:
    """Disconnect a node; return the time at which Kubernetes marked it unreachable."""
    assert faults.cut(node)
    wait_for(lambda: ready(kube, node)["status"] == "Unknown", f"{node} is given up", 60)
    return moment(ready(kube, node)["lastTransitionTime"])


def moment(text: str) -> datetime:
    return datetime.fromisoformat(text.replace("Z", "+00:00"))
