"""The terminal while layers run: a progress line, and the output of failures. All other output is in a log."""

import re
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TextIO

from hack.pytest_progress import Count

EVERY_S = 30.0
"""Seconds between two lines if the output is not a terminal."""
LONGEST_FAILURES = 400
LONGEST_TAIL = 100
_SUMMARY = 100
"""Last lines that are kept of many failures; pytest's list of failed tests is among them."""
_FAILURES = re.compile(r"^=+ (FAILURES|ERRORS) =+$")
_CRASH = re.compile(r"Fatal Python error: |Timeout \(\d+:\d\d:\d\d\)!$")
"""The first line of faulthandler's report on a fatal signal, and on a test that exceeds its time. In a process of xdist
pytest-timeout has no terminal for this report before it ends the process."""


@dataclass
class Line:
    """The progress line."""

    out: TextIO = field(default_factory=lambda: sys.stdout)
    clock: Callable[[], float] = time.monotonic
    _shown: bool = False
    _last: float | None = None

    def start(self) -> None:
        """Note the start of a layer: the next line is printed after EVERY_S."""
        self._last = self.clock()

    def show(self, text: str) -> None:
        """Redraw the line; without a terminal, print a line every EVERY_S."""
        now = self.clock()
        if self.out.isatty():
            self.out.write(f"\r\x1b[K{text}")
            self.out.flush()
            self._shown = True
        elif self._last is None or now - self._last >= EVERY_S:
            print(text, file=self.out, flush=True)
            self._last = now

    def clear(self) -> None:
        """Erase the progress line."""
        if self._shown:
            self.out.write("\r\x1b[K")
            self.out.flush()
            self._shown = False

    def say(self, text: str) -> None:
        """Erase the progress line, and print a permanent one."""
        self.clear()
        print(text, file=self.out, flush=True)


def progress(layer: str, what: str, count: Count, seconds: float) -> str:
    """Return a layer's progress line: `unit  1200/3300 tests, 1 failed  34 s`."""
    if count.total is not None:
        failed = f", {count.failed} failed" if count.failed else ""
        what = f"{what}  {count.done}/{count.total} tests{failed}".strip()
    return f"  {layer:<13} {what}  {seconds:.0f} s"


def failures(output: str) -> list[str]:
    """Return the relevant lines of a failed run of pytest: from its failures or errors to the end.

    The middle of a long text is left out. Without a section of failures, as after a crash, it is the last lines.
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
    """Return the stacks that a crashing test process wrote; pytest's report has only the test's name."""
    start = next((number for number, line in enumerate(lines) if _CRASH.search(line)), len(lines))
    return list(lines[start : start + LONGEST_TAIL])


def tail(output: str) -> list[str]:
    """Return the last lines of a failed check's output."""
    return output.splitlines()[-LONGEST_TAIL:]


@dataclass
class Log:
    """The output of a layer."""

    path: Path

    def __post_init__(self) -> None:
        self.path.parent.mkdir(parents=True, exist_ok=True)
        self.path.write_bytes(b"")

    def begin(self, command: Sequence[str]) -> int:
        """Write the line of a command, and return the position after it."""
        with self.path.open("ab") as file:
            file.write(f"$ {' '.join(command)}\n".encode())
            return file.tell()

    def add(self, output: bytes) -> None:
        """Write what a command printed."""
        with self.path.open("ab") as file:
            file.write(output)

    def since(self, start: int) -> str:
        """Return the text from a position on."""
        with self.path.open("rb") as file:
            file.seek(start)
            return file.read().decode("utf-8", "replace")
