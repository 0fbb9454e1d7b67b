"""The bytes of connections, as the kernel counts them, compared with the sent bytes."""

import socket

import pytest

from pstraining.runtime.telemetry.counters import total
from pstraining.runtime.transport.traffic import Links


def listen(host: str = "127.0.0.1") -> socket.socket:
    return socket.create_server((host, 0))


def address(server: socket.socket) -> str:
    host, port = server.getsockname()
    return f"{host}:{port}"


def exchange(mine: socket.socket, theirs: socket.socket, out: int, back: int) -> None:
    """Send a number of bytes in each direction, and return once both sides have all of them."""
    for sender, receiver, number in ((mine, theirs, out), (theirs, mine, back)):
        for _ in range(number // 10_000):
            sender.sendall(bytes(10_000))
            left = 10_000
            while left:
                left -= len(receiver.recv(left))
    theirs.sendall(b"x")  # carries the acknowledgement of the preceding data
    assert mine.recv(1) == b"x"


def test_both_kinds_of_connections_are_counted_by_server_and_outlive_them() -> None:
    with listen("127.0.0.1") as first, listen("127.0.0.2") as second, listen() as own, listen() as stranger:
        links = Links((address(first), address(second)), own.getsockname()[1])
        assert links.look() == {}
        with socket.create_connection(first.getsockname()) as mine, first.accept()[0] as theirs:
            exchange(mine, theirs, 2_000_000, 500_000)
            seen = links.look()["ps-0"]
            assert seen.sent == pytest.approx(2_000_000, abs=2)
            assert seen.received == 500_001
        assert links.look()["ps-0"] == seen, "a closed connection keeps its count"
        with (
            socket.create_connection(first.getsockname()) as mine,
            first.accept()[0] as theirs,
            socket.create_connection(own.getsockname(), source_address=("127.0.0.2", 0)) as dialled,
            own.accept()[0] as fetched,
            socket.create_connection(stranger.getsockname()) as elsewhere,
            stranger.accept()[0] as other,
        ):
            exchange(mine, theirs, 1_000_000, 0)
            exchange(fetched, dialled, 3_000_000, 0)  # the second server fetches from this task
            exchange(elsewhere, other, 700_000, 0)
            found = links.look()
            assert found["ps-0"].sent == pytest.approx(3_000_000, abs=4), "a new connection adds to the account"
            assert found["ps-1"].sent == pytest.approx(3_000_000, abs=2), "identified by its host"
            assert found.keys() == {"ps-0", "ps-1"}, "no other peer is counted"
            assert total(found).sent == found["ps-0"].sent + found["ps-1"].sent


@pytest.mark.parametrize(
    ("host", "name"),
    [
        ("digits-ps-0", "ps-0"),
        ("digits-ps-12", "ps-12"),
        ("digits-standby-0.digits-hs", "standby-0"),
        ("digits-standby-2-7", "standby-2-7"),
        ("my-ps-1-ps-0", "ps-0"),
        ("my-standby-1-standby-0", "standby-0"),
        ("127.0.0.1", "ps-3"),
        ("::1", "ps-3"),
        ("server", "ps-3"),
    ],
)
def test_a_server_has_its_tasks_name_whatever_its_number(host: str, name: str) -> None:
    """After servers were added, a restarted task numbers them in another order than one that trained on."""
    servers = ["digits-ps-0:2222"] * 3
    links = Links(servers, 2222)
    servers.append(f"{host}:2222")
    assert links.name(3) == name


def test_servers_of_one_host_are_one_peer_where_they_dial() -> None:
    with listen() as first, listen() as second, listen() as own:
        links = Links((address(first), address(second)), own.getsockname()[1])
        with socket.create_connection(own.getsockname()) as dialled, own.accept()[0] as fetched:
            exchange(fetched, dialled, 100_000, 0)
            found = links.look()
            assert found.keys() == {"ps"}
            assert found["ps"].sent == pytest.approx(100_000, abs=2)


def test_a_count_never_falls_when_a_server_is_identified_late_or_has_another_address(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Prometheus takes a lower count for a restart, and adds all bytes once more."""
    hosts, resolve = ["127.0.0.9"], socket.getaddrinfo
    monkeypatch.setattr(
        socket,
        "getaddrinfo",
        lambda name, *given, **more: resolve(hosts[-1] if name == "digits-ps-0" else name, *given, **more),
    )
    with (
        listen() as own,
        listen() as first,
        socket.create_server(("127.0.0.2", first.getsockname()[1])) as replaced,
        socket.create_connection(own.getsockname()) as dialled,
        own.accept()[0] as fetched,
    ):
        links = Links((f"digits-ps-0:{first.getsockname()[1]}",), own.getsockname()[1])
        exchange(fetched, dialled, 1_000_000, 0)
        unknown = links.look()
        assert unknown.keys() == {"ps"}
        for server in (first, replaced):
            before = links.look()
            hosts.append(server.getsockname()[0])
            exchange(fetched, dialled, 1_000_000, 0)
            with socket.create_connection(server.getsockname()), server.accept()[0]:
                links.look()  # a connection to another address: all names are looked up
                found = links.look()
            assert all(found[peer].sent >= before[peer].sent for peer in before)
        assert found["ps-0"].sent == pytest.approx(1_000_000, abs=4)
        assert total(found).sent == pytest.approx(3_000_000, abs=4)
