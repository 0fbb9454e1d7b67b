"""From what is observed to what is to be done: `plan` is pure, total and stateless.

    deleting, unreadable,
    another manager's         nothing
    ended, on record          free what cleanPodPolicy frees; delete the job when its time has come
    just ended                nothing: status tells it first
    suspended                 free what runs, the chief first
    refused template          nothing until the spec changes, then start over
    just failed as a whole    nothing: status counts the new round first
    of an older round         stop in order, then create anew
    another number of PSs     stop in order, then create anew
    else                      create what is missing, correct what drifted, follow the chief's terms

Planning again on the result of a plan gives the empty plan, and every prefix of a plan leaves a legal state.
"""

from collections.abc import Iterable, Iterator
from datetime import datetime

from pydantic import ValidationError

from pstraining.api import names
from pstraining.api.conditions import Condition, Reason
from pstraining.api.models import PSTrainingJob
from pstraining.api.status import PSTrainingJobStatus
from pstraining.core import desired_state
from pstraining.core.actions import Action, Create, Delete, Kind, Manifest, Plan
from pstraining.core.policies import (
    attempts,
    clean_up,
    deadline,
    failover,
    gang,
    job_restart,
    node_loss,
    pvc_retention,
    resharding,
    rolling_update,
    stuck_pods,
    teardown,
)
from pstraining.core.policies.completion import new_end, recorded_end
from pstraining.core.policies.diagnosis import look_again_at
from pstraining.core.policies.failure_counts import FailureCounts, count_failures
from pstraining.core.snapshot import Child, Snapshot
from pstraining.resources import workloads
from pstraining.resources.launcher import Launcher


def plan(snapshot: Snapshot, now: datetime, launcher: Launcher) -> Plan:
    """Decide what to do about a job now.

    Args:
        snapshot: what is observed.
        now: the present time, for TTLs.
        launcher: the launcher that new children get.
    """
    snapshot = node_loss.marked(snapshot, now)
    job, status = read_job(snapshot), read_status(snapshot)
    if snapshot.deleting or isinstance(job, str) or not is_ours(job):
        return Plan()
    if (end := recorded_end(status)) is not None:
        return _finished(job, snapshot, status, end, now)
    counted = count_failures(job, snapshot, status)
    if new_end(job, snapshot, status, counted, now) is not None or counted.restart_job is not None:
        return Plan()
    lost = tuple(node_loss.force_deletions(job, snapshot, status, counted))
    overdue = node_loss.look_again_at(snapshot, now)

    def stop(why: Reason) -> Plan:
        return Plan((*_deletions(teardown.next_step(job, snapshot).delete, why), *lost), overdue)

    if job.spec.run_policy.suspend:
        return stop(Reason.SUSPENDED)
    refused = refused_generation(status)
    if refused == snapshot.generation:
        return Plan()
    if refused is not None and teardown.workloads(snapshot):
        return Plan(tuple(_deletions(teardown.workloads(snapshot), Reason.NOT_DESIRED)))
    if job_restart.is_due(snapshot, status):
        return stop(Reason.JOB_RESTARTED)
    if resharding.is_due(job, snapshot):
        return stop(Reason.RESHARDING)
    found = failover.shards(job, snapshot, status, now)
    times = (overdue, look_again_at(snapshot, now), failover.look_again_at(found, now), deadline.ends_at(job, status))
    due = min((t for t in times if t is not None), default=None)
    return Plan((*_running(job, snapshot, status, counted, launcher, found), *lost), due)


def is_ours(job: PSTrainingJob) -> bool:
    """Whether runPolicy.managedBy leaves the job to this operator."""
    return job.spec.run_policy.managed_by == names.MANAGED_BY


def read_job(snapshot: Snapshot) -> PSTrainingJob | str:
    """The job as typed data, or what is wrong with it: a CRD of another version may have let it pass."""
    try:
        return PSTrainingJob.model_validate(snapshot.job)
    except ValidationError as error:
        first = error.errors()[0]
        return f"{'.'.join(str(part) for part in first['loc'])}: {first['msg']}"


def read_status(snapshot: Snapshot) -> PSTrainingJobStatus:
    """The stored status; one that cannot be read counts as none."""
    try:
        return PSTrainingJobStatus.model_validate(snapshot.status)
    except ValidationError:
        return PSTrainingJobStatus()


def refused_generation(status: PSTrainingJobStatus) -> int | None:
    """The generation whose templates the API server refused."""
    for condition in status.conditions:
        if condition.type == Condition.INVALID_TEMPLATE and condition.status == "True":
            return condition.observed_generation
    return None


def _running(
    job: PSTrainingJob,
    snapshot: Snapshot,
    status: PSTrainingJobStatus,
    counted: FailureCounts,
    launcher: Launcher,
    shards: tuple[failover.Shard, ...],
) -> Iterator[Action]:
    taken = list(failover.take_overs(job, snapshot, shards))
    yield from taken
    fenced = list(failover.fence(snapshot, status, counted, shards))
    yield from fenced
    launcher_map = desired_state.launcher_name(job, snapshot, launcher)
    pointers = {s.index: s.next_pointer for s in shards}
    roles = {role: attempts.decide(job, snapshot, status, counted, role) for role in attempts.NUMBER}
    term = roles[names.CHIEF].create or max(1, attempts.newest(snapshot, status, names.CHIEF))
    children = desired_state.children(job, launcher_map, launcher, pointers, term, snapshot.children)
    wanted = [job_restart.stamped(manifest, status) for manifest in children]
    group = gang.group(job, snapshot, status)
    placed = group is None or gang.is_placed(job, snapshot, status)
    if group is not None:
        wanted.insert(0, group)  # no pod of the gang is looked at before it is there
    now = [m for m in wanted if placed or _is_there(snapshot, m) or not gang.waits_for_it(job, m)]
    early = desired_state.early(job, snapshot, now)
    yield from desired_state.missing_and_drifted(job, snapshot, status, early)
    for role, found in roles.items():
        if found.create is not None and (placed or role == names.CHIEF):
            made = job_restart.stamped(workloads.build_attempt(job, role, found.create, launcher_map), status)
            again = Reason.NEXT_TERM if role == names.CHIEF else Reason.NEXT_ATTEMPT
            yield Create(Kind.JOB, made["metadata"]["name"], made, Reason.DESIRED if found.create == 1 else again)
    written = {(a.kind, a.name) for a in taken}
    late = [m for m in now if m not in early and (m["kind"], m["metadata"]["name"]) not in written]
    yield from desired_state.missing_and_drifted(job, snapshot, status, late)
    yield from desired_state.retired(job, snapshot, status)
    ending = {a.uid for a in fenced}
    yield from (a for a in desired_state.refreshed(job, snapshot, term) if a.uid not in ending)
    for found in roles.values():
        yield from _deletions(found.delete, Reason.OLD_TERM)
    yield from desired_state.surplus(snapshot, wanted)
    yield from pvc_retention.left_over(job, snapshot)
    leaving = [(p, Reason.FAILURE_RULE) for p in stuck_pods.idle(job, snapshot, status, counted)]
    leaving += [(p, Reason.STUCK_IN_BACK_OFF) for p in stuck_pods.stuck(snapshot, status, counted)]
    yield from (Delete(Kind.POD, pod.name, pod.uid, why) for pod, why in leaving)
    left = {pod.uid for pod, _ in leaving}
    yield from (a for a in rolling_update.deletions(job, snapshot, shards) if a.uid not in left)


def _finished(
    job: PSTrainingJob, snapshot: Snapshot, status: PSTrainingJobStatus, end: Condition, now: datetime
) -> Plan:
    expiry = clean_up.expiry(job, status)
    if expiry is not None and expiry <= now:
        return Plan((Delete(Kind.PS_TRAINING_JOB, snapshot.name, snapshot.uid, Reason.TTL_EXPIRED),))
    found = clean_up.clean_up(job, snapshot, status, end, now)
    kept = desired_state.kept(job, snapshot, found, max(1, attempts.newest(snapshot, status, names.CHIEF)))
    due = min((t for t in (expiry, found.until) if t is not None), default=None)
    return Plan((*kept, *_deletions(found.delete, Reason.JOB_FINISHED)), due)


def _is_there(snapshot: Snapshot, manifest: Manifest) -> bool:
    return snapshot.child(Kind.of(manifest), manifest["metadata"]["name"]) is not None


def _deletions(children: Iterable[Child], reason: Reason) -> Iterator[Delete]:
    return (Delete(c.kind, c.name, c.uid, reason) for c in children)
