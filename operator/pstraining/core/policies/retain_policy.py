"""Does the job own the claim of its checkpoints, so that the garbage collector deletes the claim with it?

spec.checkpoint.retainPolicy decides at any time, also for a job that runs or has ended. A claim that existed before the
job never gets an owner: the snapshot has only claims that carry the job's uid, which the operator labels at creation.
"""

from collections.abc import Iterator

from pstraining.api import names
from pstraining.api.conditions import Reason
from pstraining.api.models import PSTrainingJob, Retention
from pstraining.core.actions import Apply, Kind, Replace
from pstraining.core.policies.owner_lists import replaced_owners
from pstraining.core.snapshot import Child, Snapshot
from pstraining.resources.metadata import owner, without_owner
from pstraining.resources.volume_claims import checkpoint_retention


def owner_changes(job: PSTrainingJob, snapshot: Snapshot) -> Iterator[Apply | Replace]:
    """Add the job to the owners of its checkpoint claim, or remove it, where the claim differs from the policy."""
    claim = snapshot.child(Kind.CLAIM, names.checkpoint_claim(job.metadata.name))
    if claim is None or claim.deleting:
        return
    owners = claim.manifest["metadata"].get("ownerReferences") or []
    is_owned = any(reference.get("uid") == snapshot.uid for reference in owners)
    if checkpoint_retention(job) is Retention.RETAIN:
        if is_owned:
            yield _released(claim, snapshot.uid)
    # The API server refuses a second controller.
    elif not is_owned and not any(reference.get("controller") for reference in owners):
        yield _owned(job, claim)


def _owned(job: PSTrainingJob, claim: Child) -> Apply:
    metadata = {"name": claim.name, "namespace": job.metadata.namespace, "uid": claim.uid}
    body = {
        "apiVersion": "v1",
        "kind": str(claim.kind),
        "metadata": metadata | {"ownerReferences": [owner(job)]},
    }
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
