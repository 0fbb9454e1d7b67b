"""The children with pods: StatefulSets of PSs, one Deployment per worker, one Job per attempt of the chief."""

from typing import Any, Final

from pstraining.api import names
from pstraining.api.models import PSTrainingJob, Retention
from pstraining.resources import fixed_fields, pods, standbys, volume_claims
from pstraining.resources.installation import STANDARD, Installation
from pstraining.resources.launcher import LauncherMap
from pstraining.resources.layout import FIRST, ServerLayout
from pstraining.resources.metadata import metadata, role_selector, without_owner

LABELS_OF_JOBS: Final = (
    *("job-name", "batch.kubernetes.io/job-name"),
    *("controller-uid", "batch.kubernetes.io/controller-uid"),
)
"""The labels that Kubernetes sets on the pods of Jobs. It refuses a Job whose template has other values."""


def build_parameter_servers(
    job: PSTrainingJob,
    launcher: LauncherMap,
    member: int = 0,
    term: int = 1,
    *,
    layout: ServerLayout = FIRST,
    installation: Installation = STANDARD,
) -> dict[str, Any]:
    """Return the StatefulSet of all shards' members with one number. It only replaces pods that end or are deleted.

    Args:
        job: the owner.
        launcher: the name of the launcher's ConfigMap.
        member: the number of the pods among the members of their shards.
        term: the newest term of the chief.
        layout: the layout of the parameters.
        installation: how the operator is installed.
    """
    found = outline_parameter_servers(job, member)
    made_for = {names.ANNOTATION_SHARDS: str(job.spec.ps.replicas), names.ANNOTATION_FIXED: fixed_fields.digest(job)}
    if layout.recorded or launcher.is_current:
        # Without this annotation, all pods are replaced for another number of shards: old launchers ignore layouts.
        made_for[names.ANNOTATION_LAYOUT] = str(layout.number)
        if standbys.is_hot(job):
            made_for[names.ANNOTATION_LAYOUT_TERM] = str(layout.term)
    found["metadata"]["annotations"] = made_for
    found["spec"] |= {
        "serviceName": names.headless_service(job.metadata.name),
        "podManagementPolicy": "Parallel",
        "updateStrategy": {"type": "OnDelete"},
        "revisionHistoryLimit": 0,
        "selector": {"matchLabels": role_selector(job, names.PS) | {names.LABEL_MEMBER: str(member)}},
        "template": pods.build(job, pods.PodTask(names.PS, member=member, term=term), launcher, installation),
        **volume_claims.templates(job),
    }
    return found


def outline_parameter_servers(job: PSTrainingJob, member: int = 0) -> dict[str, Any]:
    """Return the fields of a StatefulSet that the operator corrects, unless its job has hot standbys."""
    found = metadata(job, standbys.stateful_set(job, member), names.PS)
    found["labels"] |= {names.LABEL_ROLE: names.PS, names.LABEL_MEMBER: str(member)}
    spec = {"replicas": job.spec.ps.replicas}
    return {"apiVersion": "apps/v1", "kind": "StatefulSet", "metadata": found, "spec": spec}


def build_worker(
    job: PSTrainingJob, index: int, launcher: LauncherMap, *, installation: Installation = STANDARD
) -> dict[str, Any]:
    """Return one worker's Deployment, which keeps the worker's identity even while the operator is down."""
    found = outline_worker(job, index)
    found["metadata"]["annotations"] = {names.ANNOTATION_FIXED: fixed_fields.digest(job)}
    found["spec"] |= {
        "strategy": {"type": "Recreate"},
        "revisionHistoryLimit": 0,
        "selector": {"matchLabels": role_selector(job, names.WORKER, index)},
        "template": pods.build(job, pods.PodTask(names.WORKER, index), launcher, installation),
    }
    return found


def outline_worker(job: PSTrainingJob, index: int) -> dict[str, Any]:
    """Return the fields of a worker's Deployment that the operator corrects."""
    found = metadata(job, names.worker_name(job.metadata.name, index), names.WORKER)
    found["labels"] |= {names.LABEL_ROLE: names.WORKER, names.LABEL_INDEX: str(index)}
    return {"apiVersion": "apps/v1", "kind": "Deployment", "metadata": found, "spec": {"replicas": 1}}


def retire_worker(job: PSTrainingJob, index: int, uid: str, why: str, replicas: int) -> dict[str, Any]:
    """Return the body of an apply that ends a worker: the replicas, 0 or 1, and an annotation with the reason."""
    return {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {
            "name": names.worker_name(job.metadata.name, index),
            "namespace": job.metadata.namespace,
            "uid": uid,
            "annotations": {why: "true"},
        },
        "spec": {"replicas": replicas},
    }


def build_attempt(
    job: PSTrainingJob, role: str, number: int, launcher: LauncherMap, *, installation: Installation = STANDARD
) -> dict[str, Any]:
    """Return one attempt of the chief or the evaluator: a Job of one pod that never restarts.

    Args:
        job: the owner.
        role: chief or evaluator.
        number: the attempt's number; the chief's is its term.
        launcher: the name of the launcher's ConfigMap.
        installation: how the operator is installed.
    """
    template = pods.build(job, pods.PodTask(role, term=number), launcher, installation)
    template["spec"]["restartPolicy"] = "Never"
    for label in LABELS_OF_JOBS:
        template["metadata"]["labels"].pop(label, None)
    spec = {
        "backoffLimit": 0,
        # A terminating pod may still write, so it is replaced only after its end.
        "podReplacementPolicy": "Failed",
        "template": template,
    }
    chief = role == names.CHIEF
    name = names.chief_job(job.metadata.name, number) if chief else names.evaluator_job(job.metadata.name, number)
    found = metadata(job, name, role, annotations={names.ANNOTATION_FIXED: fixed_fields.digest(job)})
    found["labels"] |= {names.LABEL_ROLE: role, pods.number_label(role): str(number)}
    return {"apiVersion": "batch/v1", "kind": "Job", "metadata": found, "spec": spec}


def build_checkpoint_claim(job: PSTrainingJob) -> dict[str, Any] | None:
    """Return the claim for checkpoints; None if the job requests none."""
    checkpoint = job.spec.checkpoint
    if checkpoint is None or checkpoint.volume_claim_template is None:
        return None
    found = metadata(job, names.checkpoint_claim(job.metadata.name), "checkpoint")
    found["labels"] = without_owner(found["labels"])
    if volume_claims.checkpoint_retention(job) is Retention.RETAIN:
        del found["ownerReferences"]
    return {
        "apiVersion": "v1",
        "kind": "PersistentVolumeClaim",
        "metadata": found,
        "spec": checkpoint.volume_claim_template,
    }


def worker_selector_text(job: PSTrainingJob) -> str:
    """Return the workers' selector as text for the scale subresource."""
    return ",".join(f"{k}={v}" for k, v in role_selector(job, names.WORKER).items())
