"""A worker's reports and the chief's progress lines: at most one line per second."""

import math
import shutil
import sys
import time
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import Final

from pstraining.runtime.telemetry.events import event, overwrite, say

REPORT_SECONDS: Final = 1.0
"""Seconds between a worker's reports."""
PROGRESS_SECONDS: Final = 2.0
"""Seconds between the chief's progress lines."""
STALL_TIMES: Final = 10
"""Multiple of a step's usual duration after which training is reported as stalled."""
STALL_SECONDS: Final = 30.0
"""Seconds without a step before which training is never reported as stalled."""
NAMED: Final = 5
"""Maximum number of missing workers that a stall's text names."""
BAR: Final = 20
"""Characters in the bar on a terminal."""


class StepReports:
    """Reports of a worker's steps and the gaps between them.

    A report contains the longest gap since the last report and since the start. These show each stall without a line
    for every step.
    """

    def __init__(self, worker: int, clock: Callable[[], float] = time.monotonic) -> None:
        self.worker = worker
        self.steps = 0
        self.global_step = 0
        self.longest_gap = 0.0
        self._clock = clock
        self._recent_gap = 0.0
        self._last: float | None = None
        self._reported = clock()
        self._loss = math.nan
        self._staleness: list[int] = []  # of the updates since the last report

    def step(self, global_step: int, loss: float, staleness: int = 0) -> None:
        """Record an applied update; `staleness` updates of other workers were applied since its pull."""
        self._staleness.append(staleness)
        now = self._clock()
        if self._last is not None:
            gap = now - self._last
            self._recent_gap = max(self._recent_gap, gap)
            self.longest_gap = max(self.longest_gap, gap)
        self._last, self.global_step, self._loss = now, global_step, loss
        self.steps += 1
        if now - self._reported >= REPORT_SECONDS:
            self.report("worker")

    def report(self, name: str) -> None:
        """Print the numbers so far."""
        event(
            name,
            worker=self.worker,
            steps=self.steps,
            step=self.global_step,
            loss=self._loss,
            gap_seconds=round(self._recent_gap, 4),
            longest_gap_seconds=round(self.longest_gap, 4),
            staleness_mean=round(sum(self._staleness) / max(1, len(self._staleness)), 2),
            staleness_max=max(self._staleness, default=0),
        )
        self._reported, self._recent_gap, self._staleness = self._clock(), 0.0, []


@dataclass(frozen=True)
class Seen:
    """The job's progress as its chief observes it."""

    step: int
    loss: float = math.nan
    """Mean loss since the last line."""
    epoch: int = 0
    """The current epoch, from 0."""
    done: int = 0
    """Steps or splits done, in the unit of `Rate.total`."""
    samples: float = 0.0
    sent: float = 0.0
    """Bytes from all workers to the parameter servers."""
    received: float = 0.0


class Rate:
    """Progress lines: progress, speed since the last line, and the remaining time.

    Args:
        steps: number of steps in the job; None without a limit.
        epochs: number of epochs in the job; None if unknown. A single epoch is not shown.
        total: number of steps or splits in the job; None if unknown.
    """

    def __init__(
        self,
        steps: int | None,
        epochs: int | None = None,
        total: int | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.steps, self.epochs, self.total = steps, epochs, total
        self._clock = clock
        self._last: tuple[float, Seen] | None = None
        self._rates: dict[str, float] = {}

    def line(self, seen: Seen) -> str:
        """Return a progress line."""
        now = self._clock()
        if self._last is not None and now > self._last[0] and seen.step >= self._last[1].step:
            before, seconds = self._last[1], now - self._last[0]
            names = ("step", "done", "samples", "sent", "received")
            self._rates = {name: max(0.0, getattr(seen, name) - getattr(before, name)) / seconds for name in names}
        self._last = (now, seen)
        parts = [f"step {seen.step}" if self.steps is None else f"step {seen.step}/{self.steps}"]
        if self.epochs != 1:
            parts.append(f"epoch {seen.epoch + 1}" + (f"/{self.epochs}" if self.epochs else ""))
        if math.isfinite(seen.loss):
            parts.append(f"loss {seen.loss:.4f}")
        return "  ".join([*parts, *self._speed(seen)])

    def _speed(self, seen: Seen) -> list[str]:
        if not (rates := self._rates):
            return []
        found = [f"{rates['step']:.1f} steps/s"]
        if rates["samples"]:
            found.append(f"{rates['samples']:.0f} samples/s")
        if rates["sent"] or rates["received"]:
            found.append(f"up {_amount(rates['sent'])}/s  down {_amount(rates['received'])}/s")
        if (remaining := self.remaining(seen)) is not None:
            found.append(f"ETA {remaining:.0f} s")
        return found

    def remaining(self, seen: Seen) -> float | None:
        """Return the estimated seconds until the end, which is at the first limit; None if it is unknown."""
        limits = ((*limit, self._rates.get(name)) for name, limit in self._limits(seen).items())
        return min((max(0, limit - done) / rate for done, limit, rate in limits if rate), default=None)

    def speeds(self) -> dict[str, float]:
        """Return steps, samples and bytes per second between the last two lines."""
        names = {
            "steps_per_second": "step",
            "samples_per_second": "samples",
            "sent_bytes_per_second": "sent",
            "received_bytes_per_second": "received",
        }
        return {name: self._rates[rate] for name, rate in names.items() if self._rates}

    def fraction(self, seen: Seen) -> float | None:
        """Return the finished fraction of the job, from 0 to 1; None if unknown."""
        shares = [done / limit for done, limit in self._limits(seen).values()]
        return min(1.0, max(shares)) if shares else None

    def _limits(self, seen: Seen) -> dict[str, tuple[int, int]]:
        """Return the number done, and in the job, of each limit of training, by the name of its rate."""
        limits = {"step": (seen.step, self.steps), "done": (seen.done, self.total)}
        return {name: (done, limit) for name, (done, limit) in limits.items() if limit}


class StallDetector:
    """Detects that training makes no steps: none for STALL_TIMES the usual time of a step."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._step: int | None = None
        self._since = 0.0
        self._usual: float | None = None

    def observe(self, step: int, present: Collection[int], workers: int) -> str:
        """Return why training is stalled; empty while steps are applied.

        Args:
            step: the job's step now.
            present: indices of the workers that take part.
            workers: number of workers of the job.
        """
        now = self._clock()
        if self._step is None or step != self._step:
            if self._step is not None and step > self._step:
                seconds = (now - self._since) / (step - self._step)
                # A moving average: one slow step changes the usual duration little.
                self._usual = seconds if self._usual is None else self._usual + (seconds - self._usual) / 8
            self._step, self._since = step, now
            return ""
        waited = now - self._since
        if self._usual is None or waited < max(STALL_SECONDS, STALL_TIMES * self._usual):
            return ""
        usual = f"{self._usual:.0f}" if self._usual >= 10 else f"{self._usual:.2g}"
        return (
            f"No step since step {step} for more than {STALL_TIMES} times the usual {usual} s; "
            f"{_missing(sorted(set(range(workers)).difference(present)), workers)}."
        )


def _missing(absent: Sequence[int], workers: int) -> str:
    """Return the workers that training waits for, as text."""
    if not absent:
        return f"all {workers} workers take part, so one of them may wait for its data"
    named = ", ".join(f"worker-{index}" for index in absent[:NAMED])
    more = len(absent) - NAMED
    verb = "is" if len(absent) == 1 else "are"
    return f"{len(absent)} of {workers} workers {verb} missing: {named}" + (f" and {more} more" if more > 0 else "")


def _amount(number: float) -> str:
    """Return bytes as text with a suitable unit."""
    for unit in ("B", "kB", "MB"):
        if number < 1000:
            return f"{number:.3g} {unit}"
        number /= 1000
    return f"{number:.3g} GB"


def show(text: str, fraction: float | None) -> None:
    """Print the job's progress: on a terminal by rewriting one line with a bar, elsewhere as a new line."""
    if not getattr(sys.stdout, "isatty", bool)():  # a program's own stream may have no more than `write` and `flush`
        say(text)
        return
    columns = shutil.get_terminal_size().columns - 1
    filled = "" if fraction is None else "#" * round(fraction * BAR)
    bar = "" if fraction is None else f"[{filled:.<{BAR}}] {fraction:4.0%}  "
    overwrite((bar + text)[:columns])
