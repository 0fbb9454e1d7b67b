"""Listeners that any pod can reach: both IP families, and idle connections that exhaust nothing."""

import contextlib
import socket
import subprocess
import sys
import textwrap
import threading
from collections.abc import Callable, Iterator
from http.client import HTTPConnection

import pytest

from pstraining.controller.health import Health
from pstraining.controller.metrics import OperatorMetrics
from pstraining.launcher import listener
from pstraining.launcher.listener import Listener
from pstraining.launcher.status_port import serve_status
from pstraining.runtime.replication.witness import Witness, WitnessServer
from pstraining.runtime.telemetry import prometheus
from tests.processes.pods import eventually

IDLE = listener.CONNECTIONS + listener.CONNECTIONS // 2
"""Fewer than wait in the queue of the kernel, which would make a client repeat its request after a second."""


def health(port: int) -> Callable[[], None]:
    return Health({"loop": lambda: None}, {}).serve(port)


def metrics(port: int) -> Callable[[], None]:
    return OperatorMetrics(lambda: 0, lambda: 0).serve(port)


def status(port: int) -> Callable[[], None]:
    serve_status(port, dict, lambda status: True)
    return lambda: None


def task_metrics(port: int) -> Callable[[], None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PSTRAINING_METRICS_PORT", str(port))
        prometheus.serve(prometheus.TaskMetrics(worker=None, chief=None, links=dict, reconnects=lambda: 0), in_pod=True)
    return lambda: None


def witness(port: int) -> Callable[[], None]:
    return WitnessServer(Witness(1), port).close


SERVERS = {"/livez": health, "/metrics": metrics, "/v1/status": status, "/metrics of a task": task_metrics}


def get(port: int, path: str, host: str = "127.0.0.1") -> int:
    connection = HTTPConnection(host, port, timeout=10)
    with contextlib.closing(connection):
        connection.request("GET", path)
        return connection.getresponse().status


@contextlib.contextmanager
def idle(port: int, count: int) -> Iterator[list[socket.socket]]:
    with contextlib.ExitStack() as stack:
        yield [stack.enter_context(socket.create_connection(("127.0.0.1", port), 10)) for _ in range(count)]


@pytest.fixture(params=SERVERS)
def served(request: pytest.FixtureRequest, unused_tcp_port: int) -> Iterator[tuple[int, str]]:
    stop = SERVERS[request.param](unused_tcp_port)
    yield unused_tcp_port, request.param.split()[0]
    stop()


@pytest.mark.parametrize("host", ["127.0.0.1", "::1"])
def test_every_listener_answers_both_ip_families(served: tuple[int, str], host: str) -> None:
    if host == "::1" and not socket.has_dualstack_ipv6():
        pytest.skip("this machine has no IPv6")
    port, path = served
    assert get(port, path, host) == 200


def test_a_witness_answers_both_ip_families(unused_tcp_port: int) -> None:
    stop = witness(unused_tcp_port)
    for host in ("127.0.0.1", "::1") if socket.has_dualstack_ipv6() else ("127.0.0.1",):
        with socket.create_connection((host, unused_tcp_port), 10) as asked, asked.makefile("rwb") as lines:
            lines.write(b'{"do": "read"}\n')
            lines.flush()
            assert b"error" not in lines.readline()
    stop()


def test_idle_connections_keep_no_listener_from_answering(
    served: tuple[int, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(listener, "SILENCE_SECONDS", 1000)
    port, path = served
    before = threading.active_count()
    with idle(port, IDLE):
        assert get(port, path) == 200
        # The handler of a closed connection ends a moment later.
        eventually(lambda: threading.active_count() <= before + listener.CONNECTIONS + 1, 20)


def test_a_silent_connection_is_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(listener, "SILENCE_SECONDS", 0.05)
    stop = (server := Listener(0, Health({}, {}).handler())).start("test")
    with socket.create_connection(("127.0.0.1", server.port), 10) as silent:
        assert silent.recv(1) == b"", "the listener closes it, long before this end's own ten seconds"
    stop()


@pytest.mark.timeout(60)
def test_a_listener_stops_at_once() -> None:
    stop = Listener(0, Health({}, {}).handler()).start("test", poll_seconds=3600)
    stop()


def test_a_process_without_descriptors_answers_again() -> None:
    """A process without descriptors answers again. The limit on connections exceeds that on descriptors, so accepting
    fails until the oldest connections are closed.
    """
    program = textwrap.dedent("""
        import resource
        from pstraining.controller.health import Health
        from pstraining.launcher import listener
        resource.setrlimit(resource.RLIMIT_NOFILE, (60, 60))
        listener.SILENCE_SECONDS, listener.PAUSE_SECONDS = 1000, 0.01
        server = listener.Listener(0, Health({}, {}).handler(), connections=1000)
        print(server.port, flush=True)
        server.serve_forever()
    """)
    with subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        port = int(process.stdout.readline())
        try:
            with idle(port, 100):
                assert get(port, "/livez") == 200
        finally:
            process.kill()
