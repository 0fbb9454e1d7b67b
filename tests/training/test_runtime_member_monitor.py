"""A task's classification of members that do not answer its calls."""

import time
from types import SimpleNamespace
from typing import Any

import pytest

from pstraining.runtime.replication import monitor
from pstraining.runtime.replication.monitor import MemberMonitor
from pstraining.runtime.replication.view import NO_BALLOT, ProcessStatus, Unreachable
from pstraining.runtime.transport import http2_probe
from pstraining.runtime.transport.client import ShardLostError
from pstraining.runtime.transport.http2_probe import ProbeResult

pytestmark = pytest.mark.training
FINE = "a call is answered"


class Client:
    """A client whose calls fail except to healthy servers."""

    def __init__(self, states: list[str | ProbeResult], present: set[int]) -> None:
        self.states, self.connected, self.calls = states, frozenset(present), [0] * len(states)
        addresses = tuple(f"host-{index}:1" for index in range(len(states)))
        self.cluster = SimpleNamespace(
            ps=addresses, shards=1, members=len(states), witnesses=(), in_pod=False, first_term=1, layout=1
        )

    def call(self, index: int, _: Any) -> Any:
        self.calls[index] += 1
        if self.states[index] != FINE:
            raise ShardLostError("gone", 0)
        return SimpleNamespace(promised=NO_BALLOT, status=lambda *_, **__: ProcessStatus(1))  # a `MemberReply`


@pytest.fixture
def asked() -> list[int]:
    """Return the servers to which a socket was opened."""
    return []


def poll(
    states: list[str | ProbeResult], present: set[int], asked: list[int], monkeypatch: pytest.MonkeyPatch
) -> tuple[MemberMonitor, Client]:
    client = Client(states, present)

    def find(endpoint: tuple[str, int], patience: float) -> ProbeResult:
        index = int(endpoint[0].removeprefix("host-"))
        asked.append(index)
        state = client.states[index]
        return state if isinstance(state, ProbeResult) else ProbeResult.ANSWERS

    monkeypatch.setattr(http2_probe, "probe", find)
    monkeypatch.setattr(MemberMonitor, "acceptor", lambda self, index: index)
    monkeypatch.setattr(MemberMonitor, "_reader", lambda self, acceptor: acceptor)
    servers = SimpleNamespace(cluster=client.cluster, numbers=range(len(states)))
    store: Any = SimpleNamespace(client=client, servers=servers, layout=SimpleNamespace(ps=1))
    return MemberMonitor(store), client


def test_each_member_is_classified_by_its_response(asked: list[int], monkeypatch: pytest.MonkeyPatch) -> None:
    found, client = poll(
        [FINE, ProbeResult.REFUSES, ProbeResult.NOTHING, ProbeResult.ANSWERS, FINE], {0, 1, 2, 3}, asked, monkeypatch
    )
    observation = found.poll()
    assert list(observation.values()) == [
        ProcessStatus(1),
        Unreachable.CRASHED,
        Unreachable.SUSPECTED,
        Unreachable.UNCONNECTED,
        Unreachable.UNCONNECTED,
    ], "what answers there may be the process that is known: only a refused connection shows its end"
    assert found.has_unconnected, "number 3 has a process that it is not connected to, and number 4 is not in the map"
    assert client.calls == [1, 1, 1, 2, 0], "a connection that was cut works again where the process is the same"
    assert sorted(asked) == [1, 2, 3, 4]


def test_a_suspected_member_is_probed_before_it_is_called(asked: list[int], monkeypatch: pytest.MonkeyPatch) -> None:
    found, client = poll([FINE, ProbeResult.NOTHING], {0, 1}, asked, monkeypatch)
    assert list(found.poll(probe_first=True).values()) == [ProcessStatus(1), Unreachable.SUSPECTED]
    assert sorted(asked) == [0, 1]
    assert client.calls == [1, 0], "it would last until the watchdog ends it"
    found.poll()
    assert client.calls == [2, 0]


def test_polls_in_between_do_not_wait_for_an_unresponsive_member(
    asked: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    now = time.monotonic()
    clock = SimpleNamespace(monotonic=lambda: now)
    monkeypatch.setattr(monitor, "time", clock)
    found, client = poll([FINE, ProbeResult.NOTHING], {0, 1}, asked, monkeypatch)
    for _ in range(3):
        assert list(found.poll().values()) == [ProcessStatus(1), Unreachable.SUSPECTED]
    assert asked == [1]
    now += monitor.ASK_AGAIN
    client.states[1] = FINE
    assert list(found.poll().values()) == [ProcessStatus(1), ProcessStatus(1)]
    assert asked == [1, 1]
    found.poll()
    assert asked == [1, 1], "it is called again without a question"
