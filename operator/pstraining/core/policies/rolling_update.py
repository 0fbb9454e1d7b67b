"""Which parameter servers with hot standbys are replaced because spec.ps.template or spec.ps.resources has changed?

A hot standby holds the full state of its primary, so members are replaced one at a time while training continues, the
standbys first. A server is only deleted while all servers of the job are in sync, and a primary is switched over before
it ends. If the new servers do not start, the rollout stops at the first standby, and training continues without it. A
server whose program does not run is deleted at once, because it needs no switchover. A wrong template is therefore
corrected by another change of the spec.

Servers that differ only in their size are resized in place where that is possible (policies/resizing.py).
"""

from collections.abc import Iterator

from pstraining.api import names
from pstraining.api.conditions import Condition, Reason
from pstraining.api.status import StatusCondition
from pstraining.core.actions import Delete, Kind, Manifest, Outcome, Replace
from pstraining.core.facts import Facts
from pstraining.core.policies import resizing
from pstraining.core.policies.failover import usable
from pstraining.core.snapshot import Child, Pod, ResizeState
from pstraining.resources import standbys


def replacements(facts: Facts, child: Child, manifest: Manifest) -> Iterator[Replace]:
    """Replace the template of a StatefulSet that is outdated, unless the API server has refused the new one.

    Args:
        facts: the facts of this pass.
        child: the StatefulSet.
        manifest: the StatefulSet as rendered now.
    """
    current, wanted = _template_hash(child.manifest), _template_hash(manifest)
    if current and wanted and current != wanted and not _is_refused(facts):
        parts = {"/spec/template": manifest["spec"]["template"]}
        yield Replace(child.kind, child.name, child.uid, parts, Reason.SPEC_CHANGED)


def deletions(facts: Facts) -> Iterator[Delete]:
    """Delete the outdated servers that are due now."""
    outdated = _outdated(facts)
    if not outdated or not _sets_are_current(facts):
        return
    members = [member for shard in facts.shards for member in shard.members]
    due = [pod for pod in outdated if not (pod.container.running or pod.deleting or pod.terminal)]
    if not due and all(member is not None and usable(member) for member in members):
        primaries = {shard.primary.uid for shard in facts.shards if shard.primary is not None}
        due = sorted(outdated, key=lambda pod: (pod.uid in primaries, pod.index, -pod.member))[:1]
    for pod in due:
        yield Delete(Kind.POD, pod.name, pod.uid, Reason.SPEC_CHANGED)


def progress(facts: Facts, stored: StatusCondition | None, refused: Outcome | None) -> tuple[bool, Reason, str] | None:
    """Return the condition Updating of a job that does not end or stop; None if it does not change.

    Args:
        facts: the facts of this pass.
        stored: the condition as stored.
        refused: the outcome of a new template that the API server has refused.
    """
    if refused is not None:
        message = f"StatefulSet {refused.action.name} was refused, and all servers are unchanged: {refused.message}"
        return False, Reason.UPDATE_REFUSED, message
    job, snapshot = facts.job, facts.snapshot
    if not standbys.is_hot(job) or (stored is not None and resizing.stays_refused(stored, snapshot.generation)):
        return None
    if facts.queue.is_unanswered:  # it waits
        return None
    outdated, count = _outdated(facts), job.spec.ps.replicas * standbys.members(job)
    in_sync = sum(usable(pod) for pod in snapshot.pods_of(names.PS) if pod not in outdated)
    begun = stored is not None and stored.status == "True"
    resized = any(resizing.is_resized_in_place(facts, pod) for pod in snapshot.pods_of(names.PS))
    if outdated or not (resized or _sets_are_current(facts)) or (begun and in_sync < count):
        message = f"{in_sync} of {count} parameter servers are in sync and created from the current spec.ps"
        return True, Reason.REPLACING_SERVERS, f"{message}; they are replaced one at a time, standbys first."
    return (False, Reason.SERVERS_UPDATED, "") if stored is not None else None


def _outdated(facts: Facts) -> tuple[Pod, ...]:
    """Return the servers created from another spec, or with a size that their node cannot grant.

    A server without a template hash does not count.
    """
    if not standbys.is_hot(facts.job):
        return ()
    wanted = standbys.server_template(facts.job)

    def is_outdated(pod: Pod) -> bool:
        if pod.server_template == wanted:
            return pod.resize is ResizeState.INFEASIBLE
        return pod.server_template != "" and not resizing.is_resized_in_place(facts, pod)

    return tuple(pod for pod in facts.snapshot.pods_of(names.PS) if is_outdated(pod))


def _sets_are_current(facts: Facts) -> bool:
    """Whether a pod that is deleted now is recreated from the current spec.ps."""
    wanted = standbys.server_template(facts.job)
    return all(_template_hash(c.manifest) in ("", wanted) for c in facts.snapshot.of_kind(Kind.STATEFUL_SET))


def _template_hash(manifest: Manifest) -> str:
    metadata = ((manifest.get("spec") or {}).get("template") or {}).get("metadata") or {}
    return str((metadata.get("annotations") or {}).get(names.ANNOTATION_SERVER_TEMPLATE, ""))


def _is_refused(facts: Facts) -> bool:
    conditions = (c for c in facts.status.conditions if c.type == Condition.UPDATING)
    return any(resizing.stays_refused(c, facts.snapshot.generation) for c in conditions)
