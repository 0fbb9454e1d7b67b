"""How do running pods get the resources that the spec has now?

    the cluster resizes pods, and the change is one that Kubernetes allows    in place: no container restarts
    else, or the node can never grant it:
        a server with hot standbys            it is replaced beside the others (policies/rolling_update.py)
        a worker without the chief's duties   it is replaced: at once if it does not run, else one worker at a time
        a server that has never started       it is replaced
        any other pod                         it keeps its size until it is replaced; the condition reports it

A size that a quota or a LimitRange refuses would be refused for a new pod as well. Only servers with hot standbys are
replaced for it, because their shard continues without the one that is missing.

Level-based: a pod is annotated with the size that was requested last. A new pod with a former size, such as that of a
worker's Deployment, is resized again. Deployments keep their template, because changing it would replace their pods. In
a shard with hot standbys one member is resized at a time.
"""

import json
import re
from collections.abc import Callable, Iterator, Mapping
from enum import Enum, auto

from pstraining.api import names
from pstraining.api.conditions import Condition, Reason
from pstraining.api.status import RefusedSize, RoleStatus, StatusCondition
from pstraining.api.text import WHITESPACE, printable
from pstraining.core.actions import Action, Delete, Kind, Manifest, Outcome, Replace, Resize
from pstraining.core.facts import Facts
from pstraining.core.policies import durability, grown_sizes
from pstraining.core.snapshot import Child, Pod, ResizeState
from pstraining.resources import sizes, standbys
from pstraining.resources.pods import PodTask, has_chief_duty

NOT_SERVED = "the cluster does not resize running pods (Kubernetes 1.33 or newer does)"
_OF_NEW_PODS_TOO = re.compile(r"exceeded quota|\bper (Container|Pod) is\b")
"""The messages of a ResourceQuota and of a LimitRange, which also apply to new pods."""
_UNDER_WAY = (ResizeState.IN_PROGRESS, ResizeState.DEFERRED)
_SIZE_POINTER = "/metadata/annotations/" + names.ANNOTATION_SIZE.replace("/", "~1")
_TEMPLATE_POINTER = "/metadata/annotations/" + names.ANNOTATION_SERVER_TEMPLATE.replace("/", "~1")


class Way(Enum):
    """The way in which a pod gets its size."""

    IN_PLACE = auto()
    REPLACED = auto()
    KEPT = auto()
    """The pod keeps its size until it is replaced for another reason."""


def has_other_size(facts: Facts, pod: Pod) -> bool:
    """Whether the size requested last for a pod that stays has other amounts than the size of the spec.

    Without Kueue, a new size of a job with a queue would have no quota: it waits.
    """
    is_other = pod.size != "" and not sizes.are_equal(pod.size, facts.sizes[pod.role].text)
    return is_other and not _ends(facts, pod) and not facts.queue.is_unanswered


def obstacle(facts: Facts, pod: Pod) -> str:
    """Return why a pod cannot get its size in place; empty if it can, or already has the size."""
    if not has_other_size(facts, pod):
        # The verdict of a node is about the size that was requested last.
        return (pod.resize_message or "its node can never grant it") if pod.resize is ResizeState.INFEASIBLE else ""
    if not facts.snapshot.installation.resizes_pods:
        return NOT_SERVED
    size = facts.sizes[pod.role]
    if (refusal := sizes.refusal(pod.size, size.text, size.spec, pod.main)) != "":
        return refusal
    if grown_sizes.is_tried_on(pod, facts.status, facts.now):  # it is withdrawn if it is refused, too
        return ""
    refused = _refused(facts, pod.role)
    return "" if refused is None else refused.message


def way(facts: Facts, pod: Pod) -> Way:
    """Return how a pod that has another size, or whose resize is infeasible, gets its size."""
    if obstacle(facts, pod) == "":
        return Way.IN_PLACE
    refused, has_standby = _refused(facts, pod.role), pod.role == names.PS and standbys.is_hot(facts.job)
    if refused is not None:
        of_new_pods_too = not has_standby and _OF_NEW_PODS_TOO.search(refused.message) is not None
        if refused.reason == Reason.UPDATE_REFUSED or of_new_pods_too:
            return Way.KEPT
    if pod.role == names.PS:
        never_started = not (pod.container.running or pod.container.restarts or pod.container.terminated)
        return Way.REPLACED if has_standby or never_started else Way.KEPT
    return Way.REPLACED if _is_replaceable(facts, pod) else Way.KEPT


def is_resized_in_place(facts: Facts, pod: Pod) -> bool:
    """Whether a server with hot standbys differs from spec.ps only in its size, and can be resized in place."""
    if not pod.size or (pod.resize is ResizeState.INFEASIBLE and not has_other_size(facts, pod)):
        return False
    by_size = standbys.differs_in_size_only(facts.job, pod.server_template, json.loads(pod.size))
    return by_size and way(facts, pod) is Way.IN_PLACE


def changes(facts: Facts) -> Iterator[Action]:
    """Yield the resizes in place that are due; each is recorded on its pod afterwards."""
    for pod in facts.snapshot.pods:
        if has_other_size(facts, pod) and way(facts, pod) is Way.IN_PLACE and _may_start(facts, pod):
            text = facts.sizes[pod.role].text
            yield Resize(pod.name, pod.uid, pod.main, sizes.asked(text), Reason.SPEC_CHANGED)
            parts = {_SIZE_POINTER: text}
            if pod.server_template:
                parts[_TEMPLATE_POINTER] = standbys.server_template(facts.job)
            yield Replace(Kind.POD, pod.name, pod.uid, parts, Reason.SPEC_CHANGED)


def has_former_size(facts: Facts, child: Child) -> bool:
    """Whether the template of a StatefulSet has another size than the spec gives its pods."""
    return template_size(child.manifest) not in ("", facts.sizes[names.PS].text)


def template_replacements(facts: Facts, child: Child, manifest: Manifest) -> Iterator[Replace]:
    """Replace the template of a StatefulSet without hot standbys, so that a replaced pod has the new size.

    Args:
        facts: the facts of this pass.
        child: the StatefulSet.
        manifest: the StatefulSet as rendered now, in full if `has_former_size`.
    """
    if has_former_size(facts, child) and _refused(facts, names.PS) is None and not standbys.is_hot(facts.job):
        parts = {"/spec/template": manifest["spec"]["template"]}
        yield Replace(child.kind, child.name, child.uid, parts, Reason.SPEC_CHANGED)


def replacements(facts: Facts, render: Callable[[int], Manifest]) -> Iterator[Action]:
    """Replace the pods that cannot be resized in place: those that do not run, and one worker at a time.

    Args:
        facts: the facts of this pass.
        render: returns a worker's Deployment as rendered now.
    """
    due = [pod for pod in _unfit(facts) if way(facts, pod) is Way.REPLACED]
    if not standbys.is_hot(facts.job) and _sets_have_size(facts):
        yield from (Delete(Kind.POD, p.name, p.uid, Reason.SPEC_CHANGED) for p in due if p.role == names.PS)
    # A Deployment that gets another template creates no pod before all former ones have ended, also on a lost node.
    ending = {pod.index for pod in facts.snapshot.pods_of(names.WORKER) if pod.deleting}
    free = (pod for pod in due if pod.role == names.WORKER and pod.index not in ending)
    workers = sorted(free, key=lambda pod: pod.index)
    all_work = all(_works(facts, index) for index in range(facts.job.spec.worker.replicas))
    # A worker that does not run makes no steps, and its former size may be the cause.
    for pod in [p for p in workers if not p.container.runs_program] or (workers[:1] if all_work else []):
        child = facts.snapshot.child(Kind.DEPLOYMENT, names.worker_name(facts.job.metadata.name, pod.index))
        if child is None or child.deleting:
            continue
        if template_size(child.manifest) == facts.sizes[names.WORKER].text:
            yield Delete(Kind.POD, pod.name, pod.uid, Reason.SPEC_CHANGED)
        else:
            parts = {"/spec/template": render(pod.index)["spec"]["template"]}
            yield Replace(child.kind, child.name, child.uid, parts, Reason.SPEC_CHANGED)


def refusals(facts: Facts, refused: Outcome | None) -> dict[str, RefusedSize]:
    """Return the refusals of sizes that hold after this pass, by role. The sizes of other roles are still requested.

    A refusal holds until the spec changes, or all pods of the role have its size.

    Args:
        facts: the facts of this pass.
        refused: the outcome of a resize that the API server has refused.
    """
    unfit = {pod.role for pod in _unfit(facts)}
    found = {}
    for role in names.ROLES:
        stored = _stored_refusal(facts, role)
        if stored is not None and (role in unfit or not facts.snapshot.pods_of(role)):
            found[role] = stored
    if refused is not None:
        action = refused.action
        uid = action.uid if isinstance(action, Resize) else ""
        pod = next((p for p in facts.snapshot.pods if p.uid == uid), None)
        message = f"The new size of {action.kind} {action.name} was refused: {refused.message}"
        if pod is not None and _OF_NEW_PODS_TOO.search(refused.message) is None and _is_replaceable(facts, pod):
            message = f"{message.removesuffix('.')}. Workers get it by a restart, one at a time."
        reason = Reason.RESIZE_REFUSED if isinstance(action, Resize) else Reason.UPDATE_REFUSED
        known = RefusedSize(generation=facts.snapshot.generation, reason=reason, message=printable(message, WHITESPACE))
        found[names.WORKER if pod is None else pod.role] = known
    return found


def progress(
    facts: Facts, stored: StatusCondition | None, refused: Mapping[str, RefusedSize]
) -> tuple[bool, str, str] | None:
    """Return the condition Resizing of a job that does not end or stop; None if it does not change.

    Args:
        facts: the facts of this pass.
        stored: the condition as stored.
        refused: the refusals that hold after this pass, by role.
    """
    if standing := [refused[role] for role in names.ROLES if role in refused]:
        return False, standing[0].reason, " ".join(found.message for found in standing)
    unfit = _unfit(facts)
    under_way = [pod for pod in facts.snapshot.pods if pod.resize in _UNDER_WAY and not pod.deleting]
    if not unfit and not under_way:
        return None if stored is None else (False, Reason.RESIZED, "")
    kept = [pod for pod in unfit if way(facts, pod) is Way.KEPT]
    deferred = [pod for pod in under_way if pod.resize is ResizeState.DEFERRED]
    replaced = [pod for pod in unfit if way(facts, pod) is Way.REPLACED and pod.role == names.WORKER]
    if replaced:
        why = obstacle(facts, replaced[0])
        return True, Reason.REPLACING_PODS, f"{_named(replaced)} get their size by a restart, one at a time: {why}."
    if deferred:
        message = deferred[0].resize_message
        return True, Reason.RESIZE_DEFERRED, f"{_named(deferred)} wait for room on their nodes: {message}"
    if any(way(facts, pod) is Way.IN_PLACE for pod in unfit) or (under_way and _has_begun(stored)):
        message = f"{_named([*unfit, *under_way])} are resized in place; no container restarts."
        if (failing := next((pod for pod in under_way if pod.resize_message), None)) is not None:
            message += f" The kubelet of {failing.name} has failed, and tries again: {failing.resize_message}"
        return True, Reason.RESIZE_IN_PROGRESS, message
    held = next((found for pod in kept if (found := _refused(facts, pod.role)) is not None), None)
    if held is not None:
        return None if stored is None else (False, held.reason, held.message)
    return (False, Reason.RESIZE_INFEASIBLE, _kept_message(facts, kept)) if kept else None


def ways(facts: Facts) -> Iterator[str]:
    """Yield a sentence for each role about the way in which its running pods get the size of the spec."""
    by_way: dict[tuple[str, Way], list[Pod]] = {}
    for pod in _unfit(facts):
        by_way.setdefault((pod.role, way(facts, pod)), []).append(pod)
    for (_, found), pods in by_way.items():
        why, change = obstacle(facts, pods[0]), ", ".join(_changed(facts, pods[0]))
        what = f"{_named(pods)}: {change}" if change else _named(pods)
        match found:
            case Way.IN_PLACE:
                yield f"{what}: resized in place, without a restart."
            case Way.REPLACED:
                yield f"{what}: replaced one at a time: {why}."
            case Way.KEPT:
                yield f"{what}: kept until the pod is replaced: {why}."


def stays_refused(condition: StatusCondition, generation: int) -> bool:
    """Whether a condition reports that the API server has refused the present spec.

    Args:
        condition: Resizing or Updating.
        generation: the generation of the job's spec.
    """
    refusals = (Reason.UPDATE_REFUSED, Reason.RESIZE_REFUSED)
    return condition.reason in refusals and condition.observed_generation == generation


def template_size(manifest: Manifest) -> str:
    """Return the size in the pod template of a workload; empty in those of older operators."""
    metadata = ((manifest.get("spec") or {}).get("template") or {}).get("metadata") or {}
    return sizes.known(str((metadata.get("annotations") or {}).get(names.ANNOTATION_SIZE, "")))


def _unfit(facts: Facts) -> list[Pod]:
    """Return the pods whose size is not requested yet, or cannot be granted."""

    def is_unfit(pod: Pod) -> bool:
        infeasible = pod.resize is ResizeState.INFEASIBLE and not _ends(facts, pod)
        return infeasible or has_other_size(facts, pod)

    return [pod for pod in facts.snapshot.pods if is_unfit(pod)]


def _is_replaceable(facts: Facts, pod: Pod) -> bool:
    """Whether a pod is that of a worker without the chief's duties."""
    return pod.role == names.WORKER and not has_chief_duty(facts.job, PodTask(pod.role, pod.index))


def _ends(facts: Facts, pod: Pod) -> bool:
    """Whether no program will run in a pod any more; a new pod of a worker that has succeeded would train again."""
    return pod.deleting or pod.finished or pod.lost or facts.is_retired(pod)


def _may_start(facts: Facts, pod: Pod) -> bool:
    """Whether no other member of a server's shard is being resized or must be resized first."""
    if pod.role != names.PS or not standbys.is_hot(facts.job):
        return True
    if not standbys.differs_in_size_only(facts.job, pod.server_template, json.loads(pod.size)):
        return False  # the server is replaced because of its template
    shard = next((s for s in facts.shards if s.index == pod.index), None)
    others = [member for member in (shard.members if shard else ()) if member is not None and member is not pod]
    if any(member.resize in _UNDER_WAY for member in others):
        return False
    is_primary = shard is not None and shard.primary is pod
    rank = (is_primary, -pod.member)
    earlier = ((shard is not None and shard.primary is m, -m.member) < rank for m in others if has_other_size(facts, m))
    return not any(earlier)


def _works(facts: Facts, index: int) -> bool:
    """Whether a worker runs its program, or will never run it again."""
    if index in facts.retired_workers:
        return True
    return any(p.container.runs_program and not p.deleting for p in facts.snapshot.pods_of(names.WORKER, index))


def _sets_have_size(facts: Facts) -> bool:
    wanted = facts.sizes[names.PS].text
    return all(template_size(c.manifest) in ("", wanted) for c in facts.snapshot.of_kind(Kind.STATEFUL_SET))


def _refused(facts: Facts, role: str) -> RefusedSize | StatusCondition | None:
    """Return the refusal that still holds for a role, because the spec has not changed since."""
    if (found := _stored_refusal(facts, role)) is not None or role != names.PS:
        return found
    updating = (c for c in facts.status.conditions if c.type == Condition.UPDATING)
    return next((c for c in updating if stays_refused(c, facts.snapshot.generation)), None)


def _stored_refusal(facts: Facts, role: str) -> RefusedSize | None:
    status: RoleStatus | None = getattr(facts.status, role)
    found = None if status is None else status.refused_size
    return found if found is not None and found.generation == facts.snapshot.generation else None


def _has_begun(stored: StatusCondition | None) -> bool:
    return stored is not None and stored.status == "True"


def _kept_message(facts: Facts, kept: list[Pod]) -> str:
    why = obstacle(facts, kept[0])
    lost = durability.why_lost(facts.job.spec.checkpoint)
    base = f"from the beginning ({lost})" if lost else "from its checkpoint"
    way_out = f"set spec.runPolicy.suspend to true and back to restart the job with the new size, {base}"
    return f"{_named(kept)} keep their size until they are replaced: {why}. To change it now, {way_out}."


def _changed(facts: Facts, pod: Pod) -> Iterator[str]:
    return sizes.changes(pod.size, facts.sizes[pod.role].text)


def _named(pods: list[Pod]) -> str:
    """Return the names of pods, the first three of many."""
    found = list(dict.fromkeys(pod.name for pod in pods))
    more = f" and {len(found) - 3} more" if len(found) > 3 else ""
    return f"{', '.join(found[:3])}{more}"
