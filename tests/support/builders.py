"""Builders of jobs and observed objects, so that a test sets only the fields that matter to it."""

from datetime import UTC, datetime, timedelta
from typing import Any

from pstraining.api import names
from pstraining.api.models import PSTrainingJob
from pstraining.core.actions import Manifest
from pstraining.resources.launcher import LauncherFiles
from tests.support.copying import copied

NOW = datetime(2030, 1, 1, 12, 0, 0, tzinfo=UTC)
UID = "0b9d7b1e-job"
LAUNCHER = LauncherFiles(version="v1", files={"launch.py": "# the launcher"})
TEMPLATE: dict[str, Any] = {
    "spec": {"containers": [{"name": "tensorflow", "image": "img:1", "command": ["python", "-m", "train"]}]}
}


def deep_merge(base: dict[str, Any], extra: dict[str, Any]) -> dict[str, Any]:
    """Return a copy of `base` with the values of `extra`, merged recursively."""
    merged = copied(base)
    _lay_over(merged, copied(extra))
    return merged


def _lay_over(merged: dict[str, Any], extra: dict[str, Any]) -> None:
    for key, value in extra.items():
        if isinstance(value, dict) and isinstance(merged.get(key), dict):
            _lay_over(merged[key], value)
        else:
            merged[key] = value


_KEYS = {"ports": ("port", "protocol"), "ownerReferences": ("uid",)}
"""The lists that server-side apply merges, with the keys of their items; it replaces other lists."""


def applied(found: dict[str, Any], body: dict[str, Any]) -> dict[str, Any]:
    """Return an object after a server-side apply: items of other clients stay in the lists that it merges."""
    merged = deep_merge(found, body)
    for part in ("metadata", "spec"):
        for field, keys in _KEYS.items():
            own = body.get(part, {}).get(field)
            if own is not None:
                ours = {tuple(item.get(key) for key in keys) for item in own}
                others = found.get(part, {}).get(field) or []
                kept = [item for item in others if tuple(item.get(key) for key in keys) not in ours]
                merged[part][field] = [*copied(kept), *copied(own)]
    return merged


def job(name: str = "digits", *, ps: int = 1, workers: int = 2, spec: dict[str, Any] | None = None) -> dict[str, Any]:
    """Return a job as the API server would store it."""
    base = {"ps": {"replicas": ps}, "worker": {"replicas": workers, "template": TEMPLATE}}
    return {
        "apiVersion": names.API_VERSION,
        "kind": names.KIND,
        "metadata": {
            "name": name,
            "namespace": "default",
            "uid": UID,
            "generation": 1,
            "resourceVersion": "1",
            "creationTimestamp": stamp(NOW),
        },
        "spec": deep_merge(base, spec or {}),
    }


def typed(manifest: Manifest) -> PSTrainingJob:
    """Return the job parsed into the API's model, as the builders of children take it."""
    return PSTrainingJob.model_validate(manifest)


def stamp(moment: datetime) -> str:
    """Return a Kubernetes timestamp."""
    return moment.strftime("%Y-%m-%dT%H:%M:%SZ")


def terminated(code: int, message: str = "", reason: str = "") -> dict[str, Any]:
    """Return a container's terminated state."""
    return {
        "terminated": {
            "exitCode": code,
            "reason": reason or ("Completed" if code == 0 else "Error"),
            "message": message,
            "finishedAt": stamp(NOW),
        }
    }


def pod(
    role: str,
    index: int = 0,
    *,
    term: int = 0,
    uid: str = "",
    created: timedelta = timedelta(seconds=1),
    state: dict[str, Any] | None = None,
    last: dict[str, Any] | None = None,
    restarts: int = 0,
    phase: str = "Running",
    ready: bool = True,
    deleting: bool = False,
    disrupted: bool = False,
    unschedulable: str = "",
    job_uid: str = UID,
    member: int = 0,
    changed: datetime | None = None,
) -> dict[str, Any]:
    """Return a job's pod as the kubelet reports it; by default it runs and is ready."""
    standby = "standby" if member < 2 else f"standby-{member}"
    name = f"digits-{standby if member else role}-{term or index}"
    labels = {names.LABEL_JOB_UID: job_uid, names.LABEL_JOB: "digits", names.LABEL_ROLE: role}
    labels[names.LABEL_POD_INDEX if role == names.PS else names.LABEL_INDEX] = str(index)
    if role == names.PS:
        labels[names.LABEL_MEMBER] = str(member)
    if term:
        labels[names.LABEL_ATTEMPT if role == names.EVALUATOR else names.LABEL_TERM] = str(term)
    conditions = [{"type": "Ready", "status": "True" if ready else "False"}]
    if changed is not None:
        conditions[0]["lastTransitionTime"] = stamp(changed)
    if disrupted:
        conditions.append({"type": "DisruptionTarget", "status": "True"})
    if unschedulable:
        conditions.append(
            {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": unschedulable}
        )
    status = {
        "name": "tensorflow",
        "image": "img:1",
        "restartCount": restarts,
        "ready": ready,
        "state": {"running": {}} if state is None else state,
        "lastState": last or {},
    }
    metadata: dict[str, Any] = {
        "name": name,
        "generateName": f"digits-{standby if member else role}-" if role == names.PS else name,
        "namespace": "default",
        "uid": uid or f"{name}-uid",
        "labels": labels,
        "creationTimestamp": stamp(NOW + created),
    }
    if deleting:
        metadata["deletionTimestamp"] = stamp(NOW)
    return {
        "kind": "Pod",
        "metadata": metadata,
        "spec": {"containers": [{"name": "tensorflow"}], "nodeName": "node-1"},
        "status": {"phase": phase, "conditions": conditions, "containerStatuses": [status]},
    }
