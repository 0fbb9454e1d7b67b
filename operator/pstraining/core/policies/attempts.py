"""How often has each replica failed, and how often was it started again?

Runs of a container are counted by (pod uid, ended runs), so that no run is counted twice, whatever is seen twice, late,
or by another operator process; a run whose pod nobody saw ends uncounted. Only failures of the replica's own count
against backoffLimit: a pod that was deleted, evicted, preempted or lost with its node is started again for free.
"""

from dataclasses import dataclass
from datetime import datetime

from pstraining.api import names
from pstraining.api.models import PSTrainingJob
from pstraining.api.status import LastFailure, PSTrainingJobStatus, ReplicaRecord
from pstraining.core.policies.rescaling import began
from pstraining.core.snapshot import Pod, Snapshot, Termination
from pstraining.resources.redundancy import standbys


@dataclass(frozen=True)
class Failure:
    """One newly counted failure of a replica's own."""

    role: str
    index: int
    told: LastFailure


@dataclass(frozen=True)
class Tally:
    """All counters, with what this snapshot adds to them."""

    records: tuple[ReplicaRecord, ...] = ()
    failures: tuple[Failure, ...] = ()

    def restarts(self, role: str) -> int:
        """How often replicas of a role were started again."""
        return sum(r.restarts for r in self.records if r.role == role)

    def record(self, pod: Pod) -> ReplicaRecord | None:
        """What is counted of the replica that this pod is."""
        return next((r for r in self.records if key_of(r) == key_of(pod)), None)

    def failed(self, role: str, index: int) -> int:
        """How often a replica failed; the members of a shard share one budget."""
        return sum(r.failures for r in self.records if (r.role, r.index) == (role, index))


def key_of(replica: Pod | ReplicaRecord) -> tuple[str, int, int]:
    """What is counted apart: members of one shard, too, so that one's runs are never taken for another's."""
    return replica.role, replica.index, replica.member


def tally(job: PSTrainingJob, snapshot: Snapshot, status: PSTrainingJobStatus) -> Tally:
    """Count what ended since the stored status was written."""
    seen = {key_of(p) for p in snapshot.pods}
    # A replica that was scaled away is forgotten with its last pod: one that gets its number later begins at nothing.
    records = {key_of(r): r for r in status.replica_records if _wanted(job, r) or key_of(r) in seen}
    failures = []
    since = _since(status)
    if since is not None and status.completion_time is None:
        for pod in snapshot.pods:
            if not _counts(job, pod, since):
                continue
            key = key_of(pod)
            old = records.get(key, ReplicaRecord(role=pod.role, index=pod.index, member=pod.member))
            new = _count(old, pod)
            if new is not old:
                records[key] = new
            if new.failures > old.failures:
                failures.append(Failure(pod.role, pod.index, _told(pod, new.failures)))
    return Tally(tuple(records[k] for k in sorted(records)), tuple(failures))


def succeeded(pod: Pod) -> bool:
    """The program of this pod has ended with 0, now or before the launcher went idle."""
    runs = (pod.container.terminated, pod.container.last)
    return pod.role != names.PS and (pod.phase == "Succeeded" or any(t is not None and t.exit_code == 0 for t in runs))


def _since(status: PSTrainingJobStatus) -> datetime | None:
    """Older pods are from before a suspension, or before the number of parameter servers changed."""
    rescaling = began(status)
    if status.start_time is None or rescaling is None:
        return status.start_time
    return max(status.start_time, rescaling.last_transition_time)


def _counts(job: PSTrainingJob, pod: Pod, start_time: datetime) -> bool:
    """Pods from before a suspension, of workers scaled away, and those that have succeeded are out of it."""
    return pod.created >= start_time and _wanted(job, pod) and not succeeded(pod)


def _wanted(job: PSTrainingJob, replica: Pod | ReplicaRecord) -> bool:
    count = {names.PS: job.spec.ps.replicas, names.WORKER: job.spec.worker.replicas}.get(replica.role, 1)
    return replica.index < count and replica.member <= standbys(job)


def _ended_runs(pod: Pod) -> int:
    container = pod.container
    # In the kubelet's back-off the run that led to it is over, but not yet among the restarts.
    over = container.terminated is not None or container.waiting_reason == "CrashLoopBackOff"
    return container.restarts + (over or pod.deleting or pod.terminal)


def _count(record: ReplicaRecord, pod: Pod) -> ReplicaRecord:
    same = record.pod_uid == pod.uid
    # A total order of pods: an older one that is still seen is never counted again after a newer one.
    if not same and record.pod_created is not None and (pod.created, pod.uid) < (record.pod_created, record.pod_uid):
        return record
    ended = _ended_runs(pod)
    new = ended - (record.ended if same else 0)
    if new <= 0:
        return record
    free = 1 if pod.deleting or pod.disrupted else 0
    return record.model_copy(
        update={
            "failures": record.failures + new - free,
            "restarts": record.restarts + new,
            "pod_uid": pod.uid,
            "pod_created": pod.created,
            "ended": ended,
        }
    )


def _told(pod: Pod, count: int) -> LastFailure:
    end = pod.container.terminated or pod.container.last or Termination(0, pod.reason, "", None)
    return LastFailure(
        pod=pod.name,
        exit_code=end.exit_code,
        reason=end.reason,
        message=last_line(end.message),
        time=end.finished_at,
        count=count,
    )


def last_line(text: str) -> str:
    """The last line that says something, cut to what fits a condition."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return lines[-1][:300] if lines else ""
