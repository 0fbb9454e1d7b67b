"""The faults between the operator and the API server, and all plans that follow from an undisturbed run."""

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum

from pstraining.api import names


@dataclass(frozen=True, order=True)
class Point:
    """One write of the operator: the n-th write with this verb to this object."""

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
    """The next operator is killed as well, after its first write."""
    LOST = "answer lost"
    """The write is executed, then the connection breaks."""
    CONFLICT = "409"
    TOO_MANY = "429"
    BROKEN = "500"
    AWAY = "503"
    HANGS = "hangs"
    """The request gets no response, and is not executed."""
    LATE = "arrives late"
    """The request gets no response; it reaches the API server when the workload is over."""
    STALE = "crash after, old lists"
    """The next operator first gets outdated lists, and events only after a while."""


class OnWatch(StrEnum):
    """A fault of watches, throughout a workload."""

    CLOSED = "closed"
    """The stream ends after every event."""
    GONE = "410"
    """Every second event is followed by status 410, after which the operator lists everything again."""
    DROPPED = "dropped"
    """No event is delivered; status 410 after a while lets the operator list again."""
    DOUBLED = "doubled"
    """Every event is delivered twice, followed by the object's previous event, even if the object is deleted."""
    DELAYED = "delayed"
    REORDERED = "re-ordered"
    """Every event has its own delay; events of one kind keep their order, and events of different kinds do not."""
    SILENT = "silent"
    """The stream stays open without events and bookmarks; the liveness probe must detect this."""


WORKLOADS_KINDS = ("statefulsets", "deployments", "jobs")
GROUPS: dict[str, tuple[str, ...]] = {
    "job": (names.PLURAL,),
    "pods": ("pods",),
    "workloads": WORKLOADS_KINDS,
    "services": ("services", "configmaps"),
    "queue": ("workloads",),
    "all": (names.PLURAL, "pods", *WORKLOADS_KINDS, "services", "configmaps", "workloads"),
}
"""Kinds that a watch fault affects together."""

QUEUED = frozenset({"queue", "evict", "slice"})
"""Workloads whose job has a queue of Kueue."""
CRASHES = (OnWrite.CRASH_BEFORE, OnWrite.CRASH_AFTER, OnWrite.CRASH_TWICE, OnWrite.STALE)


@dataclass(frozen=True)
class Plan:
    """One run with a fault at one place, or without a fault."""

    workload: str
    on_write: OnWrite | None = None
    at: Point | None = None
    on_watch: OnWatch | None = None
    group: str = ""
    seed: int = 0
    without: str = ""
    """The operator's guard that is switched off."""

    @property
    def fault(self) -> str:
        """Return the class of the fault."""
        if self.on_write is not None:
            return str(self.on_write)
        return f"watch {self.on_watch}" if self.on_watch is not None else "none"

    @property
    def is_queued(self) -> bool:
        """Whether the job has a queue."""
        return self.workload in QUEUED

    @property
    def kinds(self) -> tuple[str, ...]:
        """Return the kinds whose watches or lists are disturbed."""
        return GROUPS.get(self.group, ())

    def __str__(self) -> str:
        where = f" at {self.at}" if self.at is not None else ""
        group = f" of {self.group}" if self.group else ""
        return f"{self.workload}: {self.fault}{group}{where}"


def plans(workload: str, before: Sequence[Point], own: Sequence[Point], seed: int) -> Iterator[Plan]:
    """Return every plan for a workload.

    Args:
        workload: its name.
        before: the writes that bring the job up. Only crashes strike at these, because the workload `create` has all
            other faults at them.
        own: the writes that follow.
        seed: of the random numbers.
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
    """Return every crash before and after a write, and one of `share` of the other plans."""
    dice = random.Random(seed)
    always = (OnWrite.CRASH_BEFORE, OnWrite.CRASH_AFTER)
    return [p for p in found if dice.randrange(share) == 0 or p.on_write in always]
