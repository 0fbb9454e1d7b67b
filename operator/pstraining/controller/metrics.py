"""The operator's Prometheus metrics. No label has a job's name, so the number of series is bounded."""

from collections.abc import Callable, Iterable, Mapping
from datetime import UTC, datetime
from functools import partial
from itertools import product
from types import MappingProxyType
from typing import Any, Final

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, MetricsHandler
from prometheus_client.platform_collector import PlatformCollector
from prometheus_client.process_collector import ProcessCollector

from pstraining.api import names
from pstraining.api.conditions import Condition, Phase, Reason
from pstraining.api.run_policy import FailureReason
from pstraining.controller.informer_cache import Key
from pstraining.core.actions import Action, Apply, Kind, Verdict
from pstraining.core.observe import parse_time
from pstraining.core.policies.failover import LossCause
from pstraining.launcher.listener import Listener

SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30)
REFUSALS = (Verdict.NAME_TAKEN, Verdict.INVALID, Verdict.REFUSED, Verdict.NOT_SERVED)
RECOVERY_SECONDS = (1, 2, 5, 10, 20, 30, 60, 120, 300, 600, 1800, 3600)
ROLES = (names.PS, names.WORKER, names.CHIEF, names.EVALUATOR)
REPLACED = "Replaced"
"""The reason of a restart without a failure."""
NO_CAUSES: Final[Mapping[str, str]] = MappingProxyType({})
UNHEALTHY_STATES = {
    "Pending": ((Phase.PENDING,), Condition.RUNNING, "False"),
    "Restarting": ((Phase.RESTARTING, Phase.INVALID), Condition.RESTARTING, "True"),
    "Rescaling": ((Phase.RESCALING,), Condition.RUNNING, "False"),
    "Degraded": ((Phase.RUNNING, Phase.RESTARTING, Phase.INVALID), Condition.DEGRADED, "True"),
}
"""States that must not last: the phases of each, and the condition whose last transition to a status starts it.

A job that trains is Invalid while a change of it is refused.
"""


class OperatorMetrics:
    """Every metric of the operator."""

    def __init__(
        self,
        depth: Callable[[], float],
        oldest_age: Callable[[], float],
        leads: Callable[[], bool] = lambda: True,
        clock: Callable[[], datetime] = lambda: datetime.now(UTC),
    ) -> None:
        """Create the metrics; the functions are called at every scrape."""
        self.registry = CollectorRegistry()
        ProcessCollector(registry=self.registry)
        PlatformCollector(registry=self.registry)
        queue_depth = Gauge("pstraining_queue_depth", "Jobs that wait for a pass", registry=self.registry)
        queue_depth.set_function(depth)
        queue_age = Gauge(
            "pstraining_queue_oldest_age_seconds",
            "Seconds for which the oldest waiting job has waited",
            registry=self.registry,
        )
        queue_age.set_function(oldest_age)
        leader = Gauge(
            "pstraining_leader", "Whether this operator holds the Lease, and therefore acts", registry=self.registry
        )
        leader.set_function(leads)
        self._retries = Counter("pstraining_queue_retries", "Passes repeated after an error", registry=self.registry)
        self._reconcile = Histogram(
            "pstraining_reconcile_seconds",
            "Seconds that a pass over one job took, by result",
            ["result"],
            buckets=SECONDS,
            registry=self.registry,
        )
        self._writes = Counter(
            "pstraining_writes", "Successful writes to the API server", ["kind", "verb"], registry=self.registry
        )
        self._reports = Counter(
            "pstraining_progress_reports",
            "Reports of progress by training programs",
            ["result"],
            registry=self.registry,
        )
        self._restarts = Counter(
            "pstraining_restarts", "Restarts of replicas", ["role", "reason"], registry=self.registry
        )
        self._jobs = Gauge("pstraining_jobs", "Jobs by phase", ["phase"], registry=self.registry)
        self._errors = Counter("pstraining_errors", "Failed requests and passes", ["class"], registry=self.registry)
        self._takeovers = Counter(
            "pstraining_takeovers", "Failovers of shards to another member, by cause", ["cause"], registry=self.registry
        )
        self._takeover_seconds = Histogram(
            "pstraining_takeover_seconds",
            "Seconds from the loss of a primary, as its pod reports it, until its shard's Service pointed to a standby",
            buckets=SECONDS,
            registry=self.registry,
        )
        self._recover = Histogram(
            "pstraining_recover_seconds",
            "Seconds for which the condition Restarting of jobs was true",
            buckets=RECOVERY_SECONDS,
            registry=self.registry,
        )
        self._unreplicated = Histogram(
            "pstraining_unreplicated_seconds",
            "Seconds for which the condition Degraded of jobs was true, because a shard lacked standbys",
            buckets=RECOVERY_SECONDS,
            registry=self.registry,
        )
        longest = Gauge(
            "pstraining_longest_seconds",
            "Longest time in seconds that a job has been in this state",
            ["state"],
            registry=self.registry,
        )
        self._clock = clock
        self._phases: dict[Key, str] = {}
        self._since: dict[Key, Mapping[str, datetime]] = {}
        for phase in Phase:
            self._jobs.labels(phase=phase.value)
        for state in UNHEALTHY_STATES:
            longest.labels(state=state).set_function(partial(self._longest, state))
        # A counter must exist with the value 0 before its first increment, or Prometheus sees no increase.
        for cause in (*LossCause, "other"):
            self._takeovers.labels(cause=str(cause))
        for role, reason in product(ROLES, (*FailureReason, REPLACED)):
            self._restarts.labels(role=role, reason=str(reason))
        for result in ("accepted", "refused"):
            self._reports.labels(result=result)
        for verdict in REFUSALS:
            self._errors.labels(verdict.value)

    def count_forbidden(self, namespaces: Iterable[str], forbidden: Callable[[], Mapping[str, str]]) -> None:
        """Export which of the watched namespaces forbid a list; "" stands for all namespaces.

        Args:
            namespaces: the namespaces that are watched by name; empty for all.
            forbidden: returns the API server's message by namespace.
        """
        gauge = Gauge(
            "pstraining_watch_forbidden",
            "Whether a watched namespace forbids the operator to list its objects; empty: all namespaces",
            ["watched_namespace"],
            registry=self.registry,
        )
        for namespace in tuple(namespaces) or ("",):
            gauge.labels(watched_namespace=namespace).set_function(
                partial(lambda n: float(n in forbidden()), namespace)
            )

    def serve(self, port: int) -> Callable[[], None]:
        """Serve /metrics from a thread; return a function that stops serving."""
        return Listener(port, MetricsHandler.factory(self.registry)).start("metrics")

    def passed(self, result: str, seconds: float) -> None:
        """Count a pass with the result `idle`, `wrote` or `failed`."""
        self._reconcile.labels(result=result).observe(seconds)

    def wrote(self, kind: Kind | str, verb: str) -> None:
        """Count a successful write."""
        self._writes.labels(kind=str(kind), verb=verb).inc()

    def failed(self, error: BaseException | Verdict, *, retried: bool) -> None:
        """Count a failed request or pass, or a refused action."""
        self._errors.labels(error.value if isinstance(error, Verdict) else type(error).__name__).inc()
        if retried:
            self._retries.inc()

    def reported(self, result: str) -> None:
        """Count a report of progress that was `accepted` or `refused`."""
        self._reports.labels(result=result).inc()

    def status_changed(
        self, key: Key, old: Mapping[str, Any], new: Mapping[str, Any], uncounted: Mapping[str, str] = NO_CAUSES
    ) -> None:
        """Count the changes from the old to the new stored status of a job.

        Args:
            key: the job.
            old: the old status.
            new: the new status.
            uncounted: see `restarts`.
        """
        for role, reason, count in restarts(old, new, uncounted):
            self._restarts.labels(role=role, reason=reason).inc(count)
        for cause, count in failovers(old, new):
            self._takeovers.labels(cause=cause).inc(count)
        for seconds, histogram in (
            (restart_seconds(old, new), self._recover),
            (degraded_seconds(old, new), self._unreplicated),
        ):
            if seconds is not None:
                histogram.observe(seconds)
        self.record_status(key, new)

    def executed(self, actions: Iterable[Action], now: datetime) -> None:
        """Measure the failovers among the actions that took effect."""
        for action in actions:
            if isinstance(action, Apply) and action.reason is Reason.TAKE_OVER and action.since is not None:
                self._takeover_seconds.observe(max(0.0, (now - action.since).total_seconds()))

    def record_status(self, key: Key, status: Mapping[str, Any] | None) -> None:
        """Record a job's current status; None for a deleted job."""
        phase = str((status or {}).get("phase") or "")
        if since := unhealthy_since(status or {}):
            self._since[key] = since
        else:
            self._since.pop(key, None)
        before = self._phases.get(key)
        if before == phase:
            return
        if before:
            self._jobs.labels(phase=before).dec()
        if phase:
            self._jobs.labels(phase=phase).inc()
            self._phases[key] = phase
        else:
            self._phases.pop(key, None)

    def _longest(self, state: str) -> float:
        # A scrape runs in another thread, so it reads a copy.
        starts = [since[state] for since in list(self._since.values()) if state in since]
        return max(0.0, (self._clock() - min(starts)).total_seconds()) if starts else 0.0


def unhealthy_since(status: Mapping[str, Any]) -> dict[str, datetime]:
    """Return the states in UNHEALTHY_STATES that a job is in, with the start of each.

    Time for which a job was suspended or queued does not count, although its condition Running was false as well.
    """
    starts, active = {}, parse_time(status.get("startTime"))
    for state, (phases, condition, value) in UNHEALTHY_STATES.items():
        current = _condition(status, condition)
        since = parse_time(current.get("lastTransitionTime"))
        if status.get("phase") in phases and current.get("status") == value and since is not None:
            starts[state] = since if active is None else max(since, active)
    return starts


def restarts(
    old: Mapping[str, Any], new: Mapping[str, Any], uncounted: Mapping[str, str] = NO_CAUSES
) -> list[tuple[str, str, int]]:
    """Return role, reason and count of the restarts between two statuses of a job.

    Args:
        old: the earlier status.
        new: the later status.
        uncounted: by role, the cause of a failure that the status does not have, because it counts against no budget.
    """
    counts = []
    for role in ROLES:
        before, after = old.get(role) or {}, new.get(role) or {}
        count = int(after.get("restarts") or 0) - int(before.get("restarts") or 0)
        if count > 0:
            failure = after.get("lastFailure") or {}
            is_new = failure != (before.get("lastFailure") or {})
            reason = str(failure.get("reason") or "Unknown") if is_new else str(uncounted.get(role, REPLACED))
            counts.append((role, reason, count))
    return counts


def failovers(old: Mapping[str, Any], new: Mapping[str, Any]) -> list[tuple[str, int]]:
    """Return causes and counts of the failovers between two statuses of a job. The set of causes is small."""
    before = {s["index"]: int(s.get("takeovers") or 0) for s in old.get("shards") or ()}
    counts = []
    for shard in new.get("shards") or ():
        count = int(shard.get("takeovers") or 0) - before.get(shard["index"], 0)
        cause = str(shard.get("lastCause") or "")
        if count > 0:
            counts.append((next((c.value for c in LossCause if cause.startswith(c)), "other"), count))
    return counts


def restart_seconds(old: Mapping[str, Any], new: Mapping[str, Any]) -> float | None:
    """Return the seconds that a job which runs again was restarting; None otherwise."""
    is_running = _condition(new, Condition.RUNNING).get("status") == "True"
    return _ended(old, new, Condition.RESTARTING) if is_running else None


def degraded_seconds(old: Mapping[str, Any], new: Mapping[str, Any]) -> float | None:
    """Return the seconds that a job lacked standbys, once it has all of them again; None otherwise."""
    return _ended(old, new, Condition.DEGRADED)


def _ended(old: Mapping[str, Any], new: Mapping[str, Any], condition: Condition) -> float | None:
    """Return the seconds for which a condition was true that has become false; None otherwise."""
    before, after = (_condition(status, condition) for status in (old, new))
    begin, end = parse_time(before.get("lastTransitionTime")), parse_time(after.get("lastTransitionTime"))
    if (before.get("status"), after.get("status")) != ("True", "False") or begin is None or end is None:
        return None
    return (end - begin).total_seconds()


def _condition(status: Mapping[str, Any], kind: str) -> Mapping[str, Any]:
    return next((c for c in status.get("conditions") or () if c.get("type") == kind), {})
