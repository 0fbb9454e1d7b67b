"""Sets the unset fields of a pod's security contexts to the Pod Security Standard "restricted"."""

from typing import Any

_USER = 1000
"""A non-root user for images that name no user; without it the kubelet refuses to start them."""


def restrict(spec: dict[str, Any]) -> None:
    """Set the unset fields of a pod's security contexts; fields of the template stay unchanged."""
    pod = spec.setdefault("securityContext", {})
    says_root = pod.get("runAsUser") == 0
    if not says_root:
        pod.setdefault("runAsNonRoot", True)
        pod.setdefault("runAsUser", _USER)
        pod.setdefault("runAsGroup", _USER)
        pod.setdefault("fsGroup", _USER)
        # Shared checkpoint volumes can have very many files.
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
