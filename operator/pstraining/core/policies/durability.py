"""Do the checkpoints of a job outlive its pods, by its spec? Status, event and CLI use the same text. Pure."""

from dataclasses import dataclass
from typing import Final

from pstraining.api.conditions import Reason
from pstraining.api.models import CheckpointSpec

_LOST_WITH_POD: Final = {
    "emptyDir": "is an emptyDir: checkpoints are deleted with the chief's pod.",
    "ephemeral": "is an ephemeral volume: its claim and the checkpoints are deleted with the chief's pod.",
}
_NO_SOURCE: Final = "has no source, so it is an emptyDir: checkpoints are deleted with the chief's pod."
_HOST_PATH: Final = "is a hostPath: a chief that is started on another node does not find its checkpoints."
# The operator cannot observe whether a program saves by itself, for example in an object store.
_NOT_SET: Final = (
    "is not set: the operator keeps no checkpoint of this job. When its pods end, the parameters are lost unless the "
    "program saves them itself. Set spec.checkpoint to keep them on a volume."
)


@dataclass(frozen=True)
class NotDurable:
    """The reason why checkpoints do not outlive the pods."""

    reason: Reason
    field: str
    """The field to change."""
    message: str
    """The problem, as a predicate whose subject is the field."""


def not_durable(checkpoint: CheckpointSpec | None) -> NotDurable | None:
    """Return why checkpoints do not outlive the pods; None if they do."""
    if checkpoint is None:
        return NotDurable(Reason.NO_CHECKPOINT_VOLUME, "spec.checkpoint", _NOT_SET)
    why = _ends_with_pod(checkpoint) or (_HOST_PATH if "hostPath" in (checkpoint.volume or {}) else "")
    return NotDurable(Reason.CHECKPOINT_VOLUME_NOT_DURABLE, "spec.checkpoint.volume", why) if why else None


def why_lost(checkpoint: CheckpointSpec | None) -> str:
    """Return why the next pod of the chief finds no checkpoint of this one; empty if it may find one."""
    if checkpoint is None:
        return "spec.checkpoint is not set"
    return "spec.checkpoint.volume does not outlive its pod" if _ends_with_pod(checkpoint) else ""


def _ends_with_pod(checkpoint: CheckpointSpec) -> str:
    """Return why the volume ends with the chief's pod; empty if it outlives the pod, or there is none."""
    volume = checkpoint.volume
    if volume is not None and not volume.keys() - {"name"}:
        return _NO_SOURCE
    return next((why for kind, why in _LOST_WITH_POD.items() if kind in (volume or {})), "")
