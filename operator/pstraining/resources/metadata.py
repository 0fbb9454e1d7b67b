"""The common metadata of all children: labels, owner reference, and selectors."""

from collections.abc import Mapping
from typing import Any, Final

from pstraining.api import names
from pstraining.api.models import PSTrainingJob


def labels(job: PSTrainingJob, component: str) -> dict[str, str]:
    """Return the labels of every child. The uid distinguishes the children of two jobs of one name."""
    return {
        names.LABEL_APP_NAME: names.MANAGER,
        names.LABEL_APP_INSTANCE: job.metadata.name,
        names.LABEL_APP_COMPONENT: component,
        names.LABEL_APP_MANAGED_BY: names.MANAGER,
        names.LABEL_JOB: job.metadata.name,
        names.LABEL_JOB_UID: job.metadata.uid,
    }


_PRUNED_BY: Final = ("argocd.argoproj.io/", "kustomize.toolkit.fluxcd.io/", "helm.toolkit.fluxcd.io/")


def on_template(template: Mapping[str, str] | None, own: Mapping[str, str]) -> dict[str, str]:
    """Return the labels or annotations of pods or claims. Those of the template win, except those of this API.

    Args:
        template: the labels or annotations of the template.
        own: the labels or annotations of the operator.
    """
    theirs = {k: v for k, v in (template or {}).items() if not k.startswith(f"{names.GROUP}/")}
    return {**own, **theirs}


def without_owner(found: Mapping[str, str]) -> dict[str, str]:
    """Return labels or annotations without those by which Argo CD and Flux recognize their own objects.

    They would delete such an object if it is not in Git and has no owner.
    """
    return {k: v for k, v in found.items() if k != names.LABEL_APP_INSTANCE and not k.startswith(_PRUNED_BY)}


def role_labels(job: PSTrainingJob, role: str, index: int | None = None) -> dict[str, str]:
    """Return the labels of a role's pods; a StatefulSet's pods get their index from Kubernetes."""
    found = labels(job, role) | {names.LABEL_ROLE: role}
    return found if index is None else found | {names.LABEL_INDEX: str(index)}


def role_selector(job: PSTrainingJob, role: str, index: int | None = None) -> dict[str, str]:
    """Return the labels that select a role's pods; they never change."""
    found = {names.LABEL_JOB_UID: job.metadata.uid, names.LABEL_ROLE: role}
    return found if index is None else found | {names.LABEL_INDEX: str(index)}


def owner(job: PSTrainingJob) -> dict[str, Any]:
    """Return the owner reference of a child, by which the garbage collector deletes it with the job."""
    return {
        "apiVersion": names.API_VERSION,
        "kind": names.KIND,
        "name": job.metadata.name,
        "uid": job.metadata.uid,
        "controller": True,
        "blockOwnerDeletion": True,
    }


def metadata(job: PSTrainingJob, name: str, component: str, **extra: Any) -> dict[str, Any]:
    """Return a child's metadata.

    Args:
        job: the owner.
        name: the child's name.
        component: the role, or the purpose of the child.
        extra: further fields, such as annotations.
    """
    return {
        "name": name,
        "namespace": job.metadata.namespace,
        "labels": labels(job, component),
        "ownerReferences": [owner(job)],
        **extra,
    }
