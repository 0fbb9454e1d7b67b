"""Which children does a running job need, and how do the existing ones differ?

A child with pods is rendered only when it is created, so that a new version of the operator restarts nothing. Later
passes only correct its number of replicas. There are two exceptions: parameter servers with hot standbys are rendered
again when spec.ps.template changes (policies/rolling_update.py), and any child with pods may be rendered again when the
size of its role changes (policies/resizing.py). Services and the cluster map hold no state; they are corrected whenever
a rendered field differs.
"""

from collections.abc import Container, Iterator, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

from pstraining.api import names
from pstraining.api.conditions import Reason
from pstraining.api.models import PSTrainingJob
from pstraining.core.actions import WITH_PODS, Action, Apply, Create, Delete, Kind, Manifest, Replace
from pstraining.core.facts import Facts
from pstraining.core.policies import gang, job_restart, replaced_pods, resizing, retired_workers, rolling_update
from pstraining.core.policies.attempts import success_recorded
from pstraining.core.policies.clean_up import CleanUpStep
from pstraining.core.snapshot import PASSED_DEADLINE, Child, Pod, Snapshot
from pstraining.resources import cluster_map, kueue, launcher, network_policy, services, standbys, workloads
from pstraining.resources.installation import STANDARD, Installation
from pstraining.resources.launcher import LauncherFiles, LauncherMap
from pstraining.resources.layout import FIRST, ServerLayout
from pstraining.resources.services import Pointer

_WITHDRAWN = (
    *(Kind.DEPLOYMENT, Kind.STATEFUL_SET, Kind.POD_DISRUPTION_BUDGET),
    *(Kind.NETWORK_POLICY, Kind.SERVICE, Kind.CONFIG_MAP),
    *Kind.pod_groups(),
)
"""Kinds that are deleted when the job no longer wants them, in this order."""
_WHOLE = ("selector", "podSelector", "ingress")
"""Fields that server-side apply writes as one value: additions by other clients are undone."""
_SHARED = ("ports", "ownerReferences")
"""Lists whose items server-side apply writes one by one: items that other clients have added stay."""


@dataclass(frozen=True)
class DesiredState:
    """The children of a running job, rendered in this pass, without the Jobs of the chief and the evaluator."""

    launcher_map: LauncherMap
    """The launcher's ConfigMap."""
    term: int
    """The chief's term."""
    children: list[dict[str, Any]]
    """All children that the job needs, including those that wait for the gang."""
    before_chief: list[dict[str, Any]]
    """The children to write before the chief's Job."""
    after_chief: list[dict[str, Any]]
    """The children to write after the chief's Job."""


def mounted_launcher(job: PSTrainingJob, snapshot: Snapshot, carried: LauncherFiles) -> LauncherMap:
    """Return the launcher's ConfigMap of this job: its pods' if it has any, or else the operator's own."""
    own = launcher.config_map_name(job, carried)
    name = _mounted_name(job, snapshot) or own
    return LauncherMap(name, is_current=name == own)


def _mounted_name(job: PSTrainingJob, snapshot: Snapshot) -> str | None:
    """Return the name of the launcher's ConfigMap in the job's existing templates; None without one."""
    for kind in WITH_PODS:
        for child in snapshot.of_kind(kind):
            template = (child.manifest.get("spec") or {}).get("template") or {}
            for volume in (template.get("spec") or {}).get("volumes") or ():
                for source in (volume.get("projected") or {}).get("sources") or ():
                    name = (source.get("configMap") or {}).get("name", "")
                    if name.startswith(names.launcher_config_map(job.metadata.name, "")):
                        return str(name)
    return None


def children(
    job: PSTrainingJob,
    launcher_map: LauncherMap,
    carried: LauncherFiles,
    pointers: Mapping[int, Pointer] = MappingProxyType({}),
    term: int = 1,
    there: Container[tuple[Kind, str]] = (),
    *,
    layout: ServerLayout = FIRST,
    installation: Installation = STANDARD,
) -> Iterator[dict[str, Any]]:
    """Render all children except the chief's Jobs, in the order of creation.

    Workloads come first: the API server then refuses a bad template before other objects exist, and images are pulled
    while the other children are written. An existing worker is only rendered as an outline, because no other field of
    it is corrected. The same applies to existing parameter servers without hot standbys, unless they get another size.

    Args:
        job: the job.
        launcher_map: the launcher's ConfigMap.
        carried: the launcher that new children get.
        pointers: the primaries of shards with warm standbys.
        term: the chief's term.
        there: the kinds and names of the existing children, which need only an outline.
        layout: the layout of the parameters.
        installation: how the operator is installed.
    """

    def worker(index: int) -> dict[str, Any]:
        if (Kind.DEPLOYMENT, names.worker_name(job.metadata.name, index)) in there:
            return workloads.outline_worker(job, index)
        return workloads.build_worker(job, index, launcher_map, installation=installation)

    count = job.spec.ps.replicas + layout.starting

    def servers(member: int) -> dict[str, Any]:
        if (Kind.STATEFUL_SET, standbys.stateful_set(job, member)) in there and not standbys.is_hot(job):
            found = workloads.outline_parameter_servers(job, member)
        else:
            made = job, launcher_map, member, term
            found = workloads.build_parameter_servers(*made, layout=layout, installation=installation)
        found["spec"]["replicas"] = count
        return found

    yield worker(0)
    claim = workloads.build_checkpoint_claim(job)
    if claim is not None:
        yield claim
    for member in range(standbys.members(job)):
        yield servers(member)
    for index in range(1, job.spec.worker.replicas):
        yield worker(index)
    policy = network_policy.build(job)
    if policy is not None:
        yield policy
    built = launcher.build(job, carried)
    built["metadata"]["name"] = launcher_map.name
    yield built
    yield cluster_map.build(job, term, layout=layout)
    yield from services.build_all(job, pointers)
    yield from services.build_starting(job, range(job.spec.ps.replicas, count))
    if standbys.standbys(job):
        yield from (standbys.build_budget(job, index) for index in range(job.spec.ps.replicas))


def render(facts: Facts, carried: LauncherFiles, term: int) -> DesiredState:
    """Render the children of a running job.

    Args:
        facts: the facts of this pass.
        carried: the launcher that new children get.
        term: the chief's term after this pass.
    """
    job, snapshot = facts.job, facts.snapshot
    launcher_map = mounted_launcher(job, snapshot, carried)
    pointers = {shard.index: shard.next_pointer for shard in facts.shards}
    resized = {(c.kind, c.name) for c in snapshot.of_kind(Kind.STATEFUL_SET) if resizing.has_former_size(facts, c)}
    found = job, launcher_map, carried, pointers, term, snapshot.children.keys() - resized
    rendered = children(*found, layout=facts.resharding.layout, installation=snapshot.installation)
    wanted = [completed(facts, manifest) for manifest in rendered]
    group = gang.group(facts)
    if group is not None:
        wanted.insert(0, group)  # no scheduler considers a member before the group exists
    open_to_all = not gang.is_waiting(facts)
    allowed = [m for m in wanted if open_to_all or _exists(snapshot, m) or not gang.waits_for_it(job, m)]
    early = _before_chief(job, snapshot, allowed)
    written = {id(manifest) for manifest in early}
    return DesiredState(launcher_map, term, wanted, early, [m for m in allowed if id(m) not in written])


def completed(facts: Facts, manifest: dict[str, Any]) -> dict[str, Any]:
    """Return a rendered child with the labels of restarts and the changes of its admission."""
    return kueue.place(job_restart.labelled(manifest, facts.status.job_restarts), facts.queue.assignments)


def _exists(snapshot: Snapshot, manifest: Manifest) -> bool:
    return snapshot.child(Kind.of(manifest), manifest["metadata"]["name"]) is not None


def _before_chief(job: PSTrainingJob, snapshot: Snapshot, wanted: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the children written before the chief: an existing cluster map, which new pods read, and all workloads."""
    early = [m for m in wanted if m["kind"] not in (Kind.SERVICE, Kind.CONFIG_MAP, Kind.POD_DISRUPTION_BUDGET)]
    name = names.cluster_config_map(job.metadata.name)
    exists = snapshot.child(Kind.CONFIG_MAP, name) is not None
    return [m for m in wanted if exists and (m["kind"], m["metadata"]["name"]) == (Kind.CONFIG_MAP, name)] + early


def missing_and_drifted(facts: Facts, wanted: list[dict[str, Any]]) -> Iterator[Action]:
    """Create missing children and correct drifted ones."""
    for manifest in wanted:
        kind, name = Kind.of(manifest), manifest["metadata"]["name"]
        child = facts.snapshot.child(kind, name)
        if child is None:
            # The checkpoint's claim is created before the StatefulSet. If it is missing later, data was lost.
            is_lost = kind is Kind.CLAIM and facts.snapshot.of_kind(Kind.STATEFUL_SET)
            index = manifest["metadata"]["labels"].get(names.LABEL_INDEX, "")
            if not is_lost and not (kind is Kind.DEPLOYMENT and int(index or -1) in facts.retired_workers):
                yield Create(kind, name, manifest, Reason.DESIRED)
        elif not child.deleting:
            yield from _corrected(facts, child, manifest)


def surplus(snapshot: Snapshot, wanted: list[dict[str, Any]]) -> Iterator[Delete]:
    """Delete children that the job no longer wants, except the chief's Jobs."""
    keep = {(Kind.of(m), m["metadata"]["name"]) for m in wanted}
    for kind in _WITHDRAWN:
        for child in snapshot.of_kind(kind):
            if (kind, child.name) not in keep and not child.deleting:
                yield Delete(kind, child.name, child.uid, Reason.NOT_DESIRED)


def refreshed(facts: Facts, term: int) -> Iterator[Apply]:
    """Annotate pods, so that the kubelet delivers a changed cluster map at once and not after a minute."""
    job, snapshot, layout = facts.job, facts.snapshot, facts.resharding.layout
    digests = {role: cluster_map.digest(job, role, term, layout) for role in {p.role for p in snapshot.pods}}
    for pod in snapshot.pods:
        digest = digests[pod.role]
        if pod.cluster_hash != digest and not pod.deleting and not pod.finished:
            body = _identity(snapshot, {"apiVersion": "v1", "kind": "Pod"}, pod)
            body["metadata"]["annotations"] = replaced_pods.pod_annotations(digest, replaced=pod.replaced)
            yield Apply(Kind.POD, pod.name, pod.uid, body, Reason.CLUSTER_MAP_CHANGED)


def ended(facts: Facts, going: Container[Child] = ()) -> Iterator[Apply]:
    """End containers that keep running after the program has ended, because their pod would stay Running forever.

    When the pod's deadline has passed, the kubelet stops the containers in order. Unlike a deleted pod, the pod keeps
    its logs and remains the Job's only pod, and it no longer counts against quotas.

    Args:
        facts: the facts of this pass.
        going: the Jobs that are deleted in this pass.
    """
    for pod in facts.snapshot.pods:
        attempts = facts.attempts.get(pod.role)
        child = None if attempts is None or pod.term != attempts.newest else attempts.jobs.get(pod.term)
        if attempts is None or child is None or child in going or not _outlives_program(pod):
            continue
        if not attempts.succeeded or success_recorded(facts.status, pod.role):
            body = _identity(facts.snapshot, {"apiVersion": "v1", "kind": "Pod"}, pod)
            body["metadata"]["annotations"] = replaced_pods.pod_annotations(pod.cluster_hash, replaced=pod.replaced)
            body["spec"] = {"activeDeadlineSeconds": PASSED_DEADLINE}
            yield Apply(Kind.POD, pod.name, pod.uid, body, Reason.PROGRAM_ENDED)


def _outlives_program(pod: Pod) -> bool:
    """Whether other containers outlive the program, and no deadline or deletion ends them yet."""
    ending = pod.terminal or pod.deleting or pod.active_deadline == PASSED_DEADLINE
    return pod.finished and pod.others_run and not ending


def kept(facts: Facts, clean_up: CleanUpStep) -> Iterator[Apply]:
    """Change the kept children of an ended job: pods stay idle, and of the parameter servers only one stays."""
    job, snapshot = facts.job, facts.snapshot
    child = snapshot.child(Kind.CONFIG_MAP, names.cluster_config_map(job.metadata.name))
    if clean_up.idle and child is not None and not child.deleting:
        body = cluster_map.build(job, facts.current_term, layout=facts.resharding.layout, ended=True)
        if not agrees(body, child.manifest):
            body["metadata"]["uid"] = child.uid
            yield Apply(child.kind, child.name, child.uid, body, Reason.JOB_FINISHED)
    for narrowed, ordinal in clean_up.narrow:
        body = _identity(snapshot, {"apiVersion": "apps/v1", "kind": "StatefulSet"}, narrowed)
        # An apply without them would remove them.
        body["metadata"]["annotations"] = _layout(narrowed)
        body["spec"] = {"replicas": 1, "ordinals": {"start": ordinal}}
        yield Apply(narrowed.kind, narrowed.name, narrowed.uid, body, Reason.JOB_FINISHED)


def retired(facts: Facts) -> Iterator[Apply]:
    """Annotate the Deployments of retired workers with the reason, and scale them to 0 once no log is needed."""
    for index in range(facts.job.spec.worker.replicas):
        child = facts.snapshot.child(Kind.DEPLOYMENT, names.worker_name(facts.job.metadata.name, index))
        annotation = facts.retired_workers.get(index)
        if child is None or child.deleting or annotation is None:
            continue
        until = None
        if annotation == names.ANNOTATION_SUCCEEDED and child.replicas != 0:
            until = retired_workers.pod_stays_until(facts.job, facts.snapshot, index)
        replicas = 0 if until is None or until <= facts.now else 1
        if child.replicas != replicas or annotation not in child.annotations:
            body = workloads.retire_worker(facts.job, index, child.uid, annotation, replicas)
            reason = Reason.GIVEN_UP if annotation == names.ANNOTATION_GIVEN_UP else Reason.WORKER_SUCCEEDED
            yield Apply(Kind.DEPLOYMENT, child.name, child.uid, body, reason)


def _corrected(facts: Facts, child: Child, manifest: dict[str, Any]) -> Iterator[Apply | Replace]:
    if child.kind in (Kind.STATEFUL_SET, Kind.DEPLOYMENT):
        is_retired = child.kind is Kind.DEPLOYMENT and child.number(names.LABEL_INDEX) in facts.retired_workers
        if child.kind is Kind.STATEFUL_SET:
            yield from rolling_update.replacements(facts, child, manifest)
            yield from resizing.template_replacements(facts, child, manifest)
        if not is_retired and child.replicas != manifest["spec"]["replicas"]:
            body = _identity(facts.snapshot, manifest, child) | {"spec": {"replicas": manifest["spec"]["replicas"]}}
            if child.kind is Kind.STATEFUL_SET:
                # An apply without them would remove them.
                body["metadata"]["annotations"] = _layout(child)
            yield Apply(child.kind, child.name, child.uid, body, Reason.DRIFTED)
    elif child.kind is not Kind.CLAIM and not manifest.get("immutable") and not agrees(manifest, child.manifest):
        body = {**manifest, "metadata": {**manifest["metadata"], "uid": child.uid}}
        if child.kind is Kind.SERVICE:
            # The selector may name a primary: an outdated snapshot must not revert it.
            body["metadata"] |= observed_version(child)
        yield Apply(child.kind, child.name, child.uid, body, Reason.DRIFTED)


def switched(facts: Facts) -> Iterator[Apply]:
    """Record the next layout, if the recorded layout is still that of the snapshot."""
    resharding = facts.resharding
    if resharding.servers is not None:
        yield _recording(facts, resharding.servers, resharding.next_annotations)


def recorded(facts: Facts) -> Iterator[Apply]:
    """Record the current layout on the StatefulSets that still record a former layout."""
    if facts.resharding.servers is None:
        return
    wanted = facts.resharding.annotations
    for child in facts.snapshot.of_kind(Kind.STATEFUL_SET):
        if not child.deleting and _layout(child) != wanted:
            yield _recording(facts, child, wanted)


def _recording(facts: Facts, child: Child, layout: dict[str, str]) -> Apply:
    body = _identity(facts.snapshot, {"apiVersion": "apps/v1", "kind": "StatefulSet"}, child)
    body["metadata"] |= {"annotations": layout, **observed_version(child)}
    body["spec"] = {"replicas": child.replicas}
    return Apply(child.kind, child.name, child.uid, body, Reason.SWITCH_LAYOUT)


def _layout(child: Child) -> dict[str, str]:
    """Return the annotations of a StatefulSet that record a layout."""
    recorded = (
        names.ANNOTATION_SHARDS,
        names.ANNOTATION_LAYOUT,
        names.ANNOTATION_LAYOUT_TERM,
        names.ANNOTATION_NEXT_SHARDS,
    )
    return {name: child.annotations[name] for name in recorded if name in child.annotations}


def observed_version(child: Child) -> dict[str, str]:
    """Return the precondition that the object was not written since it was observed."""
    version = child.manifest["metadata"].get("resourceVersion")
    return {"resourceVersion": version} if version else {}


def _identity(snapshot: Snapshot, manifest: Mapping[str, Any], target: Child | Pod) -> dict[str, Any]:
    return {
        "apiVersion": manifest["apiVersion"],
        "kind": manifest["kind"],
        "metadata": {"name": target.name, "namespace": snapshot.namespace, "uid": target.uid},
    }


def agrees(rendered: Any, observed: Any) -> bool:
    """Whether the observed object has every rendered field with its value; additional fields do not matter."""
    if rendered == observed:
        return True  # most parts are equal, and Python compares these faster than the code below
    if isinstance(rendered, Mapping):
        return isinstance(observed, Mapping) and all(
            k in observed and _agrees_in(k, v, observed[k]) for k, v in rendered.items()
        )
    if isinstance(rendered, list):
        return (
            isinstance(observed, list)
            and len(rendered) == len(observed)
            and all(agrees(r, o) for r, o in zip(rendered, observed, strict=True))
        )
    return False


def _agrees_in(field: str, rendered: Any, observed: Any) -> bool:
    """Whether the values of a field agree, by the way in which server-side apply writes it."""
    if field in _WHOLE:
        return bool(rendered == observed)
    if field in _SHARED and isinstance(observed, list):
        return all(any(agrees(item, other) for other in observed) for item in rendered)
    return agrees(rendered, observed)
