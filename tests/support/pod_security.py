"""The Pod Security Standard "restricted" for a pod spec, as the admission plugin enforces it."""

from collections.abc import Iterator, Mapping
from typing import Any

_VOLUMES = ("configMap", "csi", "downwardAPI", "emptyDir", "ephemeral", "persistentVolumeClaim", "projected", "secret")

CONTAINER_SECURITY: dict[str, Any] = {
    "allowPrivilegeEscalation": False,
    "capabilities": {"drop": ["ALL"]},
    "runAsNonRoot": True,
    "seccompProfile": {"type": "RuntimeDefault"},
}
"""The security context of a container that the standard admits."""


def violations(spec: Mapping[str, Any]) -> list[str]:
    """Return the fields that violate the standard."""
    return list(_violations(spec))


def _violations(spec: Mapping[str, Any]) -> Iterator[str]:
    pod = spec.get("securityContext") or {}
    for field in ("hostNetwork", "hostPID", "hostIPC"):
        if spec.get(field):
            yield field
    for volume in spec.get("volumes") or ():
        if not volume.keys() <= {"name", *_VOLUMES}:
            yield f"volume {volume['name']}"
    for container in (*spec["containers"], *(spec.get("initContainers") or ())):
        name, own = container["name"], container.get("securityContext") or {}
        if own.get("privileged") or own.get("allowPrivilegeEscalation") is not False:
            yield f"{name}: privileges"
        capabilities = own.get("capabilities") or {}
        if "ALL" not in capabilities.get("drop", ()) or set(capabilities.get("add", ())) - {"NET_BIND_SERVICE"}:
            yield f"{name}: capabilities"
        if own.get("runAsNonRoot", pod.get("runAsNonRoot")) is not True or own.get("runAsUser", 1) == 0:
            yield f"{name}: root"
        profile = own.get("seccompProfile") or pod.get("seccompProfile") or {}
        if profile.get("type") not in ("RuntimeDefault", "Localhost"):
            yield f"{name}: seccomp"
        if any(p.get("hostPort") for p in container.get("ports") or ()):
            yield f"{name}: hostPort"
        if own.get("procMount", "Default") != "Default":
            yield f"{name}: procMount"
    if pod.get("runAsUser") == 0:
        yield "root"
    if pod.get("sysctls"):
        yield "sysctls"
