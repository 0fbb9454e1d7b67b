"""Separate networks on which every byte is counted.

The networks end with this process: they need no removal, and the machine's network is not changed.
"""

import ctypes
import os
import subprocess
import threading
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Final

from pstraining.runtime.config.cluster import Task
from pstraining.runtime.local import Place

CLONE_NEWNET: Final = 0x40000000
BRIDGE: Final = "bridge0"
BURST: Final = "128kb"
"""Size of a token bucket in bytes: two of the kernel's largest packets."""


def leave() -> None:
    """Move this process and its later children to a new network namespace with only a loopback interface.

    Raises:
        OSError: this process is not root.
    """
    _unshare()
    _ip("link", "set", "lo", "up")


def counters() -> dict[str, tuple[int, int]]:
    """Return the received and sent bytes of each interface in this process's namespace, with headers.

    A packet of up to 64 KB that the kernel passes on in one piece has one header.
    """
    found = {}
    for line in Path("/proc/thread-self/net/dev").read_text().splitlines():
        name, colon, numbers = line.partition(":")
        if colon:
            fields = numbers.split()
            found[name.strip()] = (int(fields[0]), int(fields[8]))
    return found


def sent() -> int:
    """Return the bytes that have crossed the loopback interface, with headers, each counted once."""
    return counters()["lo"][1]


class Links:
    """A network namespace for each task, which a link connects to a common bridge; a context manager.

    Args:
        tasks: the tasks' labels: ps-0, worker-0, chief and so on.
        rate: rate of each link in each direction, in `tc`'s notation: "1gbit". None: unlimited.
    """

    def __init__(self, tasks: Sequence[str], rate: str | None = None) -> None:
        self._tasks, self._rate = list(tasks), rate
        self._held = ExitStack()
        self._paths: dict[str, str] = {}

    def __enter__(self) -> "Links":
        try:
            _ip("link", "add", BRIDGE, "type", "bridge")
            self._held.callback(_ip, "link", "delete", BRIDGE)
            _ip("link", "set", BRIDGE, "up")
            _ip("address", "add", "10.77.0.1/16", "dev", BRIDGE)
            for number, task in enumerate(self._tasks):
                self._connect(number, task)
        except BaseException:
            self._held.close()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self._held.close()

    def place(self, task: Task) -> Place:
        """Return a task's place."""
        return Place(self._host(self._tasks.index(task.label)), self.prefix(task.label))

    def host(self, task: str) -> str:
        """Return a task's address."""
        return self._host(self._tasks.index(task))

    def prefix(self, task: str) -> tuple[str, ...]:
        """Return the prefix of a command that runs it in a task's namespace."""
        return ("nsenter", f"--net={self._paths[task]}")

    def passed(self) -> dict[str, tuple[int, int]]:
        """Return the sent and received bytes of each task."""
        found = counters()
        return {task: found[f"link{number}"] for number, task in enumerate(self._tasks)}

    def _host(self, number: int) -> str:
        return f"10.77.1.{number + 1}"

    def _connect(self, number: int, task: str) -> None:
        descriptor = _new_namespace()
        self._held.callback(os.close, descriptor)
        path = self._paths[task] = f"/proc/{os.getpid()}/fd/{descriptor}"
        near, inside = f"link{number}", self.prefix(task)
        _ip("link", "add", near, "type", "veth", "peer", "name", "far0")
        self._held.callback(_ip, "link", "delete", near)
        _ip("link", "set", "far0", "netns", path)
        _ip("link", "set", near, "master", BRIDGE, "up")
        _run(*inside, "ip", "address", "add", f"{self._host(number)}/16", "dev", "far0")
        for interface in ("lo", "far0"):
            _run(*inside, "ip", "link", "set", interface, "up")
        if self._rate:
            bucket = ("root", "tbf", "rate", self._rate, "burst", BURST, "latency", "50ms")
            _run("tc", "qdisc", "add", "dev", near, *bucket)
            _run(*inside, "tc", "qdisc", "add", "dev", "far0", *bucket)


def _new_namespace() -> int:
    """Return a descriptor of a new network namespace, which exists while the descriptor is open."""
    made: list[int | OSError] = []

    def make() -> None:  # a thread may leave the process's namespace on its own
        try:
            _unshare()
            made.append(os.open("/proc/thread-self/ns/net", os.O_RDONLY))
        except OSError as error:
            made.append(error)

    thread = threading.Thread(target=make)
    thread.start()
    thread.join()
    if isinstance(made[0], OSError):
        raise made[0]
    return made[0]


def _unshare() -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.unshare(CLONE_NEWNET) != 0:
        code = ctypes.get_errno()
        raise OSError(code, f"a network namespace cannot be made ({os.strerror(code)}): run this as root")


def _ip(*arguments: str) -> None:
    _run("ip", *arguments)


def _run(*command: str) -> None:
    done = subprocess.run(command, check=False, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    if done.returncode != 0:
        raise OSError(done.returncode, f"{' '.join(command)}: {done.stdout.decode().strip()}")
