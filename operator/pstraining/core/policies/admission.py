"""Has Kueue admitted the job, and with what?

A job whose label names a queue runs only while a Workload of it is admitted. Until then, and after an eviction, the
operator treats the job as suspended: it stops in order, the chief first, and none of its pods exists. An admitted job
has as many workers as Kueue has admitted. While Kueue is not installed, a job that runs is kept as it is, and
no other starts. Changes of its spec for which pods would need other quota wait. Level-based: equal snapshots give equal
answers.
"""

from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

from pstraining.api import names
from pstraining.api.conditions import Condition, Reason
from pstraining.api.models import PSTrainingJob
from pstraining.api.status import PSTrainingJobStatus
from pstraining.core.actions import Kind
from pstraining.core.policies import resharding, retired_workers, success, teardown
from pstraining.core.queue_workload import QueueWorkload
from pstraining.core.snapshot import QueueObjects, Snapshot
from pstraining.resources import kueue
from pstraining.resources.installation import KueueSupport
from pstraining.resources.kueue import PodSetAssignment, Priority


@dataclass(frozen=True)
class QueueState:
    """Kueue's decisions about a job."""

    job: PSTrainingJob
    """The job as its user wrote it."""
    support: KueueSupport
    workloads: tuple[QueueWorkload, ...] = ()
    """All Workloads of the job, oldest first."""
    objects: QueueObjects = field(default_factory=QueueObjects)
    retired: frozenset[int] = frozenset()
    """The workers that never run again."""

    @property
    def queue(self) -> str:
        """The name of the LocalQueue that the job's label names; empty without one."""
        return self.job.metadata.labels.get(kueue.LABEL_QUEUE, "")

    @property
    def prebuilt(self) -> str:
        """The name of the Workload that MultiKueue has sent with the job; empty if it has sent none."""
        return kueue.prebuilt_of(self.job)

    @property
    def decides(self) -> bool:
        """Whether the job needs an admission."""
        return bool(self.queue) and self.support is not KueueSupport.OFF

    @property
    def is_unanswered(self) -> bool:
        """Whether the job needs an admission, and gets none because Kueue is not installed."""
        return self.decides and self.support is KueueSupport.MISSING

    @cached_property
    def live(self) -> tuple[QueueWorkload, ...]:
        """Return the Workloads that have neither finished nor are being deleted, oldest first."""
        return tuple(w for w in self.workloads if not (w.child.deleting or w.is_finished))

    @property
    def finished(self) -> tuple[QueueWorkload, ...]:
        """The Workloads that have finished and are not being deleted."""
        return tuple(w for w in self.workloads if w.is_finished and not w.child.deleting)

    @cached_property
    def current(self) -> QueueWorkload | None:
        """Return the Workload by which the job runs or will run: the newest with quota, or else the oldest."""
        with_quota = [w for w in self.live if w.has_quota]
        return with_quota[-1] if with_quota else next(iter(self.live), None)

    @cached_property
    def former(self) -> QueueWorkload | None:
        """Return the Workload by which the job runs while admission checks hold back the slice that replaces it."""
        current = self.current
        if current is None or current.may_run or current.is_evicted or not current.has_quota:
            return None
        return next((w for w in self.workloads if w.name == current.replaces and w.may_run), None)

    @cached_property
    def next_slice(self) -> QueueWorkload | None:
        """Return the Workload that waits to replace the current one."""
        return next((w for w in reversed(self.live) if w is not self.current and not w.has_quota), None)

    @cached_property
    def matches(self) -> bool:
        """Whether the current Workload requests the pods of the job, with any number of workers."""
        current = self.current
        if current is None or current.spec.get("queueName") != self.queue:
            return False
        wanted, found = kueue.counts(self.job), dict(current.counts)
        if kueue.is_dispatched(self.job):  # the other cluster has the spec of the time when Kueue sent the job
            return current.child.annotations.get(names.ANNOTATION_SPEC) == kueue.spec_digest(self.job)
        if not self.prebuilt:
            wanted.pop(names.WORKER, None)
            found.pop(names.WORKER, None)
        return current.pod_sets_digest == kueue.digest(self.job) and wanted == found

    @property
    def priority_class(self) -> tuple[Kind, str] | None:
        """The kind and name of the class of the job's priority; None without one."""
        labelled = self.job.metadata.labels.get(kueue.LABEL_PRIORITY_CLASS, "")
        if labelled:
            return Kind.WORKLOAD_PRIORITY_CLASS, labelled
        spec = self.job.spec
        if name := spec.run_policy.scheduling_policy.priority_class:
            return Kind.PRIORITY_CLASS, name
        templates = (spec.ps.template, spec.worker.template, spec.chief.template, spec.evaluator.template)
        specs = ((template or {}).get("spec") or {} for template in templates)
        named = next((str(found["priorityClassName"]) for found in specs if found.get("priorityClassName")), "")
        return (Kind.PRIORITY_CLASS, named) if named else None

    @property
    def priority(self) -> Priority | None:
        """The priority of the job's Workload; None if its class could not be read."""
        found = self.priority_class
        if found is None:
            return Priority()
        value = self.objects.priorities.get(found)
        return None if value is None else Priority(value, _group(found[0]), found[1])

    @property
    def keeps_priority(self) -> bool:
        """Whether the current Workload has the job's priority class."""
        found = self.priority_class
        wanted = ("", "") if found is None else (_group(found[0]), found[1])
        return self.current is not None and self.current.priority_class == wanted

    @property
    def may_reprioritize(self) -> bool:
        """Whether the current Workload may get the job's priority class although it has quota."""
        named = self.current is not None and self.current.priority_class[0] == kueue.GROUP
        return named and self.priority_class is not None and self.priority_class[0] is Kind.WORKLOAD_PRIORITY_CLASS

    def is_up_to_date(self, *, any_workers: bool = False) -> bool:
        """Whether the current Workload equals the Workload that would be created for the job now.

        Args:
            any_workers: whether the number of workers may differ.
        """
        current, wanted = self.current, kueue.terms(self.job)
        if current is None or not (self.matches and self.keeps_priority):
            return False
        return current.terms == (replace(wanted, workers=current.terms.workers) if any_workers else wanted)

    @property
    def is_admitted(self) -> bool:
        """Whether the job may run."""
        return self.current is not None and (self.current.may_run or self.former is not None) and self.matches

    @property
    def lacks_object(self) -> bool:
        """Whether the next step needs an object of Kueue that could not be read."""
        if self.unknown_flavors:
            return True
        is_asked = self.decides and not (self.prebuilt or self.job.spec.run_policy.suspend)
        return is_asked and self.priority is None and not self.is_settled

    @property
    def is_settled(self) -> bool:
        """Whether no Workload is written for which the priority must be known."""
        current = self.current
        if current is None or not self.keeps_priority:
            return False
        if not current.has_quota:
            return self.is_up_to_date()
        grows = current.is_elastic and self.job.spec.worker.replicas > current.terms.workers
        return not grows or self.next_slice is not None

    @property
    def is_spent(self) -> bool:
        """Whether workers of a former run returned quota that the workers of the next run need.

        Kueue does not return reclaimed quota. A job that was resumed before its Workload was deleted queues again.
        """
        return self.current is not None and self.current.reclaimable.get(names.WORKER, 0) > len(self.retired)

    @property
    def granted(self) -> QueueWorkload | None:
        """The Workload whose admission the pods of the job have now."""
        return self.former or self.current

    @property
    def unknown_flavors(self) -> frozenset[str]:
        """The flavors of the admission that the operator could not read."""
        return frozenset() if self.granted is None else self.granted.flavors - self.objects.flavors.keys()

    @property
    def lacks_assignments(self) -> bool:
        """Whether the assignments of a running job are not known, so that no template of pods may be written."""
        return self.is_unanswered or (self.decides and bool(self.unknown_flavors))

    @cached_property
    def assignments(self) -> dict[str, PodSetAssignment]:
        """Return the assignment of each pod set of an admitted job; empty for a job without a queue."""
        if not self.decides or self.granted is None or not self.is_admitted or self.unknown_flavors:
            return {}
        return self.granted.assignments(self.objects)

    @cached_property
    def conflict(self) -> str:
        """Return how the admission contradicts a pod template; empty if it does not."""
        return kueue.conflict(self.job, self.assignments)

    @property
    def workers(self) -> int:
        """The number of workers that the job may have now. Returned quota is not used again."""
        wanted = self.job.spec.worker.replicas
        newest = self.former or next((w for w in reversed(self.workloads) if w.count(names.WORKER) is not None), None)
        if newest is None:
            return wanted
        admitted = newest.count(names.WORKER) or 0
        may_run = admitted - newest.reclaimable.get(names.WORKER, 0)
        return next((n for n in range(min(wanted, admitted), 0, -1) if self.running_of(n) <= may_run), 0)

    def running_of(self, workers: int) -> int:
        """Return how many of the first `workers` workers may run, now or later."""
        return sum(i not in self.retired for i in range(workers))


def _group(kind: Kind) -> str:
    """Return the API group of a priority class."""
    return kueue.GROUP if kind is Kind.WORKLOAD_PRIORITY_CLASS else "scheduling.k8s.io"


def observed(job: PSTrainingJob, snapshot: Snapshot, status: PSTrainingJobStatus) -> QueueState:
    """Return what Kueue has decided about a job.

    Args:
        job: the job as its user wrote it.
        snapshot: the observed state.
        status: the stored status.
    """
    if not snapshot.of_kind(Kind.WORKLOAD):  # most jobs have none, and need no further fields
        return QueueState(job, snapshot.installation.kueue, (), snapshot.queue_objects)
    retired = retired_workers.reasons(status, success.workers(job, snapshot, status))
    found = sorted(map(QueueWorkload, snapshot.of_kind(Kind.WORKLOAD)), key=lambda w: (w.created, w.name))
    return QueueState(job, snapshot.installation.kueue, tuple(found), snapshot.queue_objects, frozenset(retired))


def effective(state: QueueState, snapshot: Snapshot, *, has_ended: bool) -> PSTrainingJob:
    """Return the job as it runs: suspended while it is not admitted, and with the admitted number of workers.

    Args:
        state: Kueue's decisions about the job.
        snapshot: the observed state.
        has_ended: whether status has recorded the end; the job is then cleaned up, and not suspended.
    """
    job = state.job
    if not state.decides:
        return job
    kept = is_kept(state, snapshot)
    spec, workers = job.spec, _created_workers(job, snapshot) if kept else state.workers
    updates: dict[str, Any] = {}
    if workers != spec.worker.replicas:
        fewest = spec.worker.min_replicas
        # A greater minimum waits until the job queues again: the workers that it demands have no quota.
        least = None if fewest is None else min(fewest, max(1, workers))
        updates["worker"] = spec.worker.model_copy(update={"replicas": workers, "min_replicas": least})
    if kept and (servers := _created_servers(snapshot)) not in (None, spec.ps.replicas):
        updates["ps"] = spec.ps.model_copy(update={"replicas": servers})
    if not has_ended and not kept and is_held(state, snapshot):
        updates["run_policy"] = spec.run_policy.model_copy(update={"suspend": True})
    return job.model_copy(update={"spec": spec.model_copy(update=updates)}) if updates else job


def is_kept(state: QueueState, snapshot: Snapshot) -> bool:
    """Whether the job runs on as it is, because Kueue is not installed. A stop that has begun is completed."""
    if not state.is_unanswered or not teardown.workloads(snapshot):
        return False
    return not is_stopping(snapshot)


def is_stopping(snapshot: Snapshot) -> bool:
    """Whether the job stops because it is no longer admitted, by its stored status."""
    return any(c.type == Condition.QUEUED and c.reason == Reason.STOPPING for c in snapshot.typed_status.conditions)


def _created_workers(job: PSTrainingJob, snapshot: Snapshot) -> int:
    """Return the number of workers that a job has, which its queue may have admitted in part."""
    created = 1 + max((child.number(names.LABEL_INDEX) for child in snapshot.of_kind(Kind.DEPLOYMENT)), default=-1)
    return min(created, job.spec.worker.replicas) or job.spec.worker.replicas


def _created_servers(snapshot: Snapshot) -> int | None:
    """Return the number of shards that a job has; None without parameter servers."""
    return max((resharding.shards(child) for child in snapshot.of_kind(Kind.STATEFUL_SET)), default=None)


def is_held(state: QueueState, snapshot: Snapshot) -> bool:
    """Whether the job must not run. A running job does not stop because a flavor could not be read."""
    if not state.is_admitted or teardown.workloads(snapshot):
        return not state.is_admitted
    return bool(state.unknown_flavors) or bool(state.conflict) or state.is_spent
