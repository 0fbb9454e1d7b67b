"""A job as processes of this machine: for notebooks, first tries and tests.

    python -m pstraining.runtime.local --ps 1 --workers 2 -m examples.digits

Every process has the environment of a pod: TF_CONFIG, the PSTRAINING_ variables, the cluster file. A process that fails
is restarted, the chief with the next term, as in a cluster, unless its settings are wrong (exit code 78). The job ends
with the chief (worker 0 in a job without one), and with its exit code.
"""

import argparse
import io
import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType
from typing import Any, Final, NoReturn, TextIO

from pstraining.api import contract
from pstraining.launcher.contract import EXIT_MEANINGS, memory_settings, tf_config
from pstraining.runtime.config.cluster import ENV_CLUSTER_FILE, Task
from pstraining.runtime.config.settings import encodable
from pstraining.runtime.telemetry import events
from pstraining.runtime.transport import sockets

POLL: Final = 0.05
STOP_SIGNALS: Final = (signal.SIGINT, signal.SIGTERM)
STOP_SECONDS: Final = 3.0
"""Seconds from SIGTERM until a process is killed."""
OUTPUT_SECONDS: Final = 10.0
"""Maximum of seconds until the output of an ended process is read, which a child of it may keep open."""

Event = dict[str, Any]
"""The fields of an event."""


@dataclass
class LocalProcess:
    """One task's running process and its history."""

    task: Task
    popen: subprocess.Popen[str]
    term: int = 1
    starts: int = 1
    lines: list[str] = field(default_factory=list)
    """Output of this process and its predecessors."""
    reader: threading.Thread | None = None
    """Reads the process's output; None if a child keeps it open."""
    _events: dict[str, list[Event]] = field(default_factory=dict, repr=False)
    """The events in the first `_read` lines, by name: callers poll, and thousands of lines are parsed once."""
    _read: int = 0
    _lock: threading.Lock = field(default_factory=threading.Lock, repr=False)

    def poll(self) -> int | None:
        """Return the exit code once the process has ended and all its output is in `lines`."""
        reader, code = self.reader, self.popen.poll()
        if reader is not None and code is not None:
            reader.join(OUTPUT_SECONDS)
            if reader.is_alive():
                self.reader = None
        return code

    def events(self, name: str) -> list[Event]:
        """Return the printed events of this name; of an ended process, all of them."""
        self.poll()
        with self._lock:
            new = self.lines[self._read :]
            self._read += len(new)
            for event in filter(None, map(events.parsed, new)):
                self._events.setdefault(str(event["event"]), []).append(event)
            return list(self._events.get(name, ()))


@dataclass(frozen=True)
class Place:
    """The network location of a process."""

    host: str = "127.0.0.1"
    """Address of the process for other processes."""
    prefix: tuple[str, ...] = ()
    """Command that runs another command at the location: ("ip", "netns", "exec", "one")."""


def _here(_: Task) -> Place:
    return Place()


def spawn(
    task: Task,
    prefix: Sequence[str],
    command: Sequence[str],
    environment: Mapping[str, str],
) -> "subprocess.Popen[str]":
    """Start a task's program; its output is one stream of text."""
    return subprocess.Popen(
        [*prefix, sys.executable, "-u", *command],
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
    )


class LocalJob:
    """A job's processes; a context manager that ends all of them.

    Args:
        command: the program of every task, without the interpreter: ["-m", "examples.digits"].
        ps: number of parameter servers; with standbys, number of shards.
        standbys: hot standbys of each shard.
        workers: number of workers.
        chief: whether the job has a separate chief.
        restarts: maximum number of restarts of each failed process.
        training: the job's `spec.training`. Here and in `checkpoint`, paths and NumPy's numbers are accepted.
        checkpoint: the job's `spec.checkpoint`.
        echo: stream for the processes' lines, each with its task's name; None: they are only kept.
        environment: further variables of all processes.
        place: returns the network location of a task.
        name: name of the job, as in its history and in trackers of experiments; None: one of this process.
    """

    def __init__(  # noqa: PLR0913 - one argument for each property of a job
        self,
        command: Sequence[str],
        *,
        ps: int = 1,
        standbys: int = 0,
        workers: int = 1,
        chief: bool = True,
        restarts: int = 0,
        training: Mapping[str, object] | None = None,
        checkpoint: Mapping[str, object] | None = None,
        echo: TextIO | None = None,
        environment: Mapping[str, str] | None = None,
        place: Callable[[Task], Place] = _here,
        name: str | None = None,
    ) -> None:
        self._command, self._restarts, self._echo, self._place = list(command), restarts, echo, place
        self._checkpoint = encodable("checkpoint", checkpoint or {})
        self._extra = {variable: str(value) for variable, value in (environment or {}).items()}
        self._stack = ExitStack()
        self.cluster = {
            role: [f"{place(Task(role, index)).host}:{hold_port(self._stack)}" for index in range(number)]
            for role, number in {"chief": int(chief), "worker": workers, "ps": ps * (1 + standbys)}.items()
            if number
        }
        self._uid = uuid.uuid4().hex
        self._file = {
            "job": name or f"local-{os.getpid()}",
            "namespace": "local",
            "cluster": self.cluster,
            "members": 1 + int(standbys),
            "witnesses": [
                f"{place(Task('worker', index)).host}:{hold_port(self._stack)}"
                for index in range(workers if standbys else 0)
            ],
            "training": encodable("training", training or {}),
            "checkpoint": self._checkpoint,
        }
        self.processes: dict[str, LocalProcess] = {}
        self.failed: LocalProcess | None = None
        """The process whose failure has ended the job."""
        self._unread: OSError | ValueError | None = None
        """The error of a stream of which nothing is read any more."""

    def __enter__(self) -> "LocalJob":
        self._folder = Path(self._stack.enter_context(tempfile.TemporaryDirectory(prefix="pstraining-")))
        (self._folder / contract.CLUSTER_FILE).write_text(json.dumps(self._file), encoding="utf-8")
        try:
            for role in ("ps", "chief", "worker"):
                for index in range(len(self.cluster.get(role, []))):
                    self.start(Task(role, index))
        except BaseException:
            self.stop()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()
        self._stack.close()

    @property
    def leader(self) -> LocalProcess:
        """Return the process whose end ends the job."""
        return self.processes["chief" if "chief" in self.cluster else "worker-0"]

    def start(self, task: Task) -> LocalProcess:
        """Start a task's process, as its next attempt if it had one."""
        former = self.processes.get(task.label)
        term = former.term + 1 if former and task.type == "chief" else 1
        # Ctrl-C, and the button of a notebook that interrupts a cell, send SIGINT to the whole process group. Only this
        # process decides whether it ends the job.
        mask = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
        try:
            popen = spawn(task, self._place(task).prefix, self._command, self._environment_of(task, term))
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        if former:
            process = former
            process.popen, process.term, process.starts = popen, term, former.starts + 1
        else:
            process = self.processes[task.label] = LocalProcess(task, popen)
        reader = threading.Thread(target=self._drain, args=(process, popen), daemon=True)
        reader.start()
        process.reader = reader
        return process

    def kill(self, name: str) -> None:
        """Kill a process with SIGKILL, and wait for its end."""
        self.processes[name].popen.kill()
        self.processes[name].popen.wait()

    def supervise(self) -> int | None:
        """Restart failed processes; return the exit code once the job is over: 128 + N after signal N."""
        for process in list(self.processes.values()):
            code = process.poll()
            if code is None:
                continue
            may_restart = (
                process.starts <= self._restarts
                and (code != 0 or process.task.type == "ps")
                and code != contract.EXIT_BAD_SETTINGS
            )
            if may_restart:
                self.start(process.task)
                continue
            if code == 0 and process.task.type == "ps" and self.leader.poll() is None:
                self._show(process, f"the program has ended with 0: {EXIT_MEANINGS[0]}")
                code = 1  # as in a cluster: the others would wait for it forever
            if process is self.leader or code != 0:
                self.failed = process if code else None
                return code if code >= 0 else 128 - code
        return None

    def wait(self) -> int:
        """Supervise until the job is over, and return its exit code.

        Raises:
            OSError: the stream of the processes' lines is closed or full.
            ValueError: it was closed by this process, or cannot encode a line.
        """
        while (code := self.supervise()) is None:
            if self._unread is not None:
                raise self._unread
            time.sleep(POLL)
        return code

    def signal(self, number: int) -> None:
        """Send a signal to every running process."""
        for process in self.processes.values():
            if process.popen.poll() is None:
                process.popen.send_signal(number)

    def stop(self) -> None:
        """End every process, and read its last output: SIGTERM, a short wait, SIGKILL."""
        self.signal(signal.SIGTERM)
        deadline = time.monotonic() + STOP_SECONDS
        for process in self.processes.values():
            try:
                process.popen.wait(timeout=max(0.0, deadline - time.monotonic()))
            except subprocess.TimeoutExpired:
                process.popen.kill()
                process.popen.wait()
            process.poll()

    def _environment_of(self, task: Task, term: int) -> dict[str, str]:
        environment = {
            "TF_CONFIG": tf_config(self.cluster, task.type, task.index),
            ENV_CLUSTER_FILE: str(self._folder / contract.CLUSTER_FILE),
            contract.ENV_JOB: str(self._file["job"]),
            contract.ENV_NAMESPACE: "local",
            contract.ENV_TASK_TYPE: task.type,
            contract.ENV_TASK_INDEX: str(task.index),
            contract.ENV_TERM: str(term),
            contract.ENV_JOB_UID: self._uid,
            contract.ENV_POD_IP: self._place(task).host,
        }
        if self._checkpoint.get("path"):
            environment[contract.ENV_CHECKPOINT_DIR] = str(self._checkpoint["path"])
        source = str(Path(__file__).parents[2])
        given = (variables.get("PYTHONPATH") for variables in (self._extra, os.environ))
        paths = [source, os.getcwd(), *filter(None, given)]
        # A process that has connected to servers has gRPC settings in its environment, with which another program would
        # end instead of waiting for a server that has yet to start.
        ours = sockets.ENVIRONMENT.items()
        inherited = {name: value for name, value in os.environ.items() if (name, value) not in ours}
        inherited |= self._extra
        return {**memory_settings(task.type), **inherited, "PYTHONPATH": os.pathsep.join(paths), **environment}

    def _drain(self, process: LocalProcess, popen: subprocess.Popen[str]) -> None:
        for line in popen.stdout or ():
            self._show(process, line.rstrip("\n"))

    def _show(self, process: LocalProcess, line: str) -> None:
        process.lines.append(line)
        if self._echo and self._unread is None:
            try:
                self._echo.write(f"[{process.task.label}] {line}\n")
                self._echo.flush()
            except (OSError, ValueError) as error:  # the processes would wait if their output were not read any more
                self._unread = error


def hold_port(held: ExitStack, port: int = 0) -> int:
    """Reserve a TCP port of the loopback interface, this or any free one, until `held` closes, and return it.

    A process that sets SO_REUSEADDR, as gRPC does, can listen on the port, because the reserving socket is bound but
    does not listen. An unreserved port could go to another job or an outgoing connection before the process starts.

    Raises:
        OSError: the port is taken.
    """
    sock = held.enter_context(socket.socket())
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    sock.bind(("127.0.0.1", port))
    return int(sock.getsockname()[1])


def _absolute(checkpoints: str) -> str:
    return checkpoints if "://" in checkpoints else str(Path(checkpoints).resolve())


def _training(text: str) -> dict[str, object]:
    try:
        found = json.loads(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(f"not JSON: {error}") from None
    if not isinstance(found, dict):
        raise argparse.ArgumentTypeError('not a JSON object such as {"mode": "Sync"}')
    return found


def _stop(received: int, _: FrameType | None) -> NoReturn:
    """End the job on the first signal. A further one must not end this process before those of the job."""
    for number in STOP_SIGNALS:
        signal.signal(number, signal.SIG_IGN)
    sys.exit(128 + received)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line, and return the exit code."""
    parser = argparse.ArgumentParser(prog="python -m pstraining.runtime.local", description=__doc__.split("\n")[0])
    parser.add_argument("--ps", type=int, default=1, help="parameter servers (default 1)")
    parser.add_argument("--standbys", type=int, default=0, help="hot standbys of each parameter server (default 0)")
    parser.add_argument("--workers", type=int, default=2, help="workers (default 2)")
    parser.add_argument("--no-chief", action="store_true", help="worker 0 does the chief's work")
    parser.add_argument("--restarts", type=int, default=3, help="restarts of each failed process (default 3)")
    parser.add_argument("--steps", type=int, help="overrides the program's steps, as spec.training.steps does")
    parser.add_argument("--training", type=_training, default="{}", help="the job's spec.training, as JSON")
    parser.add_argument("--checkpoint-dir", help="folder or URI for checkpoints")
    # As with `python -m`, whatever follows the module is its own, also options with the name of one of these.
    parser.add_argument("-m", dest="module", nargs=argparse.REMAINDER, help="module to run, and its arguments")
    parser.add_argument("program", nargs=argparse.REMAINDER, help="or a file to run, and its arguments")
    options = parser.parse_args(arguments)
    command = (["-m", *options.module] if options.module else []) + options.program
    if not command:
        parser.error("give a module with -m, or a file")
    for name, least in {"ps": 1, "standbys": 0, "workers": 1, "steps": 1}.items():
        if (number := getattr(options, name)) is not None and number < least:
            parser.error(f"--{name} must be at least {least}")
    if options.checkpoint_dir == "":
        parser.error("--checkpoint-dir is empty: give a folder or a URI, or leave it out")
    training = options.training | ({"steps": options.steps} if options.steps else {})
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")  # programs print more characters than a locale may have
    job = LocalJob(
        command,
        ps=options.ps,
        standbys=options.standbys,
        workers=options.workers,
        chief=not options.no_chief,
        restarts=options.restarts,
        training=training,
        checkpoint={"path": _absolute(options.checkpoint_dir)} if options.checkpoint_dir else None,
        echo=sys.stdout,
    )
    for number in STOP_SIGNALS:
        signal.signal(number, _stop)
    try:
        with job:
            return job.wait()
    except BrokenPipeError:  # the reader has ended, as `head` does
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 128 + signal.SIGPIPE


if __name__ == "__main__":
    sys.exit(main())
