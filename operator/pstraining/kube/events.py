"""Builds the events of a job, which `kubectl describe` shows. Pure. The API server decides how long events are kept."""

from datetime import UTC, datetime
from typing import Any

from pstraining.api import names
from pstraining.api.text import WHITESPACE, printable
from pstraining.core.actions import Event

CONTROLLER = f"{names.GROUP}/operator"
MAX_NOTE = 1024
"""Maximum bytes of a note; the API server rejects longer ones."""
MAX_REASON = 128


def build_event(job: dict[str, Any], event: Event, *, instance: str, now: datetime, suffix: str) -> dict[str, Any]:
    """Return the events.k8s.io/v1 object of one event of a job.

    Args:
        job: the PSTrainingJob.
        event: the event.
        instance: the operator's pod, whose log has the details.
        now: the time of the decision.
        suffix: makes the event's name unique among the job's events.
    """
    metadata = job["metadata"]
    return {
        "apiVersion": "events.k8s.io/v1",
        "kind": "Event",
        "metadata": {"name": f"{metadata['name']}.{suffix}", "namespace": metadata["namespace"]},
        "eventTime": now.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ"),
        "reportingController": CONTROLLER,
        "reportingInstance": instance[:128],
        "action": "Reconcile",
        "reason": event.reason[:MAX_REASON],
        "regarding": {
            "apiVersion": names.API_VERSION,
            "kind": names.KIND,
            "name": metadata["name"],
            "namespace": metadata["namespace"],
            "uid": metadata["uid"],
        },
        "type": event.type,
        "note": shorten(printable(event.message, WHITESPACE), MAX_NOTE),
    }


def shorten(text: str, limit: int) -> str:
    """Return the text in at most `limit` bytes of UTF-8, with an ellipsis if it was shortened."""
    if len(text.encode()) <= limit:
        return text
    return text.encode()[: limit - 3].decode(errors="ignore") + "…"
