"""Pods without a cluster: the launcher as a process of this machine, and parameter servers that the test controls."""

import contextlib
import http.client
import json
import os
import shutil
import signal
import socketserver
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, TypeVar

import pstraining.launcher
from pstraining.launcher import contract, launch, probe
from tests.support.ports import free_neighbours

T = TypeVar("T")
LAUNCH_FILE = Path(pstraining.launcher.__file__).with_name("launch.py")
# Sets constants of the launcher that a pod never changes, and then acts as `python3 launch.py`.
DRIVER = """
import json, os, sys
import launch
for name, value in json.loads(os.environ["TEST_CONSTANTS"]).items():
    setattr(next(m for m in (launch, launch.contract, launch.members, launch.probe) if hasattr(m, name)), name, value)
sys.exit(launch.main(sys.argv[1:], os.environ))
"""
# A program that records each start, and then obeys the order to end in the file "order" of its folder.
PUPPET = """
import os, signal, sys, time
folder = sys.argv[1]
with open(os.path.join(folder, "starts"), "a") as file:
    file.write(f"{os.getpid()} {time.time()} {os.environ.get('TF_CONFIG')}\\n")
while True:
    try:
        with open(os.path.join(folder, "order")) as file:
            order = file.read()
        os.unlink(os.path.join(folder, "order"))
    except FileNotFoundError:
        time.sleep(0.01)
        continue
    if order.startswith("-"):
        if int(order) != -signal.SIGKILL:
            signal.signal(-int(order), signal.SIG_DFL)
        os.kill(os.getpid(), -int(order))
    sys.exit(int(order))
"""


def is_constant(name: str) -> bool:
    """Whether a name is a constant of the launcher, and not a variable of its environment."""
    return any(hasattr(module, name) for module in (launch, contract, probe))


def eventually(condition: Callable[[], T], seconds: float = 60) -> T:
    """Wait until the condition holds; return its value."""
    end = time.monotonic() + seconds
    while not (value := condition()):
        assert time.monotonic() < end, f"not within {seconds} s"
        time.sleep(0.01)
    return value


def write_whole(path: Path, text: str) -> None:
    """Write a file atomically, so that a reader sees all of it or none."""
    path.with_name(path.name + ".new").write_text(text)
    path.with_name(path.name + ".new").replace(path)


class Pod:
    """One launcher process in its own folder."""

    def __init__(self, folder: Path, kind: str, cluster: Mapping[str, list[str]], index: int = 0, **env: str) -> None:
        self.folder, self.run_dir = folder, folder / "run"
        self.run_dir.mkdir(parents=True)
        for name in pstraining.launcher.FILES:
            shutil.copy(LAUNCH_FILE.with_name(name), folder / name)
        (folder / "driver.py").write_text(DRIVER)
        (folder / "puppet.py").write_text(PUPPET)
        self.puppet = [sys.executable, str(folder / "puppet.py"), str(folder)]
        self.constants: dict[str, Any] = {"RUN_DIR": str(self.run_dir), "FIRST_LOG_SECONDS": 0.1}
        task = {"PSTRAINING_TASK_TYPE": kind, "PSTRAINING_TASK_INDEX": str(index), "PSTRAINING_NAMESPACE": "nsp"}
        self.env = {
            "PATH": os.environ["PATH"],
            **task,
            **({"PSTRAINING_SERVER": "Program"} if kind == "ps" else {}),
            **env,
        }
        self.python, self.prefix = sys.executable, list[str]()
        self.write_cluster(cluster)
        self.process: subprocess.Popen[bytes] | None = None

    def write_cluster(self, cluster: Mapping[str, list[str]], **further: Any) -> None:
        """Replace the cluster map, as the kubelet does."""
        write_whole(self.folder / "cluster.json", json.dumps({"job": "digits", "cluster": cluster, **further}))

    def start(self, *command: str) -> "Pod":
        """Start the container, or restart it."""
        env = {**self.env, "TEST_CONSTANTS": json.dumps(self.constants)}
        with (self.folder / "log").open("ab") as log:
            launcher = [*self.prefix, self.python, str(self.folder / "driver.py"), "--", *command]
            self.process = subprocess.Popen(launcher, env=env, stdout=log, stderr=log, cwd=self.folder)
        return self

    @property
    def pid(self) -> int:
        """Return the launcher's process id."""
        assert self.process is not None
        return self.process.pid

    def kill(self, number: int = signal.SIGTERM) -> None:
        """Send a signal to the launcher."""
        os.kill(self.pid, number)

    def wait(self, seconds: float = 60) -> int:
        """Wait for the end of the container; return its exit code."""
        assert self.process is not None
        return self.process.wait(seconds)

    def runs(self) -> bool:
        """Whether the launcher runs."""
        assert self.process is not None
        return self.process.poll() is None

    def log(self) -> str:
        """Return the output of the launcher and the program."""
        path = self.folder / "log"
        return path.read_text(errors="replace") if path.exists() else ""

    def starts(self) -> list[list[str]]:
        """Return the program's starts: process id, time, TF_CONFIG."""
        path = self.folder / "starts"
        return [line.split(" ", 2) for line in path.read_text().splitlines()] if path.exists() else []

    def started(self, times: int = 1) -> int:
        """Wait until the program has started this many times; return its process id."""
        return int(eventually(lambda: self.starts()[times - 1 : times])[0][0])

    def order(self, code: int) -> None:
        """Order the program to end, with an exit code or, if it is negative, by a signal."""
        write_whole(self.folder / "order", str(code))

    def close(self) -> None:
        """Stop the remaining processes and their children, which outlive a killed launcher; print the log.

        pytest shows the log of a test that fails.
        """
        print(f"log of {self.folder.name}:", self.log(), sep="\n")
        if self.process is not None and self.runs():
            below = list(descendants(self.pid))
            self.process.kill()
            self.process.wait()
            for pid in below:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)


class _Listener(socketserver.ThreadingTCPServer):
    allow_reuse_address = True


class FakePs:
    """A PS in the state that the test sets: TensorFlow's port open or closed, its launcher answering or silent."""

    def __init__(self) -> None:
        self.port = free_neighbours()
        self.address = f"127.0.0.1:{self.port}"
        self.boot_id, self.state, self.asked = "boot-1", "Serving", 0
        self.term: int | None = None
        self.layout: int | None = None
        self.in_sync, self.view = False, ""
        self.answers = threading.Event()
        """Set while its launcher answers."""
        self.answers.set()
        self._servers: dict[int, socketserver.BaseServer] = {}

    def up(self, boot_id: str = "boot-1", *, launcher: bool = True, tensorflow: bool = True) -> "FakePs":
        """Open the ports."""
        self.boot_id = boot_id
        if launcher:
            self._serve(self.port + 1, ThreadingHTTPServer, self._status_handler())
        if tensorflow:
            self._serve(self.port, _Listener, socketserver.BaseRequestHandler)
        return self

    def down(self) -> None:
        """Refuse connections to both ports."""
        self.answers.set()
        for server in self._servers.values():
            server.shutdown()
            server.server_close()
        self._servers = {}

    def _serve(self, port: int, server_class: Any, handler: Any) -> None:
        kind = type("Server", (server_class,), {"allow_reuse_address": True, "request_queue_size": 128})
        server = kind(("127.0.0.1", port), handler)
        threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
        self._servers[port] = server

    def _status_handler(self) -> type[BaseHTTPRequestHandler]:
        ps = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                ps.asked += 1
                ps.answers.wait()
                boot_id = ps.boot_id.replace("*", str(ps.asked))
                body = {"bootId": boot_id, "state": ps.state, "restarts": 0, "inSync": ps.in_sync}
                body |= {} if ps.term is None else {"term": ps.term}
                body |= {} if ps.layout is None else {"layout": ps.layout}
                body |= {"view": ps.view} if ps.view else {}
                self.send_response(200)
                self.end_headers()
                self.wfile.write(json.dumps(body).encode())

            def log_message(self, *_: object) -> None:
                pass

        return Handler


def get(port: int, path: str, *, method: str = "GET", host: str = "127.0.0.1") -> tuple[int, dict[str, Any]]:
    """Send a request to a launcher's status port; return the code and the body, and 0 without a response."""
    connection = http.client.HTTPConnection(host, port, timeout=60)
    try:
        connection.request(method, path)
        answer = connection.getresponse()
        body = answer.read()
        return answer.status, json.loads(body) if answer.status in (200, 503) else {}
    except OSError:
        return 0, {}
    finally:
        connection.close()


def children(pid: int) -> list[int]:
    """Return the processes that a process has started or adopted."""
    return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def descendants(pid: int) -> Iterator[int]:
    """Return all descendants of a process."""
    with contextlib.suppress(FileNotFoundError, ProcessLookupError):
        for child in children(pid):
            yield from descendants(child)
            yield child


def is_alive(pid: int) -> bool:
    """Whether a process exists and is not a zombie."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


@contextlib.contextmanager
def closing(*things: Pod | FakePs) -> Iterator[None]:
    """Stop pods and PSs at the end of the block."""
    try:
        yield
    finally:
        for thing in things:
            thing.close() if isinstance(thing, Pod) else thing.down()
