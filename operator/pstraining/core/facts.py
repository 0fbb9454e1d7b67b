"""Facts: everything that one pass knows about a job, gathered once and read by every policy.

The six fields are the input. Every property is derived from them at its first use and then kept, so that policies that
need the same answer compute it once. Facts are pure: no clock, no I/O.

There are two kinds of policies. Facts imports policies that derive an answer from single inputs. Other policies import
Facts and decide on actions. No policy is of both kinds.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import datetime
from functools import cached_property
from typing import Any, Final

from pstraining.api import names
from pstraining.api.conditions import Condition
from pstraining.api.models import PSTrainingJob
from pstraining.api.status import PSTrainingJobStatus, ReplicaRecord
from pstraining.core.policies import (
    admission,
    attempts,
    failover,
    failure_counts,
    gang_members,
    grown_sizes,
    node_loss,
    resharding,
    retired_workers,
    success,
)
from pstraining.core.policies.admission import QueueState
from pstraining.core.policies.attempts import Attempts
from pstraining.core.policies.failover import ShardState
from pstraining.core.policies.failure_counts import FailureCounts
from pstraining.core.policies.resharding import Resharding
from pstraining.core.snapshot import Pod, Snapshot
from pstraining.resources import kueue, pods, sizes
from pstraining.resources.gang import GangMembers

UNREADABLE: Final = "This operator cannot read the job"
"""Start of the message of the condition InvalidTemplate of an `Unreadable` job."""


@dataclass(frozen=True)
class Size:
    """The size of a role's pods: the resources of their training container."""

    text: str
    """The resources, as canonical JSON."""
    spec: Mapping[str, Any]
    """The fields of the pod's spec on which sizes depend."""


def size_of(job: PSTrainingJob, role: str) -> Size:
    """Return the size that a job gives to the pods of a role.

    Args:
        job: the job.
        role: the role.
    """
    spec = pods.sized(job, role)
    return Size(sizes.text(pods.main_container(spec)), spec)


@dataclass(frozen=True)
class Facts:
    """The knowledge of one pass about a job."""

    job: PSTrainingJob
    """The job as it runs: a queue may hold it, or admit fewer workers (policies/admission.py), its memory may have
    grown (policies/grown_sizes.py), and training may still have another number of servers (policies/resharding.py)."""
    snapshot: Snapshot
    """The observed state, with silent and lost pods marked."""
    status: PSTrainingJobStatus
    """The status as stored."""
    now: datetime
    queue: QueueState
    """Kueue's decisions about the job, with the job as its user wrote it."""
    resharding: Resharding
    """The layout of the parameters, and the next step towards the layout of the spec."""

    @property
    def timestamp(self) -> datetime:
        """`now` without fractions of a second, which Kubernetes' times do not have."""
        return self.now.replace(microsecond=0)

    @cached_property
    def is_managed_here(self) -> bool:
        """Whether managedBy leaves the job to this operator."""
        return self.job.spec.manager == names.MANAGED_BY

    @cached_property
    def is_dispatched(self) -> bool:
        """Whether MultiKueue sends the job to another cluster."""
        return kueue.is_dispatched(self.job)

    @cached_property
    def recorded_end(self) -> Condition | None:
        """Succeeded or Failed, if the stored status has it; final."""
        return recorded_end(self.status)

    @cached_property
    def refused_generation(self) -> int | None:
        """The generation whose templates the API server has refused, and not one that an operator could not read."""
        true = (c for c in self.status.conditions if c.type == Condition.INVALID_TEMPLATE and c.status == "True")
        return next((c.observed_generation for c in true if not c.message.startswith(UNREADABLE)), None)

    @cached_property
    def failures(self) -> FailureCounts:
        """All failure counters, with the failures that this snapshot adds."""
        stops, trains = self.resharding.stops, self.resharding.trains
        return failure_counts.count_failures(self.job, self.snapshot, self.status, stops=stops, trains=trains)

    @cached_property
    def stored_records(self) -> Mapping[tuple[str, int, int], ReplicaRecord]:
        """The failure counters in the stored status, by role, index and member."""
        return {failure_counts.key_of(r): r for r in self.status.replica_records}

    @cached_property
    def new_restarts(self) -> Mapping[str, int]:
        """The restarts of replicas that this snapshot adds to the stored status, by role."""
        counts: dict[str, int] = {}
        for record in self.failures.records:
            stored = self.stored_records.get(failure_counts.key_of(record))
            new = record.restarts - (0 if stored is None else stored.restarts)
            counts[record.role] = counts.get(record.role, 0) + new
        return counts

    @cached_property
    def failures_recorded(self) -> bool:
        """Whether the stored status has all of `failures`; until then pods that show failures are not deleted."""
        return self.failures.is_recorded(self.status)

    @cached_property
    def attempts(self) -> Mapping[str, Attempts]:
        """The attempts of the chief and of the evaluator, by role."""
        found = {role: attempts.observed(self.job, self.snapshot, self.status, role) for role in names.ATTEMPT_LABELS}
        # With hot standbys, the next layout is recorded while the Job of a chief that has succeeded still exists.
        if found[names.CHIEF].newest < self.resharding.term:
            found[names.CHIEF] = replace(found[names.CHIEF], succeeded=False)
        return found

    @property
    def chief(self) -> Attempts:
        """The attempts of the chief."""
        return self.attempts[names.CHIEF]

    @property
    def evaluator(self) -> Attempts:
        """The attempts of the evaluator."""
        return self.attempts[names.EVALUATOR]

    @cached_property
    def leader_stops(self) -> bool:
        """Whether the leader is deleted, alone or with all pods, after which its program runs again."""
        return self.resharding.stops or success.stops(self.job, self.snapshot)

    @property
    def current_term(self) -> int:
        """The term of the newest chief; 1 before the first."""
        return max(1, self.chief.newest)

    @cached_property
    def succeeded_workers(self) -> frozenset[int]:
        """The workers whose program has ended with exit code 0 for good."""
        return success.workers(self.job, self.snapshot, self.status)

    @cached_property
    def retired_workers(self) -> Mapping[int, str]:
        """The workers that do not run any more, with the annotation that gives the reason."""
        return retired_workers.reasons(self.status, self.succeeded_workers)

    def is_retired(self, pod: Pod) -> bool:
        """Whether a pod is that of a worker that does not run any more; it may stay for its log."""
        return pod.role == names.WORKER and pod.index in self.retired_workers

    @cached_property
    def shards(self) -> tuple[ShardState, ...]:
        """Every shard with its members, its primary and the failover that is due."""
        return failover.shards(self.job, self.snapshot, self.status, self.now)

    @cached_property
    def without_standbys(self) -> Snapshot:
        """The snapshot with the primary as the only pod of each shard."""
        return failover.without_standbys(self.job, self.snapshot, self.shards)

    @cached_property
    def served_shards(self) -> frozenset[int]:
        """The shards whose primary serves."""
        primaries = self.without_standbys.pods_of(names.PS)
        return frozenset(p.index for p in primaries if p.serves and not p.deleting)

    @cached_property
    def sizes(self) -> Mapping[str, Size]:
        """The size that the pods of each role have or will get."""
        return {role: size_of(self.job, role) for role in names.ROLES}

    @cached_property
    def gang(self) -> GangMembers:
        """The members of the gang that still need a node."""
        return gang_members.remaining(self.job, self.retired_workers, chief_succeeded=self.chief.succeeded)

    @cached_property
    def gang_is_placed(self) -> bool:
        """Whether every member of the gang that needs a node has one."""
        return gang_members.are_placed(
            self.job, self.snapshot, self.retired_workers, chief_succeeded=self.chief.succeeded
        )


@dataclass(frozen=True)
class Unreadable:
    """A job that this version cannot read."""

    snapshot: Snapshot
    """The observed state."""
    now: datetime
    error: str
    """The reason; it names the field."""


def gather(snapshot: Snapshot, now: datetime) -> Facts | Unreadable:
    """Return the facts of a pass, or the reason why there are none.

    Args:
        snapshot: the observed state.
        now: the present time.
    """
    job, status = snapshot.typed_job, snapshot.typed_status
    if isinstance(job, str):
        return Unreadable(snapshot, now, job)
    queue = admission.observed(job, snapshot, status)
    running = admission.effective(queue, snapshot, has_ended=recorded_end(status) is not None)
    if status.autoscaling and not queue.decides:
        running = grown_sizes.effective(running, snapshot, status, now)
    marked = node_loss.marked(snapshot, now)
    layout = resharding.observed(running, marked)
    return Facts(resharding.effective(running, layout), marked, status, now, queue, layout)


def recorded_end(status: PSTrainingJobStatus) -> Condition | None:
    """Return Succeeded or Failed, if a status has it; final."""
    ends = (Condition.SUCCEEDED, Condition.FAILED)
    return next((Condition(c.type) for c in status.conditions if c.type in ends and c.status == "True"), None)
