"""The cost of a fault for the remaining workers, on real kubelets: their standstill, and repeated batches.

The parameter server and the chief are on one node, a worker is on each of two. The tests print what they measure.
"""

import time
from collections.abc import Callable
from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest
import yaml

from localcluster import faults
from tests.e2e.test_nodes import HOME
from tests.support.examples import ROOT, Example
from tests.support.kube import Kube, Object, wait_for
from tests.support.nodes import cut
from tests.support.operator_process import OperatorProcess
from tests.support.soak_marks import ALL, in_soak

pytestmark = pytest.mark.cluster

SAFE = "node-0"
PROGRAM = r"examples\.digits"
SERVER = r"launch\.py serve|examples\.digits"
SILENCE = 8.0
"""Seconds for which a parameter server is unresponsive."""
WITHOUT_A_WORKER = {"Async": 2.0, "Sync": 5.0}
"""The longest standstill of the other worker. In Sync it waits 3 s for a worker without heartbeats. Busy cores, and the
start of the lost worker's next process, may add half of that.
"""
AFTER_A_SERVER = 60.0
"""Seconds until training resumes from a checkpoint after a server was killed, on busy cores."""
NOTICED = 15.0
"""Seconds after which every task has reported an unresponsive server, on busy cores. The test prints the times."""


ONE_ON_EACH_NODE = [
    {
        "maxSkew": 1,
        "topologyKey": "kubernetes.io/hostname",
        "whenUnsatisfiable": "DoNotSchedule",
        "nodeTaintsPolicy": "Honor",
        "labelSelector": {"matchLabels": {"pstraining.dev/role": "worker", "pstraining.dev/job-name": "digits"}},
    }
]
"""Placement for the workers' template; if its node is lost, a worker may join the other one."""


def spec(mode: str) -> Object:
    """Return a spec for two nodes with a worker on each; if its node is lost, a worker may join the other one."""
    example = yaml.safe_load((ROOT / "examples" / "digits" / "job.yaml").read_text())
    template = example["spec"]["worker"]["template"]
    pinned, spread = deepcopy(template), deepcopy(template)
    pinned["spec"]["nodeSelector"] = {"kubernetes.io/hostname": SAFE}
    spread["spec"]["topologySpreadConstraints"] = ONE_ON_EACH_NODE
    return {
        "training": {"mode": mode},
        "ps": {"template": pinned},
        "chief": {"template": pinned},
        "worker": {"template": spread},
    }


Line = dict[str, Any]
"""An event of a task."""


class Watched:
    """A job in training, with its tasks' events."""

    def __init__(self, example: Example) -> None:
        self.example = example
        self.on_home = next(index for index in (0, 1) if self._node(index) == HOME)
        self.survivor = 1 - self.on_home

    def _node(self, index: int) -> str:
        pod = self.example.kube.get("Pod", self.example.namespace, self.example.pod("worker", index))
        return str((pod or {})["spec"].get("nodeName"))

    def reported(self, name: str, since: float, role: str = "worker", index: int = 0) -> list[Line]:
        return [e for e in self.example.events(role, index) if e.get("event") == name and e["time"] >= since]

    def wait(self, name: str, since: float, role: str = "worker", index: int = 0, *, seconds: float = 300) -> Line:
        """Wait for the first such event since this time."""
        what = f"{role} {index} reports {name!r}"
        return wait_for(lambda: self.reported(name, since, role, index), what, seconds)[0]

    def gap(self, index: int, since: float, over: float = 0.0) -> float:
        """Return a worker's longest time without a step since this time, once it has reported steps after it and
        `over`.
        """
        last = max(since, over)
        wait_for(lambda: len(self.reported("worker", last, "worker", index)) >= 3, f"steps of worker {index}", 60)
        return max(float(e["gap_seconds"]) for e in self.reported("worker", since, "worker", index))

    def step(self) -> int:
        return max(int(e["step"]) for e in self.example.events("worker", self.survivor) if e["event"] == "worker")


@pytest.fixture(params=["Sync", pytest.param("Async", marks=in_soak)])
def job(
    kube: Kube,
    own_operator: OperatorProcess,
    namespace: str,
    shared: Path,
    healed: None,
    request: pytest.FixtureRequest,
) -> tuple[str, Watched]:
    own_operator.start()
    example = Example.start(kube, namespace, "digits", shared, spec(request.param), paced=True)
    for index in (0, 1):
        example.wait_event("worker", "worker", index)
    example.wait_event("checkpoint")
    return request.param, Watched(example)


def test_a_loss_costs_the_other_tasks_only_seconds(
    kube: Kube, job: tuple[str, Watched], capsys: pytest.CaptureFixture[str]
) -> None:
    mode, watched = job

    def say(text: str) -> None:
        with capsys.disabled():
            print(f"\n{mode}, {text}")

    _a_worker_is_killed(watched, WITHOUT_A_WORKER[mode], say)
    _the_server_is_silent(watched, say)
    _the_server_is_killed(watched, say)
    if ALL:  # tests/e2e/test_nodes.py loses a node with a worker
        _a_workers_node_is_cut(kube, watched, WITHOUT_A_WORKER[mode], say)


def _a_worker_is_killed(watched: Watched, limit: float, say: Callable[[str], None]) -> None:
    example, struck = watched.example, time.time()
    faults.kill_process(f"{example.namespace}/{example.pod('worker', watched.on_home)}", PROGRAM)
    back = watched.wait("worker", struck + 1, index=watched.on_home)["time"] - struck
    gap = watched.gap(watched.survivor, struck)
    say(
        f"a worker is killed: the other one stood still for {gap:.1f} s, it is back after {back:.1f} s, no step is lost"
    )
    assert gap <= max(limit, back / 2)
    assert not watched.reported("restored", struck, "chief")


def _the_server_is_silent(watched: Watched, say: Callable[[str], None]) -> None:
    example = watched.example
    tasks = [("chief", 0), ("worker", 0), ("worker", 1)]
    with faults.stopped(f"{example.namespace}/{example.pod('ps')}", SERVER):
        began = time.time()
        noticed = [watched.wait("silent", began, *task, seconds=2 * NOTICED)["time"] - began for task in tasks]
        time.sleep(max(0.0, SILENCE - (time.time() - began)))  # the fault
    over = time.time()
    again = max(watched.wait("reconnected", over - 1, *task)["time"] for task in tasks) - over
    watched.gap(watched.survivor, over)
    lasted = over - began
    say(f"silent for {lasted:.1f} s: noticed after {max(noticed):.1f} s; all continue {again:.1f} s after it")
    assert max(noticed) <= NOTICED
    assert not watched.reported("restored", began, "chief"), "no step is lost"


def _the_server_is_killed(watched: Watched, say: Callable[[str], None]) -> None:
    example, before, struck = watched.example, watched.step(), time.time()
    faults.kill_process(f"{example.namespace}/{example.pod('ps')}", SERVER)
    restored = watched.wait("restored", struck, "chief")
    gap = watched.gap(watched.survivor, struck, restored["time"])  # its first step may precede the chief's event
    lost = before - int(restored["step"])
    say(f"the server is killed: all stood still for {gap:.1f} s; {lost} steps are lost, checkpoints are 2 s apart")
    assert gap <= AFTER_A_SERVER
    assert restored["step"] > 0, "from a checkpoint"


def _a_workers_node_is_cut(kube: Kube, watched: Watched, limit: float, say: Callable[[str], None]) -> None:
    example, struck = watched.example, time.time()
    former = example.pod("worker", watched.on_home)
    cut(kube, HOME)
    wait_for(lambda: example.pod("worker", watched.on_home) != former, "the lost worker is replaced")
    back = watched.wait("worker", struck, index=watched.on_home)["time"] - struck
    gap = watched.gap(watched.survivor, struck)
    say(
        f"a worker's node is cut: the other one stood still for {gap:.1f} s, its next process trains after {back:.1f} s"
    )
    assert gap <= max(limit, back / 2)
    assert not watched.reported("restored", struck, "chief"), "no step is lost"
