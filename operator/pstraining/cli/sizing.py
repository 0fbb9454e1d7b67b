"""The measured and the present size of a role's pods, as text."""

import json
from collections.abc import Mapping
from typing import Any

NONE, UNKNOWN = "none", "unknown"


def words(sizing: Mapping[str, Any], size: str | None) -> str:
    """Return a role's measured, recommended and present size as text.

    Args:
        sizing: the role's item of status.autoscaling.
        size: the present resources of the role's training container, as JSON; None if they are unknown.
    """
    present, absent = json.loads(size or "{}"), UNKNOWN if size is None else NONE
    limits, requests = present.get("limits") or {}, present.get("requests") or {}
    parts = []
    if peak := sizing.get("peakMemory"):
        recommended, now = sizing.get("recommendedMemory"), limits.get("memory", absent)
        parts.append(f"memory: measured peak {peak}, recommended limit {recommended}, now {now}")
    if cpu := sizing.get("recommendedCPU"):
        now = requests.get("cpu", limits.get("cpu", absent))
        parts.append(f"CPU: recommended request {cpu}, now {now}")
    if message := sizing.get("message"):
        parts.append(message.removesuffix("."))
    if sizing.get("atMaximum"):
        parts.append("it needs more memory than its maximum")
    return "; ".join(parts)
