"""The memory that parameter servers have left, by the figures that their launchers measure."""

from collections.abc import Mapping
from typing import Final

from pstraining.launcher.usage import Figures

MARGIN_BYTES: Final = 64 << 20
"""Memory that a server needs besides its variables, for tensors in transit."""


def shortages(needed: Mapping[str, int], figures: Mapping[str, Figures]) -> list[str]:
    """Return a sentence for each server whose memory limit leaves less than it needs.

    Args:
        needed: bytes that a server is to hold besides its present use, by the server's address.
        figures: the answers of launchers, by the server's address; see `launcher.usage.Meter`. A server without an
            answer, or without a limit, lacks nothing as far as is known.
    """
    found = []
    for address, size in needed.items():
        own = figures.get(address) or {}
        if (limit := own.get("limitBytes")) is None:
            continue
        left = int(limit) - int(own["memoryBytes"])
        if size + MARGIN_BYTES > left:
            lacking = (size + MARGIN_BYTES - left + (1 << 20) - 1) >> 20
            found.append(
                f"{own['pod']} has {max(left, 0) >> 20} MiB left of its memory limit, and needs {size >> 20} MiB for "
                f"the next layout: raise its limit by {lacking} MiB or more"
            )
    return found
