"""Commands that are run to their end, or ended: with a limit of time, and with time to clean up after Ctrl-C."""

import signal
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import FrameType
from typing import IO

from hack.layers import ROOT

CLEAN_UP_S = 120
"""Seconds that an interrupted command has for its own clean-up."""
LOOK_S = 0.5
"""Seconds between two checks of a command's progress."""


class EndlessError(Exception):
    """A command took too long, and was ended."""


class TerminatedError(KeyboardInterrupt):
    """SIGTERM: like Ctrl-C, but sent only to this process and not to its children."""


def run_child(
    command: Sequence[str],
    environment: Mapping[str, str],
    longest_s: float,
    *,
    out: IO[bytes] | None = None,
    look: Callable[[], None] = lambda: None,
) -> int:
    """Run a command to its end; when interrupted, let it clean up first. Its exit status.

    Args:
        command: what to run, in the root of the repository.
        environment: its variables.
        longest_s: seconds after which it is ended.
        out: where its output goes; without it, where ours goes.
        look: called now and then while it runs.

    Raises:
        EndlessError: it took longer than longest_s.
    """
    errors = None if out is None else subprocess.STDOUT
    with subprocess.Popen(command, cwd=ROOT, env=environment, stdout=out, stderr=errors) as process:
        try:
            return _watched(process, longest_s, look)
        except subprocess.TimeoutExpired:
            end(process, report=True)
            raise EndlessError(f"{Path(command[0]).name} was ended after {longest_s:g} s") from None
        except KeyboardInterrupt as interrupt:
            end(process, report=isinstance(interrupt, TerminatedError))
            raise


def _watched(process: subprocess.Popen[bytes], longest_s: float, look: Callable[[], None]) -> int:
    """Its exit status; raises TimeoutExpired like Popen.wait."""
    deadline = time.monotonic() + longest_s
    while True:
        left = deadline - time.monotonic()
        try:
            return process.wait(max(0.0, min(LOOK_S, left)))
        except subprocess.TimeoutExpired:
            if left <= LOOK_S:
                raise
        look()


def end(process: subprocess.Popen[bytes], *, report: bool) -> None:
    """Wait for a process that was interrupted, or is interrupted here, and has some time to clean up."""
    if report:
        process.send_signal(signal.SIGINT)
    try:
        process.wait(CLEAN_UP_S)
    except subprocess.TimeoutExpired:
        process.kill()


def interrupted(_signal: int, _frame: FrameType | None) -> None:
    """SIGTERM ends the run like Ctrl-C: with everything taken down."""
    raise TerminatedError
