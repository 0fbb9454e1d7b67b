"""Which pods have to be placed together now, and what waits until they are?

The gang is placed anew only as a whole: until every member has a node, nothing that it could do without is created, so
that the pods that the scheduler counts are the gang's. What runs is never made to wait for what does not:

- members that have ended, or were given up, are not waited for any more;
- a job that has places and is scaled up keeps its smaller gang until the new members have places, too. A larger one
  would hold up the replacement of a lost parameter server for as long as the new workers find no room.

Level-based: the same answer for the same picture, and none that asks for a write once the gang has its places.
"""

from collections.abc import Iterator, Mapping
from typing import Any

from pstraining.api import names
from pstraining.api.conditions import Reason
from pstraining.api.models import PSTrainingJob
from pstraining.api.run_policy import Gang
from pstraining.api.status import PSTrainingJobStatus
from pstraining.core.actions import Kind, Manifest
from pstraining.core.policies import retired_workers
from pstraining.core.policies.attempts import has_succeeded, newest
from pstraining.core.policies.diagnosis import Diagnosis
from pstraining.core.snapshot import Child, Pod, Snapshot
from pstraining.resources import podgroup, redundancy, schedulers
from pstraining.resources.schedulers import Members

_SIZES = ("minMember", "minResources")


def kind_of_group(job: Manifest) -> Kind | None:
    """The kind of the PodGroup that a job is to have, by its manifest, which may be no job at all; None without one."""
    found: Any = job
    for step in ("spec", "runPolicy", "schedulingPolicy", "gang"):
        found = found.get(step) if isinstance(found, Mapping) else None
    kinds = {Gang.SCHEDULER_PLUGINS: Kind.POD_GROUP, Gang.VOLCANO: Kind.VOLCANO_POD_GROUP}
    return next((kind for gang, kind in kinds.items() if found == gang), None)


def group(job: PSTrainingJob, snapshot: Snapshot, status: PSTrainingJobStatus) -> dict[str, Any] | None:
    """The PodGroup that the job is to have now; None for a job without a gang."""
    scheduler = schedulers.provider(job)
    if scheduler is None:
        return None
    found = podgroup.build(job, scheduler, _members(job, snapshot, status))
    there = snapshot.child(Kind.of(found), found["metadata"]["name"])
    if there is None or _size(there) >= found["spec"]["minMember"] or is_placed(job, snapshot, status):
        return found
    if any(_has_place(p) for p in snapshot.pods):
        found["spec"] |= {f: there.manifest["spec"][f] for f in _SIZES if f in there.manifest["spec"]}
    return found


def is_placed(job: PSTrainingJob, snapshot: Snapshot, status: PSTrainingJobStatus) -> bool:
    """Whether every member of the gang has a node, or needs none any more."""
    return next(_without_place(job, snapshot, status), None) is None


def waits_for_it(job: PSTrainingJob, manifest: Manifest) -> bool:
    """Whether a child is created only once the gang has its places: what holds pods that are not in it."""
    labels = manifest["metadata"].get("labels") or {}
    match manifest["kind"]:
        case Kind.DEPLOYMENT:
            return int(labels[names.LABEL_INDEX]) >= schedulers.members(job).workers
        case Kind.STATEFUL_SET:
            return str(labels[names.LABEL_MEMBER]) != "0"
    return False


def holds_back(job: PSTrainingJob, snapshot: Snapshot, status: PSTrainingJobStatus) -> bool:
    """Whether something is not created yet because the gang has no places."""
    if schedulers.provider(job) is None or is_placed(job, snapshot, status):
        return False
    name = job.metadata.name
    workers = range(schedulers.members(job).workers, job.spec.worker.replicas)
    wanted = {(Kind.DEPLOYMENT, names.worker_name(name, i)) for i in workers}
    wanted |= {(Kind.STATEFUL_SET, redundancy.stateful_set(job, i)) for i in range(1, redundancy.members(job))}
    no_evaluator = job.spec.evaluator.enabled and newest(snapshot, status, names.EVALUATOR) == 0
    return no_evaluator or not wanted <= snapshot.children.keys()


def not_installed(job: PSTrainingJob) -> str:
    """What to do about a PodGroup that the API server does not know."""
    scheduler = schedulers.provider(job)
    if scheduler is None:
        return ""
    group = scheduler.api_version.partition("/")[0]
    return (
        f"The API server knows no PodGroups of {scheduler.api_version}: install {scheduler.product}, with its CRD "
        f"podgroups.{group}, or set spec.runPolicy.schedulingPolicy.gang to None. The job waits, and goes on by itself."
    )


def explained(
    job: PSTrainingJob, snapshot: Snapshot, status: PSTrainingJobStatus, trouble: Diagnosis | None
) -> Diagnosis | None:
    """What keeps a job from running, in the gang's words where it is the gang.

    Which pod the scheduler speaks of, and how, changes with every try: these words do not, so that waiting costs no
    writes.
    """
    scheduler = schedulers.provider(job)
    if scheduler is None or trouble is None or is_placed(job, snapshot, status):
        return trouble
    asked = _members(job, snapshot, status).count
    if trouble.reason is Reason.UNSCHEDULABLE:
        message = (
            f"The gang of {asked} pods waits: there is no room for all of them at once, and none starts without the "
            f"others. `kubectl pstraining status {snapshot.name}` has the scheduler's words for each"
        )
        return Diagnosis(Reason.WAITING_FOR_GANG, message)
    if trouble.reason is Reason.STILL_WAITING and trouble.pod is not None and not trouble.pod.node:
        message = (
            f"The gang of {asked} pods waits, and no scheduler has said why: does {scheduler.product} run, as the "
            "scheduler that the pods' schedulerName names?"
        )
        return Diagnosis(Reason.WAITING_FOR_GANG, message)
    return trouble


def _members(job: PSTrainingJob, snapshot: Snapshot, status: PSTrainingJobStatus) -> Members:
    """The gang without those that need no place any more."""
    start = schedulers.members(job)
    left = sum(retired_workers.why(job, snapshot, status, i) is None for i in range(job.spec.worker.replicas))
    chief = start.chief and not has_succeeded(job, snapshot, names.CHIEF)
    return Members(start.ps, int(chief), min(start.workers, left))


def _without_place(job: PSTrainingJob, snapshot: Snapshot, status: PSTrainingJobStatus) -> Iterator[tuple[str, int]]:
    """Role and index of the members that have no node."""
    start = schedulers.members(job)
    placed = {(p.role, p.index) for p in snapshot.pods if p.member == 0 and _has_place(p)}
    yield from ((names.PS, i) for i in range(start.ps) if (names.PS, i) not in placed)
    if start.chief and (names.CHIEF, 0) not in placed and not has_succeeded(job, snapshot, names.CHIEF):
        yield names.CHIEF, 0
    for index in range(start.workers):
        if (names.WORKER, index) not in placed and retired_workers.why(job, snapshot, status, index) is None:
            yield names.WORKER, index


def _has_place(pod: Pod) -> bool:
    return bool(pod.node) and not pod.over and not pod.deleting


def _size(child: Child) -> int:
    found = (child.manifest.get("spec") or {}).get("minMember")
    return found if isinstance(found, int) else 0
