"""Processes of local jobs and operators, forked from parents that have imported what they need (see warm_parent).

A chief and its workers have different parents. Forks inherit their parent's seed of string hashes, and tasks of one job
must not agree on the order of a set by that.
"""

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from pstraining.launcher.contract import memory_settings
from pstraining.runtime.config.cluster import Task
from pstraining.runtime.config.server import launcher_file
from tests.support import costs

FILE = Path(__file__).with_name("warm_parent.py")
BEGIN_SECONDS = 120.0
NETWORK = "/proc/thread-self/ns/net"
"""Names the network namespace of the thread that opens it."""


class WarmProcess:
    """A program that was forked from a warm parent, with the methods of Popen that LocalJob and tests use."""

    def __init__(self, pid: int, output: int) -> None:
        self.pid, self.returncode = pid, None
        self.stdout = open(output, encoding="utf-8", errors="replace")  # noqa: SIM115 - as long as the process
        self._ended, self._handle = threading.Event(), -1
        with contextlib.suppress(ProcessLookupError):  # the process has ended by now
            self._handle = os.pidfd_open(pid)

    def __del__(self) -> None:
        if self._handle >= 0:
            os.close(self._handle)  # not before: another process may have the number by then

    returncode: int | None
    """The exit code, as of the last poll or wait."""

    def end(self, code: int) -> None:
        """Record the end that the parent has reported."""
        self._code = code
        self._ended.set()

    def poll(self) -> int | None:
        """Return the exit code once the process has ended."""
        if self._ended.is_set():
            self.returncode = self._code
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        """Wait for the process's end.

        Raises:
            TimeoutExpired: it runs on.
        """
        if not self._ended.wait(timeout):
            raise subprocess.TimeoutExpired("a warm process", timeout or 0.0)
        self.returncode = self._code
        return self._code

    def send_signal(self, number: int) -> None:
        """Send a signal, unless it has ended."""
        with contextlib.suppress(ProcessLookupError):
            if self._handle >= 0:
                signal.pidfd_send_signal(self._handle, number)

    def kill(self) -> None:
        """Send SIGKILL."""
        self.send_signal(signal.SIGKILL)


class Parent:
    """A handle on a warm parent's process.

    Args:
        what: a key of warm_parent.IMPORTS.
        more: variables of its environment beside those of this process.
    """

    def __init__(self, what: str, **more: str) -> None:
        ours, theirs = socket.socketpair()
        with theirs:
            # One thread, because OpenBLAS would start its own threads at import.
            settings = {"OPENBLAS_NUM_THREADS": "1", "TF_CPP_MIN_LOG_LEVEL": "2", **memory_settings("worker")}
            command = [sys.executable, "-u", str(FILE), str(theirs.fileno()), what]
            environment = {**settings, **os.environ, "OPENBLAS_NUM_THREADS": "1", **more}
            self._process = subprocess.Popen(command, env=environment, pass_fds=[theirs.fileno()])
        ours.settimeout(BEGIN_SECONDS)
        self._socket, self._lock = ours, threading.Lock()
        self._answers = ours.makefile("r", encoding="utf-8")
        self._running = dict[int, WarmProcess]()
        self._early = dict[int, int]()
        self._counted = 0.0
        self._started: Any = None
        self._news = threading.Condition()
        if not self._answers.readline():
            raise RuntimeError(f"the warm parent ended with {self._process.wait()}")
        ours.settimeout(None)
        threading.Thread(target=self._listen, daemon=True).start()

    def spawn(self, command: Sequence[str], environment: Mapping[str, str], output: int | None = None) -> WarmProcess:
        """Fork a program, which writes into a descriptor, or else into the `stdout` of the returned process."""
        program = {"command": list(command), "environment": dict(environment), "folder": os.getcwd()}
        reading, writing = os.pipe2(os.O_CLOEXEC)
        if output is not None:
            os.dup2(output, writing, inheritable=False)
        network = os.open(NETWORK, os.O_RDONLY)  # the calling thread's network, as for a process that it starts itself
        with self._lock:
            socket.send_fds(self._socket, [json.dumps(program).encode() + b"\n"], [writing, network])
            os.close(writing)
            os.close(network)
            with self._news:
                self._news.wait_for(lambda: self._started is not None, BEGIN_SECONDS)
                pid, self._started = self._started, None
                if not pid:
                    raise RuntimeError("the warm parent has ended; its last words are above")
                process = self._running[pid] = WarmProcess(pid, reading)
                if pid in self._early:
                    self._end(pid, self._early.pop(pid))
        return process

    @property
    def pid(self) -> int:
        """Return the process's number."""
        return self._process.pid

    def close(self) -> None:
        """End the parent and all processes that it has forked."""
        self._socket.shutdown(socket.SHUT_WR)
        self._process.wait()
        costs.add(-self._counted)  # now their usage is counted in this child and its own children

    def _listen(self) -> None:
        for line in self._answers:
            answer = json.loads(line)
            with self._news:
                costs.add(seconds := answer.get("processor_s", 0.0))
                self._counted += seconds
                if "pid" in answer:
                    self._started = answer["pid"]
                elif answer["ended"] in self._running:
                    self._end(answer["ended"], answer["code"])
                else:
                    self._early[answer["ended"]] = answer["code"]
                self._news.notify_all()
        with self._news:
            self._started = 0
            self._news.notify_all()

    def _end(self, pid: int, code: int) -> None:
        self._running.pop(pid).end(code)


def network() -> int:
    """Return the network namespace of this thread, which a process that it starts inherits."""
    return os.stat(NETWORK).st_ino


class Parents:
    """Warm parents, one for chiefs and one for workers, started when they are first needed.

    Args:
        held: closes the parents at its end.
        cold: starts programs that import no TensorFlow, or that run elsewhere.
    """

    def __init__(self, held: contextlib.ExitStack, cold: Any) -> None:
        self._held, self._cold, self._parents = held, cold, dict[str, Parent]()

    def spawn(self, task: Task, prefix: Sequence[str], command: Sequence[str], environment: Mapping[str, str]) -> Any:
        """Start a task's process, as runtime.local.spawn does."""
        if prefix or command[0] == str(launcher_file()):
            return self._cold(task, prefix, command, environment)
        # A program may import TensorFlow before it becomes a parameter server, which needs another interpreter.
        kind = "worker" if task.type == "ps" else task.type
        if kind not in self._parents:
            self._parents[kind] = parent = Parent("tensorflow")
            self._held.callback(parent.close)
        return self._parents[kind].spawn(command, environment)
