"""The kubelet's errors that arrive as a container's log.

The kubelet sends the status 200 before it looks for the container (`GetKubeletContainerLogs` in its source). An error
after that, such as of a container that it has just removed, becomes the whole content of the log. It has no line end.
"""

from typing import Final

UNREADABLE: Final = ("unable to retrieve container logs for ", "failed to try resolving symlinks in path ")
"""Beginnings of these errors."""


def kubelet_error(content: str) -> str | None:
    """Return the kubelet's error if it is the whole content of a log; None for a log."""
    return content if content.startswith(UNREADABLE) and "\n" not in content else None
