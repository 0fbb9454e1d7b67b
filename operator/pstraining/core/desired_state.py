"""Which children is a running job to have, and how do they differ from those it has?

A child that holds pods is rendered when it is created and never again while it lives, so that a new version of the
operator restarts nothing; its number of replicas is all that is corrected. (Parameter servers with hot standbys are
rendered again when spec.ps.template or spec.ps.resources changes: policies/rolling_update.py.) Services and the cluster
map hold no state and are corrected whenever a field that we render differs.
"""

from collections.abc import Container, Iterator, Mapping
from types import MappingProxyType
from typing import Any

from pstraining.api import names
from pstraining.api.conditions import Reason
from pstraining.api.models import PSTrainingJob
from pstraining.api.status import PSTrainingJobStatus
from pstraining.core.actions import Action, Apply, Create, Delete, Kind, Replace
from pstraining.core.policies import retired_workers, rolling_update
from pstraining.core.policies.clean_up import CleaningUp
from pstraining.core.snapshot import Child, Pod, Snapshot
from pstraining.resources import cluster_map, launcher, network_policy, redundancy, services, workloads
from pstraining.resources.launcher import Launcher
from pstraining.resources.services import Pointer

_WITHDRAWN = (
    *(Kind.DEPLOYMENT, Kind.STATEFUL_SET, Kind.POD_DISRUPTION_BUDGET),
    *(Kind.NETWORK_POLICY, Kind.SERVICE, Kind.CONFIG_MAP),
    *Kind.pod_groups(),
)
"""Kinds that go when the job no longer wants them, in this order."""
_WHOLE = ("selector", "podSelector", "ingress")
"""Fields that server-side apply writes as one value: what somebody else adds inside is undone."""


def launcher_name(job: PSTrainingJob, snapshot: Snapshot, carried: Launcher) -> str:
    """The launcher's ConfigMap that this job uses: the one its pods were made with, else the operator's own."""
    for kind in (Kind.STATEFUL_SET, Kind.DEPLOYMENT, Kind.JOB):
        for child in snapshot.of_kind(kind):
            template = (child.manifest.get("spec") or {}).get("template") or {}
            for volume in (template.get("spec") or {}).get("volumes") or ():
                for source in (volume.get("projected") or {}).get("sources") or ():
                    name = (source.get("configMap") or {}).get("name", "")
                    if name.startswith(names.launcher_config_map(job.metadata.name, "")):
                        return str(name)
    return launcher.config_map_name(job, carried)


def children(
    job: PSTrainingJob,
    launcher_map: str,
    carried: Launcher,
    pointers: Mapping[int, Pointer] = MappingProxyType({}),
    term: int = 1,
    there: Container[tuple[Kind, str]] = (),
) -> Iterator[dict[str, Any]]:
    """All children but the chief's Jobs, in the order of creation.

    What holds pods goes first: a template that the API server refuses then shows before anything else exists, and
    images are pulled while the rest is written. Of workers that are there only an outline is rendered: there may be
    many, and it is all that is corrected.
    """

    def worker(index: int) -> dict[str, Any]:
        if (Kind.DEPLOYMENT, names.worker_name(job.metadata.name, index)) in there:
            return workloads.outline_worker(job, index)
        return workloads.build_worker(job, index, launcher_map)

    yield worker(0)
    claim = workloads.build_checkpoint_claim(job)
    if claim is not None:
        yield claim
    for member in range(redundancy.members(job)):
        yield workloads.build_parameter_servers(job, launcher_map, member, term)
    for index in range(1, job.spec.worker.replicas):
        yield worker(index)
    policy = network_policy.build(job)
    if policy is not None:
        yield policy
    built = launcher.build(job, carried)
    built["metadata"]["name"] = launcher_map
    yield built
    yield cluster_map.build(job, term)
    yield from services.build_all(job, pointers)
    if redundancy.standbys(job):
        yield from (redundancy.build_budget(job, index) for index in range(job.spec.ps.replicas))


def early(job: PSTrainingJob, snapshot: Snapshot, wanted: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """What goes before the chief: a map that is there, so that new pods read it as it is now, and what holds pods."""
    found = [m for m in wanted if m["kind"] not in (Kind.SERVICE, Kind.CONFIG_MAP, Kind.POD_DISRUPTION_BUDGET)]
    name = names.cluster_config_map(job.metadata.name)
    there = snapshot.child(Kind.CONFIG_MAP, name) is not None
    return [m for m in wanted if there and (m["kind"], m["metadata"]["name"]) == (Kind.CONFIG_MAP, name)] + found


def missing_and_drifted(
    job: PSTrainingJob, snapshot: Snapshot, status: PSTrainingJobStatus, wanted: list[dict[str, Any]]
) -> Iterator[Action]:
    """Creations of children that are not there, and corrections of those that are."""
    for manifest in wanted:
        kind, name = Kind.of(manifest), manifest["metadata"]["name"]
        child = snapshot.child(kind, name)
        if child is None:
            # The checkpoint's claim is made before the StatefulSet, and is data from then on.
            made = kind is Kind.CLAIM and snapshot.of_kind(Kind.STATEFUL_SET)
            index = manifest["metadata"]["labels"].get(names.LABEL_INDEX, "")
            gone = kind is Kind.DEPLOYMENT and int(index or -1) in retired_workers.given_up(status)
            if not made and not gone:
                yield Create(kind, name, manifest, Reason.DESIRED)
        elif not child.deleting:
            yield from _corrected(job, snapshot, status, child, manifest)


def surplus(snapshot: Snapshot, wanted: list[dict[str, Any]]) -> Iterator[Delete]:
    """Deletions of children that the job no longer wants; the chief's Jobs are not among them."""
    keep = {(Kind.of(m), m["metadata"]["name"]) for m in wanted}
    for kind in _WITHDRAWN:
        for child in snapshot.of_kind(kind):
            if (kind, child.name) not in keep and not child.deleting:
                yield Delete(kind, child.name, child.uid, Reason.NOT_DESIRED)


def refreshed(job: PSTrainingJob, snapshot: Snapshot, term: int) -> Iterator[Apply]:
    """Annotations that make the kubelet deliver a changed cluster map at once instead of in a minute."""
    digests = {role: cluster_map.digest(job, role, term) for role in {p.role for p in snapshot.pods}}
    for pod in snapshot.pods:
        digest = digests[pod.role]
        if pod.cluster_hash != digest and not pod.deleting and not pod.terminal:
            body = _identity(snapshot, {"apiVersion": "v1", "kind": "Pod"}, pod)
            body["metadata"]["annotations"] = {names.ANNOTATION_CLUSTER_HASH: digest}
            yield Apply(Kind.POD, pod.name, pod.uid, body, Reason.CLUSTER_MAP_CHANGED)


def kept(job: PSTrainingJob, snapshot: Snapshot, found: CleaningUp, term: int) -> Iterator[Apply]:
    """What is changed of an ended job: pods that stay idle, and of the parameter servers only one stays."""
    child = snapshot.child(Kind.CONFIG_MAP, names.cluster_config_map(job.metadata.name))
    if found.idle and child is not None and not child.deleting:
        body = cluster_map.build(job, term, ended=True)
        if not agrees(body, child.manifest):
            body["metadata"]["uid"] = child.uid
            yield Apply(child.kind, child.name, child.uid, body, Reason.JOB_FINISHED)
    for narrowed, ordinal in found.narrow:
        identity = _identity(snapshot, {"apiVersion": "apps/v1", "kind": "StatefulSet"}, narrowed)
        body = identity | {"spec": {"replicas": 1, "ordinals": {"start": ordinal}}}
        yield Apply(narrowed.kind, narrowed.name, narrowed.uid, body, Reason.JOB_FINISHED)


def retired(job: PSTrainingJob, snapshot: Snapshot, status: PSTrainingJobStatus) -> Iterator[Apply]:
    """Workers that are to run no more: their Deployments go to 0 and remember why."""
    for index in range(job.spec.worker.replicas):
        child = snapshot.child(Kind.DEPLOYMENT, names.worker_name(job.metadata.name, index))
        why = retired_workers.why(job, snapshot, status, index)
        if child is None or child.deleting or why is None:
            continue
        if child.replicas != 0 or why not in child.annotations:
            body = workloads.retire_worker(job, index, child.uid, why)
            reason = Reason.GIVEN_UP if why == names.ANNOTATION_GIVEN_UP else Reason.WORKER_SUCCEEDED
            yield Apply(Kind.DEPLOYMENT, child.name, child.uid, body, reason)


def _corrected(
    job: PSTrainingJob, snapshot: Snapshot, status: PSTrainingJobStatus, child: Child, manifest: dict[str, Any]
) -> Iterator[Apply | Replace]:
    if child.kind in (Kind.STATEFUL_SET, Kind.DEPLOYMENT):
        index = child.number(names.LABEL_INDEX)
        done = child.kind is Kind.DEPLOYMENT and retired_workers.why(job, snapshot, status, index) is not None
        if child.kind is Kind.STATEFUL_SET:
            yield from rolling_update.replaced(child, manifest, status, snapshot.generation)
        if not done and child.replicas != manifest["spec"]["replicas"]:
            body = _identity(snapshot, manifest, child) | {"spec": {"replicas": manifest["spec"]["replicas"]}}
            yield Apply(child.kind, child.name, child.uid, body, Reason.DRIFTED)
    elif child.kind is not Kind.CLAIM and not manifest.get("immutable") and not agrees(manifest, child.manifest):
        body = {**manifest, "metadata": {**manifest["metadata"], "uid": child.uid}}
        if child.kind is Kind.SERVICE:
            # A selector may be the pointer to a primary: an old picture must not turn it back.
            body["metadata"] |= observed_version(child)
        yield Apply(child.kind, child.name, child.uid, body, Reason.DRIFTED)


def observed_version(child: Child) -> dict[str, str]:
    """The precondition that nobody has written the object since it was observed."""
    version = child.manifest["metadata"].get("resourceVersion")
    return {"resourceVersion": version} if version else {}


def _identity(snapshot: Snapshot, manifest: Mapping[str, Any], found: Child | Pod) -> dict[str, Any]:
    return {
        "apiVersion": manifest["apiVersion"],
        "kind": manifest["kind"],
        "metadata": {"name": found.name, "namespace": snapshot.namespace, "uid": found.uid},
    }


def agrees(rendered: Any, observed: Any) -> bool:
    """Whether every rendered field is there with that value; other fields that others have set do not matter."""
    if isinstance(rendered, Mapping):
        return isinstance(observed, Mapping) and all(
            k in observed and (v == observed[k] if k in _WHOLE else agrees(v, observed[k])) for k, v in rendered.items()
        )
    if isinstance(rendered, list):
        return (
            isinstance(observed, list)
            and len(rendered) == len(observed)
            and all(agrees(r, o) for r, o in zip(rendered, observed, strict=True))
        )
    return bool(rendered == observed)
