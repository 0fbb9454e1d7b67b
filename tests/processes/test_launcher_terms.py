"""The launcher when a new attempt of the chief starts, as real processes: the servers restart empty, and the chief
waits.
"""

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.processes.pods import FakePs, Pod, eventually, get, write_whole
from tests.support.ports import free_neighbours
from tests.support.soak_marks import in_all, some

MakePod = Callable[..., Pod]
SERVER = """
import json, os, signal, socket, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
config = json.loads(os.environ["TF_CONFIG"])
port = int(config["cluster"]["ps"][0].rpartition(":")[2])
with socket.create_server(("0.0.0.0", port)) as server:
    while True: server.accept()[0].close()
"""
CHIEF = [sys.executable, "-c", "print('the program runs')"]


class Server:
    """A PS's pod whose map has a term."""

    def __init__(self, make: MakePod, policy: str | None, **settings: Any) -> None:
        self.port, self.policy = free_neighbours(), policy
        self.pod = make("ps", {"ps": [f"127.0.0.1:{self.port}"]}, **settings)
        self.deliver(1)
        self.pod.start(sys.executable, "-c", SERVER)

    def deliver(self, term: int) -> None:
        """Deliver the map with that term, as the kubelet does."""
        write_map(self.pod, {"ps": [f"127.0.0.1:{self.port}"]}, term, self.policy)

    def status(self, term: int) -> dict[str, Any]:
        """Wait until the server serves and has read that term; return its status."""

        def found() -> dict[str, Any]:
            reported = get(self.port + 1, "/v1/status")[1]
            return reported if reported.get("term") == term and reported["state"] == "Serving" else {}

        return eventually(found)

    @property
    def owned(self) -> Path:
        """Write the marker of the runtime's chief."""
        return self.pod.run_dir / "runtime-owned"


def write_map(pod: Pod, cluster: dict[str, list[str]], term: int, policy: str | None = None) -> None:
    reported = {"job": "digits", "cluster": cluster, "term": term, **({"onChiefRestart": policy} if policy else {})}
    write_whole(pod.folder / "cluster.json", json.dumps(reported))


@pytest.mark.parametrize(
    ("policy", "owned"),
    some(
        [(None, False), ("Restart", False), ("Restart", True)],
        lambda policy, owned: owned or not policy,
        in_all(
            "tests/processes/test_launcher_terms.py::test_a_server_restarts_with_every_attempt"
        ),  # whatever it holds
    ),
)
def test_a_server_restarts_with_every_attempt(pod: MakePod, policy: str | None, owned: bool) -> None:
    server = Server(pod, policy)
    boots = [server.status(1)["bootId"]]
    for term in (2, 3, 4):  # more often than a server in a crash loop may
        if owned:
            server.owned.touch()
        server.deliver(term)
        boots.append(server.status(term)["bootId"])
    assert len(set(boots)) == 4
    assert not server.owned.exists(), "it holds nothing"
    assert server.pod.runs()


@pytest.mark.parametrize(
    ("policy", "owned"),
    some(
        [("Keep", False), ("Keep", True), (None, True)],
        lambda policy, owned: owned != bool(policy),
        in_all(
            "tests/processes/test_launcher_terms.py::test_a_server_with_runtime_owned_state_keeps_running"
        ),  # for both reasons
    ),
)
def test_a_server_with_runtime_owned_state_keeps_running(pod: MakePod, policy: str | None, owned: bool) -> None:
    server = Server(pod, policy)
    boot = server.status(1)["bootId"]
    if owned:
        server.owned.touch()
    for term in (2, 3):
        server.deliver(term)
        assert server.status(term)["bootId"] == boot
    assert server.owned.exists() is owned


def test_a_server_that_starts_late_is_not_restarted(pod: MakePod) -> None:
    server = Server(pod, None)
    server.status(1)
    server.pod.kill(9)
    server.pod.wait()
    server.owned.touch()  # of the previous container
    server.deliver(5)
    server.pod.start(sys.executable, "-c", SERVER)
    boot = server.status(5)["bootId"]
    assert not server.owned.exists()
    server.deliver(6)
    assert server.status(6)["bootId"] != boot


@pytest.mark.parametrize(("term", "policy", "heard", "waits"), [
    ("2", None, 1, True),
    ("2", None, 2, False),
    ("1", None, 0, False),
    ("3", "Restart", 2, True),
    ("3", "Keep", 1, False),
    ("2", None, None, False),
])  # fmt: skip
def test_the_chief_waits_until_every_server_knows_its_attempt(
    pod: MakePod, ps: FakePs, term: str, policy: str | None, heard: int | None, waits: bool
) -> None:
    ps.term = heard
    ps.up()
    chief = pod("chief", {"chief": ["127.0.0.1:1"], "ps": [ps.address]}, PSTRAINING_TERM=term)
    write_map(chief, {"chief": ["127.0.0.1:1"], "ps": [ps.address]}, int(term), policy)
    chief.start(*CHIEF)
    if waits:
        eventually(lambda: f"it has not read the chief's attempt {term} yet" in chief.log())
        assert "the program runs" not in chief.log()
        ps.term = int(term)
    assert chief.wait() == 0
    assert "the program runs" in chief.log()
