"""Hot standbys on real kubelets: whatever is lost of a shard, the other member goes on, and not one step is lost.

What is measured is printed: how long workers stood still, and until the shard had both members again.
"""

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from hack.cluster import faults
from tests.e2e.test_standby import evict
from tests.support.examples import Example
from tests.support.kube import ApiError, Kube, Object, wait_for
from tests.support.operator_process import OperatorProcess

pytestmark = pytest.mark.cluster

SERVER = r"launch\.py serve|examples\.digits"
SPEC: Object = {
    "training": {"mode": "Sync", "steps": 10_000_000, "minShardBytes": 0},
    "ps": {"replicas": 2, "standby": {"mode": "Hot"}},
    "checkpoint": {"intervalSeconds": 3600},
}
WENT_ON = 5.0
"""Seconds until the first step without a lost member, here, where all of it shares two cores."""


class Watched:
    """A job with hot standbys, and what it tells."""

    def __init__(self, example: Example) -> None:
        self.example = example

    def rosters(self) -> list[Any]:
        return [event["members"] for event in self.example.events("chief") if event["event"] == "roster"]

    def is_whole(self) -> bool:
        return self.rosters()[-1:] == [[["ps-0", "ps-2"], ["ps-1", "ps-3"]]]

    def shards(self) -> list[Object]:
        return list((self.example.job().get("status") or {}).get("shards") or ())

    def summary(self) -> str:
        return str((self.example.job().get("status") or {}).get("standbySummary"))

    def condition(self, kind: str) -> Object:
        found = (self.example.job().get("status") or {}).get("conditions") or ()
        return next((c for c in found if c["type"] == kind), {"status": ""})

    def wait_prepared(self, times: int) -> None:
        """Wait until both workers have everything ready for a loss, so often since they began."""
        for index in (0, 1):
            self.example.wait_event("prepared", "worker", index, count=times)

    def stood(self, why: str, since: float) -> float:
        """How long the workers made no step since then, until the first one after what happened."""

        def told(index: int) -> list[float]:
            lines = self.example.events("worker", index)
            found = [e for e in lines if e["event"] == "went_on" and e["time"] >= since]
            return [float(e["seconds"]) for e in found if e["after"] == why]

        return max(wait_for(lambda i=i: told(i), f"worker {i} goes on, {why}", 60)[0] for i in (0, 1))  # type: ignore[misc]


@pytest.fixture
def watched(kube: Kube, own_operator: OperatorProcess, namespace: str, shared: Path) -> Watched:
    own_operator.start()
    found = Watched(Example.start(kube, namespace, "digits", shared, SPEC))
    found.wait_prepared(1)
    wait_for(lambda: found.summary() == "2/2", f"both standbys are in sync: {found.example.job()}", 60)
    return found


def kill_server(example: Example, pod: str) -> None:
    faults.kill_process(f"{example.namespace}/{pod}", SERVER)


def kill_container(example: Example, pod: str) -> None:
    faults.kill_container(f"{example.namespace}/{pod}")


def delete(example: Example, pod: str) -> None:
    example.kube.delete("Pod", example.namespace, pod)


def drain(example: Example, pod: str) -> None:
    evict(example, pod)
    with pytest.raises(ApiError) as refused:
        evict(example, pod.replace("ps", "standby"))
    assert refused.value.status == 429, "the other member has to be in sync again first"


LOSSES: list[tuple[Callable[[Example, str], None], str, set[str]]] = [
    (kill_server, "digits-ps-0", {"not ready"}),
    (kill_server, "digits-standby-1", set()),
    (kill_container, "digits-ps-1", {"not ready", "container ended with code 137"}),  # whatever the kubelet says first
    (delete, "digits-ps-0", {"pod deleted"}),
    (drain, "digits-ps-1", {"pod deleted"}),
]


def test_a_lost_member_costs_no_step(watched: Watched, capsys: pytest.CaptureFixture[str]) -> None:
    example, expected = watched.example, {0: 0, 1: 0}
    for number, (lose, pod, causes) in enumerate(LOSSES):
        shard = int(pod[-1])
        expected[shard] += bool(causes)
        before, struck = len(watched.rosters()), time.time()
        lose(example, pod)
        wait_for(lambda: watched.condition("Degraded")["status"] == "True", "it is told", 30, every=0.05)
        degraded = watched.condition("Degraded")["message"]
        assert pod in degraded, degraded
        wait_for(lambda: watched.is_whole() and len(watched.rosters()) >= before + 2, "both are in sync", 60)  # noqa: B023
        back = time.time() - struck
        wait_for(lambda: watched.summary() == "2/2", f"it is told: {example.job()['status']}", 30)
        lost, refused = watched.stood("lost", struck), watched.stood("refused", struck)
        with capsys.disabled():
            print(f"\n{lose.__name__} {pod}: workers went on after {lost:.2f} s; both in sync after {back:.1f} s, for")
            print(f"which they stood still for {refused:.2f} s")
        assert lost <= WENT_ON
        watched.wait_prepared(number + 2)
        assert {s["index"]: s["takeovers"] for s in watched.shards()} == expected
        assert watched.shards()[shard]["lastCause"] in (causes or {""})
        assert watched.condition("Degraded")["status"] == "False"
    assert [s["primary"] for s in watched.shards()] == ["digits-ps-0", "digits-ps-1"]
    told = example.events("chief")
    assert sum(e["event"] == "initialized" for e in told) == 1
    assert not [e for e in told if e["event"] in ("restored", "not_marked")], "not one step was lost"
    assert {e["term"] for e in told if e["event"] == "roster"} == {1}
