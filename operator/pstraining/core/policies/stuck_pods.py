"""Which parameter servers wait in the kubelet's back-off although their budget is not spent?

A worker may wait: training goes on without it. A PS may not: the whole job waits with it. A new pod has no back-off;
the budget, which is counted first, ends the series.
"""

from pstraining.api import names
from pstraining.api.status import PSTrainingJobStatus
from pstraining.core.policies.attempts import Tally, key_of
from pstraining.core.snapshot import Pod, Snapshot


def stuck(snapshot: Snapshot, status: PSTrainingJobStatus, counted: Tally) -> tuple[Pod, ...]:
    """The pods to delete; none before their failures are on record."""
    stored = {key_of(r): r for r in status.replica_records}
    return tuple(
        p
        for p in snapshot.pods_of(names.PS)
        if p.container.waiting_reason == "CrashLoopBackOff"
        and not p.deleting
        and (known := counted.record(p)) is not None
        and stored.get(key_of(p)) == known
        and known.pod_uid == p.uid
    )
