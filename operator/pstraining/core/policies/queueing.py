"""Which writes to Kueue's Workloads are due, so that quota is requested, held and returned in time?

    the job has ended, and only pods that stay are left     Finished
    suspended by its user, or without a queue, and stopped  the Workloads are deleted: quota is returned
    no Workload, and stopped                                create it
    the Workload requests other pods, and is stopped        with quota: delete it; without: correct it
    another WorkloadPriorityClass is wanted                 write it
    another time limit is wanted, and not admitted          write it
    stopped, and its former workers returned quota          delete it: the next run needs all of the quota
    evicted, and stopped                                    clear the admission: quota is returned; delete it if the
                                                            job would get another one now
    sent by MultiKueue with other pods, and stopped         Finished: MultiKueue sends the job again
    admitted instead of another one, which still has quota  delete the other one
    admitted, and more workers are wanted                   create a Workload that replaces it (a slice)
    admitted, and fewer workers are wanted and left         lower its count
    admitted                                                report pods that are ready, and those that have ended

Quota is held until no pod is left, which makes preemption safe. Every write is decided from the observed state only, so
an operator that starts in any state continues from it. The contract is that of Kueue's jobframework
(https://kueue.sigs.k8s.io/docs/tasks/dev/integrate_a_custom_job/).
"""

from collections.abc import Iterator, Mapping
from datetime import datetime, timedelta
from typing import Any, Final

from pstraining.api import names
from pstraining.api.conditions import Condition, Reason
from pstraining.core import role_status
from pstraining.core.actions import Action, Delete, Kind, PatchStatus, Replace
from pstraining.core.facts import Facts
from pstraining.core.observe import parse_time
from pstraining.core.policies import teardown
from pstraining.core.policies.admission import QueueState
from pstraining.core.policies.queue_writes import (
    corrected,
    created,
    deletions,
    patched,
    quota_returned,
    reprioritized,
    retimed,
)
from pstraining.core.queue_workload import QueueCondition, QueueWorkload
from pstraining.core.snapshot import Pod
from pstraining.resources import kueue
from pstraining.resources.installation import KueueSupport
from pstraining.resources.kueue import SliceChain

LOOK_AGAIN: Final = timedelta(seconds=30)
"""Time after which a missing object of Kueue is read again, because no watch reports its creation. Kueue also has this
time to finish a Workload that it has replaced."""


def look_again(facts: Facts) -> datetime | None:
    """Return the time of the next pass for a job that waits for something that no watch reports; None without it."""
    if facts.queue.support is not KueueSupport.ON:
        return None
    if facts.queue.lacks_object:
        return facts.now + LOOK_AGAIN
    replaced = _replaced(facts)
    return None if replaced is None or replaced[1] <= facts.now else replaced[1]


def changes(facts: Facts) -> Iterator[Action]:
    """Yield the writes for a job that has not ended."""
    state = facts.queue
    if state.support is not KueueSupport.ON:
        return
    is_over = not teardown.workloads(facts.snapshot) and all(pod.stopped for pod in facts.snapshot.pods)
    yield from deletions([w for w in state.finished if w.is_replaced and w is not state.former], Reason.NOT_DESIRED)
    is_suspended = state.job.spec.run_policy.suspend
    if not state.decides or is_suspended:
        if is_over or not is_suspended:
            yield from deletions(state.live, Reason.NOT_DESIRED)
        return
    current = state.current
    if current is None:
        yield from _first(facts) if is_over else ()
    elif is_over and state.is_admitted and state.is_spent:
        yield from deletions([current], Reason.NOT_DESIRED)
    elif state.is_admitted:
        # One write to a Workload per pass: the next write needs its new version.
        reports: tuple[Action, ...] = () if state.former is not None else tuple(_reported(facts, current))
        yield from reports or tuple(_left_over(facts)) or _changed(facts) or _scaled(facts, current)
    elif is_over:
        yield from _waiting(facts, current)


def ended(facts: Facts, end: Condition) -> Iterator[PatchStatus]:
    """Report the end of a job to Kueue, which returns the quota, once none of its pods is about to be deleted."""
    if any(not pod.stopped and _is_about_to_go(facts, pod) for pod in facts.snapshot.pods):
        return
    reason = "Succeeded" if end is Condition.SUCCEEDED else "Failed"
    for workload in facts.queue.live:
        change = (QueueCondition.FINISHED, True, reason, f"The PSTrainingJob has {reason.lower()}.")
        status = {"conditions": workload.with_conditions(facts.now, change)}
        yield patched(workload, status, Reason.JOB_FINISHED)


def _is_about_to_go(facts: Facts, pod: Pod) -> bool:
    """Whether a pod is being or will be deleted; the garbage collector deletes it shortly after its owner."""
    name, surplus = facts.snapshot.name, False
    match pod.role:
        case names.PS:
            owner = names.standby_stateful_set(name, pod.member) if pod.member else names.ps_stateful_set(name)
            child = facts.snapshot.child(Kind.STATEFUL_SET, owner)
            surplus = child is not None and not 0 <= pod.index - child.first_ordinal < child.replicas
        case names.WORKER:
            child = facts.snapshot.child(Kind.DEPLOYMENT, names.worker_name(name, pod.index))
            surplus = child is not None and not child.replicas
        case names.CHIEF:
            child = facts.snapshot.child(Kind.JOB, names.chief_job(name, pod.term))
        case _:
            child = facts.snapshot.child(Kind.JOB, names.evaluator_job(name, pod.term))
    return pod.deleting or child is None or child.deleting or surplus


def _first(facts: Facts) -> Iterator[Action]:
    """Create the Workload, once former ones are deleted, unless MultiKueue sends one with the job."""
    state = facts.queue
    if state.prebuilt:
        return
    yield from deletions([w for w in state.finished if not w.is_replaced], Reason.NOT_DESIRED)
    if not state.workloads:
        name = kueue.workload_name(state.job)
        yield from created(facts, name)


def _left_over(facts: Facts) -> Iterator[Delete]:
    """Delete the Workload that the current one has replaced, if Kueue has left it with its quota."""
    replaced = _replaced(facts)
    if replaced is not None and replaced[1] <= facts.now:
        yield from deletions([replaced[0]], Reason.NOT_DESIRED)


def _replaced(facts: Facts) -> tuple[QueueWorkload, datetime] | None:
    """Return a replaced Workload that Kueue has not finished, and when to delete it.

    Kueue finishes it right after the admission of the slice, unless it is stopped between the two writes. Further
    slices may have replaced that slice since.
    """
    current = facts.queue.current
    if current is None or not current.may_run:
        return None
    replaced = next((w for w in facts.queue.live if w is not current and w.has_quota), None)
    since = parse_time(current.condition(QueueCondition.ADMITTED).get("lastTransitionTime"))
    return None if replaced is None or since is None else (replaced, since + LOOK_AGAIN)


def _waiting(facts: Facts, current: QueueWorkload) -> Iterator[Action]:
    """Bring the Workload of a stopped job to the state in which Kueue can admit it."""
    state = facts.queue
    if current.is_evicted and current.has_quota:
        # Kueue may admit it again before it is corrected. A Workload that a user has stopped must stay.
        stays = state.prebuilt or not current.is_active
        if stays or state.is_up_to_date(any_workers=current.is_elastic):
            yield quota_returned(facts, current)
        else:
            yield from deletions([current], Reason.SPEC_CHANGED)
        return
    # One Workload stays: the others request pods in addition to those of a running job.
    yield from deletions([w for w in state.live if w is not current], Reason.NOT_DESIRED)
    if state.prebuilt:
        if not state.matches:
            yield _out_of_sync(facts, current)
        return
    if not current.has_quota:
        yield from () if state.is_up_to_date() else corrected(facts, current)
    elif not state.matches:
        yield from deletions([current], Reason.SPEC_CHANGED)
    else:
        yield from _changed(facts)


def _changed(facts: Facts) -> tuple[Action, ...]:
    """Return the changes that Kueue accepts although a Workload has quota: one write to each in a pass."""
    return tuple(reprioritized(facts)) or tuple(retimed(facts))


def _out_of_sync(facts: Facts, current: QueueWorkload) -> PatchStatus:
    """Refuse the Workload that MultiKueue has sent with a job of other pods: MultiKueue sends both again."""
    words = "The prebuilt workload is out of sync with its PSTrainingJob"
    conditions = current.with_conditions(facts.now, (QueueCondition.FINISHED, True, "OutOfSync", words))
    return patched(current, {"conditions": conditions}, Reason.SPEC_CHANGED)


def _scaled(facts: Facts, current: QueueWorkload) -> Iterator[Action]:
    """Request more workers by a slice, or return the quota of workers that have ended."""
    state, pending = facts.queue, facts.queue.next_slice
    wanted, asked = state.job.spec.worker.replicas, current.terms.workers
    if not current.is_elastic:
        return
    # The count includes workers that have returned their quota, as long as the Workload exists. A Workload that is not
    # admitted yet includes those that will return theirs.
    is_awaited = state.former is not None
    needed = wanted if is_awaited else state.running_of(wanted) + current.reclaimable.get(names.WORKER, 0)
    if pending is not None and needed <= asked:
        yield from deletions([pending], Reason.NOT_DESIRED)
    elif pending is not None and pending.terms.workers != wanted:
        yield _recounted(pending, wanted)
    elif pending is None and needed > asked and state.former is None:
        name = kueue.workload_name(state.job, f"{state.job.metadata.generation}\n{current.child.uid}")
        yield from created(facts, name, SliceChain(current.slice_name, current.name))
    elif needed < asked and not any(_leaves(p, state, wanted) for p in facts.snapshot.pods_of(names.WORKER)):
        yield _recounted(current, needed)


def _leaves(pod: Pod, state: QueueState, wanted: int) -> bool:
    """Whether a pod is that of a superfluous worker and still runs."""
    return not pod.over and (pod.index >= wanted or pod.index in state.retired)


def _recounted(workload: QueueWorkload, workers: int) -> Replace:
    """Set the number of workers that a Workload requests."""
    index = list(workload.counts).index(names.WORKER)
    parts = {f"/spec/podSets/{index}/count": workers}
    return Replace(Kind.WORKLOAD, workload.name, workload.child.uid, parts, Reason.SPEC_CHANGED)


def _reported(facts: Facts, current: QueueWorkload) -> Iterator[PatchStatus]:
    """Report whether all pods are ready, and the pods that will never need their quota again."""
    status: dict[str, Any] = {}
    conditions = _readiness(facts, current)
    if conditions is not None:
        status["conditions"] = conditions
    done = _reclaimable(facts, current)
    if done > current.reclaimable.get(names.WORKER, 0):
        status["reclaimablePods"] = [{"name": names.WORKER, "count": done}]
    if status:
        yield patched(current, status, Reason.PODS_REPORTED)


def _reclaimable(facts: Facts, current: QueueWorkload) -> int:
    """Return the number of admitted workers that have ended for good and whose pods are deleted."""
    left = {p.index for p in facts.snapshot.pods_of(names.WORKER) if not p.over}
    retired = sum(i not in left for i in facts.retired_workers if i < facts.job.spec.worker.replicas)
    return min(current.count(names.WORKER) or 0, retired)


def _readiness(facts: Facts, current: QueueWorkload) -> list[Mapping[str, Any]] | None:
    stored = current.condition(QueueCondition.PODS_READY)
    ready = role_status.is_complete(facts)
    if ready:
        was_ready = stored.get("reason") in ("WaitForRecovery", "Recovered")
        reason, message = "Recovered" if was_ready else "Started", "All pods that training needs are ready"
    elif stored.get("reason") in ("Started", "Recovered"):
        reason, message = "WaitForRecovery", "A pod that training needs has failed and is replaced"
    else:
        return None  # Kueue counts the time since the admission, or the recovery is reported already
    return current.with_conditions(facts.now, (QueueCondition.PODS_READY, ready, reason, message))
