"""The runtime under the launcher keeps its containers and every step when the number of parameter servers changes."""

import json
import os
import signal
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from tests.processes.pods import Pod, closing, eventually, get
from tests.support.ports import free_neighbours
from tests.support.servers import SPREAD
from tests.support.soak_marks import in_all

pytestmark = [pytest.mark.training, pytest.mark.timeout(480)]
ROOT = Path(__file__).parents[2]
PROGRAM = [sys.executable, "-m", "tests.support.paced"]
SECONDS = 120.0


class Job:
    """The pods of a job, with the operator's part: the cluster map, and a new pod for each term of the chief."""

    def __init__(self, folder: Path, held: ExitStack) -> None:
        self.folder, self._held, self.chiefs = folder, held, dict[int, Pod]()
        self.ports = [free_neighbours() for _ in range(2)]
        self._others = {role: [f"127.0.0.1:{free_neighbours()}"] for role in ("chief", "worker")}
        self.map: dict[str, Any] = {}
        self._written(1, layout=1, term=1)
        self.servers = [self._pod("ps", index, PSTRAINING_SERVER="Builtin").start() for index in range(2)]
        self.worker = self._pod("worker", 0).start(*PROGRAM)

    def lead(self, term: int) -> Pod:
        """Start the chief's next attempt."""
        self.chiefs[term] = chief = self._pod("chief", 0, f"-{term}", PSTRAINING_TERM=str(term))
        return chief.start(*PROGRAM)

    def switch(self, servers: int, *, layout: int, term: int) -> None:
        """Deliver the cluster map of another layout, as the kubelet does."""
        self._written(servers, layout=layout, term=term)
        for pod in (*self.servers, self.worker):
            self._deliver(pod)

    def _written(self, servers: int, **more: int) -> None:
        checkpoint = {"path": str(self.folder / "checkpoints"), "keep": 3, "intervalSeconds": 3600}
        cluster = {**self._others, "ps": [f"127.0.0.1:{port}" for port in self.ports[:servers]]}
        self.map = {"cluster": cluster, "training": SPREAD, "checkpoint": checkpoint, **more}

    def _deliver(self, pod: Pod) -> None:
        pod.write_cluster(**self.map)

    def _pod(self, role: str, index: int, suffix: str = "", **env: str) -> Pod:
        folder = self.folder / f"{role}-{index}{suffix}"
        found = {
            "PYTHONPATH": os.pathsep.join([str(ROOT / "operator"), str(ROOT)]),
            "PSTRAINING_CLUSTER_FILE": str(folder / "cluster.json"),
        }
        pod = Pod(folder, role, self.map["cluster"], index, **found, **env)
        self._deliver(pod)
        self._held.enter_context(closing(pod))
        return pod


def events(pod: Pod, name: str) -> list[dict[str, Any]]:
    """Return the events of that name in a program's log."""
    lines = (line for line in pod.log().splitlines() if line.startswith('{"event"') and line.endswith("}"))
    return [found for line in lines if (found := json.loads(line))["event"] == name]


def wait_step(job: Job, step: int) -> int:
    """Wait until the worker is beyond this step; return its newest step."""
    return eventually(
        lambda: max((e["step"] for e in events(job.worker, "worker") if e["step"] > step), default=0), SECONDS
    )


@pytest.fixture
def job(tmp_path: Path) -> Iterator[Job]:
    with ExitStack() as held:
        yield Job(tmp_path, held)


@in_all(
    "tests/processes/test_launcher_layout.py::test_a_program_starts_again_in_its_container_once_every_server_has_the_layout"
)  # with TensorFlow
def test_training_continues_on_more_and_on_fewer_servers_at_the_step_at_which_it_stopped(job: Job) -> None:
    job.lead(1)
    reached = 0
    for layout, servers in ((2, 2), (3, 1)):
        term = layout - 1
        reached = wait_step(job, reached + 20)
        job.chiefs[term].kill(signal.SIGTERM)
        assert job.chiefs[term].wait() == 128 + signal.SIGTERM, job.chiefs[term].log()
        stopped = events(job.chiefs[term], "stopped")
        assert len(stopped) == 1, job.chiefs[term].log()
        job.switch(servers, layout=layout, term=term + 1)
        chief = job.lead(term + 1)
        restored = eventually(lambda: events(chief, "restored"), SECONDS)  # noqa: B023
        assert restored[0]["step"] == stopped[0]["step"] >= reached, "no step is lost"
        reached = wait_step(job, stopped[0]["step"])
        serving = [get(port + 1, "/v1/status")[1].get("state") for port in job.ports]
        assert serving == ["Serving", "Serving" if servers == 2 else "Starting"]
    assert all(pod.runs() for pod in (*job.servers, job.worker)), "their containers have not restarted"
