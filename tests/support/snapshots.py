"""Builders of a snapshot's pods, nodes and children, without the objects from which they are parsed."""

from datetime import datetime
from typing import Any

from pstraining.core.actions import Kind, Manifest
from pstraining.core.facts import Facts
from pstraining.core.policies import admission, resharding
from pstraining.core.snapshot import Child, Container, Node, Pod, Snapshot
from tests.support.builders import NOW, job, stamp, typed


def a_pod(role: str, index: int, node: str, **more: Any) -> Pod:
    """Return a running pod, which does not answer if it is on the node `cut`."""
    known: dict[str, Any] = dict.fromkeys(("disruption", "unschedulable", "reason", "cluster_hash"), "")
    known |= {"term": 1, "created": NOW, "phase": "Running", "deleting": False, "ready": True, "main": "t"}
    known |= {"container": Container(running=True), "silent": node == "cut", "node": node}
    return Pod(**{"name": f"{role}-{index}", "uid": "u", "role": role, "index": index, **known, **more})


def a_node(name: str, **more: Any) -> Node:
    """Return a node that answers."""
    return Node(**{"name": name, "ready": True, "answers": True, "out_of_service": False, **more})


NODES = {"cut": a_node("cut", answers=False, silent_since=NOW), "other": a_node("other")}


def a_child(
    kind: Kind, name: str, *, uid: str = "u", deleting: bool = False, refusal: str = "", **manifest: Any
) -> Child:
    """Return a child; `labels` and `annotations` are its metadata's, and other arguments are parts of its manifest."""
    metadata: dict[str, Any] = {
        "name": name,
        **{part: manifest.pop(part) for part in ("labels", "annotations") if part in manifest},
    }
    return Child(kind, name, uid, deleting, {"metadata": metadata, **manifest}, refusal)


def snapshot_of(manifest: Manifest, *seen: Pod | Child) -> Snapshot:
    """Return the snapshot of a job with these pods and children."""
    children = {(each.kind, each.name): each for each in seen if isinstance(each, Child)}
    return Snapshot(manifest, children, tuple(each for each in seen if isinstance(each, Pod)))


def facts_of(spec: dict[str, Any], *seen: Pod | Child, now: datetime = NOW, **status: Any) -> Facts:
    """Return the facts of a job that started at `NOW`, with these pods and children."""
    manifest = {**job(spec=spec), "status": {"startTime": stamp(NOW), **status}}
    snapshot = snapshot_of(manifest, *seen)
    stored = snapshot.typed_status
    made = typed(manifest)
    queue, layout = admission.observed(made, snapshot, stored), resharding.observed(made, snapshot)
    return Facts(made, snapshot, stored, now, queue, layout)
