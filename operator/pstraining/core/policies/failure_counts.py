"""How often has each replica failed, and how often was it restarted?

The runs of a container are counted by (pod uid, ended runs). So no run is counted twice, even if it is observed twice,
late, or by another operator process; a run whose pod was never observed is not counted. failures.py decides whether a
failure counts and what follows. If several runs ended unobserved, only the cause of the newest one is known.
"""

from collections.abc import Container, Iterator, Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime
from functools import cached_property

from pstraining.api import names
from pstraining.api.conditions import Reason
from pstraining.api.models import PSTrainingJob
from pstraining.api.run_policy import FailureReason
from pstraining.api.status import LastFailure, PSTrainingJobStatus, ReplicaRecord, StatusCondition
from pstraining.api.text import printable
from pstraining.core.policies import budgets, missed_change
from pstraining.core.policies.failures import (
    STOPPED,
    TABLE,
    Consequence,
    Decision,
    cause,
    decide,
    newest_end,
)
from pstraining.core.policies.resharding import began, has_saved
from pstraining.core.policies.success import decides_end, on_record, runs_for_ever, succeeded
from pstraining.core.policies.teardown import leader_pods
from pstraining.core.snapshot import Pod, Snapshot, Termination
from pstraining.resources.standbys import members


@dataclass(frozen=True)
class Failure:
    """One newly counted failure of a replica."""

    role: str
    index: int
    last_failure: LastFailure
    decision: Decision


@dataclass(frozen=True)
class FailureCounts:
    """All counters, with what this snapshot adds to them."""

    records: tuple[ReplicaRecord, ...] = ()
    failures: tuple[Failure, ...] = ()
    restart_job: Failure | None = None
    """The failure that restarts the whole job."""
    uncounted: Mapping[str, FailureReason] = field(default_factory=dict)
    """By role, the cause of the newest failure that the snapshot adds, and that counts against no budget."""

    def restarts(self, role: str) -> int:
        """Return how often replicas of a role were restarted."""
        return sum(r.restarts for r in self.records if r.role == role)

    def is_recorded(self, status: PSTrainingJobStatus) -> bool:
        """Whether status has all counters, so that evidence may be deleted."""
        return status.replica_records == list(self.records)

    def record(self, pod: Pod) -> ReplicaRecord | None:
        """Return the counters of the replica that this pod runs."""
        return self._by_key.get(key_of(pod))

    def of(self, role: str, index: int) -> tuple[ReplicaRecord, ...]:
        """Return the counters of one replica; the members of a shard share one budget."""
        return self._by_replica.get((role, index), ())

    @property
    def fail_job(self) -> Failure | None:
        """The failure that fails the job; not that of a worker which the job gives up instead."""
        found = (f for f in self._having(Consequence.FAIL_JOB) if not self._is_given_up(f))
        return next(found, None) if self.restart_job is None else None

    def _having(self, consequence: Consequence) -> Iterator[Failure]:
        return (f for f in self.failures if f.decision.consequence is consequence)

    def _is_given_up(self, failure: Failure) -> bool:
        return failure.role == names.WORKER and failure.decision.rule is None and failure.index in self.given_up

    def spent(self, job: PSTrainingJob) -> Iterator[tuple[ReplicaRecord, int]]:
        """Yield the counters of each replica whose spent budget fails the job, with the failures that it has used.

        A failure that restarts the whole job gives its replica a new budget.
        """
        for record in self.records:
            used = budgets.used(job, record.role, self.of(record.role, record.index))
            is_exempt = record.given_up or (record.role, record.index) in self.restarting
            if used > budgets.limit(job, record.role) and not is_exempt:
                yield record, used

    def or_restart(self, job: PSTrainingJob) -> "FailureCounts":
        """Return these counters, or those after a restart of the job. Whatever fails the job prevails."""
        restart = next(self._having(Consequence.RESTART_JOB), None)
        if restart is None or self.fail_job is not None or any(self.spent(job)):
            return self
        return replace(self, records=tuple(_forgiven(r) for r in self.records), restart_job=restart)

    @cached_property
    def restarting(self) -> frozenset[tuple[str, int]]:
        """The replicas, by role and index, with a new failure for which a rule restarts the job."""
        return frozenset((f.role, f.index) for f in self._having(Consequence.RESTART_JOB))

    @cached_property
    def given_up(self) -> frozenset[int]:
        """The workers without which the job continues."""
        return frozenset(r.index for r in self.records if r.given_up)

    @cached_property
    def _by_key(self) -> Mapping[tuple[str, int, int], ReplicaRecord]:
        return {key_of(r): r for r in self.records}

    @cached_property
    def _by_replica(self) -> Mapping[tuple[str, int], tuple[ReplicaRecord, ...]]:
        groups: dict[tuple[str, int], tuple[ReplicaRecord, ...]] = {}
        for record in self.records:
            key = record.role, record.index
            groups[key] = (*groups.get(key, ()), record)
        return groups


def key_of(replica: Pod | ReplicaRecord) -> tuple[str, int, int]:
    """Return the key of a counter; each member of a shard has a separate one, so that their runs are not mixed up."""
    return replica.role, replica.index, replica.member


def count_failures(
    job: PSTrainingJob, snapshot: Snapshot, status: PSTrainingJobStatus, *, stops: bool = False, trains: bool = False
) -> FailureCounts:
    """Count the runs that ended since the stored status was written.

    Args:
        job: the job.
        snapshot: the observed state.
        status: the stored status.
        stops: whether pods are deleted for another number of shards.
        trains: whether training continues until another number of shards. Only the chief may then end for it.
    """
    keys, pods_by_uid = {key_of(p) for p in snapshot.pods}, {p.uid: p for p in snapshot.pods}
    # The record of a replica that was scaled down ends with its last pod; a later replica of its number starts at 0.
    stored = (r for r in status.replica_records if _wanted(job, r) or key_of(r) in keys)
    has_ended = status.completion_time is not None
    records = {key_of(r): r if has_ended else _reinstated(job, snapshot, r) for r in stored}
    failures, uncounted = [], dict[str, FailureReason]()
    changes = {role: None if trains and role != names.CHIEF else began(status) for role in names.ROLES}
    resumed, succeeded_workers = _resumed_at(job, snapshot, status), on_record(job, snapshot, status)
    # Pods that the operator stops do not fail, even if the status write that announces the stop is lost.
    stopping = any(pod.deleting for pod in snapshot.pods) and (
        job.spec.run_policy.suspend or stops or missed_change.is_due(job, snapshot)
    )
    if status.start_time is not None and status.completion_time is None:
        first = _since(status.start_time, status, None)
        starts = {role: _since(status.start_time, status, change) for role, change in changes.items()}
        for pod in snapshot.pods:
            key, change = key_of(pod), None if _began_after(pod, resumed) else changes[pod.role]
            old = records.get(key, ReplicaRecord(role=pod.role, index=pod.index, member=pod.member))
            if _is_retired(pod, old, succeeded_workers):
                continue
            if (stopping and pod.deleting) or _is_superseded(pod, old, pods_by_uid):
                continue
            if has_saved(job, pod) or (change is not None and _stays(job, pod, change)):
                if (pardoned := _pardoned(pod, old)) is not old:
                    records[key] = pardoned
                continue
            since = first if change is None else starts[pod.role]
            if not _counts(job, pod, since, status.job_restarts) or _is_unknown(pod):
                continue
            decision = _decide(job, pod)
            new = _count(job, old, pod, decision)
            if new is not old:
                records[key] = new
            if new.failures > old.failures:
                failures.append(Failure(pod.role, pod.index, _last_failure(pod, new.failures), decision))
            elif new is not old and decision.is_failure:
                uncounted[pod.role] = decision.cause
    counts = FailureCounts(tuple(records[k] for k in sorted(records)), tuple(failures), uncounted=uncounted)
    return _given_up(job, snapshot, counts).or_restart(job)


def _reinstated(job: PSTrainingJob, snapshot: Snapshot, record: ReplicaRecord) -> ReplicaRecord:
    """Return the record of a worker that runs again, as one that is not given up.

    After a suspension, in which its cause may be removed, all programs run again. A worker without which the job cannot
    end well runs again, too, or its spent budget fails the job: version 0.2.0 gave it up, and the job never ended.
    """
    if record.role != names.WORKER or not record.given_up:
        return record
    by_user = snapshot.typed_job  # the job itself may only be held by its queue
    if not isinstance(by_user, str) and by_user.spec.run_policy.suspend:
        return _forgiven(record)
    return record.model_copy(update={"given_up": False}) if decides_end(job, snapshot, record.index) else record


def _forgiven(record: ReplicaRecord) -> ReplicaRecord:
    """Return the record of a replica that keeps its restarts and gets a new budget."""
    return record.model_copy(update={"failures": 0, "failure_times": [], "given_up": False})


def _given_up(job: PSTrainingJob, snapshot: Snapshot, counts: FailureCounts) -> FailureCounts:
    """Give up workers that have failed for good, as long as minReplicas are left."""
    fewest = job.spec.worker.min_replicas
    if fewest is None:
        return counts
    by_policy = {
        f.index
        for f in counts.failures
        if f.role == names.WORKER
        and f.decision.consequence is Consequence.FAIL_JOB
        and f.decision.rule is None
        and not TABLE[f.decision.cause].final  # the other workers run the same program
    }
    left, records = sum(i not in counts.given_up for i in range(job.spec.worker.replicas)), []
    for record in counts.records:
        used = budgets.used(job, names.WORKER, [record])
        spent = used > budgets.limit(job, names.WORKER) and (record.role, record.index) not in counts.restarting
        may_be_lost = record.role == names.WORKER and not decides_end(job, snapshot, record.index)
        lost = may_be_lost and (record.index in by_policy or spent)
        if lost and not record.given_up and left > fewest:
            left -= 1
            records.append(record.model_copy(update={"given_up": True}))
        else:
            records.append(record)
    return replace(counts, records=tuple(records))


def _since(start: datetime, status: PSTrainingJobStatus, change: StatusCondition | None) -> datetime:
    """Return the start of counting: older pods are from before a suspension, or before the job stopped for a change."""
    starts = [c.last_transition_time for c in (change, missed_change.began(status)) if c is not None]
    return max((start, *starts))


def _counts(job: PSTrainingJob, pod: Pod, start_time: datetime, job_restarts: int) -> bool:
    """Whether failures of a pod count: not before a suspension or restart, after a scale-down, or after success."""
    current = pod.created >= start_time and pod.job_restarts == job_restarts
    return current and _wanted(job, pod) and not succeeded(job, pod)


def _wanted(job: PSTrainingJob, replica: Pod | ReplicaRecord) -> bool:
    count = {
        names.PS: job.spec.ps.replicas,
        names.WORKER: job.spec.worker.replicas,
        names.EVALUATOR: int(job.spec.evaluator.enabled),
    }.get(replica.role, 1)
    return replica.index < count and replica.member < members(job)


def _decide(job: PSTrainingJob, pod: Pod) -> Decision:
    """Return the consequence of the end of a pod's newest run."""
    end, why = newest_end(pod), cause(pod)
    code = None if end is None else end.exit_code
    by_operator = why is FailureReason.DELETED and pod.replaced
    if by_operator or (why is FailureReason.ERROR and code == 0 and runs_for_ever(job, pod.role, pod.index)):
        return Decision(Consequence.RESTART_FREE, why, is_failure=False)  # so no rule applies
    return decide(job, pod.role, why, code)


def _ended_runs(pod: Pod) -> int:
    container = pod.container
    # In the kubelet's back-off the run that led to it is over, but not yet among the restarts.
    over = container.terminated is not None or container.waiting_reason == "CrashLoopBackOff"
    if pod.terminal and pod.init_failures:
        return pod.init_failures  # a pod that ended with its init container
    return pod.init_failures + container.restarts + (over or pod.deleting or pod.terminal)


def _is_unknown(pod: Pod) -> bool:
    """Whether a pod that runs does not show how its runs have ended, because the kubelet has removed their containers.

    A launcher whose program has succeeded ends with exit code 0 again, see `launcher.launch`. Other runs count with the
    next one.
    """
    ended, container = newest_end(pod), pod.container
    return ended is None and container.running and not (pod.deleting or pod.terminal or pod.init_failures)


def _is_superseded(pod: Pod, record: ReplicaRecord, pods_by_uid: Mapping[str, Pod]) -> bool:
    """Whether a newer pod of this replica was already counted. Failures of a superseded pod are ignored.

    Creation times are whole seconds. Two pods of one second are ordered by the chief's term, then by uid. If the pod
    counted last is gone, a pod of the same second is not superseded, or its failures would never count.
    """
    last = pods_by_uid.get(record.pod_uid)
    if last is not None:
        return (pod.created, pod.term, pod.uid) < (last.created, last.term, last.uid)
    return record.pod_created is not None and pod.created < record.pod_created


def _count(job: PSTrainingJob, record: ReplicaRecord, pod: Pod, decision: Decision) -> ReplicaRecord:
    same = record.pod_uid == pod.uid
    ended = _ended_runs(pod)
    new = ended - (record.ended if same else 0)
    if new <= 0:
        return record
    failed = new - _free(pod, decision, new)
    times = [*record.failure_times, *[_ended_at(pod)] * failed]
    return record.model_copy(
        update={
            "failures": record.failures + failed,
            "failure_times": budgets.remembered(job, pod.role, times),
            "restarts": record.restarts + new,
            "pod_uid": pod.uid,
            "pod_created": pod.created,
            "ended": ended,
        }
    )


def _is_retired(pod: Pod, record: ReplicaRecord, succeeded_workers: Container[int]) -> bool:
    """Whether a pod's worker has succeeded, or the operator deletes the pod because its worker is given up.

    The pod itself may no longer show the success. If its deletion interrupts the start of the next run, the kubelet
    removes the last run from the status. While it stays for its log, its idle launcher may be killed.
    """
    if pod.role != names.WORKER:
        return False
    return (pod.deleting and record.given_up) or pod.index in succeeded_workers


def _stays(job: PSTrainingJob, pod: Pod, change: StatusCondition) -> bool:
    """Whether a pod stays while its program restarts for another number of servers."""
    older = pod.created < change.last_transition_time
    return older and change.reason != Reason.RESHARDING and _wanted(job, pod)


def _resumed_at(job: PSTrainingJob, snapshot: Snapshot, status: PSTrainingJobStatus) -> datetime | None:
    """Return when the leader started that continues with another number of servers; None if none runs."""
    change = began(status)
    if change is None or change.reason != Reason.RESUMING:
        return None
    return max((p.created for p in leader_pods(job, snapshot) if not (p.over or p.deleting)), default=None)


def _began_after(pod: Pod, moment: datetime | None) -> bool:
    """Whether the last run that has ended began after a moment, so that a change before it did not end the run."""
    end = newest_end(pod)
    return moment is not None and end is not None and end.started_at is not None and end.started_at > moment


def _pardoned(pod: Pod, record: ReplicaRecord) -> ReplicaRecord:
    """Return the record of a pod that stays while the number of servers changes: runs that end then never count."""
    ended = _ended_runs(pod)
    if ended <= (record.ended if record.pod_uid == pod.uid else 0) or pod.deleting:
        return record
    return record.model_copy(update={"pod_uid": pod.uid, "pod_created": pod.created, "ended": ended})


def _free(pod: Pod, decision: Decision, new: int) -> int:
    """Return how many of the newly ended runs do not count."""
    if decision.cause is FailureReason.NODE_LOST and decision.consequence is Consequence.RESTART_FREE:
        return new  # a node that is back reports ends that happened after Kubernetes gave up its pods
    if TABLE[decision.cause].disruption:
        if decision.consequence is not Consequence.RESTART_FREE:
            return 0
        # Kubernetes caused the last end. It also caused the previous one if a signal ended it: the kubelet may start a
        # container once more between the signal and the end of the pod.
        before = pod.container.last
        stopped = before is not None and before.exit_code in STOPPED
        return min(new, 2 if stopped else 1)
    return new if decision.consequence is Consequence.RESTART_FREE else 0


def _ended_at(pod: Pod) -> datetime:
    end = newest_end(pod)
    return (end and end.finished_at) or pod.deleted_at or pod.created


def _last_failure(pod: Pod, count: int) -> LastFailure:
    end = newest_end(pod) or Termination(0, pod.reason, "", None)
    reason = cause(pod)
    return LastFailure(
        pod=pod.name,
        exit_code=end.exit_code,
        reason=end.reason if reason == "Error" and end.reason else str(reason),
        message=last_line(end.message),
        time=end.finished_at,
        count=count,
    )


def last_line(text: str) -> str:
    """Return the last line that is not empty, printable and cut to the length that fits a condition."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    # Cut first: escaping makes a text longer, and a terminated container's message has up to 4 KiB.
    return printable(lines[-1][:300])[:300] if lines else ""
