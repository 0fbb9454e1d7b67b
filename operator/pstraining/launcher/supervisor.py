"""Runs one command at a time: forwards signals, reaps children, and ends all processes of the command.

This is one of the launcher's files. In a pod it is beside launch.py, and it imports only Python 3.8's standard library.
"""

from __future__ import annotations

import ctypes
import errno
import os
import select
import signal
import subprocess
import time
from contextlib import suppress
from typing import TYPE_CHECKING, Callable, Mapping  # noqa: UP035 - Python 3.8

if TYPE_CHECKING or __package__:
    from .contract import ExitError
else:
    from contract import ExitError

SYSTEMD_STOP = 37
"""SIGRTMIN+3 in container runtimes: the signal to stop of images with systemd, which other programs do not know."""
STOP_SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGQUIT, SYSTEMD_STOP)
SIGNALS = (*STOP_SIGNALS, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2, signal.SIGCHLD)
CHECK_SECONDS = 0.5
"""Seconds between two checks whether a command must be killed."""
KILL_SECONDS = 5
"""Seconds within which the processes of an ended command must disappear after SIGKILL."""
LONGEST_TEXT = 128 * 1024
"""Bytes that Linux takes in one variable or argument, with its name and the byte 0 at its end."""
PR_SET_PDEATHSIG, PR_SET_CHILD_SUBREAPER = 1, 36


def _cause(error: OSError, env: Mapping[str, str]) -> str:
    """Return why a command cannot be started, and the way out."""
    size = len(env.get("TF_CONFIG", ""))
    if error.errno == errno.E2BIG and size + len("TF_CONFIG=") >= LONGEST_TEXT:
        limit = f"Linux takes at most {LONGEST_TEXT:,} in one variable or argument"
        return f"TF_CONFIG has {size:,} bytes, and {limit}; use fewer tasks, or a shorter name of the job"
    return f"{error.strerror}; check the container's command and image"


def next_delay(delay: float, lived: float) -> float:
    """Return the seconds before a program runs again: 0, or 0.1 doubling to 5 for a program that ends within 2 s."""
    return 0 if lived >= 2 else min(5, max(0.1, delay * 2))


def _kill_adopted() -> bool:
    """Kill the processes that this one has adopted; return whether it has any.

    An init such as `tini` starts its program in a process group of its own. When the init is killed, the program stays.
    """
    found: list[str] = []
    with suppress(OSError), open(f"/proc/self/task/{os.getpid()}/children", encoding="ascii") as file:
        found = file.read().split()
    for pid in found:
        with suppress(ProcessLookupError, PermissionError):
            os.kill(int(pid), signal.SIGKILL)
    return bool(found)


class Supervisor:
    """Runs commands from the main thread, which handles signals and children while it sleeps in `wait`."""

    def __init__(self) -> None:
        """Install the signal handlers and adopt orphaned processes."""
        self.stopped_by = 0
        """The signal on which the launcher stops; 0 before."""
        self.before_stop: Callable[[], object] = lambda: None
        """Called after a stop signal has arrived, before it is forwarded."""
        self.must_stop = False
        """Whether a stop signal has arrived, which `wait` may not have handled yet."""
        self.was_cut_short = False
        """Whether the last command was stopped because it was over, before it ended by itself."""
        self._pid, self._code = 0, -1
        self._signals, wakeup = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        # Python writes the number of each signal to the pipe, one byte each.
        signal.set_wakeup_fd(wakeup, warn_on_full_buffer=False)
        for number in SIGNALS:
            signal.signal(number, self._arrived)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, STOP_SIGNALS)  # launch.py has blocked them until now
        self._in_child: Callable[[], object] | None = None
        # Orphans are adopted, and the command dies with the launcher. For pid 1 the kernel does both.
        with suppress(OSError, AttributeError):
            prctl = ctypes.CDLL(None).prctl
            if os.getpid() != 1 and prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) == 0:
                self._in_child = lambda: prctl(PR_SET_PDEATHSIG, int(signal.SIGKILL), 0, 0, 0)

    @property
    def is_running(self) -> bool:
        """Whether a command runs."""
        return self._pid != 0

    def wait(self, seconds: float | None = None) -> None:
        """Sleep until a signal arrives or the time is over.

        Raises:
            ExitError: the launcher has received the signal to stop, and no command runs.
        """
        is_readable = select.select([self._signals], [], [], seconds)[0]
        for number in os.read(self._signals, 4096) if is_readable else b"":
            if number == signal.SIGCHLD:
                self._reap()
            else:
                sent = int(signal.SIGTERM) if number == SYSTEMD_STOP else number
                if number in STOP_SIGNALS:
                    self.stopped_by = sent
                    self.before_stop()
                self._signal_group(sent)
        if self.stopped_by and not self._pid:
            raise ExitError(128 + self.stopped_by, "")

    def run(
        self,
        command: list[str],
        env: Mapping[str, str],
        is_over: Callable[[], bool] | None = None,
        stop_seconds: float = 0,
    ) -> tuple[int, float]:
        """Run a command in a new process group, and end all processes that it leaves behind afterwards.

        Args:
            command: the command and its arguments.
            env: the command's environment.
            is_over: returns whether the command must end; called regularly.
            stop_seconds: seconds between SIGTERM and SIGKILL for a command that is over; 0 kills it at once.

        Returns:
            The exit code, and the seconds that the command ran.

        Raises:
            ExitError: the command cannot be started.
        """
        started = time.monotonic()
        try:
            child = subprocess.Popen(command, env=env, start_new_session=True, preexec_fn=self._in_child)  # noqa: PLW1509
        except OSError as error:
            message = f"cannot run {command[0]!r}: {_cause(error, env)}"
            raise ExitError(127 if isinstance(error, FileNotFoundError) else 126, message) from None
        self._pid, self._code, self.was_cut_short, kill_at = child.pid, -1, False, 0.0
        while self._code < 0:
            self.wait(CHECK_SECONDS if is_over else None)
            if self._code < 0 and is_over and not self.was_cut_short and is_over():
                self.was_cut_short, kill_at = True, time.monotonic() + stop_seconds
                self._signal_group(signal.SIGTERM if stop_seconds else signal.SIGKILL)
            elif self.was_cut_short and time.monotonic() >= kill_at:
                self._signal_group(signal.SIGKILL)
        child.returncode, ended = self._code, time.monotonic()  # reaped here, not by Popen
        while (self._signal_group(signal.SIGKILL) | _kill_adopted()) and time.monotonic() < ended + KILL_SECONDS:
            self.wait(0.02)
        self._pid = 0
        return self._code, ended - started

    def _arrived(self, number: int, _: object) -> None:
        self.must_stop |= number in STOP_SIGNALS

    def _signal_group(self, number: int) -> bool:
        """Send a signal to the command's process group; return whether the group exists."""
        with suppress(ProcessLookupError, PermissionError):
            if self._pid:
                os.killpg(self._pid, number)
                return True
        return False

    def _reap(self) -> None:
        """Reap all ended children, and record the command's exit code."""
        with suppress(ChildProcessError):
            while (ended := os.waitpid(-1, os.WNOHANG))[0]:
                if ended[0] == self._pid:
                    is_signaled = os.WIFSIGNALED(ended[1])
                    self._code = 128 + os.WTERMSIG(ended[1]) if is_signaled else os.WEXITSTATUS(ended[1])
