"""Defaults that make a training pod pass the Pod Security Standard "restricted", field by field where it is silent."""

from typing import Any

_USER = 1000
"""A user that is not root, for images that name none: without it the kubelet refuses to start them."""


def restrict(spec: dict[str, Any]) -> None:
    """Fill in a pod spec's security contexts, never changing what the user has said."""
    pod = spec.setdefault("securityContext", {})
    says_root = pod.get("runAsUser") == 0
    if not says_root:
        pod.setdefault("runAsNonRoot", True)
        pod.setdefault("runAsUser", _USER)
        pod.setdefault("runAsGroup", _USER)
        pod.setdefault("fsGroup", _USER)
        # Shared checkpoint volumes can hold very many files.
        pod.setdefault("fsGroupChangePolicy", "OnRootMismatch")
    pod.setdefault("seccompProfile", {"type": "RuntimeDefault"})
    for container in (*spec["containers"], *(spec.get("initContainers") or ())):
        own = container.setdefault("securityContext", {})
        if own.get("privileged"):
            continue
        if own.get("runAsUser") == 0:
            own.setdefault("runAsNonRoot", False)
        own.setdefault("allowPrivilegeEscalation", False)
        own.setdefault("capabilities", {"drop": ["ALL"]})
