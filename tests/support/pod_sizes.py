"""The API server's reaction to a changed size of a pod, and to the annotation that records the size."""

from typing import Any

from pstraining.core.actions import Replace, Resize
from tests.support.builders import deep_merge


def write_size(action: Resize | Replace, pod: dict[str, Any]) -> None:
    """Change a container's resources, or the pod's annotations."""
    if isinstance(action, Resize):
        (container,) = (c for c in pod["spec"]["containers"] if c["name"] == action.container)
        container["resources"] = deep_merge(container.get("resources") or {}, dict(action.resources))
        return
    marks = {pointer.rpartition("/")[2].replace("~1", "/"): value for pointer, value in action.parts.items()}
    pod["metadata"]["annotations"] |= marks
