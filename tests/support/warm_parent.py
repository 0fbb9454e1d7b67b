"""A process that has imported the modules that programs need, and forks the programs.

It is started as `python warm_parent.py DESCRIPTOR WHAT`. WHAT is `tensorflow`, whose import costs three seconds of a
processor, or `operator` or `cli`, which cost one second. A forked program has the import already. A fork copies only
the thread that calls it, so the parent has one thread and no TensorFlow context, and checks both before every fork.

A request is a JSON line, with the descriptors of the program's output and network beside it. Answers are JSON lines:
{"pid": ...} at the start of a program, {"ended": pid, "code": ..., "processor_s": ...} at its end. When the requests
end, all programs are killed.
"""

import ctypes
import gc
import json
import os
import random
import runpy
import select
import signal
import socket
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any

HERE = Path(__file__)
CLONE_NEWNET = 0x40000000
PATH = [entry for entry in sys.path if entry and Path(entry) != HERE.parent]
"""The entries of sys.path behind those of a program's folder and PYTHONPATH."""


def check() -> None:
    """Check that a fork is safe.

    Raises:
        RuntimeError: it is not.
    """
    threads, context = len(os.listdir("/proc/self/task")), _context()
    if threads != 1 or context is not None:
        raise RuntimeError(f"{threads} threads, TensorFlow's context: {context}; a fork would copy half of it")


def _context() -> object:
    """Return TensorFlow's context, if one was created."""
    if "tensorflow" not in sys.modules:
        return None
    from tensorflow.python.eager import context

    return context.context_safe()


class Parent:
    """Forks programs and reports their ends."""

    def __init__(self, requests: socket.socket) -> None:
        self._requests, self._pids = requests, set[int]()
        self._inbox, outbox = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        self._outbox = outbox
        signal.set_wakeup_fd(outbox, warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the tests, which end their programs

    def serve(self) -> dict[str, Any] | None:
        """Fork programs until the requests end. Returns the request in a program's process, and None in the parent."""
        while True:
            for ready in select.select([self._requests.fileno(), self._inbox], [], [])[0]:
                if ready == self._inbox:
                    os.read(self._inbox, 4096)
                    self._reap()
                elif (request := self._receive()) is None:
                    self._kill_all()
                    return None
                elif program := self._fork(*request):
                    return program

    def _receive(self) -> tuple[dict[str, Any], int, int] | None:
        line, descriptors, _, _ = socket.recv_fds(self._requests, 1 << 20, 2)
        while line and not line.endswith(b"\n"):
            line += self._requests.recv(1 << 20)
        return (json.loads(line), *descriptors) if line else None

    def _fork(self, program: dict[str, Any], output: int, network: int) -> dict[str, Any] | None:
        check()
        if pid := os.fork():
            os.close(output)
            os.close(network)
            self._pids.add(pid)
            self.answer({"pid": pid})
            return None
        signal.set_wakeup_fd(-1)
        for number in (signal.SIGCHLD, signal.SIGINT):
            signal.signal(number, signal.default_int_handler if number == signal.SIGINT else signal.SIG_DFL)
        os.dup2(output, 1)
        os.dup2(output, 2)
        enter(network)
        for descriptor in (output, network, self._inbox, self._outbox):
            os.close(descriptor)
        self._requests.close()
        return program

    def _reap(self) -> None:
        with suppress(ChildProcessError):
            while (ended := os.wait4(-1, os.WNOHANG))[0]:
                pid, status, used = ended
                self._pids.discard(pid)
                seconds = used.ru_utime + used.ru_stime
                self.answer({"ended": pid, "code": os.waitstatus_to_exitcode(status), "processor_s": seconds})

    def answer(self, reported: dict[str, Any]) -> None:
        """Send an answer to the tests."""
        with suppress(BrokenPipeError):
            self._requests.sendall(json.dumps(reported).encode() + b"\n")

    def _kill_all(self) -> None:
        for pid in self._pids:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)


def enter(network: int) -> None:
    """Move this process into a network namespace, if it is in another one.

    Raises:
        OSError: this process has no right to.
    """
    if os.fstat(network).st_ino == os.stat("/proc/self/ns/net").st_ino:
        return
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.setns(network, CLONE_NEWNET):
        raise OSError(ctypes.get_errno(), "a process cannot join its network")


def become(program: dict[str, Any]) -> None:
    """Turn the fork into a separate process with its own group, streams and environment."""
    os.chdir(program["folder"])
    os.environ.clear()
    os.environ.update(program["environment"])
    sys.orig_argv = [sys.executable, "-u", *program["command"]]
    entries = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    sys.path[:] = [*filter(None, entries), *PATH]
    sys.stdout.reconfigure(line_buffering=True, write_through=True)  # type: ignore[union-attr]
    random.seed()
    if "numpy" in sys.modules:
        sys.modules["numpy"].random.seed()


def run(command: list[str]) -> None:
    """Run the program of a command line: -m MODULE, -c CODE or a file, with arguments."""
    if command[0] == "-m":
        sys.path.insert(0, os.getcwd())
        sys.argv[:] = [command[1], *command[2:]]
        runpy.run_module(command[1], run_name="__main__", alter_sys=True)
    elif command[0] == "-c":
        sys.path.insert(0, "")
        sys.argv[:] = ["-c", *command[2:]]
        exec(compile(command[1], "<string>", "exec"), {"__name__": "__main__"})
    else:
        sys.path.insert(0, str(Path(command[0]).parent))
        sys.argv[:] = command
        runpy.run_path(command[0], run_name="__main__")


def import_tensorflow() -> None:
    """Import the modules that chiefs and workers need."""
    import sklearn.datasets  # noqa: F401 - what examples read
    import tensorflow as tf

    _ = tf.keras  # TensorFlow imports Keras at the first use


def import_operator() -> None:
    """Import the modules that the operator needs."""
    import pstraining.controller.main

    del sys.modules[pstraining.controller.main.__name__]  # runpy runs this module, and warns if it was imported before


def import_cli() -> None:
    """Import the modules that the plugin needs."""
    import pstraining.cli.main

    del sys.modules[pstraining.cli.main.__name__]  # for the same reason as above


IMPORTS = {"tensorflow": import_tensorflow, "operator": import_operator, "cli": import_cli}


def main(descriptor: int, what: str) -> dict[str, Any] | None:
    """Import, and serve requests; see `Parent.serve`."""
    gc.disable()  # the collector would scan hundreds of thousands of objects repeatedly, without finding garbage
    IMPORTS[what]()
    check()
    gc.enable()
    gc.freeze()
    parent = Parent(socket.socket(fileno=descriptor))
    parent.answer({"pid": os.getpid()})
    return parent.serve()


if __name__ == "__main__":
    to_run = main(int(sys.argv[1]), sys.argv[2])
    # Here and not deeper, so that the program ends normally: with its exit handlers and its own traceback.
    if to_run is not None:
        become(to_run)
        run(to_run["command"])
