"""A task's counters: plain numbers for its metrics, reports and summaries.

Pure; importing it imports no TensorFlow.
"""

import math
import time
from bisect import bisect_left
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

from pstraining.runtime.telemetry.aggregation import LINK, METRIC, RECEIVED, SAMPLES, SENT, STATE, WEIGHT, Counters

SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0)
UPDATES = (0.0, 1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0, 128.0, 256.0)


@dataclass(frozen=True)
class Traffic:
    """Bytes over a link since the start of the process."""

    sent: int = 0
    received: int = 0

    def __add__(self, other: "Traffic") -> "Traffic":
        return Traffic(self.sent + other.sent, self.received + other.received)

    def __sub__(self, other: "Traffic") -> "Traffic":
        return Traffic(self.sent - other.sent, self.received - other.received)


def total(links: Mapping[str, Traffic]) -> Traffic:
    """Return the sum over all links."""
    return sum(links.values(), Traffic())


class Histogram:
    """Counts observed values by range.

    Args:
        bounds: upper bounds of the ranges in ascending order; the last range has no bound.
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
        """Return upper bounds as text, each with the number of values up to it."""
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
        """Seconds from the end of a step to the end of the next."""
        self.staleness = Histogram(UPDATES)
        """Updates by other workers between this worker's pull and its update."""

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

    def report(
        self,
        links: Mapping[str, Traffic],
        metrics: dict[str, tuple[float, float]],
        state: Sequence[float] = (),
    ) -> Counters:
        """Return the counters for the chief.

        Args:
            links: bytes to and from every parameter server.
            metrics: for each metric of the program's own training step, the sum of its values times samples, and the
                number of samples.
            state: sums of the states of Keras' metrics.
        """
        moved = total(links)
        reported: Counters = {SAMPLES: self.samples, SENT: moved.sent, RECEIVED: moved.received}
        reported |= {LINK + peer: there.sent + there.received for peer, there in links.items()}
        for name, (value, weight) in metrics.items():
            reported |= {METRIC + name: value, WEIGHT + name: weight}
        reported |= {f"{STATE}{place}": value for place, value in enumerate(state) if value}
        return reported


@dataclass
class ChiefCounters:
    """The counters of the chief."""

    step: int = 0
    epoch: int = 0
    loss: float = math.nan
    workers: int = 0
    samples: float = 0.0
    """Samples that all workers have trained since the start of this chief."""
    sent: float = 0.0
    """Bytes from all workers to the parameter servers since the start of this chief."""
    received: float = 0.0
    skew: float = math.nan
    """Bytes between workers and the heaviest shard, as a multiple of the mean of all shards."""
    restores: int = 0
    takeovers: int = 0
    """Number of failovers: primaries were lost, and other members in sync continued."""
    replicated: bool = True
    """Whether every shard has all its members in sync."""
    checkpoints: int = 0
    checkpoint_failures: int = 0
    """Number of checkpoints that could not be written while training continued."""
    checkpoint_step: int = 0
    checkpoint_seconds: float = 0.0
    """Seconds that the last checkpoint took."""
    checkpoint_bytes: int | None = 0
    """Bytes of the last checkpoint; None if unknown."""
    checkpoint_time: float | None = None
    """Time of the last checkpoint, in seconds since 1970."""
    checkpoint_interval: float | None = None
    """Seconds from the last attempt at a checkpoint to the next."""
    scalars: dict[str, float] = field(default_factory=dict)
    """Logs of the last reported epoch, such as val_loss."""
    tables: dict[str, tuple[int, dict[str, int]]] = field(default_factory=dict)
    """Number of rows of each table with rows by key, and its numbers of keys and gradients by outcome."""

    _unreplicated: float = 0.0
    _since: float = 0.0
    _busy_since: float | None = None

    @contextmanager
    def busy(self) -> Iterator[None]:
        """Note that the chief's thread reads no step in the block, because it saves, restores, evaluates or waits."""
        former = self._busy_since
        self._busy_since = time.monotonic() if former is None else former
        try:
            yield
        finally:
            self._busy_since = former

    @property
    def busy_seconds(self) -> float:
        """Return the seconds since the outermost block of `busy` began; 0 outside such a block."""
        since = self._busy_since  # the thread of a scrape reads it once
        return 0.0 if since is None else time.monotonic() - since

    @property
    def unreplicated_seconds(self) -> float:
        """Return the total seconds in which a shard had fewer members in sync than configured."""
        return self._unreplicated + (0.0 if self.replicated else time.monotonic() - self._since)

    def on_new_view(self, *, lost: bool, whole: bool) -> None:
        """Record a new view.

        Args:
            lost: whether a primary was lost, and another member in sync continues.
            whole: whether all members are in sync.
        """
        self._unreplicated, self._since = self.unreplicated_seconds, time.monotonic()
        self.takeovers += lost
        self.replicated = whole

    def saved(self, step: int, seconds: float, size: int | None) -> None:
        """Record a checkpoint that was written. `size`: in bytes; None if unknown."""
        self.checkpoints += 1
        self.checkpoint_step, self.checkpoint_seconds, self.checkpoint_time = step, seconds, time.time()
        self.checkpoint_bytes = size
