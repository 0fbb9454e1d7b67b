"""The launcher on a PS, as real processes: the server is restarted, and the status port reports its state."""

import json
import os
import shlex
import signal
import socket
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.processes.pods import FakePs, Pod, eventually, get, is_alive, write_whole
from tests.support.fake_s3 import serving
from tests.support.ports import free_neighbours

MakePod = Callable[..., Pod]
# A server that listens once the file "listen" exists, and ends slowly when it is asked to.
SERVER = """
import json, os, signal, socket, sys, time
def stop(*_):
    print("stopping", flush=True)
    while not os.path.exists("end"): time.sleep(0.01)
    sys.exit(int(open("end").read()))
signal.signal(signal.SIGTERM, stop)
print("server", os.getpid(), flush=True)
while not os.path.exists("listen"): time.sleep(0.01)
config = json.loads(os.environ["TF_CONFIG"])
port = int(config["cluster"]["ps"][config["task"]["index"]].rpartition(":")[2])
with socket.create_server(("0.0.0.0", port)) as server:
    while True: server.accept()[0].close()
"""
COMMAND = [sys.executable, "-c", SERVER]


UNREAD = {"inSync": False, "view": "", "term": 0, "layout": None}
"""The report of a launcher whose map has no term."""


class Server:
    """A PS's pod with its ports."""

    def __init__(self, make: MakePod, **settings: Any) -> None:
        self.port = free_neighbours()
        self.pod = make("ps", {"ps": ["127.0.0.1:1", f"127.0.0.1:{self.port}"]}, 1, **settings)

    def listen(self) -> "Server":
        (self.pod.folder / "listen").touch()
        return self

    def get(self, path: str = "/v1/status") -> tuple[int, dict[str, Any]]:
        return get(self.port + 1, path)

    def state(self, wanted: str) -> dict[str, Any]:
        """Wait for a state; return the status."""
        return eventually(lambda: status if (status := self.get()[1]).get("state") == wanted else {})

    def process(self, times: int = 1) -> int:
        """Return the process id of the server's start with this number."""
        ids = eventually(
            lambda: [line for line in self.pod.log().splitlines() if line.startswith("server ")][times - 1 :]
        )
        return int(ids[0].split()[1])


@pytest.fixture
def server(pod: MakePod) -> Server:
    return Server(pod, CRASH_SECONDS=0)


def test_the_status_follows_the_server(server: Server) -> None:
    server.pod.start(*COMMAND)
    status = server.state("Starting")
    assert status == {"bootId": status["bootId"], "state": "Starting", "restarts": 0, **UNREAD}
    assert server.get("/readyz")[0] == 503
    assert server.get("/healthz")[0] == 200
    server.listen()
    assert server.state("Serving")["bootId"] == status["bootId"]
    assert server.get("/readyz")[0] == 200
    assert server.get("/")[0] == 404
    assert server.get("/v1/status/../../etc/passwd")[0] == 404
    assert get(server.port + 1, "/v1/status", method="POST")[0] == 501
    (server.pod.run_dir / "in-sync").write_text("1.1")
    assert server.get()[1]["inSync"] is True
    if socket.has_dualstack_ipv6():
        assert get(server.port + 1, "/readyz", host="::1")[0] in (0, 200)


def test_a_killed_server_restarts_in_place_at_once(server: Server) -> None:
    server.listen().pod.start(*COMMAND)
    before, times = server.state("Serving"), []
    (server.pod.run_dir / "in-sync").write_text("1.1")
    for restarts in (1, 2, 3, 4):  # more often than a server in a crash loop may
        started = time.monotonic()
        os.kill(server.process(restarts), signal.SIGKILL)
        after = eventually(lambda: now if (now := server.get()[1])["bootId"] != before["bootId"] else {})  # noqa: B023
        server.state("Serving")
        times.append(time.monotonic() - started)
        assert after["restarts"] == restarts
        assert after["inSync"] is False
        before = after
    assert min(times) < 1, times  # the fastest one, because other work on this machine may delay the launcher
    assert "the server ended with 137" in server.pod.log()


def test_with_a_standby_a_dead_server_ends_its_container(pod: MakePod) -> None:
    server = Server(pod, PSTRAINING_MEMBER="0")
    server.listen().pod.start(*COMMAND)
    server.state("Serving")
    os.kill(server.process(), signal.SIGKILL)
    assert server.pod.wait() == 137
    assert "is started again" not in server.pod.log()


def test_a_server_that_exits_with_0_is_restarted(server: Server) -> None:
    server.pod.start(*server.pod.puppet)
    server.pod.order(0)
    server.pod.started(2)
    assert server.pod.runs()


@pytest.mark.parametrize(("ends", "code"), [(5, 5), (0, 1)])
def test_a_server_in_a_crash_loop_is_given_up(pod: MakePod, ends: int, code: int) -> None:
    server = Server(pod, CRASH_SECONDS=600)
    assert server.pod.start("sh", "-c", f"echo started; exit {ends}").wait() == code
    assert server.pod.log().count("started\n") == 3
    last = server.pod.log().splitlines()[-1]
    assert last == ("started" if ends else "pstraining-launcher: the program ended with 0: a PS's program must not end")


def test_a_server_whose_program_fails_after_slow_imports_is_given_up(server: Server) -> None:
    """With a small share of a processor, the import of TensorFlow takes longer than a crash may."""
    assert server.pod.start("sh", "-c", "echo started; exit 5").wait() == 5
    assert server.pod.log().count("started\n") == 3


def test_a_server_that_does_not_exist_is_given_up(server: Server) -> None:
    assert server.pod.start("no-such-server").wait() == 127
    assert "cannot run 'no-such-server'" in server.pod.log()


@pytest.mark.parametrize(("ends", "code"), [(3, 3), (0, 143)])
def test_a_stopped_server_reports_it_and_is_not_restarted(server: Server, ends: int, code: int) -> None:
    server.listen().pod.start(*COMMAND)
    server.state("Serving")
    server.pod.kill()
    eventually(lambda: "stopping" in server.pod.log())
    assert server.get()[1]["state"] == "Terminating"
    assert server.get("/readyz")[0] == 503
    write_whole(server.pod.folder / "end", str(ends))
    assert server.pod.wait() == code
    assert server.pod.log().count("server ") == 1


def test_a_server_behind_a_dead_shell_does_not_hold_the_port(server: Server) -> None:
    server.listen().pod.start("sh", "-c", f"echo shell $$; {shlex.join(COMMAND)}; exit 1")
    server.state("Serving")
    shell = int(server.pod.log().split()[1])
    first = server.process()
    os.kill(shell, signal.SIGKILL)
    assert server.process(2) != first
    assert not is_alive(first)
    server.state("Serving")


def test_slow_clients_do_not_delay_others(server: Server) -> None:
    server.listen().pod.start(*COMMAND)
    server.state("Serving")
    slow = [socket.create_connection(("127.0.0.1", server.port + 1)) for _ in range(50)]
    for client in slow[::2]:
        client.sendall(b"GET /v1/status HT")
    started = time.monotonic()
    assert server.get("/readyz")[0] == 200
    assert time.monotonic() - started < 5
    threads = Path(f"/proc/{server.pod.pid}/task")
    assert len(list(threads.iterdir())) > 50
    eventually(lambda: len(list(threads.iterdir())) <= 3)  # and all of them are disconnected after a while
    for client in slow:
        client.close()
    assert "Traceback" not in server.pod.log()


def test_a_ps_starts_without_waiting(pod: MakePod, ps: FakePs) -> None:
    server = Server(pod, PSTRAINING_START_TIMEOUT_SECONDS="0")
    server.listen().pod.start(*COMMAND)  # the other PS of the map refuses connections
    server.state("Serving")


def test_builtin_serves_and_ignores_the_command(pod: MakePod) -> None:
    server = Server(pod, CRASH_SECONDS=600, PSTRAINING_SERVER="Builtin")
    packages = server.pod.folder / "packages" / "tensorflow"  # a TensorFlow without the C API's libraries
    packages.mkdir(parents=True)
    (packages / "__init__.py").write_text(
        "import socket\n"
        "class Server:\n"
        "  def __init__(self, cluster, job, index, protocol):\n"
        "    print('imported', job, index, protocol, sorted(cluster), flush=True)\n"
        "    self.socket = socket.create_server(('127.0.0.1', int(cluster[job][index].split(':')[1])))\n"
        "  def join(self):\n"
        "    while True: self.socket.accept()\n"
        "class distribute: Server = Server\n"
    )
    server.pod.env["PYTHONPATH"] = str(packages.parent)
    server.pod.start("no-such-command")
    server.state("Serving")
    assert "imported ps 1 grpc ['ps']" in server.pod.log()
    server.pod.kill()
    assert server.pod.wait() == 143


def test_builtin_reports_a_missing_tensorflow(pod: MakePod) -> None:
    server = Server(pod, PSTRAINING_SERVER="Builtin")
    packages = server.pod.folder / "packages" / "tensorflow"
    packages.mkdir(parents=True)
    (packages / "__init__.py").write_text("raise ModuleNotFoundError('No module named tensorflow')")
    server.pod.env["PYTHONPATH"] = str(packages.parent)
    assert server.pod.start().wait() == 1
    assert server.pod.log().splitlines()[-1] == "ModuleNotFoundError: No module named tensorflow"


def test_a_transfer_needs_a_request_that_was_written_in_the_pod(server: Server) -> None:
    """A pod that reaches only the port moves no file."""
    name = "transfer-0123456789abcdef"
    with serving() as store:
        server.listen().pod.start(*COMMAND)
        server.state("Serving")
        (server.pod.run_dir / name).write_bytes(b"rows")
        assert get(server.port + 1, f"/v1/transfers/{name}", method="POST")[0] == 404
        request = {"method": "PUT", "url": f"{store.url}/bucket/part?X-Amz-Signature=1"}
        write_whole(server.pod.run_dir / f"{name}.json", json.dumps(request))
        code, found = get(server.port + 1, f"/v1/transfers/{name}", method="POST")
        assert (code, found) == (200, {"status": 200, "message": "", "size": 4})
        assert store.objects == {"part": b"rows"}
    assert name not in os.listdir(server.pod.run_dir)
