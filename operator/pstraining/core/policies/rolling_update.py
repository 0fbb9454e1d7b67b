"""Which parameter servers with hot standbys are to be made anew, because spec.ps.template or resources has changed?

A hot standby holds all that its primary does, so that each member can be made anew beside the others while training
goes on: one after the other, the standbys first. A server is only ended while all servers of the job are in sync, and
then hands over before it goes; so a template of which no server comes up ends with the first standby, and training goes
on without it. One whose program does not run has nothing to hand over, and goes at once: what was asked for by mistake
is put right by asking for something else.
"""

from collections.abc import Iterator

from pstraining.api import names
from pstraining.api.conditions import Condition, Reason
from pstraining.api.models import PSTrainingJob
from pstraining.api.status import PSTrainingJobStatus, StatusCondition
from pstraining.core.actions import Delete, Kind, Manifest, Outcome, Replace
from pstraining.core.policies.failover import Shard, usable
from pstraining.core.snapshot import Child, Pod, Snapshot
from pstraining.resources import redundancy


def replaced(child: Child, manifest: Manifest, status: PSTrainingJobStatus, generation: int) -> Iterator[Replace]:
    """The new template of a StatefulSet whose pods were to be others.

    Args:
        child: the StatefulSet.
        manifest: as it would be made now.
        status: the stored status, which says whether the API server has refused it.
        generation: of the job's spec.
    """
    made, wanted = _made_from(child.manifest), _made_from(manifest)
    if made and wanted and made != wanted and not _is_refused(status, generation):
        parts = {"/spec/template": manifest["spec"]["template"]}
        yield Replace(child.kind, child.name, child.uid, parts, Reason.SPEC_CHANGED)


def deletions(job: PSTrainingJob, snapshot: Snapshot, shards: tuple[Shard, ...]) -> Iterator[Delete]:
    """The servers that go now."""
    found = _outdated(job, snapshot)
    if not found or not _sets_are_new(job, snapshot):
        return
    members = [member for shard in shards for member in shard.members]
    due = [pod for pod in found if not (pod.container.running or pod.deleting or pod.terminal)]
    if not due and all(member is not None and usable(member) for member in members):
        primaries = {shard.primary.uid for shard in shards if shard.primary is not None}
        due = sorted(found, key=lambda pod: (pod.uid in primaries, pod.index, -pod.member))[:1]
    for pod in due:
        yield Delete(Kind.POD, pod.name, pod.uid, Reason.SPEC_CHANGED)


def progress(
    job: PSTrainingJob, snapshot: Snapshot, was: StatusCondition | None, refused: Outcome | None
) -> tuple[bool, Reason, str] | None:
    """What the condition Updating says of a job that is not to end or stop; None if it does not change.

    Args:
        job: the job.
        snapshot: what is observed.
        was: the condition as stored.
        refused: what became of a new template, if the API server has refused it.
    """
    if refused is not None:
        message = f"StatefulSet {refused.action.name} was refused, and all servers stay as they are: {refused.message}"
        return False, Reason.UPDATE_REFUSED, message
    if not redundancy.is_hot(job) or (was is not None and _stays_refused(was, snapshot.generation)):
        return None
    old, count = _outdated(job, snapshot), job.spec.ps.replicas * redundancy.members(job)
    in_sync = sum(usable(pod) for pod in snapshot.pods_of(names.PS) if pod not in old)
    begun = was is not None and was.status == "True"
    if old or not _sets_are_new(job, snapshot) or (begun and in_sync < count):
        message = f"{in_sync} of {count} parameter servers are in sync and made from spec.ps as it is now"
        return True, Reason.REPLACING_SERVERS, f"{message}; they are replaced one at a time, standbys first."
    return (False, Reason.SERVERS_UPDATED, "") if was is not None else None


def _outdated(job: PSTrainingJob, snapshot: Snapshot) -> tuple[Pod, ...]:
    """Servers that were made from another spec; those that do not say what from are left alone."""
    wanted = redundancy.server_template(job) if redundancy.is_hot(job) else ""
    return tuple(p for p in snapshot.pods_of(names.PS) if wanted and p.server_template not in ("", wanted))


def _sets_are_new(job: PSTrainingJob, snapshot: Snapshot) -> bool:
    """Whether a pod that goes now comes back as spec.ps says."""
    wanted = redundancy.server_template(job)
    return all(_made_from(c.manifest) in ("", wanted) for c in snapshot.of_kind(Kind.STATEFUL_SET))


def _made_from(manifest: Manifest) -> str:
    metadata = ((manifest.get("spec") or {}).get("template") or {}).get("metadata") or {}
    return str((metadata.get("annotations") or {}).get(names.ANNOTATION_SERVER_TEMPLATE, ""))


def _is_refused(status: PSTrainingJobStatus, generation: int) -> bool:
    return any(c.type == Condition.UPDATING and _stays_refused(c, generation) for c in status.conditions)


def _stays_refused(condition: StatusCondition, generation: int) -> bool:
    return condition.reason == Reason.UPDATE_REFUSED and condition.observed_generation == generation
