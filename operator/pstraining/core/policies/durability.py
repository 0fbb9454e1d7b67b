"""Do the checkpoints of a job outlive its pods, by its spec? Status, event and CLI use the same text. Pure."""

from dataclasses import dataclass
from typing import Final

from pstraining.api.conditions import Reason
from pstraining.api.models import CheckpointSpec

_LOST_WITH_POD: Final = {
    "emptyDir": "is an emptyDir: checkpoints are deleted with the chief's pod.",
    "ephemeral": "is an ephemeral volume: its claim and the checkpoints are deleted with the chief's pod.",
}
_NOT_DURABLE: Final = {
    **_LOST_WITH_POD,
    "hostPath": "is a hostPath: a chief that is started on another node does not find its checkpoints.",
}
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
    why = next((why for kind, why in _NOT_DURABLE.items() if kind in (checkpoint.volume or {})), None)
    if why is None:
        return None
    return NotDurable(Reason.CHECKPOINT_VOLUME_NOT_DURABLE, "spec.checkpoint.volume", why)


def why_lost(checkpoint: CheckpointSpec | None) -> str:
    """Return why the next pod of the chief finds no checkpoint of this one; empty if it may find one."""
    if checkpoint is None:
        return "spec.checkpoint is not set"
    lost = not _LOST_WITH_POD.keys().isdisjoint(checkpoint.volume or {})
    return "spec.checkpoint.volume does not outlive its pod" if lost else ""
