"""From what is observed to what is to be done: `plan` is pure, total and stateless.

    deleting, unreadable      nothing
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

from pstraining.api.conditions import Condition, Reason
from pstraining.api.models import PSTrainingJob
from pstraining.api.status import PSTrainingJobStatus
from pstraining.core import desired
from pstraining.core.actions import Action, Create, Delete, Kind, Plan
from pstraining.core.policies import (
    chief_terms,
    clean_up,
    redundancy,
    rescaling,
    rounds,
    shrinking,
    stopping,
    stuck_pods,
)
from pstraining.core.policies.attempts import Tally, tally
from pstraining.core.policies.diagnosis import look_again_at
from pstraining.core.policies.outcome import new_end, recorded_end
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
    job, status = read_job(snapshot), read_status(snapshot)
    if snapshot.deleting or isinstance(job, str):
        return Plan()
    if recorded_end(status) is not None:
        return _finished(job, snapshot, status, now)
    counted = tally(job, snapshot, status)
    if new_end(job, snapshot, status, counted) is not None or counted.restart_job is not None:
        return Plan()
    if job.spec.run_policy.suspend:
        return Plan(tuple(_deletions(stopping.next_step(job, snapshot).delete, Reason.SUSPENDED)))
    refused = refused_generation(status)
    if refused == snapshot.generation:
        return Plan()
    if refused is not None and stopping.workloads(snapshot):
        return Plan(tuple(_deletions(stopping.workloads(snapshot), Reason.NOT_DESIRED)))
    if rounds.is_due(snapshot, status):
        return Plan(tuple(_deletions(stopping.next_step(job, snapshot).delete, Reason.JOB_RESTARTED)))
    if rescaling.is_due(job, snapshot):
        return Plan(tuple(_deletions(stopping.next_step(job, snapshot).delete, Reason.RESHARDING)))
    found = redundancy.shards(job, snapshot, status, now)
    due = [t for t in (look_again_at(snapshot, now), redundancy.look_again_at(found, now)) if t is not None]
    return Plan(tuple(_running(job, snapshot, status, counted, launcher, found)), min(due, default=None))


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
    counted: Tally,
    launcher: Launcher,
    shards: tuple[redundancy.Shard, ...],
) -> Iterator[Action]:
    taken = list(redundancy.take_overs(job, snapshot, shards))
    yield from taken
    yield from redundancy.fence(snapshot, status, counted, shards)
    launcher_map = desired.launcher_name(job, snapshot, launcher)
    pointers = {s.index: s.next_pointer for s in shards}
    terms = chief_terms.terms(job, snapshot, status, counted)
    term = terms.create or max(1, chief_terms.newest_term(snapshot, status))
    made = desired.children(job, launcher_map, launcher, pointers, term)
    wanted = [rounds.stamped(manifest, status) for manifest in made]
    early = desired.early(job, snapshot, wanted)
    yield from desired.missing_and_drifted(job, snapshot, status, early)
    if terms.create is not None:
        chief = rounds.stamped(workloads.build_chief(job, terms.create, launcher_map), status)
        first = terms.create == 1
        yield Create(Kind.JOB, chief["metadata"]["name"], chief, Reason.DESIRED if first else Reason.NEXT_TERM)
    written = {(a.kind, a.name) for a in taken}
    late = [m for m in wanted if m not in early and (m["kind"], m["metadata"]["name"]) not in written]
    yield from desired.missing_and_drifted(job, snapshot, status, late)
    yield from desired.retired(job, snapshot, status)
    yield from desired.refreshed(job, snapshot, term)
    yield from _deletions(terms.delete, Reason.OLD_TERM)
    yield from desired.surplus(snapshot, wanted)
    yield from shrinking.left_over(job, snapshot)
    for pod in stuck_pods.idle(job, snapshot, status, counted):
        yield Delete(Kind.POD, pod.name, pod.uid, Reason.FAILURE_RULE)
    for pod in stuck_pods.stuck(snapshot, status, counted):
        yield Delete(Kind.POD, pod.name, pod.uid, Reason.STUCK_IN_BACK_OFF)


def _finished(job: PSTrainingJob, snapshot: Snapshot, status: PSTrainingJobStatus, now: datetime) -> Plan:
    expiry = clean_up.expiry(job, status)
    if expiry is not None and expiry <= now:
        return Plan((Delete(Kind.PS_TRAINING_JOB, snapshot.name, snapshot.uid, Reason.TTL_EXPIRED),))
    return Plan(tuple(_deletions(clean_up.freed_on_end(job, snapshot), Reason.JOB_FINISHED)), expiry)


def _deletions(children: Iterable[Child], reason: Reason) -> Iterator[Delete]:
    return (Delete(c.kind, c.name, c.uid, reason) for c in children)
