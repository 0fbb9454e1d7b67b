"""How fast the passes over one job may follow each other, and which status may wait for company.

Brakes that may be lost without harm, none of which holds back what has gone wrong for longer than a tenth of a second:
a budget of writing passes (more of them mean that something undoes what we do); a rest after a pass over a large job
that found nothing to do, a longer one from pods that merely come up, one by one, each an event or three; and a wait for
good news: a status that says nothing but that more pods are up is told together with the next ones.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, Final

BURST: Final = 20
"""Passes that may write one after another as fast as they come."""
PASSES_PER_SECOND: Final = 2.0
"""Passes that may write in the long run. More of them mean that something undoes what we do."""
LARGE: Final = 50
"""Objects from which on a job is large: a pass over it costs milliseconds."""
REST: Final = 0.1
"""Seconds that a large job rests after a pass that found nothing to do."""
CALM: Final = 1.0
"""Seconds for which nobody looks at it, after such a pass, because of pods that merely come up."""
NEWS_WAIT: Final = 0.25
"""Seconds that the first good news waits for company; it doubles with every status of nothing but good news."""
MAX_NEWS_WAIT: Final = 4.0
"""Seconds that it is at most; and this long without such a status begins anew."""
UPS: Final = {"ready": 0, "replicas": None, "summary": None, "readyStandbys": 0, "members": None}
"""Fields of a role or shard that good news may change; those with a number here must not fall."""
ROLES: Final = ("ps", "worker", "chief", "evaluator")
_STARTING: Final = ("ContainerCreating", "PodInitializing")
COUNTED: Final = ("restarts", "jobRestarts", "takeovers", "replicaRecords", "activeSeconds", "completionTime")
"""Fields of a status that do not move while a job comes up."""


@dataclass
class Pace:
    """The brakes of one job."""

    at: datetime
    left: float = float(BURST)
    warned: bool = False
    idle_since: datetime | None = None
    """When the last pass over a large job found nothing to do."""
    news_since: datetime | None = None
    news_told: datetime | None = None
    news_count: int = 0

    def wait(self, now: datetime) -> float:
        """Seconds until the next pass."""
        gained = max(0.0, (now - self.at).total_seconds()) * PASSES_PER_SECOND
        self.left, self.at = min(float(BURST), self.left + gained), now
        return max(0.0, (1.0 - self.left) / PASSES_PER_SECOND, _left(self.idle_since, now, REST))

    @property
    def exhausted(self) -> bool:
        """The budget of writing passes is spent."""
        return self.left < 1.0

    def idle(self, objects: int, now: datetime) -> None:
        """A pass over so many objects found nothing to do."""
        self.idle_since = now if objects >= LARGE else None

    def patience(self, now: datetime) -> float:
        """Seconds for which a pod that merely comes up need not be looked at."""
        return _left(self.idle_since, now, CALM)

    def hold(self, old: Mapping[str, Any], new: Mapping[str, Any], now: datetime) -> float:
        """Seconds for which a new status is held back; 0 to write it now."""
        if not only_good_news(old, new):
            self.news_since = None
            return 0.0
        # A clock that was set back must not hold it for longer.
        if self.news_since is None or now < self.news_since:
            self.news_since = now
        if self.news_told is not None and not timedelta(0) <= now - self.news_told <= timedelta(
            seconds=2 * MAX_NEWS_WAIT
        ):
            self.news_count = 0
        wait: float = min(MAX_NEWS_WAIT, NEWS_WAIT * 2 ** min(self.news_count, 10))
        left = wait - (now - self.news_since).total_seconds()
        if left > 0:
            return left
        self.news_since, self.news_told, self.news_count = None, now, self.news_count + 1
        return 0.0


def merely_comes_up(pod: Mapping[str, Any]) -> bool:
    """Whether a pod as the watch shows it has only been made, placed or started, and nothing of it has ever ended."""
    status = pod.get("status") or {}
    conditions = {c.get("type"): c.get("status") for c in status.get("conditions") or ()}
    phase = status.get("phase", "Pending")
    if "deletionTimestamp" in pod["metadata"] or conditions.get("DisruptionTarget") == "True":
        return False
    # One that runs without being ready may have been.
    if phase != "Pending" and (phase, conditions.get("Ready")) != ("Running", "True"):
        return False
    containers = (*(status.get("initContainerStatuses") or ()), *(status.get("containerStatuses") or ()))
    return not any(c.get("restartCount") or _in_trouble(c.get("state") or {}) for c in containers)


def only_good_news(old: Mapping[str, Any], new: Mapping[str, Any]) -> bool:
    """Whether a status says no more than the stored one but that something else is up."""
    counted = (*ROLES, "shards", "standbySummary", "conditions")
    if any(old.get(k) != new.get(k) for k in old.keys() | new.keys() if k not in counted):
        return False
    if _told(old) != _told(new):
        return False
    before, after = old.get("shards") or [], new.get("shards") or []
    pairs = [(old.get(role) or {}, new.get(role) or {}) for role in ROLES]
    return len(before) == len(after) and all(_grows(*p) for p in (*pairs, *zip(before, after, strict=True)))


def only_comes_up(old: Mapping[str, Any], new: Mapping[str, Any]) -> bool:
    """Whether a status tells of a job's start and nothing else: nobody acts on it, and it may wait (turns.py)."""
    if new.get("phase") not in ("Pending", "Running") or old.get("phase") not in (None, "Pending", "Running"):
        return False
    if old and any(old.get(k) != new.get(k) for k in (*COUNTED, "observedGeneration", "term")):
        return False
    before = {c.get("type"): c.get("status") for c in old.get("conditions") or ()}
    for condition in new.get("conditions") or ():
        kind, status = condition.get("type"), condition.get("status")
        if kind == "Running":
            if status != "True" and (before.get(kind) == "True" or condition.get("reason") != "WaitingForPods"):
                return False
        elif kind not in ("Created", "CheckpointNotDurable") and status != before.get(kind, "False"):
            return False
    return True


def _in_trouble(state: Mapping[str, Any]) -> bool:
    why = (state.get("waiting") or {}).get("reason")
    return bool((state.get("terminated") or {}).get("exitCode")) or why not in (None, *_STARTING)


def _left(since: datetime | None, now: datetime, seconds: float) -> float:
    """What is left of so many seconds; nothing if the clock was set back."""
    left = seconds - (now - since).total_seconds() if since is not None else 0.0
    return left if 0.0 < left <= seconds else 0.0


def _told(status: Mapping[str, Any]) -> list[tuple[Any, ...]]:
    return [(c.get("type"), c.get("status"), c.get("reason")) for c in status.get("conditions") or ()]


def _grows(old: Mapping[str, Any], new: Mapping[str, Any]) -> bool:
    same = all(old.get(k) == new.get(k) for k in old.keys() | new.keys() if k not in UPS)
    return same and all(new.get(k, least) >= old.get(k, least) for k, least in UPS.items() if least is not None)
