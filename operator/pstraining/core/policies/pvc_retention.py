"""Which claims are left over after ps.replicas was reduced?

The planner uses this only while the job runs with its new number of servers. A pod of a removed shard may still be
terminating; Kubernetes keeps its claim until it ends.
"""

from collections.abc import Iterator

from pstraining.api import names
from pstraining.api.conditions import Reason
from pstraining.api.models import PSTrainingJob, Retention
from pstraining.core.actions import Delete, Kind
from pstraining.core.snapshot import Snapshot
from pstraining.resources import volume_claims


def left_over(job: PSTrainingJob, snapshot: Snapshot, servers: int) -> Iterator[Delete]:
    """Delete the claims of removed shards, if the retention policy requests it.

    Args:
        job: the job.
        snapshot: the observed state.
        servers: the number of servers that run or start.
    """
    if job.spec.ps.persistent_volume_claim_retention_policy.when_scaled is Retention.RETAIN:
        return
    if snapshot.child(Kind.STATEFUL_SET, names.ps_stateful_set(job.metadata.name)) is None:
        return
    for claim in snapshot.of_kind(Kind.CLAIM):
        shard = volume_claims.shard(job, claim.name)
        if shard is not None and shard >= servers and not claim.deleting:
            yield Delete(Kind.CLAIM, claim.name, claim.uid, Reason.NOT_DESIRED)
