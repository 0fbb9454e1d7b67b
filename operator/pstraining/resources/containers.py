"""The containers of a pod."""

from collections.abc import Mapping
from typing import Any


def all_containers(spec: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return the containers of a pod's spec, and then its init containers."""
    return [*(spec.get("containers") or ()), *(spec.get("initContainers") or ())]
