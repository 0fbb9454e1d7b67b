"""Commands with a time limit, and with time for their clean-up after an interrupt."""

import signal
import subprocess
import tempfile
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType
from typing import IO

from hack.layers import ROOT

CLEAN_UP_S = 120
"""Seconds for the clean-up of an interrupted command."""
LOOK_S = 0.5
"""Seconds between two checks of a command's progress."""
POLL_S = 0.05
"""Seconds between two checks of commands that run at the same time."""


class EndlessError(Exception):
    """A command exceeded its time limit and was ended."""


class TerminatedError(KeyboardInterrupt):
    """SIGTERM, which unlike Ctrl-C is sent to this process only, and not to its children."""


def run_child(
    command: Sequence[str],
    environment: Mapping[str, str],
    longest_s: float,
    *,
    out: IO[bytes] | None = None,
    look: Callable[[], None] = lambda: None,
) -> int:
    """Run a command in the root of the repository, and return its exit status.

    After an interrupt the command has CLEAN_UP_S for its clean-up.

    Args:
        command: the command line.
        environment: the command's variables.
        longest_s: the time limit in seconds.
        out: the file for the output; None: this process's output.
        look: called every LOOK_S while the command runs.

    Raises:
        EndlessError: the command exceeded the time limit.
    """
    errors = None if out is None else subprocess.STDOUT
    with subprocess.Popen(command, cwd=ROOT, env=environment, stdout=out, stderr=errors) as process:
        try:
            return _watched(process, longest_s, look)
        except subprocess.TimeoutExpired:
            end(process, interrupt=True)
            raise EndlessError(f"{Path(command[0]).name} was ended after {longest_s:g} s") from None
        except KeyboardInterrupt as interrupt:
            end(process, interrupt=isinstance(interrupt, TerminatedError))
            raise


@dataclass(frozen=True)
class Ended:
    """A finished command."""

    command: Sequence[str]
    code: int
    """Its exit status."""
    output: bytes
    """Its output, including errors."""


@dataclass
class _Running:
    """A command that runs, with its output in a file without a name."""

    command: Sequence[str]
    environment: Mapping[str, str]
    out: IO[bytes] = field(default_factory=tempfile.TemporaryFile)
    began: float = field(default_factory=time.monotonic)
    process: "subprocess.Popen[bytes]" = field(init=False)

    def __post_init__(self) -> None:
        self.process = subprocess.Popen(
            self.command, cwd=ROOT, env=self.environment, stdout=self.out, stderr=subprocess.STDOUT
        )

    def ended(self) -> Ended:
        """Return its exit status and output, after its end."""
        with self.out:
            self.out.seek(0)
            return Ended(self.command, self.process.wait(), self.out.read())


def run_children(
    commands: Sequence[Sequence[str]],
    environment: Mapping[str, str],
    longest_s: float,
    *,
    at_once: int,
    report: Callable[[Ended], None],
    look: Callable[[], None] = lambda: None,
) -> None:
    """Run commands to their end, some of them at the same time; when interrupted, let them clean up first.

    Args:
        commands: the command lines, started in this order in the root of the repository.
        environment: their variables.
        longest_s: seconds after which a command is ended, and with it the others.
        at_once: the maximum number of commands at the same time.
        report: called with each command at its end.
        look: called every POLL_S while they run.

    Raises:
        EndlessError: one took longer than longest_s. It has been reported, with its output so far.
    """
    waiting = deque(commands)
    running: list[_Running] = []
    try:
        while waiting or running:
            while waiting and len(running) < at_once:
                running.append(_Running(waiting.popleft(), environment))
            for child in [child for child in running if child.process.poll() is not None]:
                running.remove(child)
                report(child.ended())
            look()
            if late := next((c for c in running if time.monotonic() - c.began > longest_s), None):
                end(*(child.process for child in running), interrupt=True)
                report(late.ended())
                raise EndlessError(f"{Path(late.command[0]).name} was ended after {longest_s:g} s")
            time.sleep(POLL_S if running else 0)
    except KeyboardInterrupt as interrupt:
        end(*(child.process for child in running), interrupt=isinstance(interrupt, TerminatedError))
        raise


def _watched(process: subprocess.Popen[bytes], longest_s: float, look: Callable[[], None]) -> int:
    """Wait for a process and return its exit status; raise TimeoutExpired as Popen.wait does."""
    deadline = time.monotonic() + longest_s
    while True:
        left = deadline - time.monotonic()
        try:
            return process.wait(max(0.0, min(LOOK_S, left)))
        except subprocess.TimeoutExpired:
            if left <= LOOK_S:
                raise
        look()


def end(*processes: "subprocess.Popen[bytes]", interrupt: bool) -> None:
    """Wait for processes that were interrupted, or are interrupted here, and that get some time for their clean-up."""
    for process in processes if interrupt else ():
        process.send_signal(signal.SIGINT)
    deadline = time.monotonic() + CLEAN_UP_S
    for process in processes:
        try:
            process.wait(max(0.0, deadline - time.monotonic()))
        except subprocess.TimeoutExpired:
            process.kill()


def interrupted(_signal: int, _frame: FrameType | None) -> None:
    """Handle SIGTERM as Ctrl-C: the run ends with its clean-up."""
    raise TerminatedError
