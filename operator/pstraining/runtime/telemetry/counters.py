"""What a task counts of its own work: plain numbers, from which its metrics, reports and summaries are made.

Pure; importing it imports no TensorFlow.
"""

import math
import time
from bisect import bisect_left
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from pstraining.runtime.telemetry.aggregation import LINK, METRIC, RECEIVED, SAMPLES, SENT, WEIGHT, Counters

SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0)
UPDATES = (0.0, 1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0, 128.0, 256.0)


@dataclass(frozen=True)
class Traffic:
    """What went over a link since the process began."""

    sent: int = 0
    received: int = 0

    def __add__(self, other: "Traffic") -> "Traffic":
        return Traffic(self.sent + other.sent, self.received + other.received)


def total(links: Mapping[str, Traffic]) -> Traffic:
    """All links together."""
    return sum(links.values(), Traffic())


class Histogram:
    """How often a value was in which range.

    Args:
        bounds: the upper bounds of the ranges, in order; one without a bound follows.
    """

    def __init__(self, bounds: Sequence[float]) -> None:
        self.bounds = tuple(bounds)
        self.counts = [0] * (len(self.bounds) + 1)
        self.sum = 0.0

    def observe(self, value: float) -> None:
        """Count a value."""
        self.counts[bisect_left(self.bounds, value)] += 1
        self.sum += value

    def cumulative(self) -> list[tuple[str, float]]:
        """Upper bounds, as text, with the number of values up to each."""
        names = [*(str(bound) for bound in self.bounds), "+Inf"]
        return [(name, float(sum(self.counts[: number + 1]))) for number, name in enumerate(names)]


class WorkerCounters:
    """The counters of a worker."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._last: float | None = None
        self.steps = self.samples = self.dropped = self.left_out = 0
        self.step = 0
        """The job's global step."""
        self.loss = math.nan
        self.longest_gap = 0.0
        self.seconds = Histogram(SECONDS)
        """From the end of a step to the end of the next."""
        self.staleness = Histogram(UPDATES)
        """Updates that others made between this worker's fetching of the parameters and its own update."""

    def begin(self) -> None:
        """Start a session; the time since the last step does not count."""
        self._last = None

    def record_step(self, step: int, loss: float, *, samples: int, applied: bool, staleness: int = 0) -> None:
        """Record a finished step; its batches are part of the parameters or dropped."""
        now = self._clock()
        if self._last is not None:
            self.seconds.observe(now - self._last)
            self.longest_gap = max(self.longest_gap, now - self._last)
        if applied:
            self.staleness.observe(staleness)
        self._last, self.step, self.loss = now, step, loss
        self.steps += applied
        self.dropped += not applied
        self.samples += samples if applied else 0

    def report(self, links: Mapping[str, Traffic], metrics: dict[str, tuple[float, float]]) -> Counters:
        """Return the counters for the chief.

        Args:
            links: bytes to and from every parameter server.
            metrics: of the program's own training step: sums of values times samples, and of samples.
        """
        moved = total(links)
        told: Counters = {SAMPLES: self.samples, SENT: moved.sent, RECEIVED: moved.received}
        told |= {LINK + peer: there.sent + there.received for peer, there in links.items()}
        for name, (value, weight) in metrics.items():
            told |= {METRIC + name: value, WEIGHT + name: weight}
        return told


@dataclass
class ChiefCounters:
    """The counters of the chief."""

    step: int = 0
    epoch: int = 0
    loss: float = math.nan
    workers: int = 0
    samples: float = 0.0
    """That all workers have trained since this chief began."""
    sent: float = 0.0
    """Bytes from all workers to the parameter servers since then."""
    received: float = 0.0
    skew: float = math.nan
    """What the heaviest shard's servers exchange with workers, as a multiple of the mean of all."""
    restores: int = 0
    takeovers: int = 0
    """How often members that had made every step were lost, and others went on."""
    replicated: bool = True
    """Whether every shard has all its members in sync."""
    checkpoints: int = 0
    checkpoint_failures: int = 0
    """How often one could not be written while training went on."""
    checkpoint_step: int = 0
    checkpoint_seconds: float = 0.0
    """How long the last one took."""
    checkpoint_bytes: int = 0
    checkpoint_time: float | None = None
    """When it was written, in seconds since 1970."""
    checkpoint_interval: float | None = None
    """Seconds from the last one that was tried to the next."""
    scalars: dict[str, float] = field(default_factory=dict)
    """Of the last epoch that was told: val_loss and so on."""

    _unreplicated: float = 0.0
    _since: float = 0.0

    @property
    def unreplicated_seconds(self) -> float:
        """How long some shard has had fewer members in sync than it may have, all in all."""
        return self._unreplicated + (0.0 if self.replicated else time.monotonic() - self._since)

    def on_new_view(self, *, lost: bool, whole: bool) -> None:
        """Record a new view.

        Args:
            lost: some that were are not any more.
            whole: all are.
        """
        self._unreplicated, self._since = self.unreplicated_seconds, time.monotonic()
        self.takeovers += lost
        self.replicated = whole

    def saved(self, step: int, seconds: float, folder: Path) -> None:
        """A checkpoint was written to a folder."""
        self.checkpoints += 1
        self.checkpoint_step, self.checkpoint_seconds, self.checkpoint_time = step, seconds, time.time()
        self.checkpoint_bytes = sum(file.stat().st_size for file in folder.iterdir())
