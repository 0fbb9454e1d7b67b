"""Builders of TFJobs: a test sets only the fields that matter to it."""

from typing import Any

from tests.support.builders import deep_merge

CONTAINER = {"name": "tensorflow", "image": "img:1", "command": ["python", "-m", "train"]}


def template(container: dict[str, Any] | None = None, **spec: Any) -> dict[str, Any]:
    """Return a pod template with one container; `container` changes the container, other arguments the pod's spec."""
    ids = {"runAsUser": 1, "runAsGroup": 1}
    return {"spec": {"securityContext": ids, "containers": [CONTAINER | (container or {})], **spec}}


def replica(replicas: int = 1, policy: str = "OnFailure", **container: Any) -> dict[str, Any]:
    """Return an entry of tfReplicaSpecs, with these fields in its container."""
    return {"replicas": replicas, "restartPolicy": policy, "template": template(container)}


def tfjob(spec: dict[str, Any] | None = None, **roles: Any) -> dict[str, Any]:
    """Return a TFJob that converts without notes; a role that is None is omitted."""
    given = {"PS": replica(), "Worker": replica(2, resources={"limits": {"cpu": 1}}), **roles}
    base = {
        "runPolicy": {"cleanPodPolicy": "Running", "backoffLimit": 3},
        "tfReplicaSpecs": {name: role for name, role in given.items() if role is not None},
    }
    return {
        "apiVersion": "kubeflow.org/v1",
        "kind": "TFJob",
        "metadata": {"name": "mnist"},
        "spec": deep_merge(base, spec or {}),
    }
