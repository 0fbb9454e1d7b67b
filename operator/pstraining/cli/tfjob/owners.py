"""Labels and annotations by which tools such as kubectl, Helm and Argo CD know their objects in a cluster.

An exported TFJob has them. On another object, they would name a wrong owner, which may delete what it does not know.
"""

from typing import Any, Final

from pstraining.cli.manifests import LAST_APPLIED
from pstraining.cli.tfjob.notes import Notes
from pstraining.cli.tfjob.source import join

_FIELDS: Final = {
    "kapp": ("kapp.k14s.io", ("app", "association", "identity", "original", "original-diff-md5")),
    "Rancher": ("objectset.rio.cattle.io", ("applied", "hash", "id", "owner-gvk", "owner-name", "owner-namespace")),
}
"""The group and the fields of tools that write several."""
_FLUX: Final = ("kustomize.toolkit.fluxcd.io", "helm.toolkit.fluxcd.io")
_OWNERS: Final = {
    LAST_APPLIED: "kubectl",
    "applyset.kubernetes.io/part-of": "kubectl",
    "meta.helm.sh/release-name": "Helm",
    "meta.helm.sh/release-namespace": "Helm",
    "argocd.argoproj.io/tracking-id": "Argo CD",
    "argocd.argoproj.io/instance": "Argo CD",
    "config.k8s.io/owning-inventory": "kpt",
    **{f"{group}/{field}": "Flux" for group in _FLUX for field in ("name", "namespace")},
    **{f"{group}/{field}": tool for tool, (group, fields) in _FIELDS.items() for field in fields},
}
"""The tool that writes each of these labels and annotations."""
_INSTANCE: Final = "app.kubernetes.io/instance"
"""A label of the common ones, by which Argo CD may also know the objects of an application."""


def drop_owners(metadata: dict[str, Any], path: str, *, exported: bool, notes: Notes) -> None:
    """Remove labels and annotations that tools write for themselves.

    Args:
        metadata: the job's metadata, which are changed.
        path: path of the TFJob's metadata.
        exported: whether the TFJob comes from a cluster.
        notes: receives the notes.
    """
    for kind in ("labels", "annotations"):
        marks = metadata.get(kind, {})
        for mark in [mark for mark in marks if mark in _OWNERS]:
            del marks[mark]
            notes.changed(join(join(path, kind), mark), f"{_OWNERS[mark]}'s own, of the old object; it is left out.")
        if not marks:
            metadata.pop(kind, None)
    if exported and _INSTANCE in metadata.get("labels", {}):
        notes.different(
            join(join(path, "labels"), _INSTANCE),
            "if Argo CD tracks its objects by this label, it prunes objects that are not in the application's source.",
            "Remove it if Argo CD has set it.",
        )
