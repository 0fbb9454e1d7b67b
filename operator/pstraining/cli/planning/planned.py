"""The operator's next actions for a job: for a new job offline, or for a job and its objects in a cluster."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Any, Final

from pstraining.api import names
from pstraining.api.conditions import Condition, Reason
from pstraining.cli.client import ClusterClient, Object
from pstraining.cli.errors import ConflictError, DeniedError, RequestError
from pstraining.cli.jobs import condition
from pstraining.cli.planning import queues
from pstraining.cli.planning.queues import Queueing
from pstraining.cli.sizing import words
from pstraining.cli.submission import sent
from pstraining.cli.validation.schema import with_defaults
from pstraining.core import planner, queue_messages
from pstraining.core.actions import Action, Kind, Manifest
from pstraining.core.facts import Facts, Unreadable, gather
from pstraining.core.observe import observe
from pstraining.core.policies import admission, default_queue, resizing
from pstraining.core.policies.gang import kind_of_group
from pstraining.kube.paths import RESOURCES
from pstraining.launcher import launcher_files, launcher_version
from pstraining.resources import kueue
from pstraining.resources.installation import Installation
from pstraining.resources.launcher import LauncherFiles

_NOT_LISTED: Final = (Kind.POD, Kind.PS_TRAINING_JOB, *Kind.pod_groups(), *Kind.of_queues())
CHILDREN: Final = tuple(kind for kind in RESOURCES if kind not in _NOT_LISTED)

_UNREADABLE: Final = (
    "This version of the plugin cannot read the job, so that the plan has none of the operator's actions. Use the "
    "version of the operator"
)


@dataclass(frozen=True)
class Change:
    """A change of a field. None is an absent field."""

    field: str
    before: Any
    after: Any

    def __str__(self) -> str:
        """Return one line about the change."""
        return f"{self.field}: {_shown(self.before)} -> {_shown(self.after)}"


@dataclass(frozen=True)
class Planned:
    """The operator's next actions for a job."""

    job: Manifest
    actions: tuple[Action, ...]
    changes: tuple[Change, ...] = ()
    """Changes of an existing job's spec, labels and annotations."""
    there: Mapping[tuple[Kind, str], Manifest] = field(default_factory=dict)
    """The job's existing objects."""
    exists: bool = False
    resizes: tuple[str, ...] = ()
    """Descriptions of how running pods are resized."""
    sizes: Mapping[str, str] = field(default_factory=dict)
    """The current size of each pod, by its name."""
    sizings: tuple[str, ...] = ()
    """The measured, recommended and current sizes of each role."""
    queue: str = ""
    """The queue in which the job waits before it gets pods; empty without one, or if it may have pods."""
    notes: tuple[str, ...] = ()
    """What the submission needs, and what the plan assumes about the cluster."""


def planned_for(cluster: ClusterClient | None, job: Object, now: datetime) -> Planned:
    """Return the planner's next actions for a job.

    Args:
        cluster: the job's cluster; None plans for a job that does not exist.
        job: the job as it would be submitted.
        now: the present time.

    Raises:
        CommandError: the API server refuses the job.
    """
    launcher = LauncherFiles(launcher_version(), launcher_files())
    if cluster is None:
        fresh = with_defaults(job)
        fresh["metadata"] |= {"uid": "", "generation": 1, "creationTimestamp": f"{now:%Y-%m-%dT%H:%M:%SZ}"}
        actions = planner.plan(gather(observe(fresh, (), ()), now), launcher).actions
        return Planned(fresh, actions, queue=queues.queue_label(fresh))
    before, after, conflicts = _compared(cluster, job)
    after["metadata"].setdefault("resourceVersion", "")  # a new job has none in a dry run
    queueing = queues.queueing(cluster, after, before)
    children: list[Object] = [*queueing.workloads]
    pods: list[Object] = []
    unseen = ""
    if before is not None:
        group, unseen = _group(cluster, after)
        children += [*_children(cluster, after, CHILDREN), *group]
        pods = cluster.pods(after["metadata"]["namespace"], after["metadata"]["name"])
    resizes_pods = before is not None and _serves_resizes(cluster)
    installation = Installation(resizes_pods=resizes_pods, kueue=queueing.support)
    snapshot = observe(after, children, pods, installation=installation)
    objects, unknown = queues.objects(cluster, snapshot)
    snapshot = replace(snapshot, queue_objects=objects)
    facts = gather(snapshot, now)
    actions = planner.plan(facts, launcher).actions
    if unseen:
        actions = tuple(action for action in actions if action.kind not in Kind.pod_groups())
        unknown = [*unknown, unseen]
    found = Planned(
        after,
        actions,
        tuple(_changes_of(before, after)) if before is not None else (),
        {key: child.manifest for key, child in snapshot.children.items()},
        before is not None,
        sizes={pod.name: pod.size for pod in snapshot.pods},
        notes=(*_forced(conflicts), *unknown),
    )
    if isinstance(facts, Unreadable):
        return replace(found, notes=(*found.notes, f"{_UNREADABLE}: {facts.error}"))
    return replace(
        found,
        resizes=tuple(resizing.ways(facts)),
        sizings=tuple(_sizings(facts)),
        queue=_waits_in(facts, queueing, before or after),
        notes=(*found.notes, *_about_manager(facts), *_about_queue(facts, queueing)),
    )


def _compared(cluster: ClusterClient, job: Object) -> tuple[Object | None, Object, tuple[str, ...]]:
    """Return a job as it is and as it would be stored, and the fields that other managers own."""
    try:
        return *sent(cluster, job, dry_run=True, force=False), ()
    except ConflictError as error:
        if not error.fields:
            raise
        conflicts = error.fields
    return *sent(cluster, job, dry_run=True, force=True), conflicts


def _forced(conflicts: tuple[str, ...]) -> Iterator[str]:
    if conflicts:
        yield f"`kubectl pstraining submit` needs --force: other field managers own {', '.join(conflicts)}."


def _children(cluster: ClusterClient, job: Object, kinds: Iterable[Kind]) -> Iterator[Object]:
    """Yield the objects of these kinds that may belong to a job."""
    for kind in kinds:
        place, selector = RESOURCES[kind], f"{names.LABEL_JOB}={job['metadata']['name']}"
        what = {"apiVersion": place.api_version, "kind": str(kind)}
        found = cluster.listed(place.path(job["metadata"]["namespace"]), labelSelector=selector)
        yield from (c | what for c in found)


def _group(cluster: ClusterClient, job: Object) -> tuple[list[Object], str]:
    """Return the PodGroup of a job's gang, and why it is not known; Kubernetes' role `edit` may not read PodGroups."""
    kind = kind_of_group(job)
    if kind is None:
        return [], ""
    try:
        return list(_children(cluster, job, [kind])), ""
    except DeniedError as error:
        return [], f"{error} The plan leaves out the PodGroup of the job's gang."
    except RequestError as error:
        if error.status != 404:
            raise
    return [], ""


def _sizings(facts: Facts) -> Iterator[str]:
    for sizing in facts.status.autoscaling:
        found = words(sizing.model_dump(by_alias=True, mode="json"), facts.sizes[sizing.role].text)
        yield f"{sizing.role}: {found}."


def _waits_in(facts: Facts, queueing: Queueing, stored: Object) -> str:
    """Return the queue in which a job waits; empty if it may have pods."""
    state = facts.queue
    if default_queue.is_due(facts):
        return kueue.DEFAULT_QUEUE
    if queueing.hidden:  # the operator has reported it
        found = condition(stored, Condition.QUEUED)
        may_run = (Reason.ADMITTED, Reason.QUEUE_IGNORED, Reason.KUEUE_NOT_INSTALLED)
        return "" if found.get("status") == "False" and found.get("reason") in may_run else state.queue
    is_held = facts.job.spec.run_policy.suspend and not state.job.spec.run_policy.suspend
    return state.queue if is_held else ""


def _about_manager(facts: Facts) -> Iterator[str]:
    """Yield who runs the job instead of the operator."""
    if not (facts.is_managed_here or facts.is_dispatched):
        yield f"managedBy leaves the job to {facts.job.spec.manager}: the operator does nothing with it."


def _about_queue(facts: Facts, queueing: Queueing) -> Iterator[str]:
    """Yield what the cluster does with the job's queue, where it is not what the label asks for."""
    state = facts.queue
    if not state.queue and not default_queue.is_due(facts):
        return
    if queueing.assumption:
        yield queueing.assumption
    elif state.queue and not state.decides:
        yield queue_messages.ignored(state)
    if state.is_unanswered:
        is_kept = admission.is_kept(state, facts.snapshot)
        yield queue_messages.KEPT if is_kept else queue_messages.waiting(state)


def _serves_resizes(cluster: ClusterClient) -> bool:
    try:
        served = (cluster.read("/api/v1") or {}).get("resources") or ()
    except RequestError:
        return False
    return any(resource.get("name") == "pods/resize" for resource in served)


def _changes_of(before: Object, after: Object) -> Iterator[Change]:
    """Yield the changes of a job that a user asks for."""
    yield from changes(before["spec"], after["spec"], "spec")
    for kind in ("labels", "annotations"):
        former, new = (one["metadata"].get(kind) or {} for one in (before, after))
        yield from changes(former, new, f"metadata.{kind}")


def changes(before: Any, after: Any, path: str) -> Iterator[Change]:
    """Yield the innermost fields that differ."""
    if isinstance(before, Mapping) and isinstance(after, Mapping):
        for name in dict.fromkeys((*before, *after)):
            yield from changes(before.get(name), after.get(name), f"{path}.{name}" if path else name)
    elif before != after:
        yield Change(path, before, after)


def _shown(value: Any) -> str:
    text = "nothing" if value is None else f"{value}"
    return text if len(text) <= 60 else f"{text[:57]}..."
