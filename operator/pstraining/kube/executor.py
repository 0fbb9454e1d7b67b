"""Executes the actions of a plan, stage by stage (stages.py): the only writer of a job's children.

A refusal becomes a verdict and ends the pass's writing: a job of which one part is refused, or whose name is taken,
must not run half. What is worth a retry is raised to the queue, which asks for a new plan: an error says that the plan
was made from a picture that no longer holds, so the rest of it is not worth trying either. What is in flight by then is
waited for and remembered in any case.
"""

import asyncio
import logging
from collections.abc import Callable, Iterable, Sequence
from typing import Final, Protocol

from pstraining.api import names
from pstraining.core.actions import Action, Apply, Create, Delete, Kind, Outcome, Outcomes, Replace, Verdict
from pstraining.core.observe import controller_uid
from pstraining.kube.errors import Conflict, NotFound, Refused
from pstraining.kube.port import ApiPort, Object
from pstraining.kube.stages import Stage, stages

logger = logging.getLogger(__name__)

IN_FLIGHT: Final = 16
"""Requests of one job that are in flight at a time."""
NAMESPACE_TERMINATING = "the namespace is being deleted"
PREDECESSOR = "the objects of an earlier job of this name are still being deleted"


class Memory(Protocol):
    """Where our own writes are remembered, so that the next pass sees them before the watch tells."""

    def wrote(self, namespace: str, job: str, written: Object) -> None:
        """The API server has this object now."""

    def deleted(self, kind: Kind, namespace: str, name: str, uid: str) -> None:
        """The API server has no object of this uid any more."""


class Executor:
    """Writes actions through a port."""

    def __init__(
        self, port: ApiPort, memory: Memory, on_write: Callable[[Kind, str], None] = lambda kind, verb: None
    ) -> None:
        """Make an executor.

        Args:
            port: the API server.
            memory: is told of every object written.
            on_write: is told the kind and the verb of every successful write.
        """
        self._port = port
        self._memory = memory
        self._on_write = on_write

    async def execute(self, namespace: str, job: str, job_uid: str, actions: Iterable[Action]) -> Outcomes:
        """Execute actions, up to the first ones that are refused.

        Args:
            namespace: the job's.
            job: the job's name.
            job_uid: what the controller reference of an existing object must hold to be ours.
            actions: what to write.

        Returns:
            The outcomes in the order of the actions.

        Raises:
            Conflict: what is observed is out of date; plan again when it has caught up.
            NotFound: an object to be changed is gone, or the namespace is.
            Transient: try again later.
        """
        planned = tuple(actions)
        found: dict[int, Outcome] = {}
        for stage in stages(planned):
            found |= await self._stage(namespace, job, job_uid, planned, stage)
            if any(outcome.verdict is not Verdict.DONE for outcome in found.values()):
                break
        return Outcomes(tuple(found.get(i) or Outcome(a, Verdict.NOT_TRIED) for i, a in enumerate(planned)))

    async def _stage(
        self, namespace: str, job: str, job_uid: str, planned: Sequence[Action], stage: Stage
    ) -> dict[int, Outcome]:
        """Send what may be in flight together; nothing more of it once something has failed."""
        found: dict[int, Outcome] = {}
        errors: dict[int, Exception] = {}
        refused = False
        waiting = iter(stage)

        async def send() -> None:
            nonlocal refused
            while not (errors or refused) and (position := next(waiting, None)) is not None:
                action = planned[position]
                try:
                    found[position] = await self._execute(namespace, job, job_uid, action)
                except Refused as error:
                    found[position] = _refusal(action, error)
                except Exception as error:  # noqa: BLE001 - raised below, once the others have ended
                    errors[position] = error
                    return
                refused = refused or found[position].verdict is not Verdict.DONE

        await asyncio.gather(*(send() for _ in range(min(IN_FLIGHT, len(stage)))))
        # A refusal is worth more than an error: it says what to mend, and the error will be seen again.
        if errors and not refused:
            raise errors[min(errors)]
        return found

    async def _execute(self, namespace: str, job: str, job_uid: str, action: Action) -> Outcome:
        match action:
            case Create():
                return await self._create(namespace, job, job_uid, action)
            case Apply():
                written = await self._port.apply(action.kind, namespace, action.name, _with_uid(action))
                self._on_write(action.kind, "apply")
                self._memory.wrote(namespace, job, written)
            case Replace():
                port = self._port
                written = await port.replace(action.kind, namespace, action.name, action.uid, action.parts)
                self._on_write(action.kind, "replace")
                self._memory.wrote(namespace, job, written)
            case Delete():
                await self._delete(namespace, job, action)
        return Outcome(action, Verdict.DONE)

    async def _create(self, namespace: str, job: str, job_uid: str, action: Create) -> Outcome:
        try:
            written = await self._port.create(action.kind, namespace, action.body)
        except NotFound as error:
            if not error.unserved or action.kind not in Kind.pod_groups():
                raise
            return Outcome(action, Verdict.NOT_SERVED, error.message)
        except Conflict as error:
            if not error.already_exists:
                raise
            found = await self._port.get(action.kind, namespace, action.name)
            if _belongs_to_predecessor(found, job, job_uid):
                logger.debug("%s %s: %s", action.kind, action.name, PREDECESSOR)
                return Outcome(action, Verdict.NOT_TRIED, PREDECESSOR)
            if controller_uid(found) != job_uid:
                return Outcome(action, Verdict.NAME_TAKEN, f"{action.kind} {action.name} {_whose(found)}")
            written = found
        else:
            self._on_write(action.kind, "create")
        self._memory.wrote(namespace, job, written)
        return Outcome(action, Verdict.DONE)

    async def _delete(self, namespace: str, job: str, action: Delete) -> None:
        try:
            rest = await self._port.delete(action.kind, namespace, action.name, action.uid, action.grace_seconds)
        except NotFound:
            rest = None
        except Conflict as error:
            if not error.precondition_failed:
                raise
            rest = None  # the name is somebody else's now: what was meant is gone
        else:
            self._on_write(action.kind, "delete")
        if rest is None:
            self._memory.deleted(action.kind, namespace, action.name, action.uid)
        else:
            self._memory.wrote(namespace, job, rest)


def _refusal(action: Action, error: Refused) -> Outcome:
    if error.namespace_terminating:
        logger.debug("%s %s: %s", action.kind, action.name, error.message)
        return Outcome(action, Verdict.NOT_TRIED, NAMESPACE_TERMINATING)
    return Outcome(action, Verdict.INVALID if error.invalid else Verdict.REFUSED, error.message)


def _with_uid(action: Apply) -> Object:
    return {**action.body, "metadata": {**action.body.get("metadata", {}), "uid": action.uid}}


def _belongs_to_predecessor(found: Object, job: str, job_uid: str) -> bool:
    """Whether it is a child of a job that had this name before: the garbage collector is on its way."""
    owner = _controller(found)
    is_job = owner.get("kind") == names.KIND and str(owner.get("apiVersion", "")).startswith(f"{names.GROUP}/")
    return is_job and owner.get("name") == job and owner.get("uid") != job_uid


def _whose(found: Object) -> str:
    owner = _controller(found)
    if not owner:
        return "exists and belongs to nobody"
    return f"exists and belongs to {owner.get('kind')} {owner.get('name')} (uid {owner.get('uid')})"


def _controller(found: Object) -> Object:
    owners = found["metadata"].get("ownerReferences") or ()
    return next((o for o in owners if o.get("controller")), {})
