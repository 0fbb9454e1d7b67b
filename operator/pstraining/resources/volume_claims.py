"""The persistent volumes of parameter servers: one claim per server, created by its StatefulSet.

A StatefulSet is deleted and created again with every suspension, while the job stays. It therefore always retains the
claims. With `whenDeleted: Delete` the job itself owns every claim: the StatefulSet's controller copies the owners from
the claim template's metadata.
"""

from typing import Any

from pstraining.api import names
from pstraining.api.models import PSTrainingJob, Retention
from pstraining.api.numbers import number
from pstraining.resources import standbys
from pstraining.resources.metadata import labels, on_template, owner, without_owner


def templates(job: PSTrainingJob) -> dict[str, Any]:
    """Return the fields of a StatefulSet's spec about claims; empty without claims."""
    claims = job.spec.ps.volume_claim_templates
    if not claims:
        return {}
    wanted = [{"metadata": _metadata(job, t.metadata.model_dump()), "spec": t.spec} for t in claims]
    keep = {"whenDeleted": "Retain", "whenScaled": "Retain"}
    return {"volumeClaimTemplates": wanted, "persistentVolumeClaimRetentionPolicy": keep}


def checkpoint_retention(job: PSTrainingJob) -> Retention:
    """Return the retention of the job's checkpoint claim; if the spec no longer has a template, the claim is kept."""
    checkpoint = job.spec.checkpoint
    if checkpoint is None or checkpoint.volume_claim_template is None:
        return Retention.RETAIN
    return checkpoint.retain_policy


def shard(job: PSTrainingJob, claim: str) -> int | None:
    """Return the shard of a claim, by its name; None if the claim is not from one of the job's templates."""
    for template in job.spec.ps.volume_claim_templates:
        for member in range(standbys.members(job)):
            prefix = f"{template.metadata.name}-{standbys.stateful_set(job, member)}-"
            index = number(claim.removeprefix(prefix))
            if claim.startswith(prefix) and index is not None:
                return index
    return None


def _metadata(job: PSTrainingJob, own: dict[str, Any]) -> dict[str, Any]:
    every = on_template(own["labels"], labels(job, names.PS))
    metadata = {**own, "labels": without_owner(every), "annotations": without_owner(own["annotations"])}
    if job.spec.ps.persistent_volume_claim_retention_policy.when_deleted is Retention.DELETE:
        metadata["ownerReferences"] = [owner_of_server_claims(job)]
    return metadata


def owner_of_server_claims(job: PSTrainingJob) -> dict[str, Any]:
    """Return the job as an owner, but not the controller: StatefulSets reserve that reference for themselves."""
    return {k: v for k, v in owner(job).items() if k in ("apiVersion", "kind", "name", "uid")}
