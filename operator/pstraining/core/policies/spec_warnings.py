"""The warnings that follow from the spec of a job alone: each is a condition, an event and a finding of `validate`.

A condition is written once for a spec, so that an unchanged job causes no write. Pure.
"""

from collections.abc import Mapping
from typing import Final

from pstraining.api.conditions import Condition, Reason
from pstraining.api.models import PSTrainingJob
from pstraining.core.policies import durability, inheritance
from pstraining.core.policies.ineffective import ineffective, message_about

CORRECTED: Final[Mapping[Condition, Reason]] = {
    Condition.CHECKPOINT_NOT_DURABLE: Reason.CHECKPOINT_DURABLE,
    Condition.GPU_SETTINGS_INHERITED: Reason.OWN_SETTINGS,
    Condition.FIELDS_WITHOUT_EFFECT: Reason.FIELDS_CORRECTED,
}
"""The conditions of these warnings, with the reason that each has when its cause is gone."""


def spec_warnings(job: PSTrainingJob) -> dict[Condition, tuple[Reason, str]]:
    """Return the reason and the message of each warning about a job.

    Args:
        job: the job as its user wrote it.
    """
    found: dict[Condition, tuple[Reason, str]] = {}
    if (weak := durability.not_durable(job.spec.checkpoint)) is not None:
        found[Condition.CHECKPOINT_NOT_DURABLE] = weak.reason, f"{weak.field} {weak.message}"
    if inherited := inheritance.inherited(job.spec):
        message = " ".join(f"{item.field} {item.message}" for item in inherited)
        found[Condition.GPU_SETTINGS_INHERITED] = Reason.WORKER_TEMPLATE_COPIED, message
    if useless := ineffective(job):
        found[Condition.FIELDS_WITHOUT_EFFECT] = Reason.OTHER_FIELDS_PREVAIL, message_about(useless)
    return found
