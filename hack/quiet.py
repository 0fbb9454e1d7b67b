"""The terminal while layers run: one line that says how far they are; what they print is in a log, unless they fail."""

import re
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TextIO

from hack.pytest_progress import Count

EVERY_S = 30.0
"""Seconds between two lines where a line cannot be redrawn."""
LONGEST_FAILURES = 400
LONGEST_TAIL = 100
_SUMMARY = 100
"""Lines kept of the end when the failures are too many: pytest's list of what failed is there."""
_FAILURES = re.compile(r"^=+ (FAILURES|ERRORS) =+$")
_CRASH = re.compile(r"Fatal Python error: |Timeout \(\d+:\d\d:\d\d\)!$")
"""The first line of faulthandler's report of a fatal signal, and of a test that takes too long. A process of xdist has
no terminal on which pytest-timeout could report the same before it ends the process."""


@dataclass
class Line:
    """The progress line."""

    out: TextIO = field(default_factory=lambda: sys.stdout)
    clock: Callable[[], float] = time.monotonic
    _shown: bool = False
    _last: float | None = None

    def start(self) -> None:
        """A layer begins: the next line is due after EVERY_S."""
        self._last = self.clock()

    def show(self, text: str) -> None:
        """Redraw the line; where that is not possible print one now and then."""
        now = self.clock()
        if self.out.isatty():
            self.out.write(f"\r\x1b[K{text}")
            self.out.flush()
            self._shown = True
        elif self._last is None or now - self._last >= EVERY_S:
            print(text, file=self.out, flush=True)
            self._last = now

    def clear(self) -> None:
        """Make room for something that stays."""
        if self._shown:
            self.out.write("\r\x1b[K")
            self.out.flush()
            self._shown = False

    def say(self, text: str) -> None:
        """Print something that stays."""
        self.clear()
        print(text, file=self.out, flush=True)


def progress(layer: str, what: str, count: Count, seconds: float) -> str:
    """How far a layer is: `unit  1200/3300 tests, 1 failed  34 s`."""
    if count.total is not None:
        failed = f", {count.failed} failed" if count.failed else ""
        what = f"{what}  {count.done}/{count.total} tests{failed}".strip()
    return f"  {layer:<13} {what}  {seconds:.0f} s"


def failures(output: str) -> list[str]:
    """What to show of a failed run of pytest: from its failures or errors to the end, the middle left out if too long.

    A run that ended without such a section (a crash, a wrong option) shows its last lines.
    """
    lines = output.splitlines()
    start = next((number for number, line in enumerate(lines) if _FAILURES.match(line)), None)
    if start is None:
        return tail(output)
    found = [*crash(lines[:start]), *lines[start:]]
    if len(found) <= LONGEST_FAILURES:
        return found
    first = LONGEST_FAILURES - _SUMMARY - 1
    return [*found[:first], f"... {len(found) - LONGEST_FAILURES + 1} lines are in the log only", *found[-_SUMMARY:]]


def crash(lines: Sequence[str]) -> list[str]:
    """The stacks that a test process wrote as it died: pytest's own report has only the test's name."""
    start = next((number for number, line in enumerate(lines) if _CRASH.search(line)), len(lines))
    return list(lines[start : start + LONGEST_TAIL])


def tail(output: str) -> list[str]:
    """The last lines of a failed check."""
    return output.splitlines()[-LONGEST_TAIL:]


@dataclass
class Log:
    """The output of a layer."""

    path: Path

    def __post_init__(self) -> None:
        self.path.parent.mkdir(parents=True, exist_ok=True)
        self.path.write_bytes(b"")

    def begin(self, command: Sequence[str]) -> int:
        """Write a command's headline; the place behind it."""
        with self.path.open("ab") as file:
            file.write(f"$ {' '.join(command)}\n".encode())
            return file.tell()

    def add(self, output: bytes) -> None:
        """Write what a command printed."""
        with self.path.open("ab") as file:
            file.write(output)

    def since(self, start: int) -> str:
        """What was written from a place on."""
        with self.path.open("rb") as file:
            file.seek(start)
            return file.read().decode("utf-8", "replace")
