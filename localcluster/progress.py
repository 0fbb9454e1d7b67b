"""Progress for the user: one line per event, a regular line on running steps, and a table of times.

Lines are written to standard error: scripts can use commands that print a path on standard output.
"""

import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TextIO

HEARTBEAT_S = 10.0


@dataclass
class Step:
    """A running step."""

    name: str
    started: float
    detail: str = ""


@dataclass
class Progress:
    """Prints each step's start and end, and the running steps every ten seconds.

    Thread-safe: several steps may run at once.
    """

    out: TextIO = field(default_factory=lambda: sys.stderr)
    clock: Callable[[], float] = time.monotonic
    heartbeat_s: float = HEARTBEAT_S
    quiet: bool = False
    timings: list[tuple[str, float]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._begin = self.clock()
        self._lock = threading.Lock()
        self._active: list[Step] = []
        self._ticker: threading.Thread | None = None

    def say(self, text: str) -> None:
        """Print one line with the seconds since the start."""
        with self._lock:
            self._print(text)

    def _print(self, text: str) -> None:
        if not self.quiet:
            print(format_line(self.clock() - self._begin, text), file=self.out, flush=True)

    @contextmanager
    def step(self, name: str, *, announce: bool = True) -> Iterator[Step]:
        """Measure the time of the block for the table, also if it fails."""
        step = Step(name=name, started=self.clock())
        with self._lock:
            self._active.append(step)
            if announce:
                self._print(name)
        self._ensure_ticker()
        failed = True
        try:
            yield step
            failed = False
        finally:
            seconds = self.clock() - step.started
            with self._lock:
                self._active.remove(step)
                self.timings.append((name, seconds))
                if announce and (seconds >= 1 or failed):
                    word = "FAILED after" if failed else "done in"
                    self._print(f"{name}: {word} {format_seconds(seconds)}")

    def _ensure_ticker(self) -> None:
        with self._lock:
            if self._ticker is None and not self.quiet:
                self._ticker = threading.Thread(target=self._tick, daemon=True)
                self._ticker.start()

    def _tick(self) -> None:
        while True:
            time.sleep(self.heartbeat_s)
            with self._lock:
                now = self.clock()
                late = [step for step in self._active if now - step.started >= self.heartbeat_s]
                if late:
                    self._print(format_heartbeat(late, now))

    def table(self) -> str:
        """Return the table of the times of all steps so far."""
        return format_table(self.timings, total=self.clock() - self._begin)


def format_seconds(seconds: float) -> str:
    """Return seconds as text: 0.42 s, 7.3 s, 83 s."""
    if seconds < 1:
        return f"{seconds:.2f} s"
    return f"{seconds:.1f} s" if seconds < 10 else f"{seconds:.0f} s"


def format_line(elapsed: float, text: str) -> str:
    """Return one progress line."""
    return f"[{elapsed:5.0f}s] {text}"


def format_heartbeat(steps: Sequence[Step], now: float) -> str:
    """Return a line on the running steps, with their seconds and details."""
    parts = []
    for step in steps:
        detail = f", {step.detail}" if step.detail else ""
        parts.append(f"{step.name} ({format_seconds(now - step.started)}{detail})")
    return "... " + "; ".join(parts)


def format_table(timings: Sequence[tuple[str, float]], *, total: float) -> str:
    """Return the table that ``up`` prints at its end; steps below 50 ms are left out."""
    rows = [(name, seconds) for name, seconds in timings if seconds >= 0.05]
    width = max((len(name) for name, _ in [*rows, ("total (some overlap)", total)]), default=0)
    lines = [f"  {name:<{width}}  {seconds:7.1f} s" for name, seconds in rows]
    lines.append(f"  {'total (some overlap)':<{width}}  {total:7.1f} s")
    return "\n".join(lines)


def format_grid(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Return a plain text table with aligned columns."""
    widths = [max(len(str(line[i])) for line in [header, *rows]) for i in range(len(header))]
    lines = []
    for line in [header, *rows]:
        cells = [str(cell).ljust(width) for cell, width in zip(line, widths, strict=True)]
        lines.append("  ".join(cells).rstrip())
    return "\n".join(lines)
