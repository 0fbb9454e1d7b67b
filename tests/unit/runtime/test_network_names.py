"""Names are resolved once: an unresponsive name server does not hide reachable members."""

import socket
import threading
from collections.abc import Iterator
from typing import Any

import pytest

from pstraining.runtime.transport import sockets


class Names:
    """A name server."""

    def __init__(self) -> None:
        self.address, self.answers, self.asked, self.answered = "127.0.0.1", True, 0, threading.Event()
        self._look_up = socket.getaddrinfo

    def look_up(self, host: str, *further: Any) -> Any:
        if host != "name":
            return self._look_up(host, *further)
        self.asked += 1
        self.answered.set()
        if not self.answers:
            raise socket.gaierror(f"no answer for {host}")
        return self._look_up(self.address, *further)


@pytest.fixture
def names(monkeypatch: pytest.MonkeyPatch) -> Names:
    found = Names()
    monkeypatch.setattr(socket, "getaddrinfo", found.look_up)
    for kept in (sockets._reached, sockets._looking_up):
        kept.clear()
    return found


@pytest.fixture
def port() -> Iterator[int]:
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        listening.listen()
        yield listening.getsockname()[1]


def test_a_name_is_looked_up_once(names: Names, port: int) -> None:
    for _ in range(3):
        sockets.dial(("name", port), 1.0).close()
    assert names.asked == 1
    names.answers = False
    sockets.dial(("name", port), 1.0).close()


def test_a_vanished_name_is_resolved_again_concurrently(names: Names, port: int) -> None:
    sockets.dial(("name", port), 1.0).close()
    sockets._reached["name"] = "127.0.0.2"  # another pod by now, without a listener
    names.answered.clear()
    with pytest.raises(ConnectionRefusedError):
        sockets.dial(("name", port), 1.0)
    assert names.answered.wait(10)
    while sockets._looking_up:
        pass
    sockets.dial(("name", port), 1.0).close()
    assert sockets._reached["name"] == "127.0.0.1"


def test_without_a_name_server_the_known_address_is_kept(names: Names, port: int) -> None:
    sockets.dial(("name", port), 1.0).close()
    names.answers = False
    sockets._reached["name"] = "127.0.0.2"
    with pytest.raises(ConnectionRefusedError):
        sockets.dial(("name", port), 1.0)
    while sockets._looking_up:
        pass
    assert sockets._reached["name"] == "127.0.0.2"


def test_an_unknown_name_that_has_no_answer_is_an_error(names: Names, port: int) -> None:
    names.answers = False
    with pytest.raises(socket.gaierror):
        sockets.dial(("name", port), 1.0)
