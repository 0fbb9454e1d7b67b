"""Data that is divided by the number of workers, after a job was scaled."""

import json
from pathlib import Path
from typing import Any

import pytest

from pstraining.runtime.config.cluster import ENV_CLUSTER_FILE, Cluster, Task, number_of_workers
from pstraining.runtime.data.divided import LOOK_SECONDS, DividedData

CLUSTER = Cluster("job", Task("worker", 1), {"worker": ("a:1", "b:1"), "ps": ("c:1",)})


class Scaled:
    """A job's number of workers, and a clock."""

    workers, now = 2, 100.0

    def data(self, worker: int = 1) -> DividedData:
        def make(worker: int, workers: int) -> Any:
            return [f"{worker} of {workers}, {number}" for number in range(3)]

        return DividedData(make, worker, lambda: self.workers, lambda: self.now)


def test_a_new_number_makes_a_new_dataset(capsys: pytest.CaptureFixture[str]) -> None:
    job = Scaled()
    data = job.data()
    assert list(data()) == ["1 of 2, 0", "1 of 2, 1", "1 of 2, 2"]
    job.workers = 3
    assert not data.has_changed(), "it checks every two seconds"
    job.now += LOOK_SECONDS
    assert data.has_changed()
    assert list(data()) == ["1 of 3, 0", "1 of 3, 1", "1 of 3, 2"]
    (reported,) = map(json.loads, capsys.readouterr().out.splitlines())
    assert {key: reported[key] for key in ("event", "worker", "former", "workers")} == {
        "event": "workers_changed",
        "worker": 1,
        "former": 2,
        "workers": 3,
    }
    job.now += LOOK_SECONDS
    assert not data.has_changed()


@pytest.mark.parametrize("workers", [0, 1, 2])
def test_a_number_without_this_worker_changes_nothing(workers: int) -> None:
    job = Scaled()
    data = job.data()
    job.workers, job.now = workers, job.now + LOOK_SECONDS
    assert not data.has_changed()
    assert list(data()) == ["1 of 2, 0", "1 of 2, 1", "1 of 2, 2"]


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        ({"cluster": {"worker": ["a:1", "b:1", "c:1"]}}, 3),
        ({"cluster": {"worker": []}}, 2),
        ({"cluster": {}}, 2),
        ([], 2),
        ("{", 2),
        (None, 2),
    ],
)
def test_the_cluster_file_has_the_number_of_now(content: Any, expected: int, tmp_path: Path) -> None:
    file = tmp_path / "cluster.json"
    if content is not None:
        file.write_text(content if isinstance(content, str) else json.dumps(content))
    assert number_of_workers(CLUSTER, {ENV_CLUSTER_FILE: str(file)}) == expected
