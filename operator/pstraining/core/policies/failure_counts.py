"""How often has each replica failed, and how often was it started again?

Runs of a container are counted by (pod uid, ended runs), so that no run is counted twice, whatever is seen twice, late,
or by another operator process; a run whose pod nobody saw ends uncounted. What a failure means, and whether it counts,
is decided in failures.py; of several runs that ended unseen only the newest one's cause is known.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime

from pstraining.api import names
from pstraining.api.models import PSTrainingJob
from pstraining.api.run_policy import FailureReason, RestartPolicy
from pstraining.api.status import LastFailure, PSTrainingJobStatus, ReplicaRecord
from pstraining.core.policies import budgets
from pstraining.core.policies.failures import (
    TABLE,
    Consequence,
    Decision,
    cause,
    decide,
    is_given_up_with_its_node,
    newest_end,
)
from pstraining.core.policies.resharding import began, is_due
from pstraining.core.snapshot import Pod, Snapshot, Termination
from pstraining.resources.pods import Task, has_chief_duty
from pstraining.resources.redundancy import members


@dataclass(frozen=True)
class Failure:
    """One newly counted failure of a replica's own, or one that a rule makes something of."""

    role: str
    index: int
    told: LastFailure
    decision: Decision


@dataclass(frozen=True)
class FailureCounts:
    """All counters, with what this snapshot adds to them."""

    records: tuple[ReplicaRecord, ...] = ()
    failures: tuple[Failure, ...] = ()

    def restarts(self, role: str) -> int:
        """How often replicas of a role were started again."""
        return sum(r.restarts for r in self.records if r.role == role)

    def is_told(self, status: PSTrainingJobStatus) -> bool:
        """Whether all of it is on record, so that evidence may go."""
        return status.replica_records == list(self.records)

    def record(self, pod: Pod) -> ReplicaRecord | None:
        """What is counted of the replica that this pod is."""
        return next((r for r in self.records if key_of(r) == key_of(pod)), None)

    def of(self, role: str, index: int) -> tuple[ReplicaRecord, ...]:
        """What is counted of one replica; the members of a shard share one budget."""
        return tuple(r for r in self.records if (r.role, r.index) == (role, index))

    @property
    def restart_job(self) -> Failure | None:
        """The failure for which all of the job is to be started anew."""
        return next((f for f in self.failures if f.decision.consequence is Consequence.RESTART_JOB), None)

    @property
    def given_up(self) -> frozenset[int]:
        """The workers that the job goes on without."""
        return frozenset(r.index for r in self.records if r.given_up)


def key_of(replica: Pod | ReplicaRecord) -> tuple[str, int, int]:
    """What is counted apart: members of one shard, too, so that one's runs are never taken for another's."""
    return replica.role, replica.index, replica.member


def count_failures(job: PSTrainingJob, snapshot: Snapshot, status: PSTrainingJobStatus) -> FailureCounts:
    """Count what ended since the stored status was written."""
    seen, by_uid = {key_of(p) for p in snapshot.pods}, {p.uid: p for p in snapshot.pods}
    # A replica that was scaled away is forgotten with its last pod: one that gets its number later begins at nothing.
    records = {key_of(r): r for r in status.replica_records if _wanted(job, r) or key_of(r) in seen}
    failures = []
    since = _since(status)
    # Status says why pods stop once they do; a write that failed there must not make failures of them.
    stopping = job.spec.run_policy.suspend or is_due(job, snapshot)
    if since is not None and status.completion_time is None:
        for pod in snapshot.pods:
            if (stopping and pod.deleting) or not _counts(job, pod, since, status.job_restarts):
                continue
            key = key_of(pod)
            old = records.get(key, ReplicaRecord(role=pod.role, index=pod.index, member=pod.member))
            if _older(pod, old, by_uid):
                continue
            decision = decide(job, pod.role, cause(pod), _exit_code(pod))
            new = _count(job, old, pod, decision)
            if new is not old:
                records[key] = new
            decisive = decision.consequence in (Consequence.FAIL_JOB, Consequence.RESTART_JOB)
            if new.failures > old.failures or (new is not old and decisive):
                failures.append(Failure(pod.role, pod.index, _told(pod, new.failures), decision))
    counted = FailureCounts(tuple(records[k] for k in sorted(records)), tuple(failures))
    if counted.restart_job is not None:
        return FailureCounts(tuple(_forgiven(r) for r in counted.records), counted.failures)
    return _given_up(job, counted)


def succeeded(job: PSTrainingJob, pod: Pod) -> bool:
    """The program of this pod has ended with 0 for good, now or before the launcher went idle."""
    if pod.role == names.PS or runs_for_ever(job, pod.role, pod.index):
        return False
    runs = (pod.container.terminated, pod.container.last)
    ends = [t.finished_at for t in runs if t is not None and t.exit_code == 0]
    given_up = _given_up_at(pod)
    if given_up is not None:
        # Another pod has its place by now: what a lost node tells late is history. (Of a chief its term says so.)
        return any(end is not None and end <= given_up for end in ends)
    return pod.phase == "Succeeded" or bool(ends)


def _given_up_at(pod: Pod) -> datetime | None:
    """When a worker's pod was deleted because its node was lost."""
    return pod.deleted_at if pod.role == names.WORKER and is_given_up_with_its_node(pod) else None


def runs_for_ever(job: PSTrainingJob, role: str, index: int) -> bool:
    """Whether a worker's program is run again after exit code 0, too."""
    always = role == names.WORKER and job.spec.worker.restart_policy is RestartPolicy.ALWAYS
    return always and not has_chief_duty(job, Task(role, index))


def _forgiven(record: ReplicaRecord) -> ReplicaRecord:
    """A replica in a new round: its restarts are history, its budget is new."""
    return record.model_copy(update={"failures": 0, "failure_times": [], "given_up": False})


def _given_up(job: PSTrainingJob, counted: FailureCounts) -> FailureCounts:
    """Give up workers that have failed for good, as long as minReplicas are left."""
    fewest = job.spec.worker.min_replicas
    if fewest is None:
        return counted
    by_policy = {
        f.index
        for f in counted.failures
        if f.role == names.WORKER and f.decision.consequence is Consequence.FAIL_JOB and f.decision.rule is None
    }
    left, found = job.spec.worker.replicas - len(counted.given_up), []
    for record in counted.records:
        lost = record.role == names.WORKER and (
            record.index in by_policy or budgets.used(job, names.WORKER, [record]) > budgets.limit(job, names.WORKER)
        )
        if lost and not record.given_up and left > fewest:
            left -= 1
            found.append(record.model_copy(update={"given_up": True}))
        else:
            found.append(record)
    return FailureCounts(tuple(found), counted.failures)


def _since(status: PSTrainingJobStatus) -> datetime | None:
    """Older pods are from before a suspension, or before the number of parameter servers changed."""
    rescaling = began(status)
    if status.start_time is None or rescaling is None:
        return status.start_time
    return max(status.start_time, rescaling.last_transition_time)


def _counts(job: PSTrainingJob, pod: Pod, start_time: datetime, round_: int) -> bool:
    """Pods from before a suspension or an older round, of workers scaled away, and succeeded ones are out of it."""
    return pod.created >= start_time and pod.round == round_ and _wanted(job, pod) and not succeeded(job, pod)


def _wanted(job: PSTrainingJob, replica: Pod | ReplicaRecord) -> bool:
    count = {
        names.PS: job.spec.ps.replicas,
        names.WORKER: job.spec.worker.replicas,
        names.EVALUATOR: int(job.spec.evaluator.enabled),
    }.get(replica.role, 1)
    return replica.index < count and replica.member < members(job)


def _exit_code(pod: Pod) -> int | None:
    end = newest_end(pod)
    return None if end is None else end.exit_code


def _ended_runs(pod: Pod) -> int:
    container = pod.container
    # In the kubelet's back-off the run that led to it is over, but not yet among the restarts.
    over = container.terminated is not None or container.waiting_reason == "CrashLoopBackOff"
    if pod.terminal and pod.init_failures:
        return pod.init_failures  # a pod that ended with its init container
    return pod.init_failures + container.restarts + (over or pod.deleting or pod.terminal)


def _older(pod: Pod, record: ReplicaRecord, seen: Mapping[str, Pod]) -> bool:
    """Whether a pod comes before the one counted last: still seen beside its successor, it is never counted again.

    Times are whole seconds. Of two pods of one second the chief's term tells, else any order that stays; and none that
    is still seen is older than one that is gone, or its failures would never count.
    """
    last = seen.get(record.pod_uid)
    if last is not None:
        return (pod.created, pod.term, pod.uid) < (last.created, last.term, last.uid)
    return record.pod_created is not None and pod.created < record.pod_created


def _count(job: PSTrainingJob, record: ReplicaRecord, pod: Pod, decision: Decision) -> ReplicaRecord:
    same = record.pod_uid == pod.uid
    ended = _ended_runs(pod)
    new = ended - (record.ended if same else 0)
    if new <= 0:
        return record
    failed = new - _free(job, pod, decision, new)
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


_STOPPED = (128 + 9, 128 + 15)
"""SIGKILL and SIGTERM."""


def _free(job: PSTrainingJob, pod: Pod, decision: Decision, new: int) -> int:
    """How many of the newly ended runs don't count."""
    if decision.cause is FailureReason.NODE_LOST and decision.consequence is Consequence.RESTART_FREE:
        return new  # a lost node that is back tells of ends that came after Kubernetes had given its pods up
    if TABLE[decision.cause].disruption:
        if decision.consequence is not Consequence.RESTART_FREE:
            return 0
        # The pod's own end is Kubernetes' doing; runs that ended before it are not, unless by the signal that began it:
        # a kubelet may start a container once more between that and the end.
        before = pod.container.last
        stopped = before is not None and before.exit_code in _STOPPED
        return min(new, 2 if stopped else 1)
    exited_well = runs_for_ever(job, pod.role, pod.index) and _exit_code(pod) == 0
    return new if exited_well or decision.consequence is Consequence.RESTART_FREE else 0


def _ended_at(pod: Pod) -> datetime:
    end = newest_end(pod)
    return (end and end.finished_at) or pod.deleted_at or pod.created


def _told(pod: Pod, count: int) -> LastFailure:
    end = newest_end(pod) or Termination(0, pod.reason, "", None)
    why = cause(pod)
    return LastFailure(
        pod=pod.name,
        exit_code=end.exit_code,
        reason=end.reason if why == "Error" and end.reason else str(why),
        message=last_line(end.message),
        time=end.finished_at,
        count=count,
    )


def last_line(text: str) -> str:
    """The last line that says something, cut to what fits a condition."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return lines[-1][:300] if lines else ""
