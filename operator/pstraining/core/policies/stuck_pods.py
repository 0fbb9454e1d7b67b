"""Which pods does the operator replace because they wait although their budget is not spent?

- A PS in the kubelet's back-off: the whole job waits for it, and a new pod has no back-off. A worker may wait.
- A pod whose launcher idles because of restartPolicy, although the failure did not end the job: a rule of
  spec.failurePolicy restarts the program, or the number of parameter servers changed at that time.

Failures are recorded before their pod is deleted, so the budget ends the series.
"""

from collections.abc import Iterator

from pstraining.api import names
from pstraining.api.conditions import Reason
from pstraining.api.models import PSTrainingJob
from pstraining.core.actions import Delete, Kind
from pstraining.core.facts import Facts
from pstraining.core.policies.failure_counts import key_of
from pstraining.core.policies.failures import cause, is_final, role_spec
from pstraining.core.snapshot import Pod


def deletions(facts: Facts) -> Iterator[Delete]:
    """Delete the waiting pods whose failures are on record."""
    snapshot = facts.snapshot
    idle = (p for p in snapshot.pods if p.role in (names.PS, names.WORKER) and _idles(facts.job, p))
    waiting = (p for p in snapshot.pods_of(names.PS) if p.container.waiting_reason == "CrashLoopBackOff")
    for pods, reason in ((idle, Reason.FAILURE_RULE), (waiting, Reason.STUCK_IN_BACK_OFF)):
        yield from (Delete(Kind.POD, p.name, p.uid, reason) for p in pods if _is_recorded(p, facts))


def _idles(job: PSTrainingJob, pod: Pod) -> bool:
    """Whether the launcher obeys restartPolicy and idles; a failure that ends the job is handled before."""
    end = pod.container.last or pod.container.terminated
    if end is None or end.exit_code == 0 or pod.terminal:
        return False
    return is_final(role_spec(job, pod.role).restart_policy, cause(pod), end.exit_code)


def _is_recorded(pod: Pod, facts: Facts) -> bool:
    """Whether status has all failures of this pod, so that the pod may be deleted."""
    counted = facts.failures.record(pod)
    if pod.deleting or counted is None or counted.pod_uid != pod.uid or counted.given_up:
        return False
    return facts.stored_records.get(key_of(pod)) == counted
