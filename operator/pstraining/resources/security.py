"""Sets the unset fields of a pod's security contexts to the Pod Security Standard "restricted"."""

from collections.abc import Mapping, Sequence
from enum import StrEnum
from typing import Any

from pstraining.resources.containers import all_containers

_USER = 1000
"""A non-root user for images without a user, which the kubelet otherwise refuses to start."""
_ESCALATING = {"SYS_ADMIN", "ALL"}
"""Capabilities that include the right to escalate."""


class PodIds(StrEnum):
    """The party that sets the user and group IDs of pods whose template has none."""

    AUTO = "auto"
    """The platform sets them if it assigns IDs; otherwise the operator does."""
    SET = "set"
    """The operator sets them."""
    PLATFORM = "platform"
    """The platform sets them; the operator creates pods without IDs."""


def sets_ids(setting: PodIds, *, platform_assigns_ids: bool) -> bool:
    """Whether the operator sets the user and group IDs of pods.

    OpenShift's default SecurityContextConstraints (restricted-v2) assign each namespace a range of IDs. They refuse a
    pod with other IDs.
    """
    return setting is PodIds.SET or (setting is PodIds.AUTO and not platform_assigns_ids)


def runs_as_image_user(of_pod: Mapping[str, Any], own: Mapping[str, Any]) -> bool:
    """Whether a container runs as its image's user, also if that is root: the template requires no other user.

    `privileged` requests the rights of root, and gives another user none of them.

    Args:
        of_pod: the security context of the pod in the template.
        own: the security context of the container in the template.
    """
    context = {**of_pod, **own}
    return context.get("runAsNonRoot", not own.get("privileged")) is False and "runAsUser" not in context


def restrict(spec: dict[str, Any], *, ids: bool = True) -> None:
    """Set the unset fields of a pod's security contexts; fields of the template stay unchanged.

    Args:
        spec: the pod's spec.
        ids: whether to set the user and group IDs as well.
    """
    pod = spec.setdefault("securityContext", {})
    contexts = [container.setdefault("securityContext", {}) for container in all_containers(spec)]
    says_root = pod.get("runAsUser") == 0
    if not says_root:
        for own in contexts:
            if own.get("privileged") and runs_as_image_user(pod, own):
                own["runAsNonRoot"] = False
        if ids:
            _set_ids(pod, contexts)
        pod.setdefault("runAsNonRoot", True)
        # Shared checkpoint volumes can have very many files.
        pod.setdefault("fsGroupChangePolicy", "OnRootMismatch")
    pod.setdefault("seccompProfile", {"type": "RuntimeDefault"})
    for own in contexts:
        if own.get("privileged"):
            continue
        added = {str(name).removeprefix("CAP_") for name in (own.get("capabilities") or {}).get("add") or ()}
        if own.get("runAsUser") == 0:
            own.setdefault("runAsNonRoot", False)
        # Kubernetes always lets a container with SYS_ADMIN escalate, and refuses false together with CAP_SYS_ADMIN.
        if not added & _ESCALATING:
            own.setdefault("allowPrivilegeEscalation", False)
        own.setdefault("capabilities", {"drop": ["ALL"]})


def _set_ids(pod: dict[str, Any], contexts: Sequence[dict[str, Any]]) -> None:
    """Set the unset user and group IDs, for the whole pod unless a container runs as its image's user."""
    pod.setdefault("fsGroup", _USER)
    others = [own for own in contexts if not runs_as_image_user(pod, own)]
    for target in [pod] if len(others) == len(contexts) else others:
        for field in ("runAsUser", "runAsGroup"):
            if field not in pod:
                target.setdefault(field, _USER)
