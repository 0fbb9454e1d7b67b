"""Sockets: reachable peers, and TensorFlow's own sockets found by the peer's port."""

import os
import socket
import time
from contextlib import suppress

import pytest

from pstraining.launcher import contract, keepalive
from pstraining.runtime.transport import sockets


@pytest.fixture
def server() -> socket.socket:
    return socket.create_server(("127.0.0.1", 0))


def address(server: socket.socket) -> str:
    return f"127.0.0.1:{server.getsockname()[1]}"


def test_connections_to_a_port_are_kept_alive_and_cut_without_leaking(server: socket.socket) -> None:
    with server, socket.create_connection(server.getsockname()) as mine, server.accept()[0] as theirs:
        before = len(os.listdir("/proc/self/fd"))
        sockets.keep_alive([address(server)])
        assert mine.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE) == 1
        assert theirs.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE) == 0, "only ours to the server"
        assert sockets.peers([address(server)]) == {server.getsockname()}
        assert sockets.cut_peers([("127.0.0.2", server.getsockname()[1])]) == 0, "another server with that port"
        assert sockets.cut_peers([server.getsockname()]) == 1
        assert theirs.recv(1) == b""
        assert mine.fileno() >= 0
        assert len(os.listdir("/proc/self/fd")) == before


def test_a_server_that_does_not_read_for_seconds_keeps_its_connections(server: socket.socket) -> None:
    """It is only busy: its kernel acknowledges, and closes the receive window."""
    with server, socket.create_connection(server.getsockname()) as mine, server.accept()[0] as theirs:
        sockets.keep_alive([address(server)])
        mine.setblocking(False)
        sent = 0
        with suppress(BlockingIOError):
            while True:
                sent += mine.send(bytes(1 << 20))
        time.sleep(4)
        assert mine.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR) == 0
        assert len(theirs.recv(sent, socket.MSG_WAITALL)) == sent


def test_an_idle_connection_to_a_lost_server_ends_within_three_seconds() -> None:
    found = {name: value for _, name, value in keepalive.PROBES[1:]}
    probes = found[socket.TCP_KEEPINTVL] * found[socket.TCP_KEEPCNT]
    assert found[socket.TCP_KEEPIDLE] + probes <= 3


@pytest.mark.parametrize(
    ("text", "expected"), [("a:1", ("a", 1)), ("10.0.0.1:22", ("10.0.0.1", 22)), ("[fd00::1]:3", ("fd00::1", 3))]
)
def test_addresses_are_split_and_joined(text: str, expected: tuple[str, int]) -> None:
    assert sockets.split(text) == expected
    assert sockets.joined(expected) == text


def test_the_pods_own_network_settings_win(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GRPC_FAIL_FAST", "use_caller")
    monkeypatch.delenv("TF_GRPC_DEFAULT_OPTIONS", raising=False)
    sockets.set_environment()
    assert os.environ["GRPC_FAIL_FAST"] == "use_caller"
    assert "max_reconnect_backoff" in os.environ["TF_GRPC_DEFAULT_OPTIONS"]


def test_the_runtime_sends_no_pings_of_grpc(monkeypatch: pytest.MonkeyPatch) -> None:
    """It probes its servers itself; gRPC closes connections to peers that are busy (`too_many_pings`)."""
    options = "TF_GRPC_DEFAULT_OPTIONS"
    monkeypatch.setenv(options, contract.NETWORK_SETTINGS[options])
    sockets.set_environment()
    assert os.environ[options] == contract.BACK_OFF
    monkeypatch.setenv(options, "grpc.keepalive_time_ms=60000")
    sockets.set_environment()
    assert os.environ[options] == "grpc.keepalive_time_ms=60000", "the template's own"
