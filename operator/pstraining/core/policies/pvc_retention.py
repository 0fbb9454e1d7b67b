"""Which claims are left over when there are fewer parameter servers than before?

Asked only while the job runs with its new number of servers: the pods of the shards that are gone, gone by then or on
their way out, hold their claims until they end (Kubernetes' own protection).
"""

from collections.abc import Iterator

from pstraining.api import names
from pstraining.api.conditions import Reason
from pstraining.api.models import PSTrainingJob, Retention
from pstraining.core.actions import Delete, Kind
from pstraining.core.snapshot import Snapshot
from pstraining.resources import claims


def left_over(job: PSTrainingJob, snapshot: Snapshot) -> Iterator[Delete]:
    """Deletions of the claims of shards that the job no longer has, if it says so."""
    if job.spec.ps.persistent_volume_claim_retention_policy.when_scaled is Retention.RETAIN:
        return
    if snapshot.child(Kind.STATEFUL_SET, names.ps_stateful_set(job.metadata.name)) is None:
        return
    for claim in snapshot.of_kind(Kind.CLAIM):
        shard = claims.shard(job, claim.name)
        if shard is not None and shard >= job.spec.ps.replicas and not claim.deleting:
            yield Delete(Kind.CLAIM, claim.name, claim.uid, Reason.NOT_DESIRED)
