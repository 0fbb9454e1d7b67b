"""Probes of server processes, with sockets that act as responsive and unresponsive servers."""

import ctypes
import json
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any

import pytest

from pstraining.runtime.transport import http2_probe, sockets, watchdog
from pstraining.runtime.transport.watchdog import Watchdog
from tests.support.kube import wait_for

SETTINGS = bytes([0, 0, 6, 4, 0, 0, 0, 0, 0]) + bytes([0, 3, 0, 0, 0, 100])
PATIENCE = 0.5


def in_two_parts(connection: socket.socket) -> None:
    connection.sendall(SETTINGS[:4])
    time.sleep(0.05)
    connection.sendall(SETTINGS[4:])


def http(connection: socket.socket) -> None:
    connection.sendall(b"HTTP/1.1 400 Bad Request\r\n\r\n")


Serve = Callable[[Callable[[socket.socket], None] | None], socket.socket]


@pytest.fixture
def serve() -> Iterator[Serve]:
    """Listen for connections; `given` handles each one, and None accepts none, as a stopped process does."""
    servers: list[socket.socket] = []

    def start(behave: Callable[[socket.socket], None] | None) -> socket.socket:
        server = socket.create_server(("127.0.0.1", 0))
        servers.append(server)

        def run() -> None:
            with suppress(OSError):
                while True:
                    connection = server.accept()[0]
                    assert behave
                    behave(connection)
                    connection.close()

        if behave:
            threading.Thread(target=run, daemon=True).start()
        return server

    yield start
    for server in servers:
        server.close()


@pytest.mark.parametrize(
    ("behave", "expected"),
    [
        (lambda connection: connection.sendall(SETTINGS), True),
        (in_two_parts, True),
        (http, False),
        (lambda connection: connection.sendall(SETTINGS[:5]), False),
        (lambda connection: None, False),
        (None, False),
    ],
    ids=["answers", "in two parts", "another protocol", "breaks off", "closes", "silent"],
)
def test_only_a_server_that_speaks_answers(
    serve: Serve, behave: Callable[[socket.socket], None] | None, expected: bool
) -> None:
    server = serve(behave)
    began = time.monotonic()
    assert http2_probe.is_alive(server.getsockname(), PATIENCE) is expected
    assert time.monotonic() - began < PATIENCE + 0.5


def test_no_listener_and_an_unknown_name() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        gone = sockets.joined(server.getsockname())
    assert http2_probe.unresponsive([gone, "no-such-host.invalid:1"], PATIENCE) == [gone, "no-such-host.invalid:1"]


def test_all_are_asked_at_once(serve: Serve) -> None:
    mute = [sockets.joined(serve(None).getsockname()) for _ in range(8)]
    there = sockets.joined(serve(lambda connection: connection.sendall(SETTINGS)).getsockname())
    began = time.monotonic()
    assert http2_probe.unresponsive([*mute[:4], there, *mute[4:]], PATIENCE) == mute
    assert time.monotonic() - began < len(mute) * PATIENCE


OTHER_PROCESS = """
import socket, time
with socket.create_server(("127.0.0.1", 0)) as server:
    print(server.getsockname()[1], flush=True)
    with server.accept()[0] as connection:
        connection.recv(1)
        time.sleep(0.3)
        connection.sendall(bytes([0, 0, 6, 4, 0, 0, 0, 0, 0]))
        connection.recv(100)
"""
"""A server's process that answers after 0.3 s."""


def test_time_in_which_the_own_process_does_not_run_does_not_count() -> None:
    """No server is suspected because this process read its reply late. A C call that keeps the lock stops it here."""
    with subprocess.Popen([sys.executable, "-c", OTHER_PROCESS], stdout=subprocess.PIPE, text=True) as other:
        assert other.stdout
        address = f"127.0.0.1:{other.stdout.readline().strip()}"
        stop = threading.Timer(0.1, ctypes.PyDLL(None).usleep, [2_000_000])
        stop.start()
        began = time.monotonic()
        assert http2_probe.unresponsive([address], 2 * PATIENCE) == []
        assert time.monotonic() - began > 1.5, "the process was stopped while it waited"
        stop.join()


def test_a_request_that_is_sent_late_has_the_whole_time_for_its_reply(
    serve: Serve, monkeypatch: pytest.MonkeyPatch
) -> None:
    def answer(connection: socket.socket) -> None:
        connection.recv(len(http2_probe.PREFACE))
        time.sleep(0.1)
        connection.sendall(SETTINGS)

    def late(*arguments: Any) -> socket.socket:
        connected = dial(*arguments)
        time.sleep(2 * PATIENCE)
        return connected

    dial = sockets.dial
    monkeypatch.setattr(sockets, "dial", late)
    assert http2_probe.is_alive(serve(answer).getsockname(), PATIENCE)


def test_a_recently_unresponsive_server_is_not_waited_for_again(serve: Serve) -> None:
    """A recently unresponsive server is not waited for again, while other servers get the full timeout, also beside
    it.
    """

    def slow(connection: socket.socket) -> None:
        time.sleep(3 * http2_probe.RETRY_PROBE_TIMEOUT_SECONDS)
        connection.sendall(SETTINGS)

    mute, late = (sockets.joined(serve(behave).getsockname()) for behave in (None, slow))
    back = sockets.joined(serve(lambda connection: connection.sendall(SETTINGS)).getsockname())
    began = time.monotonic()
    assert http2_probe.unresponsive([mute, late, back], 30.0, suspects=[mute, back]) == [mute]
    assert time.monotonic() - began < 15.0


def test_servers_are_asked_ahead(serve: Serve) -> None:
    mute = sockets.joined(serve(None).getsockname())
    there = sockets.joined(serve(lambda connection: connection.sendall(SETTINGS)).getsockname())
    assert http2_probe.Ahead([mute, there], PATIENCE).unresponsive() == [mute]


@pytest.fixture
def dog(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[socket.socket], Watchdog]]:
    """Return a watchdog over one server, with short timeouts."""
    monkeypatch.setattr(watchdog, "TICK", 0.02)
    made: list[Watchdog] = []

    def make(server: socket.socket) -> Watchdog:
        made.append(Watchdog([sockets.joined(server.getsockname())], 0.2))
        made[-1].start()
        return made[-1]

    yield make
    for one in made:
        one.stop()


def is_cut(connection: socket.socket) -> bool:
    """Whether our own end of the connection was shut down."""
    connection.setblocking(False)
    try:
        return connection.recv(1) == b""
    except BlockingIOError:
        return False


def test_calls_to_an_unresponsive_server_are_cut(
    serve: Serve, dog: Callable[[socket.socket], Watchdog], capsys: pytest.CaptureFixture[str]
) -> None:
    server = serve(None)
    reported: list[dict[str, Any]] = []

    def is_reported() -> bool:
        """Whether the cut is reported, which follows it, because the report has the number of connections."""
        reported.extend(json.loads(line) for line in capsys.readouterr().out.splitlines())
        return bool(reported)

    with socket.create_connection(server.getsockname()) as connection, dog(server).watching("call"):
        wait_for(lambda: is_cut(connection), "the connection is cut", 10)
        wait_for(is_reported, "the cut is reported", 10)
    assert (reported[0]["event"], reported[0]["servers"]) == ("silent", [sockets.joined(server.getsockname())])


def test_calls_to_a_responsive_server_are_not_cut(
    serve: Serve, dog: Callable[[socket.socket], Watchdog], monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = []

    def silent_peers(peers: set[sockets.Endpoint], patience: float) -> list[sockets.Endpoint]:
        asked.append(ask(peers, patience))
        return asked[-1]

    ask = http2_probe.unresponsive_peers
    monkeypatch.setattr(http2_probe, "unresponsive_peers", silent_peers)
    server = serve(lambda connection: connection.sendall(SETTINGS + connection.recv(1)))
    with socket.create_connection(server.getsockname()) as connection:
        connection.sendall(b"x")
        watched = dog(server)
        with watched.watching("call"):
            wait_for(lambda: len(asked) >= 3, "three questions", 10)
            assert asked[:3] == [[], [], []]
        assert not watched._watched, "a finished call is not watched any more"
        connection.shutdown(socket.SHUT_WR)


def test_a_lasting_call_is_cut_in_the_end_and_the_next_one_gets_more_time(
    serve: Serve, dog: Callable[[socket.socket], Watchdog], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(watchdog, "CALL_TIMEOUT_SECONDS", 0.3)
    monkeypatch.setattr(http2_probe, "unresponsive_peers", lambda *_: [])
    server = serve(None)
    with socket.create_connection(server.getsockname()) as connection:
        watched = dog(server)
        with watched.watching("call"):
            wait_for(lambda: is_cut(connection), "the connection is cut", 10)
        wait_for(lambda: watched._patience == pytest.approx(0.6), "more patience", 10)
