"""Limits how fast passes over one job follow each other, and delays statuses that only report progress.

The limits are kept in memory and may be lost without harm. No failure is delayed by more than a tenth of a second:

- a token bucket of writing passes: more passes mean that another writer undoes our writes;
- a rest after a pass over a large job that wrote nothing;
- a delay for events of pods that only start, as each pod sends one to three of them; longer for a large job;
- a growing delay for statuses that only report more ready pods, so that one write reports several.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, Final

from pstraining.core.policies.spec_warnings import CORRECTED

BURST: Final = 20
"""Writing passes that may follow each other without a delay."""
PASSES_PER_SECOND: Final = 2.0
"""Writing passes per second in the long run."""
LARGE_JOB_OBJECT_COUNT: Final = 50
"""Number of objects from which a job counts as large: a pass over it takes milliseconds."""
IDLE_REST_SECONDS: Final = 0.1
"""Seconds between an idle pass over a large job and the next pass."""
STARTUP_DELAY_SECONDS: Final = 1.0
"""Seconds after an idle pass for which events of starting pods cause no pass over a large job."""
STARTUP_DELAY_SECONDS_MIN: Final = 0.25
"""Seconds for which events of starting pods of any job wait: one pass then handles several."""
PROGRESS_DELAY_SECONDS: Final = 0.25
"""Seconds that the first progress-only status is delayed; the delay doubles with each of them."""
PROGRESS_DELAY_SECONDS_MAX: Final = 4.0
"""Upper bound of this delay. After twice this time without such a status the delay starts again at its minimum."""
PROGRESS_FIELDS: Final = {"ready": 0, "replicas": None, "summary": None, "readyStandbys": 0, "members": None}
"""Fields of a role or shard that progress may change. A field with a number must not decrease; the number is its
default."""
ROLES: Final = ("ps", "worker", "chief", "evaluator")
_STARTING: Final = ("ContainerCreating", "PodInitializing")
STABLE_FIELDS: Final = (
    "restarts",
    "jobRestarts",
    "takeovers",
    "replicaRecords",
    "packedRecords",
    "autoscaling",
    "activeSeconds",
    "completionTime",
)
"""Fields of a status that do not change while a job starts."""


@dataclass
class RateLimit:
    """The limits of one job."""

    refilled_at: datetime
    tokens: float = float(BURST)
    """Writing passes that may start now."""
    warned: bool = False
    """Whether the log has the warning about too many writing passes."""
    idle_since: datetime | None = None
    """Time of the last pass, if it was idle and the job is large."""
    progress_since: datetime | None = None
    """Time of the oldest progress that is not written yet."""
    progress_written_at: datetime | None = None
    """Time of the last written progress-only status."""
    progress_count: int = 0
    """Progress-only statuses written in a row."""

    def wait(self, now: datetime) -> float:
        """Return the seconds until the next pass may start."""
        gained = max(0.0, (now - self.refilled_at).total_seconds()) * PASSES_PER_SECOND
        self.tokens, self.refilled_at = min(float(BURST), self.tokens + gained), now
        return max(0.0, (1.0 - self.tokens) / PASSES_PER_SECOND, _remaining(self.idle_since, now, IDLE_REST_SECONDS))

    @property
    def is_exhausted(self) -> bool:
        """Whether no writing pass may start now."""
        return self.tokens < 1.0

    def record_idle_pass(self, object_count: int, now: datetime) -> None:
        """Record a pass over a job with this many objects that wrote nothing."""
        self.idle_since = now if object_count >= LARGE_JOB_OBJECT_COUNT else None

    def startup_delay(self, now: datetime) -> float:
        """Return the seconds for which an event of a starting pod needs no pass."""
        return max(STARTUP_DELAY_SECONDS_MIN, _remaining(self.idle_since, now, STARTUP_DELAY_SECONDS))

    def progress_delay(self, old: Mapping[str, Any], new: Mapping[str, Any], now: datetime) -> float:
        """Return the seconds for which a new status is delayed; 0 to write it now."""
        if not is_progress_only(old, new):
            self.progress_since = None
            return 0.0
        # A clock that was set back must not prolong the delay.
        if self.progress_since is None or now < self.progress_since:
            self.progress_since = now
        if self.progress_written_at is not None and not timedelta(0) <= now - self.progress_written_at <= timedelta(
            seconds=2 * PROGRESS_DELAY_SECONDS_MAX
        ):
            self.progress_count = 0
        wait: float = min(PROGRESS_DELAY_SECONDS_MAX, PROGRESS_DELAY_SECONDS * 2 ** min(self.progress_count, 10))
        remaining = wait - (now - self.progress_since).total_seconds()
        if remaining > 0:
            return remaining
        self.progress_since, self.progress_written_at, self.progress_count = None, now, self.progress_count + 1
        return 0.0


def is_starting(pod: Mapping[str, Any]) -> bool:
    """Whether a pod has only been created, scheduled or started, and none of its containers has ever ended."""
    status = pod.get("status") or {}
    conditions = {c.get("type"): c.get("status") for c in status.get("conditions") or ()}
    phase = status.get("phase", "Pending")
    if "deletionTimestamp" in pod["metadata"] or conditions.get("DisruptionTarget") == "True":
        return False
    # A running pod that is not ready may have been ready earlier.
    if phase != "Pending" and (phase, conditions.get("Ready")) != ("Running", "True"):
        return False
    containers = (*(status.get("initContainerStatuses") or ()), *(status.get("containerStatuses") or ()))
    return not any(c.get("restartCount") or _has_problem(c.get("state") or {}) for c in containers)


def is_progress_only(old: Mapping[str, Any], new: Mapping[str, Any]) -> bool:
    """Whether a status differs from the stored one only by more ready pods."""
    compared_below = (*ROLES, "shards", "standbySummary", "conditions")
    if any(old.get(k) != new.get(k) for k in old.keys() | new.keys() if k not in compared_below):
        return False
    if _condition_states(old) != _condition_states(new):
        return False
    before, after = old.get("shards") or [], new.get("shards") or []
    pairs = [(old.get(role) or {}, new.get(role) or {}) for role in ROLES]
    return len(before) == len(after) and all(_grows(*p) for p in (*pairs, *zip(before, after, strict=True)))


def is_startup_only(old: Mapping[str, Any], new: Mapping[str, Any]) -> bool:
    """Whether a status only reports the start of a job. Nothing depends on it, so it may wait (status_queue.py)."""
    if new.get("phase") not in ("Pending", "Running") or old.get("phase") not in (None, "Pending", "Running"):
        return False
    if old and any(old.get(k) != new.get(k) for k in (*STABLE_FIELDS, "observedGeneration", "term")):
        return False
    before = {c.get("type"): c.get("status") for c in old.get("conditions") or ()}
    for condition in new.get("conditions") or ():
        kind, status = condition.get("type"), condition.get("status")
        if kind == "Running":
            if status != "True" and (before.get(kind) == "True" or condition.get("reason") != "WaitingForPods"):
                return False
        elif kind not in ("Created", *CORRECTED) and status != before.get(kind, "False"):
            return False
    return True


def _has_problem(state: Mapping[str, Any]) -> bool:
    reason = (state.get("waiting") or {}).get("reason")
    return bool((state.get("terminated") or {}).get("exitCode")) or reason not in (None, *_STARTING)


def _remaining(since: datetime | None, now: datetime, seconds: float) -> float:
    """Return the part of a delay that remains; 0 if the clock was set back."""
    remaining = seconds - (now - since).total_seconds() if since is not None else 0.0
    return remaining if 0.0 < remaining <= seconds else 0.0


def _condition_states(status: Mapping[str, Any]) -> list[tuple[Any, ...]]:
    return [(c.get("type"), c.get("status"), c.get("reason")) for c in status.get("conditions") or ()]


def _grows(old: Mapping[str, Any], new: Mapping[str, Any]) -> bool:
    same = all(old.get(k) == new.get(k) for k in old.keys() | new.keys() if k not in PROGRESS_FIELDS)
    return same and all(
        new.get(k, least) >= old.get(k, least) for k, least in PROGRESS_FIELDS.items() if least is not None
    )
