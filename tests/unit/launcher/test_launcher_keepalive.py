"""TCP keepalive of a server's connections in place of gRPC's."""

import ctypes
import os
import socket
from types import SimpleNamespace
from typing import Any

import pytest

from pstraining.launcher import contract, freed_memory, keepalive, serve

CLUSTER = {"ps": ["127.0.0.1:2222"]}


def served_with(monkeypatch: pytest.MonkeyPatch, options: str) -> str:
    """Serve with a stand-in of TensorFlow, and return the gRPC options that it finds."""
    found: list[str] = []

    def server(*_: Any, **__: Any) -> Any:
        return SimpleNamespace(join=lambda: found.append(os.environ[contract.OPTIONS]))

    def absent(*_: Any) -> Any:
        raise OSError("no library")

    monkeypatch.setenv(contract.OPTIONS, options)
    monkeypatch.setattr(ctypes, "CDLL", absent)
    monkeypatch.setattr(serve, "import_module", lambda _: SimpleNamespace(distribute=SimpleNamespace(Server=server)))
    started: list[str] = []
    monkeypatch.setattr(keepalive, "keep_all_alive", lambda: started.append("keepalive"))
    monkeypatch.setattr(freed_memory, "return_regularly", lambda: started.append("freed memory"))
    serve.serve(CLUSTER, "ps", 0)
    assert started == ["keepalive", "freed memory"]
    return found[0]


def test_a_builtin_server_sends_no_pings_of_grpc(monkeypatch: pytest.MonkeyPatch) -> None:
    """gRPC closes connections to peers that are busy (`too_many_pings`); options of the pod's template stay."""
    assert served_with(monkeypatch, contract.NETWORK_SETTINGS[contract.OPTIONS]) == contract.BACK_OFF
    own = "grpc.keepalive_time_ms=60000"
    assert served_with(monkeypatch, own) == own


def test_all_connections_of_a_server_are_kept_alive() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server, socket.create_connection(server.getsockname()):
        accepted, _ = server.accept()
        with accepted:
            before = len(os.listdir("/proc/self/fd"))
            for connection in keepalive.connections():
                keepalive.set_options(connection, keepalive.SERVER_OPTIONS)
            assert accepted.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE) == 1
            assert accepted.getsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT) == 10_000
            assert len(os.listdir("/proc/self/fd")) == before
