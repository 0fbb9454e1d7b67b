"""The reduced status to store when the API server refuses the complete status.

Only the records of replicas can make a status too large. The stored records, and the numbers of restarts, are therefore
kept, and all other fields are written. A pod whose failure is not on record is kept as evidence. Training and the job's
end do not depend on records.
"""

from collections.abc import Mapping
from datetime import datetime
from typing import Any

from pstraining.api import names
from pstraining.api.conditions import Condition, Reason
from pstraining.api.status import StatusCondition
from pstraining.api.text import WHITESPACE, printable
from pstraining.core.snapshot import Snapshot

_EFFECT = "Failures that are not counted yet stay uncounted, and the pods that show them are kept."
_ADVICE = {
    Reason.STATUS_TOO_LARGE: "Train with fewer replicas in one job, or raise etcd's --max-request-bytes.",
    Reason.STATUS_REFUSED: "Install the CRD of the operator's version.",
}


def reduced_status(
    snapshot: Snapshot, status: Mapping[str, Any], message: str, now: datetime, *, too_large: bool
) -> dict[str, Any]:
    """Return a refused status with the stored records, and with a condition that reports the refusal.

    Args:
        snapshot: the snapshot that the status was computed from.
        status: the refused status.
        message: the API server's message.
        now: the present time.
        too_large: whether the size is the cause of the refusal.
    """
    stored: dict[str, Any] = {f: snapshot.status.get(f, []) for f in ("replicaRecords", "packedRecords")}
    for role in (r for r in names.ROLES if r in status):
        # The next whole status adds the restarts that are not on record to this number.
        stored[role] = {**status[role], "restarts": (snapshot.status.get(role) or {}).get("restarts", 0)}
    stored["restarts"] = snapshot.status.get("restarts", 0)
    others = [c for c in status.get("conditions", ()) if c["type"] != Condition.STATUS_INCOMPLETE]
    condition = _condition(snapshot, message, now, too_large=too_large).model_dump(by_alias=True, mode="json")
    return {**status, **stored, "conditions": [*others, condition]}


def _condition(snapshot: Snapshot, message: str, now: datetime, *, too_large: bool) -> StatusCondition:
    reason = Reason.STATUS_TOO_LARGE if too_large else Reason.STATUS_REFUSED
    conditions = (StatusCondition.model_validate(c) for c in snapshot.status.get("conditions") or ())
    since = (c.last_transition_time for c in conditions if (c.type, c.status) == (Condition.STATUS_INCOMPLETE, "True"))
    quoted = printable(message[:300], WHITESPACE)
    return StatusCondition(
        type=Condition.STATUS_INCOMPLETE,
        status="True",
        reason=reason,
        message=f"The API server refuses the status: {quoted}. {_EFFECT} {_ADVICE[reason]}",
        last_transition_time=next(since, now.replace(microsecond=0)),
        observed_generation=snapshot.generation,
    )
