"""Which parameter servers wait in the kubelet's back-off although their budget is not spent?

A worker may wait: training goes on without it. A PS may not: the whole job waits with it. A new pod has no back-off;
the budget, which is counted first, ends the series.
"""

from pstraining.api import names
from pstraining.api.models import PSTrainingJob
from pstraining.api.status import PSTrainingJobStatus
from pstraining.core.policies.failure_counts import FailureCounts, key_of
from pstraining.core.policies.failures import Consequence, cause, decide, is_final, role_spec
from pstraining.core.snapshot import Pod, Snapshot


def stuck(snapshot: Snapshot, status: PSTrainingJobStatus, counted: FailureCounts) -> tuple[Pod, ...]:
    """The pods to delete; none before their failures are on record."""
    waiting = (p for p in snapshot.pods_of(names.PS) if p.container.waiting_reason == "CrashLoopBackOff")
    return tuple(p for p in waiting if _on_record(p, status, counted))


def idle(
    job: PSTrainingJob, snapshot: Snapshot, status: PSTrainingJobStatus, counted: FailureCounts
) -> tuple[Pod, ...]:
    """Pods whose launcher obeys restartPolicy and idles, though a rule of failurePolicy wants the program run again."""
    return tuple(
        p
        for p in snapshot.pods
        if p.role in (names.PS, names.WORKER) and _idles(job, p) and _on_record(p, status, counted)
    )


def _idles(job: PSTrainingJob, pod: Pod) -> bool:
    end = pod.container.last or pod.container.terminated
    if end is None or end.exit_code == 0 or pod.terminal:
        return False
    why = cause(pod)
    final = is_final(role_spec(job, pod.role).restart_policy, why, end.exit_code)
    wanted = decide(job, pod.role, why, end.exit_code).consequence in (Consequence.RESTART, Consequence.RESTART_FREE)
    return final and wanted


def _on_record(pod: Pod, status: PSTrainingJobStatus, counted: FailureCounts) -> bool:
    """What happened to the pod is told, so that it may go."""
    known, stored = counted.record(pod), {key_of(r): r for r in status.replica_records}
    return not pod.deleting and known is not None and stored.get(key_of(pod)) == known and known.pod_uid == pod.uid
