"""What may go wrong between the operator and the API server, and all the plans that follow from an undisturbed run."""

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum

from pstraining.api import names


@dataclass(frozen=True, order=True)
class Point:
    """One write of the operator: the n-th of its verb on that object."""

    verb: str
    kind: str
    name: str
    number: int

    def __str__(self) -> str:
        return f"{self.verb} {self.kind}/{self.name}" + (f" #{self.number}" if self.number > 1 else "")


class OnWrite(StrEnum):
    """A fault at one write."""

    CRASH_BEFORE = "crash before"
    CRASH_AFTER = "crash after"
    CRASH_TWICE = "crash before, and after the next"
    """The next operator dies as well, after its first write."""
    LOST = "answer lost"
    """Written, then the connection breaks."""
    CONFLICT = "409"
    TOO_MANY = "429"
    BROKEN = "500"
    AWAY = "503"
    HANGS = "hangs"
    """No answer at all, and nothing written."""
    LATE = "arrives late"
    """No answer; the request reaches the API server when the workload is over."""
    STALE = "crash after, old lists"
    """The next operator is first shown the lists of the past, and events only after a while."""


class OnWatch(StrEnum):
    """A fault of watches, all through a workload."""

    CLOSED = "closed"
    """The stream ends after every event."""
    GONE = "410"
    """Every second event is followed by 410: everything is listed again."""
    DROPPED = "dropped"
    """No event comes through at all; 410 after a while makes the operator list again."""
    DOUBLED = "doubled"
    """Every event is delivered again, and then the object's previous event, even if the object is deleted."""
    DELAYED = "delayed"
    REORDERED = "re-ordered"
    """Every event takes its own time; the order within a kind is kept, that between kinds is not."""
    SILENT = "silent"
    """The stream stays open and brings nothing, not even bookmarks; the liveness probe must notice."""


WORKLOADS_KINDS = ("statefulsets", "deployments", "jobs")
GROUPS: dict[str, tuple[str, ...]] = {
    "job": (names.PLURAL,),
    "pods": ("pods",),
    "workloads": WORKLOADS_KINDS,
    "services": ("services", "configmaps"),
    "queue": ("workloads",),
    "all": (names.PLURAL, "pods", *WORKLOADS_KINDS, "services", "configmaps", "workloads"),
}
"""Kinds that a watch fault strikes together."""

QUEUED = frozenset({"queue", "evict", "slice"})
"""The workloads whose job has a queue of Kueue."""
CRASHES = (OnWrite.CRASH_BEFORE, OnWrite.CRASH_AFTER, OnWrite.CRASH_TWICE, OnWrite.STALE)


@dataclass(frozen=True)
class Plan:
    """One disturbed run: what goes wrong, and where. Neither: the undisturbed run."""

    workload: str
    on_write: OnWrite | None = None
    at: Point | None = None
    on_watch: OnWatch | None = None
    group: str = ""
    seed: int = 0
    without: str = ""
    """A guard of the operator that is switched off."""

    @property
    def fault(self) -> str:
        """The class of the fault."""
        if self.on_write is not None:
            return str(self.on_write)
        return f"watch {self.on_watch}" if self.on_watch is not None else "none"

    @property
    def is_queued(self) -> bool:
        """Whether the job has a queue."""
        return self.workload in QUEUED

    @property
    def kinds(self) -> tuple[str, ...]:
        """The kinds whose watches or lists are disturbed."""
        return GROUPS.get(self.group, ())

    def __str__(self) -> str:
        where = f" at {self.at}" if self.at is not None else ""
        group = f" of {self.group}" if self.group else ""
        return f"{self.workload}: {self.fault}{group}{where}"


def plans(workload: str, before: Sequence[Point], own: Sequence[Point], seed: int) -> Iterator[Plan]:
    """Every plan for a workload.

    Args:
        workload: its name.
        before: the writes that bring the job up; they are the create workload's own, so they are only crashed at here.
        own: the writes that follow.
        seed: of what is random.
    """
    dice = random.Random(f"{seed} {workload}")
    for point in (*before, *own):
        yield Plan(workload, OnWrite.CRASH_BEFORE, point)
        yield Plan(workload, OnWrite.CRASH_AFTER, point)
    for fault in (f for f in OnWrite if f not in (OnWrite.CRASH_BEFORE, OnWrite.CRASH_AFTER, OnWrite.STALE)):
        for point in own:
            yield Plan(workload, fault, point)
    groups = [group for group in GROUPS if group != "queue" or workload in QUEUED]
    for number, point in enumerate(own):
        yield Plan(workload, OnWrite.STALE, point, group=groups[number % len(groups)])
    for on_watch in OnWatch:
        for group in groups:
            yield Plan(workload, on_watch=on_watch, group=group, seed=dice.randrange(10**6))


def thinned(found: Sequence[Plan], share: int, seed: int) -> list[Plan]:
    """Every crash before and after a write, and one in `share` of all other plans."""
    dice = random.Random(seed)
    always = (OnWrite.CRASH_BEFORE, OnWrite.CRASH_AFTER)
    return [p for p in found if dice.randrange(share) == 0 or p.on_write in always]
