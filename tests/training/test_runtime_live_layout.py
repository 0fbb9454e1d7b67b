"""The number of shards changes while a job with hot standbys trains: no step is lost, and no process restarts."""

from pathlib import Path
from typing import Any

import pytest

from tests.support.elastic_job import ElasticJob
from tests.support.soak_marks import ALL, in_all
from tests.training.test_runtime_faults import finished, transcript, until
from tests.training.test_runtime_hot import LONG, assert_same, last, step, undisturbed, unhurried

__all__ = ["undisturbed", "unhurried"]

pytestmark = [pytest.mark.training, pytest.mark.timeout(1100)]


def elastic(folder: Path, *, epochs: int = 24) -> ElasticJob:
    return ElasticJob(
        ["-m", "tests.support.deterministic_program"],
        ps=2,
        standbys=1,
        workers=2,
        restarts=10_000,
        training={"mode": "Sync", "orderedSums": True, "epochs": epochs, "minShardBytes": 0},
        checkpoint={"path": str(folder), "intervalSeconds": 3600},
    )


def layouts(run: ElasticJob) -> list[dict[str, Any]]:
    return run.processes["chief"].events("layout")


@pytest.mark.usefixtures("undisturbed", "unhurried")
def test_the_number_of_shards_changes_during_training(tmp_path: Path, undisturbed: Any) -> None:
    with elastic(tmp_path) as run:
        until(run, lambda: step(run) > 0, "training")
        for number, shards in enumerate((4, 3, 2) if ALL else (3,), start=1):
            run.change(shards)
            until(run, lambda: len(layouts(run)) == number, f"{shards} shards")  # noqa: B023
            run.settle()
            at = step(run)
            until(run, lambda: step(run) > at + 1, "more steps")  # noqa: B023
        assert finished(run, LONG) == 0, transcript(run)
        chief = run.processes["chief"]
        print(layouts(run), [event for w in (0, 1) for event in run.processes[f"worker-{w}"].events("resumed")])
        assert not chief.events("restored")
        assert {process.starts for process in run.processes.values()} == {1}, transcript(run)
    assert_same(last(tmp_path), undisturbed)


@in_all("tests/property/test_layout_exploration.py::test_no_interleaving_loses_an_acknowledged_step")
@pytest.mark.usefixtures("undisturbed", "unhurried")
def test_an_attempt_that_is_given_up_costs_no_step(
    tmp_path: Path, undisturbed: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ORDERED_GIVE_UP", "1")
    monkeypatch.setenv("ORDERED_PAUSE", "0.8")  # time for two attempts
    with elastic(tmp_path) as run:
        until(run, lambda: step(run) > 0, "training")
        chief = run.processes["chief"]
        run.change(3)
        until(run, lambda: len(chief.events("layout_prepared")) == 2, "two attempts")
        until(run, lambda: len(layouts(run)) == 1, "3 shards")
        assert "given up" in chief.events("layout_waits")[-1]["reason"]
        run.settle()
        assert finished(run, LONG) == 0, transcript(run)
        assert not chief.events("restored")
    assert_same(last(tmp_path), undisturbed)
