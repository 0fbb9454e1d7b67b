"""Runs other programs, and waits for conditions.

External commands run by ``run`` or ``run_logged``: the error of a failure has the command and its
output.
"""

import os
import shlex
import shutil
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TypeVar

from localcluster.errors import ClusterError

T = TypeVar("T")
TAIL_LINES = 25


def run(
    args: Sequence[str],
    *,
    check: bool = True,
    stdin: str | None = None,
    env: Mapping[str, str] | None = None,
    cwd: Path | None = None,
    timeout: float | None = 120,
) -> str:
    """Run a command and return its standard output.

    Raises:
        ClusterError: the program is missing, failed (unless ``check`` is false) or timed out.
    """
    try:
        done = subprocess.run(
            list(args),
            input=stdin,
            stdin=subprocess.DEVNULL if stdin is None else None,
            capture_output=True,
            text=True,
            errors="replace",
            env=None if env is None else {**os.environ, **env},
            cwd=cwd,
            timeout=timeout,
            check=False,
        )
    except FileNotFoundError as error:
        raise ClusterError(f"{args[0]} is not installed") from error
    except subprocess.TimeoutExpired as error:
        raise ClusterError(f"{shlex.join(args)} did not end within {timeout} s") from error
    if check and done.returncode != 0:
        output = (done.stderr.strip() or done.stdout.strip())[-3000:]
        raise ClusterError(f"{shlex.join(args)} ended with {done.returncode}: {output}")
    return done.stdout


def run_logged(
    args: Sequence[str],
    log: Path,
    *,
    what: str,
    env: Mapping[str, str] | None = None,
    cwd: Path | None = None,
    on_line: Callable[[str], None] | None = None,
) -> None:
    """Run a long command with its output in ``log``; on failure show the end of that file.

    Args:
        on_line: called with every line of output, for progress.
    """
    log.parent.mkdir(parents=True, exist_ok=True)
    with log.open("w", encoding="utf-8", errors="replace") as out:
        out.write(f"$ {shlex.join(args)}\n")
        out.flush()
        with subprocess.Popen(
            list(args),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            env=None if env is None else {**os.environ, **env},
            cwd=cwd,
        ) as process:
            assert process.stdout is not None
            for line in process.stdout:
                out.write(line)
                if on_line is not None:
                    on_line(line)
    if process.returncode != 0:
        raise ClusterError(f"{what} failed ({process.returncode}); {log_hint(log)}")


def log_hint(log: Path) -> str:
    """Return the end of an error's text: the path of a log, and its last lines."""
    return f"log: {log}\n{tail(log)}"


def tail(log: Path) -> str:
    """Return the last lines of a log, indented, or a note that the log cannot be read."""
    try:
        with log.open("rb") as stream:
            stream.seek(max(0, log.stat().st_size - 16_384))
            text = stream.read().decode(errors="replace")
    except OSError:
        return "  (no log)"
    return "\n".join(f"  | {line[:300]}" for line in text.splitlines()[-TAIL_LINES:])


def wait_for(
    probe: Callable[[], T | None],
    *,
    what: str,
    deadline_s: float,
    interval_s: float = 0.1,
    hint: Callable[[], str] = lambda: "",
    abort: Callable[[], str | None] = lambda: None,
) -> T:
    """Call ``probe`` until it returns a true value, and return that value.

    Args:
        hint: returns further text for the error.
        abort: returns a reason to end the wait, such as the end of the process; None to continue.

    Raises:
        ClusterError: the deadline has passed, or ``abort`` returned a reason.
    """
    end = time.monotonic() + deadline_s
    while True:
        value = probe()
        if value:
            return value
        reason = abort()
        if reason:
            raise ClusterError(f"{what}: {reason}\n{hint()}")
        if time.monotonic() > end:
            raise ClusterError(f"{what}: not within {deadline_s:.0f} s\n{hint()}")
        time.sleep(interval_s)


def have(program: str) -> bool:
    """Return whether a program is on PATH, or in a system folder that a user's PATH may lack."""
    return shutil.which(program, path=system_path()) is not None


def system_path() -> str:
    """Return PATH with the system folders, including those of iptables and similar programs."""
    known = os.environ.get("PATH", "").split(":")
    extra = ["/usr/local/sbin", "/usr/sbin", "/sbin", "/usr/local/bin", "/usr/bin", "/bin"]
    return ":".join(part for part in [*known, *[e for e in extra if e not in known]] if part)
