"""The children that hold pods: the StatefulSets of the PSs, a Deployment a worker, a Job an attempt of the chief."""

from typing import Any

from pstraining.api import names
from pstraining.api.models import PSTrainingJob
from pstraining.resources import pods, standbys, volume_claims
from pstraining.resources.metadata import metadata, role_selector


def build_parameter_servers(job: PSTrainingJob, launcher: str, member: int = 0, term: int = 1) -> dict[str, Any]:
    """The StatefulSet of all PSs, or of a standby each: started together, replaced only when one dies or is deleted.

    Args:
        job: the owner.
        launcher: the name of the launcher's ConfigMap.
        member: which member of its shard each pod is.
        term: the chief's newest.
    """
    own = {names.LABEL_MEMBER: str(member)}
    spec = {
        "replicas": job.spec.ps.replicas,
        "serviceName": names.headless_service(job.metadata.name),
        "podManagementPolicy": "Parallel",
        "updateStrategy": {"type": "OnDelete"},
        "revisionHistoryLimit": 0,
        "selector": {"matchLabels": role_selector(job, names.PS) | own},
        "template": pods.build(job, pods.PodTask(names.PS, member=member, term=term), launcher),
        **volume_claims.templates(job),
    }
    made_for = {names.ANNOTATION_SHARDS: str(job.spec.ps.replicas)}
    found = metadata(job, standbys.stateful_set(job, member), names.PS, annotations=made_for)
    found["labels"] |= {names.LABEL_ROLE: names.PS} | own
    return {"apiVersion": "apps/v1", "kind": "StatefulSet", "metadata": found, "spec": spec}


def build_worker(job: PSTrainingJob, index: int, launcher: str) -> dict[str, Any]:
    """One worker's Deployment: an identity of its own that survives rescheduling, also while the operator is down."""
    found = outline_worker(job, index)
    found["spec"] |= {
        "strategy": {"type": "Recreate"},
        "revisionHistoryLimit": 0,
        "selector": {"matchLabels": role_selector(job, names.WORKER, index)},
        "template": pods.build(job, pods.PodTask(names.WORKER, index), launcher),
    }
    return found


def outline_worker(job: PSTrainingJob, index: int) -> dict[str, Any]:
    """As much of a worker's Deployment as is ever corrected."""
    found = metadata(job, names.worker_name(job.metadata.name, index), names.WORKER)
    found["labels"] |= {names.LABEL_ROLE: names.WORKER, names.LABEL_INDEX: str(index)}
    return {"apiVersion": "apps/v1", "kind": "Deployment", "metadata": found, "spec": {"replicas": 1}}


def retire_worker(job: PSTrainingJob, index: int, uid: str, why: str) -> dict[str, Any]:
    """The apply that ends a worker: no replicas, and the annotation that says why on the object itself."""
    return {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {
            "name": names.worker_name(job.metadata.name, index),
            "namespace": job.metadata.namespace,
            "uid": uid,
            "annotations": {why: "true"},
        },
        "spec": {"replicas": 0},
    }


def build_attempt(job: PSTrainingJob, role: str, number: int, launcher: str) -> dict[str, Any]:
    """One attempt of the chief or the evaluator: a Job of one pod that is never started again.

    Args:
        job: the owner.
        role: chief or evaluator.
        number: the attempt's, which for the chief is its term.
        launcher: the name of the launcher's ConfigMap.
    """
    template = pods.build(job, pods.PodTask(role, term=number), launcher)
    template["spec"]["restartPolicy"] = "Never"
    spec = {
        "backoffLimit": 0,
        # A pod that is going away may still write: count it only once it is gone.
        "podReplacementPolicy": "Failed",
        "template": template,
    }
    chief = role == names.CHIEF
    name = names.chief_job(job.metadata.name, number) if chief else names.evaluator_job(job.metadata.name, number)
    found = metadata(job, name, role)
    found["labels"] |= {names.LABEL_ROLE: role, pods.number_label(role): str(number)}
    return {"apiVersion": "batch/v1", "kind": "Job", "metadata": found, "spec": spec}


def build_checkpoint_claim(job: PSTrainingJob) -> dict[str, Any] | None:
    """The claim for checkpoints, if the job asks for one."""
    checkpoint = job.spec.checkpoint
    if checkpoint is None or checkpoint.volume_claim_template is None:
        return None
    return {
        "apiVersion": "v1",
        "kind": "PersistentVolumeClaim",
        "metadata": metadata(job, names.checkpoint_claim(job.metadata.name), "checkpoint"),
        "spec": checkpoint.volume_claim_template,
    }


def worker_selector_text(job: PSTrainingJob) -> str:
    """The workers' selector as text, for the scale subresource."""
    return ",".join(f"{k}={v}" for k, v in role_selector(job, names.WORKER).items())
