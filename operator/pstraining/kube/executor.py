"""Executes the actions of a plan, stage by stage (write_order.py). It is the only writer of a job's children.

A refused action becomes a verdict and ends the writes of the pass, because a job must not run without an object that
was refused or whose name is taken. An error that is worth a retry is raised to the queue, which requests a new plan.
Such an error means that the plan was computed from outdated observations, so its other actions are not sent either.
Requests in flight are always awaited and recorded.

Writes to Workloads are an exception: while Kueue's webhook does not answer, running jobs are still looked after.
"""

import asyncio
import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Final, Protocol

from pstraining.api import names
from pstraining.core.actions import (
    Action,
    Apply,
    Create,
    Delete,
    Kind,
    Outcome,
    Outcomes,
    PatchStatus,
    Replace,
    Resize,
    Verdict,
)
from pstraining.core.observe import controller_uid
from pstraining.kube.errors import Conflict, NotFound, Refused, Transient
from pstraining.kube.port import ApiPort, Object
from pstraining.kube.write_order import Stage, stages

logger = logging.getLogger(__name__)

IN_FLIGHT: Final = 16
"""Maximum number of concurrent requests of one job."""
_TEMPLATE: Final = "/spec/template"
_FOUND_BY: Final = (names.LABEL_JOB, names.LABEL_JOB_UID)
"""The labels of every child by which the watches select it and the cache finds its job."""
_INSTALLED: Final = (*Kind.pod_groups(), Kind.WORKLOAD)
"""Kinds that may be uninstalled, with all of their objects; no other kind ceases to be served."""
NAMESPACE_TERMINATING = "the namespace is being deleted"
PREDECESSOR = "the objects of an earlier job of this name are still being deleted"
LEFT_BEHIND = "an earlier job of this name left the object without an owner; it is replaced"
LABELS_RESTORED = "the labels by which the operator finds its object were removed; they are restored"
CLAIM_DELETED = "the existing claim of this name is being deleted"
SET_BACK = "the write stored no change: an admission policy, such as a mutating webhook, sets other values"
OF_ANOTHER = "exists and belongs to another job"
CLAIM_USED = "it exists already, is used unchanged, and is not deleted with the job"


class WriteCache(Protocol):
    """Records our own writes, so that the next pass sees them before the watch delivers them."""

    def version(self, kind: Kind, namespace: str, name: str) -> str:
        """Return the resourceVersion of an object; empty if it is not known."""

    def wrote(self, namespace: str, job: str, written: Object) -> None:
        """Record that the API server now has this object."""

    def deleted(self, kind: Kind, namespace: str, name: str, uid: str) -> None:
        """Record that the API server no longer has an object with this uid."""


class Executor:
    """Sends actions through a port."""

    def __init__(
        self, port: ApiPort, cache: WriteCache, on_write: Callable[[Kind, str], None] = lambda kind, verb: None
    ) -> None:
        """Create an executor.

        Args:
            port: the API server.
            cache: receives every written object.
            on_write: receives the kind and the verb of every successful write.
        """
        self._port = port
        self._cache = cache
        self._on_write = on_write

    async def execute(self, namespace: str, job: str, job_uid: str, actions: Iterable[Action]) -> Outcomes:
        """Execute actions until one is refused that is no write to a Workload.

        Args:
            namespace: the job's namespace.
            job: the job's name.
            job_uid: the uid in the controller reference of the job's own objects.
            actions: the actions of the plan.

        Returns:
            The outcomes in the order of the actions.

        Raises:
            Conflict: the observations are outdated.
            NotFound: the object to be changed, or the namespace, does not exist.
            Transient: the request failed temporarily.
        """
        planned = tuple(actions)
        outcomes: dict[int, Outcome] = {}
        for stage in stages(planned):
            outcomes |= await self._stage(namespace, job, job_uid, planned, stage)
            if any(not o.succeeded and o.action.kind is not Kind.WORKLOAD for o in outcomes.values()):
                break
        return Outcomes(tuple(outcomes.get(i) or Outcome(a, Verdict.NOT_TRIED) for i, a in enumerate(planned)))

    async def _stage(
        self, namespace: str, job: str, job_uid: str, planned: Sequence[Action], stage: Stage
    ) -> dict[int, Outcome]:
        """Send the actions of one stage concurrently; after a failure, no further action is sent."""
        outcomes: dict[int, Outcome] = {}
        errors: dict[int, Exception] = {}
        refused = False
        waiting = iter(stage)

        async def send() -> None:
            nonlocal refused
            while not (errors or refused) and (position := next(waiting, None)) is not None:
                action = planned[position]
                try:
                    outcomes[position] = await self._execute(namespace, job, job_uid, action)
                except Refused as error:
                    outcomes[position] = _refusal(action, error)
                except Exception as error:  # noqa: BLE001 - raised below, after the others
                    if not _is_of_kueue(action, error):
                        errors[position] = error
                        return
                    outcomes[position] = Outcome(action, Verdict.REFUSED, str(error))
                refused = refused or not outcomes[position].succeeded

        await asyncio.gather(*(send() for _ in range(min(IN_FLIGHT, len(stage)))))
        # A refusal takes precedence: its message names the fix, and the error will occur again.
        if errors and not refused:
            raise errors[min(errors)]
        return outcomes

    async def _execute(self, namespace: str, job: str, job_uid: str, action: Action) -> Outcome:
        match action:
            case Create():
                return await self._create(namespace, job, job_uid, action)
            case Delete():
                await self._delete(namespace, job, action)
                return Outcome(action, Verdict.DONE)
            case _:
                return await self._change(namespace, job, action)

    async def _change(self, namespace: str, job: str, action: Apply | Replace | Resize | PatchStatus) -> Outcome:
        """Change an existing object."""
        port, kind, name = self._port, action.kind, action.name
        before = self._cache.version(kind, namespace, name)
        match action:
            case Apply():
                verb, written = "apply", await port.apply(kind, namespace, name, _with_uid(action))
            case Replace():
                verb, written = "replace", await port.replace(kind, namespace, name, action.uid, action.parts)
            case Resize():
                asked = name, action.uid, action.container, action.resources
                verb, written = "resize", await port.resize(namespace, *asked)
            case PatchStatus():
                patched = kind, namespace, name, action.version, action.status
                verb, written = "patch", await port.merge_status(*patched)
        self._on_write(kind, verb)
        self._cache.wrote(namespace, job, written)
        if before and written["metadata"].get("resourceVersion") == before:
            # Another pass at once would send the same write, again and again.
            logger.info("%s %s: %s", kind, name, SET_BACK)
            return Outcome(action, Verdict.UNCHANGED, SET_BACK)
        return Outcome(action, Verdict.DONE)

    async def _create(self, namespace: str, job: str, job_uid: str, action: Create) -> Outcome:
        if (taken := await self._claim_of_another_job(namespace, job, action)) is not None:
            return taken
        try:
            written = await self._port.create(action.kind, namespace, action.body)
        except NotFound as error:
            if not error.unserved or action.kind not in Kind.pod_groups():
                raise
            return Outcome(action, Verdict.NOT_SERVED, error.message)
        except Conflict as error:
            if not error.already_exists:
                raise
            written = await self._port.get(action.kind, namespace, action.name)
            if _is_left_behind(action.kind, written, job, job_uid):
                return await self._delete_left_behind(namespace, action, written)
            outcome = _name_exists(action, written, job, job_uid)
            if outcome.verdict is not Verdict.DONE:
                return outcome
            wanted = action.body["metadata"].get("labels") or {}
            written = await self.with_labels(action.kind, namespace, written, wanted)
        else:
            self._on_write(action.kind, "create")
        self._cache.wrote(namespace, job, written)
        return Outcome(action, Verdict.DONE)

    async def _claim_of_another_job(self, namespace: str, job: str, action: Create) -> Outcome | None:
        """Return the conflict of a StatefulSet that would use the claims of another job; None without one.

        Kubernetes gives a StatefulSet any claim of the right name. The names of two jobs are equal if template `data`
        of job `a-b`, and template `data-a` of job `b`, have them. All such sets have the ordinal 0 in common.
        """
        for template in (action.body.get("spec") or {}).get("volumeClaimTemplates") or ():
            name = f"{template['metadata']['name']}-{action.name}-0"
            try:
                found = await self._port.get(Kind.CLAIM, namespace, name)
            except NotFound as error:
                if error.unserved:
                    raise
                continue
            if (found["metadata"].get("labels") or {}).get(names.LABEL_JOB, job) != job:
                return Outcome(replace(action, kind=Kind.CLAIM, name=name), Verdict.NAME_TAKEN, f"{name} {OF_ANOTHER}")
        return None

    async def with_labels(self, kind: Kind, namespace: str, existing: Object, wanted: Mapping[str, str]) -> Object:
        """Return an own object after it got back the labels by which the watches select it, if it had lost them.

        Args:
            kind: the object's kind.
            namespace: the object's namespace.
            existing: the object, as it was just read.
            wanted: labels of which those of the watches are restored.
        """
        metadata = existing["metadata"]
        labels = metadata.get("labels") or {}
        lost = {k: wanted[k] for k in _FOUND_BY if k in wanted and labels.get(k) != wanted[k]}
        if not lost:
            return existing
        version = metadata.get("resourceVersion", "")
        parts = {"/metadata/resourceVersion": version, "/metadata/labels": {**labels, **lost}}
        written = await self._port.replace(kind, namespace, metadata["name"], metadata["uid"], parts)
        self._on_write(kind, "replace")
        logger.info("%s %s: %s", kind, metadata["name"], LABELS_RESTORED)
        return written

    async def _delete_left_behind(self, namespace: str, action: Create, existing: Object) -> Outcome:
        """Delete an object that an earlier job of this name left behind; the next pass creates the new one."""
        await self._port.delete(action.kind, namespace, action.name, existing["metadata"]["uid"])
        self._on_write(action.kind, "delete")
        logger.info("%s %s: %s", action.kind, action.name, LEFT_BEHIND)
        return Outcome(action, Verdict.NOT_TRIED, LEFT_BEHIND)

    async def _delete(self, namespace: str, job: str, action: Delete) -> None:
        try:
            remaining = await self._port.delete(action.kind, namespace, action.name, action.uid, action.grace_seconds)
        except NotFound as error:
            if error.unserved and action.kind not in _INSTALLED:
                raise
            remaining = None
        except Conflict as error:
            if not error.precondition_failed:
                raise
            remaining = None  # the name belongs to another object, so the deleted one no longer exists
        else:
            self._on_write(action.kind, "delete")
        if remaining is None:
            self._cache.deleted(action.kind, namespace, action.name, action.uid)
        else:
            self._cache.wrote(namespace, job, remaining)


def _name_exists(action: Create, existing: Object, job: str, job_uid: str) -> Outcome:
    """Return the outcome of a creation whose name is taken; DONE if the object is the job's own."""
    if _belongs_to_predecessor(existing, job, job_uid):
        logger.debug("%s %s: %s", action.kind, action.name, PREDECESSOR)
        return Outcome(action, Verdict.NOT_TRIED, PREDECESSOR)
    if controller_uid(existing) == job_uid:
        return Outcome(action, Verdict.DONE)
    if action.kind is not Kind.CLAIM or _controller(existing):
        return Outcome(action, Verdict.NAME_TAKEN, f"{action.kind} {action.name} {_owner_message(existing)}")
    return _claim_exists(action, existing, job_uid)


def _claim_exists(action: Create, existing: Object, job_uid: str) -> Outcome:
    """Return the outcome for a claim without a controller; as with a StatefulSet, the job uses it."""
    metadata = existing["metadata"]
    if (metadata.get("labels") or {}).get(names.LABEL_JOB_UID) == job_uid:
        return Outcome(action, Verdict.DONE)
    if metadata.get("deletionTimestamp"):
        return Outcome(action, Verdict.NOT_TRIED, CLAIM_DELETED)
    logger.info("%s %s: %s", action.kind, action.name, CLAIM_USED)
    return Outcome(action, Verdict.EXISTS, CLAIM_USED)


def _refusal(action: Action, error: Refused) -> Outcome:
    if error.namespace_terminating:
        logger.debug("%s %s: %s", action.kind, action.name, error.message)
        return Outcome(action, Verdict.NOT_TRIED, NAMESPACE_TERMINATING)
    return Outcome(action, Verdict.INVALID if error.invalid and _is_of_spec(action) else Verdict.REFUSED, error.message)


def _is_of_kueue(action: Action, error: Exception) -> bool:
    """Whether an error is that of Kueue's webhook, which does not answer."""
    return action.kind is Kind.WORKLOAD and isinstance(error, Transient) and error.of_webhook


def _is_of_spec(action: Action) -> bool:
    """Whether an action writes a new object, a template or a size, so that a refusal means that the spec is wrong.

    Corrections, deletions and statuses may be refused because of what other clients have written.
    """
    return isinstance(action, Create | Resize) or (isinstance(action, Replace) and _TEMPLATE in action.parts)


def _with_uid(action: Apply) -> Object:
    return {**action.body, "metadata": {**action.body.get("metadata", {}), "uid": action.uid}}


def _belongs_to_predecessor(existing: Object, job: str, job_uid: str) -> bool:
    """Whether an object is a child of an earlier job of this name, which the garbage collector will delete."""
    owner = _controller(existing)
    is_job = owner.get("kind") == names.KIND and str(owner.get("apiVersion", "")).startswith(f"{names.GROUP}/")
    return is_job and owner.get("name") == job and owner.get("uid") != job_uid


def _is_left_behind(kind: Kind, existing: Object, job: str, job_uid: str) -> bool:
    """Whether an object without a controller belongs to an earlier job of this name, by the operator's labels.

    Two jobs of one name never exist at the same time, so no other job uses the object. Claims contain data and are used
    unchanged.
    """
    labels = existing["metadata"].get("labels") or {}
    earlier = labels.get(names.LABEL_JOB) == job and labels.get(names.LABEL_JOB_UID, job_uid) != job_uid
    return kind is not Kind.CLAIM and not _controller(existing) and earlier


def _owner_message(existing: Object) -> str:
    owner = _controller(existing)
    if not owner:
        return "exists and has no owner"
    return f"exists and belongs to {owner.get('kind')} {owner.get('name')} (uid {owner.get('uid')})"


def _controller(existing: Object) -> Object:
    owners = existing["metadata"].get("ownerReferences") or ()
    return next((o for o in owners if o.get("controller")), {})
