"""The volumes that parameter servers keep: a claim for each of them, made by their StatefulSet.

A StatefulSet of ours comes and goes with every suspension while the job stays, so what is to happen to the claims when
the *job* goes cannot be left to the StatefulSet: it always keeps them, and with `whenDeleted: Delete` every claim is
owned by the job itself. A StatefulSet's controller copies a claim template's metadata, owners included.
"""

from typing import Any

from pstraining.api import names
from pstraining.api.models import PSTrainingJob, Retention
from pstraining.resources import standbys
from pstraining.resources.metadata import labels, owner


def templates(job: PSTrainingJob) -> dict[str, Any]:
    """The part of a StatefulSet's spec that says which claims its pods have; empty without any."""
    found = job.spec.ps.volume_claim_templates
    if not found:
        return {}
    wanted = [{"metadata": _metadata(job, t.metadata.model_dump()), "spec": t.spec} for t in found]
    keep = {"whenDeleted": "Retain", "whenScaled": "Retain"}
    return {"volumeClaimTemplates": wanted, "persistentVolumeClaimRetentionPolicy": keep}


def shard(job: PSTrainingJob, claim: str) -> int | None:
    """The shard that a claim of this name belongs to, if it comes from one of the job's templates."""
    for template in job.spec.ps.volume_claim_templates:
        for member in range(standbys.members(job)):
            prefix = f"{template.metadata.name}-{standbys.stateful_set(job, member)}-"
            index = claim.removeprefix(prefix)
            if index != claim and index.isdecimal():
                return int(index)
    return None


def _metadata(job: PSTrainingJob, own: dict[str, Any]) -> dict[str, Any]:
    found = {**own, "labels": own["labels"] | labels(job, names.PS)}
    if job.spec.ps.persistent_volume_claim_retention_policy.when_deleted is Retention.DELETE:
        # Not as its controller: that is a word which StatefulSets have for themselves.
        kept = ("apiVersion", "kind", "name", "uid")
        found["ownerReferences"] = [{k: v for k, v in owner(job).items() if k in kept}]
    return found
