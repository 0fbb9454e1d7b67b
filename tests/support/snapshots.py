"""Pods and nodes of a snapshot, without the objects that they are read from."""

from typing import Any

from pstraining.core.snapshot import Container, Node, Pod
from tests.support.builders import NOW


def a_pod(role: str, index: int, node: str, **more: Any) -> Pod:
    """A running pod; on the node `cut` it is silent."""
    known: dict[str, Any] = dict.fromkeys(("disruption", "unschedulable", "reason", "cluster_hash"), "")
    known |= {"term": 1, "created": NOW, "phase": "Running", "deleting": False, "ready": True, "main": "t"}
    known |= {"container": Container(running=True), "silent": node == "cut", "node": node}
    return Pod(**{"name": f"{role}-{index}", "uid": "u", "role": role, "index": index, **known, **more})


def a_node(name: str, **more: Any) -> Node:
    """A node that answers."""
    return Node(**{"name": name, "ready": True, "answers": True, "out_of_service": False, **more})


NODES = {"cut": a_node("cut", answers=False, silent_since=NOW), "other": a_node("other")}
