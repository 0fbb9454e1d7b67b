"""The volume of the checkpoints in a pod.

The kubelet never starts a pod with two volumes of one claim (https://github.com/kubernetes/kubernetes/issues/82526).
So where the template has a volume of this claim, such as for data beside the checkpoints, that volume is mounted.
"""

from typing import Any

from pstraining.api import names
from pstraining.api.models import CheckpointSpec
from pstraining.resources.containers import all_containers


def add(spec: dict[str, Any], checkpoint: CheckpointSpec, claim: str, *, writes: bool) -> str:
    """Add the volume to a pod's spec unless its template has it; return the volume's name.

    Args:
        spec: the pod's spec.
        checkpoint: the job's checkpoints.
        claim: the name of the claim that is created without `checkpoint.volume`.
        writes: whether the pod writes checkpoints, so that a volume of the template cannot be read-only. Its mounts are
            read-only instead.
    """
    source = {"persistentVolumeClaim": {"claimName": claim}} if checkpoint.volume is None else checkpoint.volume
    volumes = list(spec.get("volumes") or ())
    wanted = _claim(source)
    found = next((v for v in volumes if wanted is not None and v.get("name") and _claim(v) == wanted), None)
    if found is None:
        # A volume that was copied from a template has another name.
        spec["volumes"] = [*volumes, {**source, "name": names.CHECKPOINT_VOLUME}]
        return names.CHECKPOINT_VOLUME
    name: str = found["name"]
    if writes and found["persistentVolumeClaim"].pop("readOnly", False):
        mounts = [m for c in all_containers(spec) for m in c.get("volumeMounts") or () if m.get("name") == name]
        for mount in mounts:
            mount["readOnly"] = True
    return name


def _claim(volume: dict[str, Any]) -> str | None:
    claim: str | None = (volume.get("persistentVolumeClaim") or {}).get("claimName")
    return claim
