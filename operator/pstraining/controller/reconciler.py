"""One pass over one job: observe, plan, execute, one status write, events.

All decisions are core's; here they meet the cache and the port. What is worth a retry is raised to the queue. After a
pass that wrote anything another one follows at once: it sees its predecessor's writes in the cache, and ends when there
is nothing left to do.
"""

import contextlib
import logging
import secrets
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

from pstraining.api import names
from pstraining.controller.cache import Key
from pstraining.controller.groups import Groups
from pstraining.controller.known import Known
from pstraining.controller.logs import about
from pstraining.controller.metrics import REFUSALS, Metrics
from pstraining.controller.pace import BURST, CALM, PASSES_PER_SECOND, Pace, only_comes_up
from pstraining.controller.turns import LOOK_AGAIN, Turns
from pstraining.core.actions import Action, Create, Event, Kind, Outcome, Outcomes, Plan, Verdict
from pstraining.core.snapshot import Snapshot
from pstraining.kube.errors import ApiError, Conflict, NotFound
from pstraining.kube.events import build_event
from pstraining.kube.executor import Executor
from pstraining.kube.port import ApiPort
from pstraining.resources.launcher import Launcher

logger = logging.getLogger(__name__)

REFUSED_DELAY = 30.0
"""Seconds until a name that was taken, or a write that was not allowed, is tried again."""
UNKNOWN_DELAY = 10.0
"""Seconds until it is looked whether a kind that the API server did not know has been installed."""


@dataclass(frozen=True)
class Decisions:
    """The pure functions of core."""

    plan: Callable[[Snapshot, datetime, Launcher], Plan]
    next_status: Callable[[Snapshot, Outcomes, datetime], dict[str, Any]]
    events: Callable[[Snapshot, dict[str, Any]], tuple[Event, ...]]


@dataclass(frozen=True)
class _Pass:
    """What a pass did."""

    outcomes: Outcomes
    status_written: bool
    requeue_at: datetime | None
    held: float = 0.0
    """Seconds for which a status of nothing but good news waits for company."""
    sent: tuple[Action, ...] = field(default=())
    """Actions that took effect in this pass."""

    @property
    def wrote(self) -> bool:
        return bool(self.sent) or self.status_written


class Reconciler:
    """Makes passes."""

    def __init__(
        self,
        *,
        known: Known,
        port: ApiPort,
        decisions: Decisions,
        launcher: Launcher,
        metrics: Metrics,
        instance: str,
        clock: Callable[[], datetime] = lambda: datetime.now(UTC),
        look: Callable[[Key], None] = lambda key: None,
    ) -> None:
        """Make a reconciler.

        Args:
            known: what the watches have brought; told of every write.
            port: the API server.
            decisions: core.
            launcher: the launcher that this operator carries.
            metrics: counts passes, writes and errors.
            instance: the operator's pod, named in events.
            clock: the time of day; read once a pass.
            look: asks for a pass over a job.
        """
        self._known, self._cache = known, known.cache
        self._port = port
        self._executor = Executor(port, known.cache, metrics.wrote)
        self._groups = Groups(port, known.cache)
        self._decisions = decisions
        self._launcher = launcher
        self._metrics = metrics
        self._instance = instance
        self._clock = clock
        self._paces: dict[Key, Pace] = {}
        self._turns = Turns(look)

    async def reconcile(self, key: Key) -> float | None:
        """Make one pass.

        Returns:
            Seconds after which to look again if nothing happens until then; None for never.
        """
        pace = self._paces.setdefault(key, Pace(self._clock()))
        wait = pace.wait(self._clock())
        if wait > 0:
            self._slowed(key, pace)
            return wait
        if not self._cache.has_job(key):
            self._paces.pop(key, None)
            self._turns.forget(key)
            self._groups.forget(key)
            self._metrics.stands(key, None)
            return None
        started, result = time.perf_counter(), "failed"
        try:
            snapshot = self._known.snapshot(key)
            if snapshot.deleting:
                result = "idle"
                return None
            if await self._groups.read(snapshot, self._clock()):
                snapshot = self._known.snapshot(key)
            made = await self._pass(key, snapshot, pace)
            result = "wrote" if made.wrote else "idle"
            pace.left -= made.wrote
            if not made.wrote:
                pace.idle(len(snapshot.children) + len(snapshot.pods), self._clock())
            return self._again(made)
        finally:
            self._turns.done(key)
            self._metrics.passed(result, time.perf_counter() - started)

    def patience(self, key: Key) -> float:
        """Seconds for which the news that a pod of this job comes up may wait."""
        if self._turns.busy():
            return CALM  # it could not be told just now
        pace = self._paces.get(key)
        return pace.patience(self._clock()) if pace is not None else 0.0

    def failed(self, key: Key, error: Exception, delay: float) -> None:
        """Log and count a pass that raised; the queue repeats it."""
        self._metrics.failed(error, retried=True)
        if isinstance(error, (Conflict, NotFound)):
            self._groups.forget(key)  # no watch will put it right
        extra = about(None, *key) | {"error": type(error).__name__, "retry_seconds": round(delay, 3)}
        if isinstance(error, ApiError):
            logger.info("Again in %.2f s: %s: %s", delay, type(error).__name__, error.message, extra=extra)
        else:
            logger.error("Again in %.2f s: the pass failed", delay, exc_info=error, extra=extra)

    async def _pass(self, key: Key, snapshot: Snapshot, pace: Pace) -> _Pass:
        now = self._clock()
        plan = self._decisions.plan(snapshot, now, self._launcher)
        creates = any(isinstance(action, Create) for action in plan.actions)
        with self._turns.creating() if creates else contextlib.nullcontext():
            outcomes = await self._executor.execute(snapshot.namespace, snapshot.name, snapshot.uid, plan.actions)
        self._metrics.executed((o.action for o in outcomes.with_verdict(Verdict.DONE)), self._clock())
        for outcome in outcomes.outcomes:
            if outcome.verdict in REFUSALS:
                self._refused(snapshot, outcome)
        status = self._decisions.next_status(snapshot, outcomes, now)
        news = status != snapshot.status
        held = self._held(key, snapshot, status, pace, outcomes, now) if news else 0.0
        written = news and not held and await self._write_status(key, snapshot, status)
        sent = tuple(o.action for o in outcomes.with_verdict(Verdict.DONE))
        if sent or written:
            self._log(snapshot, sent, status if written else None)
        if written:
            await self._tell(snapshot, self._decisions.events(snapshot, status), now)
        self._metrics.stands(key, status)
        return _Pass(outcomes, written, plan.requeue_at, held, sent)

    def _held(
        self, key: Key, snapshot: Snapshot, status: dict[str, Any], pace: Pace, outcomes: Outcomes, now: datetime
    ) -> float:
        """Seconds for which a new status waits; 0 to write it now."""
        if all(o.verdict is Verdict.DONE and isinstance(o.action, Create) for o in outcomes.outcomes):
            sound = not any(p.finished or p.deleting or p.container.restarts for p in snapshot.pods)
            if sound and only_comes_up(snapshot.status, status) and not self._turns.may_tell(key):
                return LOOK_AGAIN
        return 0.0 if outcomes.outcomes else pace.hold(snapshot.status, status, now)

    async def _write_status(self, key: Key, snapshot: Snapshot, status: dict[str, Any]) -> bool:
        metadata = snapshot.job["metadata"]
        body = {
            "apiVersion": names.API_VERSION,
            "kind": names.KIND,
            "metadata": {f: metadata[f] for f in ("name", "namespace", "uid", "resourceVersion")},
            "status": status,
        }
        try:
            written = await self._port.patch_status(snapshot.namespace, snapshot.name, body)
        except NotFound:
            # Gone while we worked: the watch may have missed it, this answer is certain.
            self._cache.deleted(Kind.PS_TRAINING_JOB, snapshot.namespace, snapshot.name, snapshot.uid)
            return False
        self._cache.wrote(snapshot.namespace, snapshot.name, written)
        self._metrics.wrote("PSTrainingJobStatus", "apply")
        self._metrics.told(key, snapshot.status, status)
        return True

    async def _tell(self, snapshot: Snapshot, events: tuple[Event, ...], now: datetime) -> None:
        """Post events; one that fails is lost, as the status says the same."""
        for event in events:
            body = build_event(dict(snapshot.job), event, instance=self._instance, now=now, suffix=secrets.token_hex(8))
            try:
                await self._port.create_event(snapshot.namespace, body)
            except ApiError as error:
                self._metrics.failed(error, retried=False)
                logger.warning("Event %s was not posted: %s", event.reason, error.message, extra=_about(snapshot))
            else:
                self._metrics.wrote("Event", "create")

    def _again(self, made: _Pass) -> float | None:
        if made.wrote:
            return 0.0
        waits = [made.held] if made.held else []
        if made.requeue_at is not None:
            # A timer may fire a little early by the time of day; a pass just before the deadline would be for nothing.
            waits.append(max(0.0, (made.requeue_at - self._clock()).total_seconds()) + 0.005)
        verdicts = {o.verdict for o in made.outcomes.outcomes}
        # What is invalid stays so until the spec changes, and that is an event; the rest may be mended elsewhere.
        if verdicts - {Verdict.DONE} and Verdict.INVALID not in verdicts:
            waits.append(UNKNOWN_DELAY if Verdict.NOT_SERVED in verdicts else REFUSED_DELAY)
        return min(waits, default=None)

    def _slowed(self, key: Key, pace: Pace) -> None:
        if pace.exhausted and not pace.warned:
            pace.warned = True
            logger.warning(
                "More than %s passes in a row wrote something: from now on %s a second",
                BURST,
                PASSES_PER_SECOND,
                extra=about(None, *key),
            )

    def _refused(self, snapshot: Snapshot, outcome: Outcome) -> None:
        action = outcome.action
        self._metrics.failed(outcome.verdict, retried=False)
        verb = "create" if isinstance(action, Create) else type(action).__name__.lower()
        logger.warning(
            "%s: %s %s %s: %s", outcome.verdict, verb, action.kind, action.name, outcome.message, extra=_about(snapshot)
        )

    def _log(self, snapshot: Snapshot, sent: tuple[Action, ...], status: dict[str, Any] | None) -> None:
        told = [f"{type(a).__name__} {a.kind} {a.name} ({a.reason})" for a in sent]
        if status is not None:
            told.append(f"Status {status.get('phase', '')}".strip())
        logger.info("%s", "; ".join(told), extra=_about(snapshot) | {"writes": len(told)})


def _about(snapshot: Snapshot) -> dict[str, Any]:
    return about(dict(snapshot.job), snapshot.namespace, snapshot.name)
