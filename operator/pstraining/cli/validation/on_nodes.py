"""Warnings about values of a pod that the API server accepts, and with which no kubelet starts the pod.

Source of the rules: k8s.io/kubernetes pkg/volume/emptydir, pkg/kubelet/kuberuntime (verifyRunAsNonRoot).
"""

from collections.abc import Iterator, Mapping
from typing import Any, Final

from pstraining.api.values import path_of
from pstraining.cli.validation.quantities import Steps
from pstraining.cli.validation.schema import Finding, Severity

_MEMORY: Final = "Memory"
_HUGE: Final = "HugePages"
"""The medium of huge pages of the node's size, and the beginning of those of other sizes."""


def not_started(spec: Mapping[str, Any], steps: Steps) -> Iterator[Finding]:
    """Yield the values with which no kubelet starts a pod.

    Args:
        spec: the spec of a pod, without nulls.
        steps: the spec's path.
    """
    for index, volume in enumerate(spec.get("volumes") or ()):
        medium = (volume.get("emptyDir") or {}).get("medium") or _MEMORY
        if medium not in (_MEMORY, _HUGE) and not medium.startswith(f"{_HUGE}-"):
            path = path_of((*steps, "volumes", index, "emptyDir", "medium"))
            message = f"is {medium}, which no kubelet can mount: pods do not start; write {_MEMORY}, or remove it"
            yield Finding(path, message, Severity.WARNING)
    for kind in ("initContainers", "containers"):
        for index, container in enumerate(spec.get(kind) or ()):
            yield from _root(spec, container, steps, (*steps, kind, index))


def _root(spec: Mapping[str, Any], container: Mapping[str, Any], pod: Steps, own: Steps) -> Iterator[Finding]:
    """Yield the user 0 of a container that must not run as root.

    Args:
        spec: the pod's spec.
        container: one of its containers.
        pod: the path of the spec.
        own: the path of the container.
    """
    given = {**(spec.get("securityContext") or {}), **(container.get("securityContext") or {})}
    if given.get("runAsNonRoot") is True and given.get("runAsUser") == 0:
        where = own if "runAsUser" in (container.get("securityContext") or {}) else pod
        message = f"is 0, but runAsNonRoot is true for container {container.get('name')}, which does not start; remove "
        path = path_of((*where, "securityContext", "runAsUser"))
        yield Finding(path, f"{message}one of them", Severity.WARNING)
