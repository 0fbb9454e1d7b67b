"""Does the job own its claims, so that the garbage collector deletes them with it?

spec.checkpoint.retainPolicy decides about the claim of the checkpoints at any time, also for a job that runs or has
ended. ps.persistentVolumeClaimRetentionPolicy.whenDeleted decides about the claims of parameter servers. It may change
while the job is suspended, and a StatefulSet gives its claims their owners only when it creates them. A claim that
existed before the job never gets an owner: the snapshot has only claims that carry the job's uid, which the operator,
or a StatefulSet, labels at creation.
"""

from collections.abc import Iterator, Mapping
from typing import Any

from pstraining.api import names
from pstraining.api.conditions import Reason
from pstraining.api.models import PSTrainingJob, Retention
from pstraining.core.actions import Apply, Kind, Replace
from pstraining.core.policies.owner_lists import replaced_owners
from pstraining.core.snapshot import Child, Snapshot
from pstraining.resources import volume_claims
from pstraining.resources.metadata import owner, without_owner


def owner_changes(job: PSTrainingJob, snapshot: Snapshot) -> Iterator[Apply | Replace]:
    """Add the job to the owners of its claims, or remove it, where a claim differs from its policy."""
    for claim in snapshot.of_kind(Kind.CLAIM):
        if claim.deleting:
            continue
        owners = claim.manifest["metadata"].get("ownerReferences") or []
        is_owned = any(reference.get("uid") == snapshot.uid for reference in owners)
        is_checkpoint = claim.name == names.checkpoint_claim(job.metadata.name)
        of_servers = job.spec.ps.persistent_volume_claim_retention_policy.when_deleted
        if (volume_claims.checkpoint_retention(job) if is_checkpoint else of_servers) is Retention.RETAIN:
            if is_owned:
                yield _released(claim, snapshot.uid)
        elif is_checkpoint:
            # The API server refuses a second controller.
            if not is_owned and not any(reference.get("controller") for reference in owners):
                yield _owned(job, claim, owner(job))
        elif not is_owned and volume_claims.shard(job, claim.name) is not None:
            yield _owned(job, claim, volume_claims.owner_of_server_claims(job))


def _owned(job: PSTrainingJob, claim: Child, reference: Mapping[str, Any]) -> Apply:
    metadata = {"name": claim.name, "namespace": job.metadata.namespace, "uid": claim.uid}
    body = {"apiVersion": "v1", "kind": str(claim.kind), "metadata": metadata | {"ownerReferences": [reference]}}
    return Apply(claim.kind, claim.name, claim.uid, body, Reason.DRIFTED)


def _released(claim: Child, job_uid: str) -> Replace:
    """Remove the job from the owners.

    A server-side apply removes only what an earlier one has set, and the claim may have been created with its owner.
    """
    parts = replaced_owners(claim, job_uid)
    labels = without_owner(claim.labels)
    if labels != claim.labels:
        # Argo CD and Flux would delete a claim without an owner that carries their labels.
        parts["/metadata/labels"] = labels
    return Replace(claim.kind, claim.name, claim.uid, parts, Reason.DRIFTED)
