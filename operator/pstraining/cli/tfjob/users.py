"""Notes on the users, groups and rights that the operator sets because a TFJob's pod template does not."""

from collections.abc import Mapping
from typing import Any, Final

from pstraining.cli.tfjob.notes import Notes
from pstraining.resources import pods, security

_WITHOUT_FILES: Final = {"emptyDir", "hostPath", "nfs"}
"""Kinds of volumes that are empty, or whose files Kubernetes does not change."""


def note_users(template: Mapping[str, Any], path: str, notes: Notes) -> None:
    """Note the users, groups and rights that the operator sets because the template does not."""
    spec = template["spec"]
    of_pod = spec.get("securityContext", {})
    of_main = pods.main_container(spec).get("securityContext", {})
    is_whole = "runAsUser" not in of_pod and "runAsUser" not in of_main
    is_told = is_whole and not security.runs_as_image_user(of_pod, of_main)
    if is_told:
        notes.different(
            f"{path}.spec.securityContext",
            "it has no runAsUser: TFJob's pods run as the image's user, often root, and pods here as user 1000.",
            "Set runAsUser if the program must write as another user.",
        )
    if of_pod.get("runAsUser") != 0:
        _note_groups(spec, {**of_pod, **of_main}, f"{path}.spec.securityContext", is_whole, notes)
    for kind in ("initContainers", "containers"):
        for index, container in enumerate(spec.get(kind, ())):
            own = container.get("securityContext", {})
            where, user = f"{path}.spec.{kind}[{index}].securityContext", own.get("runAsUser", of_pod.get("runAsUser"))
            may_be_root = user == 0 or security.runs_as_image_user(of_pod, own)
            if user is None and not (is_told or may_be_root):
                notes.different(
                    where,
                    "it has no runAsUser: in TFJob this container runs as its image's user, and here as user 1000.",
                    "Set runAsUser if it must run as another user, such as root.",
                )
            elif may_be_root and "capabilities" not in own and not own.get("privileged"):
                notes.different(
                    where,
                    "root has no capabilities here: chown and access to other users' files fail, for example.",
                    "Add those that it needs, such as capabilities: {add: [CHOWN, DAC_OVERRIDE, FOWNER]}.",
                )


def _note_groups(spec: Mapping[str, Any], context: Mapping[str, Any], path: str, is_whole: bool, notes: Notes) -> None:
    """Note the groups that the operator sets.

    Args:
        spec: the pod's spec.
        context: the security contexts of the pod and of the training container.
        path: path of the pod's security context.
        is_whole: whether the template sets no user, so that the group is the user's.
        notes: receives the notes.
    """
    if not is_whole and "runAsGroup" not in context:
        notes.different(
            path,
            "it has no runAsGroup: TFJob's pods have their image's group, often 0, and pods here have group 1000.",
            "Set runAsGroup if the program needs another group.",
        )
    if "fsGroup" not in context and _has_files(spec.get("volumes")):
        notes.different(
            path,
            "it has no fsGroup: TFJob leaves the groups of files in volumes as they are. Here they get group 1000.",
            "Set fsGroup to the group that the files have.",
        )


def _has_files(volumes: Any) -> bool:
    items = volumes if isinstance(volumes, list) else ()
    return any(isinstance(item, dict) and not _WITHOUT_FILES & set(item) for item in items)
