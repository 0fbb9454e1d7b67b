"""Which pods have to be placed together, and which children wait for their placement?

The gang is placed as a whole: until every member has a node, only members are created, so that the scheduler counts no
other pods. Running pods never wait for pods without a node:

- members that have succeeded or were given up need no node any more;
- a job that is placed and then scaled up keeps its smaller gang until the new members are placed. A larger gang would
  delay the replacement of a lost parameter server while the new workers find no room.

Level-based: equal facts give equal answers, and a placed gang causes no writes.
"""

from collections.abc import Mapping
from typing import Any

from pstraining.api import names
from pstraining.api.conditions import Reason
from pstraining.api.models import PSTrainingJob
from pstraining.api.run_policy import Gang
from pstraining.core.actions import Kind, Manifest
from pstraining.core.facts import Facts
from pstraining.core.policies.diagnosis import Diagnosis
from pstraining.core.policies.gang_members import has_place
from pstraining.core.snapshot import Child
from pstraining.resources import gang, pods, standbys

_SIZES = ("minMember", "minResources")


def kind_of_group(job: Manifest) -> Kind | None:
    """Return the kind of a job's PodGroup, by its unvalidated manifest; None for a job without a gang."""
    value: Any = job
    for step in ("spec", "runPolicy", "schedulingPolicy", "gang"):
        value = value.get(step) if isinstance(value, Mapping) else None
    kinds = {Gang.SCHEDULER_PLUGINS: Kind.POD_GROUP, Gang.VOLCANO: Kind.VOLCANO_POD_GROUP}
    return next((kind for name, kind in kinds.items() if value == name), None)


def group(facts: Facts) -> dict[str, Any] | None:
    """Return the PodGroup of the job; None for a job without a gang."""
    scheduler = gang.provider(facts.job)
    if scheduler is None:
        return None
    wanted = gang.build(facts.job, scheduler, facts.gang, pods.gang_requests(facts.job, facts.gang))
    existing = facts.snapshot.child(Kind.of(wanted), wanted["metadata"]["name"])
    if existing is None or _size(existing) >= wanted["spec"]["minMember"] or facts.gang_is_placed:
        return wanted
    if any(has_place(p) for p in facts.snapshot.pods):
        wanted["spec"] |= {f: existing.manifest["spec"][f] for f in _SIZES if f in existing.manifest["spec"]}
    return wanted


def is_waiting(facts: Facts) -> bool:
    """Whether the job has a gang, and a member of it has no node."""
    return gang.provider(facts.job) is not None and not facts.gang_is_placed


def waits_for_it(job: PSTrainingJob, manifest: Manifest) -> bool:
    """Whether a child is created only once the gang is placed, because its pods are not members."""
    labels = manifest["metadata"].get("labels") or {}
    match manifest["kind"]:
        case Kind.DEPLOYMENT:
            return int(labels[names.LABEL_INDEX]) >= gang.members(job).workers
        case Kind.STATEFUL_SET:
            return str(labels[names.LABEL_MEMBER]) != "0"
    return False


def holds_back(facts: Facts) -> bool:
    """Whether a child is not created yet because the gang is not placed."""
    if not is_waiting(facts):
        return False
    job, name = facts.job, facts.job.metadata.name
    workers = range(gang.members(job).workers, job.spec.worker.replicas)
    wanted = {(Kind.DEPLOYMENT, names.worker_name(name, i)) for i in workers}
    wanted |= {(Kind.STATEFUL_SET, standbys.stateful_set(job, i)) for i in range(1, standbys.members(job))}
    no_evaluator = job.spec.evaluator.enabled and facts.evaluator.newest == 0
    return no_evaluator or not wanted <= facts.snapshot.children.keys()


def not_installed(job: PSTrainingJob) -> str:
    """Return the message for an API server that does not know PodGroups."""
    scheduler = gang.provider(job)
    if scheduler is None:
        return ""
    group = scheduler.api_version.partition("/")[0]
    return (
        f"The API server knows no PodGroups of {scheduler.api_version}: install {scheduler.product}, with its CRD "
        f"podgroups.{group}, or set spec.runPolicy.schedulingPolicy.gang to None. The job waits and then starts."
    )


def explained(facts: Facts, trouble: Diagnosis | None) -> Diagnosis | None:
    """Return the diagnosis, with a message about the gang if the gang is the cause.

    The scheduler names another pod in other words with every attempt. This message is stable, so waiting causes no
    writes.
    """
    scheduler = gang.provider(facts.job)
    if scheduler is None or trouble is None or facts.gang_is_placed:
        return trouble
    asked = facts.gang.count
    if trouble.reason is Reason.UNSCHEDULABLE:
        message = (
            f"The gang of {asked} pods waits: there is no room for all of them at once, and none starts without the "
            f"others. `kubectl pstraining status {facts.snapshot.name}` shows the scheduler's message for each"
        )
        return Diagnosis(Reason.WAITING_FOR_GANG, message)
    if trouble.reason is Reason.STILL_WAITING and trouble.pod is not None and not trouble.pod.node:
        message = (
            f"The gang of {asked} pods waits, and no scheduler has reported why: check that {scheduler.product} runs "
            "as the scheduler that the pods' schedulerName names"
        )
        return Diagnosis(Reason.WAITING_FOR_GANG, message)
    return trouble


def _size(child: Child) -> int:
    size = (child.manifest.get("spec") or {}).get("minMember")
    return size if isinstance(size, int) else 0
