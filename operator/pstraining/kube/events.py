"""The body of an event, pure: what `kubectl describe` shows of a job, and for how long is the API server's choice."""

from datetime import UTC, datetime
from typing import Any

from pstraining.api import names
from pstraining.core.actions import Event

CONTROLLER = f"{names.GROUP}/operator"
MAX_NOTE = 1024
"""Bytes; the API server refuses longer notes."""
MAX_REASON = 128


def build_event(job: dict[str, Any], event: Event, *, instance: str, now: datetime, suffix: str) -> dict[str, Any]:
    """The events.k8s.io/v1 object of one event of a job.

    Args:
        job: the PSTrainingJob.
        event: what happened.
        instance: the operator's pod, so that people know whose log to read.
        now: when it was decided.
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
        "note": shorten(event.message, MAX_NOTE),
    }


def shorten(text: str, limit: int) -> str:
    """The text in at most `limit` bytes of UTF-8, with an ellipsis where something is missing."""
    if len(text.encode()) <= limit:
        return text
    return text.encode()[: limit - 3].decode(errors="ignore") + "…"
