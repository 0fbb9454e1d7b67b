"""Makes one pass over one job: observe, plan, execute, write the status once, post events.

All decisions are in core; this module connects them to the cache and the port. Errors that are worth a retry are raised
to the queue. A pass that wrote an object is followed at once by another pass, which sees the writes in the cache. The
last pass writes nothing.
"""

import contextlib
import logging
import secrets
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from pstraining.controller.clocks import SYSTEM, ReconcilerClocks
from pstraining.controller.hidden_workloads import HiddenWorkloads
from pstraining.controller.informer_cache import Key
from pstraining.controller.logs import about
from pstraining.controller.metrics import NO_CAUSES, REFUSALS, OperatorMetrics
from pstraining.controller.mount_failures import MountFailures
from pstraining.controller.pod_groups import PodGroups
from pstraining.controller.queue_objects import QueueObjectReader
from pstraining.controller.rate_limit import BURST, PASSES_PER_SECOND, STARTUP_DELAY_SECONDS, RateLimit, is_startup_only
from pstraining.controller.status_queue import RECHECK_SECONDS, StatusQueue
from pstraining.controller.status_writer import Reduce, StatusWriter
from pstraining.controller.watch_state import WatchState
from pstraining.core.actions import Action, Create, Event, Outcome, Outcomes, Plan, Verdict
from pstraining.core.facts import Facts, Unreadable
from pstraining.core.snapshot import Pod, Snapshot
from pstraining.kube.errors import ApiError, Conflict, NotFound, Refused
from pstraining.kube.events import build_event
from pstraining.kube.executor import Executor
from pstraining.kube.port import ApiPort
from pstraining.resources.launcher import LauncherFiles

logger = logging.getLogger(__name__)

REFUSED_DELAY = 30.0
"""Seconds until the next attempt after a taken name or a forbidden write."""
UNKNOWN_DELAY = 10.0
"""Seconds until the next attempt to create an object whose kind the API server did not know."""


@dataclass(frozen=True)
class Decisions:
    """The pure functions of core."""

    gather: Callable[[Snapshot, datetime], Facts | Unreadable]
    plan: Callable[[Facts | Unreadable, LauncherFiles], Plan]
    next_status: Callable[[Facts | Unreadable, Outcomes], dict[str, Any]]
    events: Callable[[Snapshot, dict[str, Any]], tuple[Event, ...]]
    reduced_status: Reduce
    unexplained: Callable[[Snapshot, datetime], list[Pod]]


@dataclass(frozen=True)
class _Pass:
    """The result of a pass."""

    outcomes: Outcomes
    status_written: bool
    requeue_at: datetime | None
    status_delay: float = 0.0
    """Seconds until the status is written; 0 if it need not wait and was not refused."""
    sent: tuple[Action, ...] = field(default=())
    """Actions that took effect in this pass."""

    @property
    def wrote(self) -> bool:
        return bool(self.sent) or self.status_written


class Reconciler:
    """Makes passes over jobs."""

    def __init__(
        self,
        *,
        watch_state: WatchState,
        port: ApiPort,
        decisions: Decisions,
        launcher: LauncherFiles,
        metrics: OperatorMetrics,
        instance: str,
        clocks: ReconcilerClocks = SYSTEM,
        enqueue: Callable[[Key], None] = lambda key: None,
    ) -> None:
        """Create a reconciler.

        Args:
            watch_state: the objects that the watches have delivered; receives every write.
            port: the API server.
            decisions: the pure functions of core.
            launcher: the launcher of this operator's version.
            metrics: counts passes, writes and errors.
            instance: the operator's pod, named in events.
            clocks: the time of day, and monotonic seconds.
            enqueue: requests a pass over a job.
        """
        self._watch_state, self._cache = watch_state, watch_state.cache
        self._port = port
        self._executor = Executor(port, watch_state.cache, metrics.wrote)
        self._status_writer = StatusWriter(port, watch_state.cache, metrics, decisions.reduced_status, clocks.monotonic)
        self._pod_groups = PodGroups(port, watch_state.cache, clocks.monotonic)
        self._mount_failures = MountFailures(port, clocks.monotonic)
        self._queue_objects = QueueObjectReader(port, clocks.monotonic)
        self._hidden_workloads = HiddenWorkloads(port, watch_state, self._executor.with_labels)
        watch_state.queue_objects = self._queue_objects.objects
        self._decisions = decisions
        self._launcher = launcher
        self._metrics = metrics
        self._instance = instance
        self._clock = clocks.time_of_day
        self._rate_limits: dict[Key, RateLimit] = {}
        self._status_queue = StatusQueue(enqueue)

    async def reconcile(self, key: Key) -> float | None:
        """Make one pass.

        Returns:
            Seconds until the next pass if no event causes an earlier one; None for no next pass.
        """
        rate_limit = self._rate_limits.setdefault(key, RateLimit(self._clock()))
        wait = rate_limit.wait(self._clock())
        if wait > 0:
            self._warn_if_exhausted(key, rate_limit)
            return wait
        if not self._cache.has_job(key):
            self._rate_limits.pop(key, None)
            self._status_queue.forget(key)
            self._status_writer.forget(key)
            self._pod_groups.forget(key)
            self._mount_failures.forget(key)
            self._watch_state.hidden_workloads.pop(key, None)
            self._metrics.record_status(key, None)
            return None
        started, result = time.perf_counter(), "failed"
        try:
            snapshot = self._watch_state.snapshot(key, self._mount_failures.of(key))
            if snapshot.deleting:
                result = "idle"
                # It still has a phase, and waits only for its end.
                self._metrics.record_status(key, {"phase": snapshot.status.get("phase")})
                return None
            waiting = self._decisions.unexplained(snapshot, self._clock())
            read = (
                await self._mount_failures.read(key, waiting),
                await self._pod_groups.read(snapshot),
                await self._queue_objects.read(snapshot),
                await self._hidden_workloads.read(snapshot),  # last, because any of them may vanish meanwhile
            )
            if not self._cache.has_job(key):
                result = "idle"
                return 0.0  # it was deleted during a read: the next pass forgets it
            if any(read):
                snapshot = self._watch_state.snapshot(key, self._mount_failures.of(key))
            done = await self._pass(key, snapshot, rate_limit)
            result = "wrote" if done.wrote else "idle"
            rate_limit.tokens -= done.wrote
            if not done.wrote:
                rate_limit.record_idle_pass(len(snapshot.children) + len(snapshot.pods), self._clock())
            return self._next_delay(done, self._mount_failures.reread_delay(key))
        finally:
            self._status_queue.done(key)
            self._metrics.passed(result, time.perf_counter() - started)

    def startup_delay(self, key: Key) -> float:
        """Return the seconds for which an event of a starting pod of this job may wait."""
        if self._status_queue.is_busy():
            return STARTUP_DELAY_SECONDS  # its status could not be written now
        rate_limit = self._rate_limits.get(key)
        return rate_limit.startup_delay(self._clock()) if rate_limit is not None else 0.0

    def failed(self, key: Key, error: Exception, delay: float) -> None:
        """Log and count a failed pass, which the queue repeats."""
        self._metrics.failed(error, retried=True)
        if isinstance(error, (Conflict, NotFound)):
            self._pod_groups.forget(key)  # no watch corrects the cached PodGroup
        extra = about(None, *key) | {"error": type(error).__name__, "retry_seconds": round(delay, 3)}
        if isinstance(error, ApiError):
            logger.info("Retrying in %.2f s: %s: %s", delay, type(error).__name__, error.message, extra=extra)
        else:
            logger.error("Retrying in %.2f s: the pass failed", delay, exc_info=error, extra=extra)

    async def _pass(self, key: Key, snapshot: Snapshot, rate_limit: RateLimit) -> _Pass:
        now = self._clock()
        facts = self._decisions.gather(snapshot, now)
        plan = self._decisions.plan(facts, self._launcher)
        creates = any(isinstance(action, Create) for action in plan.actions)
        with self._status_queue.creating() if creates else contextlib.nullcontext():
            outcomes = await self._executor.execute(snapshot.namespace, snapshot.name, snapshot.uid, plan.actions)
        self._metrics.executed((o.action for o in outcomes.with_verdict(Verdict.DONE)), self._clock())
        for outcome in outcomes.outcomes:
            if outcome.verdict in REFUSALS:
                self._report_refusal(snapshot, outcome)
        status = self._decisions.next_status(facts, outcomes)
        is_new = status != snapshot.status
        delay = self._status_delay(key, snapshot, status, rate_limit, outcomes, now) if is_new else 0.0
        uncounted = facts.failures.uncounted if isinstance(facts, Facts) else NO_CAUSES
        stored = await self._write_status(key, snapshot, status, now, uncounted) if is_new and not delay else None
        if snapshot.has_old_rates and (isinstance(facts, Unreadable) or facts.is_managed_here):
            await self._status_writer.remove_rates(key, snapshot.uid)
        sent = tuple(o.action for o in outcomes.with_verdict(Verdict.DONE))
        if sent or stored is not None:
            self._log(snapshot, sent, stored)
        self._metrics.record_status(key, status)
        delay = delay or self._status_writer.retry_delay(key)
        return _Pass(outcomes, stored is not None, plan.requeue_at, delay, sent)

    def _status_delay(
        self,
        key: Key,
        snapshot: Snapshot,
        status: dict[str, Any],
        rate_limit: RateLimit,
        outcomes: Outcomes,
        now: datetime,
    ) -> float:
        """Return the seconds for which a new status waits; 0 to write it now."""
        if all(o.succeeded and isinstance(o.action, Create) for o in outcomes.outcomes):
            is_healthy = not any(p.finished or p.deleting or p.container.restarts for p in snapshot.pods)
            if is_healthy and is_startup_only(snapshot.status, status) and not self._status_queue.may_write(key):
                return RECHECK_SECONDS
        return 0.0 if outcomes.have_writes else rate_limit.progress_delay(snapshot.status, status, now)

    async def _write_status(
        self, key: Key, snapshot: Snapshot, status: dict[str, Any], now: datetime, uncounted: Mapping[str, str]
    ) -> dict[str, Any] | None:
        """Write a status and post its events; return the status that was stored."""
        written = await self._status_writer.write(key, snapshot, status, now, uncounted)
        changes = () if written.status is None else self._decisions.events(snapshot, written.status)
        await self._post_events(snapshot, (*changes, *written.events), now)
        return written.status

    async def _post_events(self, snapshot: Snapshot, events: tuple[Event, ...], now: datetime) -> None:
        """Post events. A failed one is not retried, because the status has the same content.

        Warnings are in the operator's log as well: the API server deletes events, by default after an hour.
        """
        for event in events:
            if event.type == "Warning":
                logger.warning("%s: %s", event.reason, event.message, extra=_about(snapshot))
            body = build_event(dict(snapshot.job), event, instance=self._instance, now=now, suffix=secrets.token_hex(8))
            try:
                await self._port.create_event(snapshot.namespace, body)
            except ApiError as error:
                if isinstance(error, Refused) and error.namespace_terminating:
                    return  # its namespace ends as well
                self._metrics.failed(error, retried=False)
                logger.warning("Event %s was not posted: %s", event.reason, error.message, extra=_about(snapshot))
            else:
                self._metrics.wrote("Event", "create")

    def _next_delay(self, done: _Pass, reread_delay: float) -> float | None:
        if done.wrote:
            return 0.0
        waits = [delay for delay in (done.status_delay, reread_delay) if delay]
        if done.requeue_at is not None:
            # By the time of day, a timer may fire slightly early; a pass just before the deadline would have no effect.
            waits.append(max(0.0, (done.requeue_at - self._clock()).total_seconds()) + 0.005)
        verdicts = {o.verdict for o in done.outcomes.outcomes if not o.succeeded}
        # An invalid object stays invalid until the spec changes, which is an event. Other refusals may be resolved
        # elsewhere, such as that of a report to Kueue in the same pass.
        if verdicts and (Verdict.INVALID not in verdicts or Verdict.REFUSED in verdicts):
            waits.append(UNKNOWN_DELAY if Verdict.NOT_SERVED in verdicts else REFUSED_DELAY)
        return min(waits, default=None)

    def _warn_if_exhausted(self, key: Key, rate_limit: RateLimit) -> None:
        if rate_limit.is_exhausted and not rate_limit.warned:
            rate_limit.warned = True
            logger.warning(
                "More than %s passes in a row wrote something: from now on at most %s per second",
                BURST,
                PASSES_PER_SECOND,
                extra=about(None, *key),
            )

    def _report_refusal(self, snapshot: Snapshot, outcome: Outcome) -> None:
        action = outcome.action
        self._metrics.failed(outcome.verdict, retried=False)
        verb = "create" if isinstance(action, Create) else type(action).__name__.lower()
        logger.warning(
            "%s: %s %s %s: %s", outcome.verdict, verb, action.kind, action.name, outcome.message, extra=_about(snapshot)
        )

    def _log(self, snapshot: Snapshot, sent: tuple[Action, ...], status: dict[str, Any] | None) -> None:
        writes = [f"{type(a).__name__} {a.kind} {a.name} ({a.reason})" for a in sent]
        if status is not None:
            writes.append(f"Status {status.get('phase', '')}".strip())
        logger.info("%s", "; ".join(writes), extra=_about(snapshot) | {"writes": len(writes)})


def _about(snapshot: Snapshot) -> dict[str, Any]:
    return about(dict(snapshot.job), snapshot.namespace, snapshot.name)
