"""What a task tells while it runs: one line a second at most, JSON for machines, plain words for people."""

import json
import math
import sys
import threading
import time
from collections.abc import Callable
from typing import Any, Final

REPORT_SECONDS: Final = 1.0
"""Seconds between a worker's reports."""
PROGRESS_SECONDS: Final = 2.0
"""Seconds between the chief's progress lines."""
_lock = threading.Lock()


def event(name: str, **fields: Any) -> None:
    """Print one JSON line, with the time in seconds since 1970 (UTC) and on the machine's monotonic clock."""
    clean = {
        key: None if isinstance(value, float) and not math.isfinite(value) else value for key, value in fields.items()
    }
    line = {"event": name, **clean, "time": round(time.time(), 3), "monotonic": round(time.monotonic(), 3)}
    _print(json.dumps(line))


def say(text: str) -> None:
    """Print one line for people."""
    _print(text)


def _print(text: str) -> None:
    with _lock:  # one write a line: threads and processes share the stream
        sys.stdout.write(text + "\n")
        sys.stdout.flush()


class StepReports:
    """A worker's steps and the gaps between them.

    A report carries the longest gap since the last report and since the start, so a reader finds a stall and its
    moment without a line for every step.
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

    def step(self, global_step: int, loss: float) -> None:
        """An update was applied."""
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
        )
        self._reported, self._recent_gap = self._clock(), 0.0


class Rate:
    """Steps per second over the last lines, and the time that is left."""

    def __init__(self, steps: int, clock: Callable[[], float] = time.monotonic) -> None:
        self.steps = steps
        self._clock = clock
        self._last: tuple[float, int] | None = None
        self._rate = math.nan

    def line(self, step: int, loss: float) -> str:
        """A progress line at this global step."""
        now = self._clock()
        if self._last is not None and now > self._last[0] and step >= self._last[1]:
            self._rate = (step - self._last[1]) / (now - self._last[0])
        self._last = (now, step)
        text = f"step {step}/{self.steps}"
        if math.isfinite(loss):
            text += f"  loss {loss:.4f}"
        if math.isfinite(self._rate):
            text += f"  {self._rate:.1f} steps/s"
            if self._rate > 0:
                text += f"  ETA {max(0, self.steps - step) / self._rate:.0f} s"
        return text
