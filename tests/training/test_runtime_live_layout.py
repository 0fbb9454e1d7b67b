"""The number of shards changes while a job with hot standbys trains: no step is lost, and no process restarts."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.support import deterministic_program
from tests.support.elastic_job import ElasticJob
from tests.support.layout_phases import GIVE_UP, Phase
from tests.support.soak_marks import ALL, THOROUGH, in_all, in_soak
from tests.training.test_runtime_faults import finished, transcript, until
from tests.training.test_runtime_hot import LONG, assert_same, job, last, step

pytestmark = [pytest.mark.training, pytest.mark.minutes, pytest.mark.timeout(1100)]


EPOCHS, LONGER = 8 if ALL else 5, 24
FIRST, NEXT = (2, (4, 3, 2)) if THOROUGH else (1, (2,))
"""Numbers of shards at the start and later. Preparation takes time for each server that may be lost."""
WORKERS = 2 if ALL else 1
"""Number of workers, each of which prepares for the loss of each server."""


def elastic(folder: Path, *, epochs: int = EPOCHS, **training: Any) -> ElasticJob:
    return ElasticJob(
        ["-m", "tests.support.deterministic_program"],
        ps=FIRST,
        standbys=1,
        workers=WORKERS,
        restarts=10_000,
        training={**(training or {"mode": "Sync", "orderedSums": True}), "epochs": epochs, "minShardBytes": 0},
        checkpoint={"path": str(folder), "intervalSeconds": 3600},
    )


@pytest.fixture(scope="module")
def shortly_undisturbed(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """Return the last state of a short, undisturbed run without standbys."""
    return run_undisturbed(tmp_path_factory.mktemp("undisturbed"))


def run_undisturbed(folder: Path) -> Any:
    with job(folder, standbys=0, ps=2 if ALL else 1, workers=WORKERS, epochs=EPOCHS) as run:
        assert finished(run, LONG) == 0, transcript(run)
    return last(folder)


@pytest.fixture
def haste(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Let training take minutes, until this file exists."""
    monkeypatch.setenv("ORDERED_PAUSE", "4")
    monkeypatch.setenv("ORDERED_HASTE", str(tmp_path / "haste"))
    return tmp_path / "haste"


def layouts(run: ElasticJob) -> list[dict[str, Any]]:
    return run.processes["chief"].events("layout")


def lead_to(run: ElasticJob, shards: int) -> None:
    """Change the number of shards, and wait until the job trains with it."""
    before = len(layouts(run))
    run.change(shards)
    until(run, lambda: len(layouts(run)) > before, f"{shards} shards", LONG)
    run.settle()
    at = step(run)
    until(run, lambda: step(run) > at, "more steps")


@pytest.mark.usefixtures("shortly_undisturbed")
def test_the_number_of_shards_changes_during_training(tmp_path: Path, shortly_undisturbed: Any, haste: Path) -> None:
    with elastic(tmp_path / "run") as run:
        until(run, lambda: step(run) > 0, "training")
        for shards in NEXT:
            lead_to(run, shards)
        haste.touch()
        assert finished(run, LONG) == 0, transcript(run)
        print(layouts(run), [event for w in range(WORKERS) for event in run.processes[f"worker-{w}"].events("resumed")])
        assert not run.processes["chief"].events("restored")
        assert {process.starts for process in run.processes.values()} == {1}, transcript(run)
    assert_same(last(tmp_path / "run"), shortly_undisturbed)


@in_all("tests/property/test_layout_exploration.py::test_no_interleaving_loses_an_acknowledged_step")
@pytest.mark.usefixtures("shortly_undisturbed")
def test_an_attempt_that_is_given_up_costs_no_step(
    tmp_path: Path, shortly_undisturbed: Any, haste: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / GIVE_UP).write_text(Phase.FOUNDED)
    monkeypatch.setenv("ORDERED_PHASES", str(tmp_path))
    with elastic(tmp_path / "run") as run:
        until(run, lambda: step(run) > 0, "training")
        chief = run.processes["chief"]
        lead_to(run, NEXT[0])
        assert len(chief.events("layout_prepared")) == 2, "two attempts"
        assert "given up" in chief.events("layout_waits")[-1]["reason"]
        haste.touch()
        assert finished(run, LONG) == 0, transcript(run)
        assert not chief.events("restored")
    assert_same(last(tmp_path / "run"), shortly_undisturbed)


@in_all("tests/training/test_runtime_table_moves.py::test_rows_that_change_while_they_move_are_moved_again")
def test_a_table_moves_from_server_to_server_during_training(
    tmp_path: Path, haste: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The rows of the table do not pass through the chief, and the end is that of an undisturbed run."""
    monkeypatch.setenv("ORDERED_TABLE", "1")
    with elastic(tmp_path / "moved") as run:
        until(run, lambda: step(run) > 0, "training")
        for shards in NEXT:
            lead_to(run, shards)
        haste.touch()
        assert finished(run, LONG) == 0, transcript(run)
        print(layouts(run))
        assert layouts(run)
        assert all(event["moved"] for event in layouts(run)), "rows have moved from server to server"
        assert not run.processes["chief"].events("restored")
        assert {process.starts for process in run.processes.values()} == {1}, transcript(run)
    assert_same(last(tmp_path / "moved"), run_undisturbed(tmp_path / "undisturbed"))


@in_all("tests/training/test_runtime_key_moves.py::test_another_layout_has_all_rows_by_key_at_the_standstill")
def test_rows_by_key_are_those_of_an_undisturbed_run(
    tmp_path: Path, haste: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ORDERED_TABLE", "keys")
    with elastic(tmp_path / "run") as run:
        until(run, lambda: step(run) > 0, "training")
        for shards in NEXT:
            lead_to(run, shards)
        haste.touch()
        assert finished(run, LONG) == 0, transcript(run)
        print(layouts(run))
        assert not run.processes["chief"].events("restored")
        assert {process.starts for process in run.processes.values()} == {1}, transcript(run)
    found, expected = last(tmp_path / "run"), run_undisturbed(tmp_path / "undisturbed")
    for state in (found, expected):
        order = np.argsort(state.variables["pixels/keys"])
        state.variables.update({name: state.variables[name][order] for name in ("pixels", "pixels/keys")})
    assert_same(found, expected)


@in_all("tests/training/test_runtime_update_pause.py::test_no_update_is_sent_in_a_pause_until_it_ends")
@pytest.mark.parametrize(
    "more",
    [
        {},
        pytest.param({"overlapCommunication": True}, marks=in_soak),
        pytest.param({"maxStaleness": 2}, marks=in_soak),
    ],
    ids=str,
)
def test_asynchronous_updates_count_once_in_all_layouts(
    tmp_path: Path, haste: Path, monkeypatch: pytest.MonkeyPatch, more: dict[str, Any]
) -> None:
    """Every update adds its batch's mean to the parameters: one that was lost or applied twice changes their sum."""
    monkeypatch.setenv("ORDERED_SUMS", "1")
    with elastic(tmp_path / "run", epochs=LONGER, mode="Async", **more) as run:
        until(run, lambda: step(run) > 0, "training")
        for shards in NEXT:
            lead_to(run, shards)
        haste.touch()
        assert finished(run, LONG) == 0, transcript(run)
        print(layouts(run), run.processes["chief"].events("layout_waits"))
        assert not run.processes["chief"].events("restored")
        assert {process.starts for process in run.processes.values()} == {1}, transcript(run)
    np.testing.assert_allclose(kernel(tmp_path / "run"), deterministic_program.sums(LONGER), atol=0.02)


@in_all("tests/training/test_runtime_compression.py::test_the_residual_moves_to_another_layout")
@pytest.mark.parametrize(
    "training",
    [
        {"mode": "Sync", "orderedSums": True, "compression": {"push": "Int8", "pull": "TopK"}},
        {"mode": "Async", "compression": {"push": "Int8"}, "overlapCommunication": True},
        pytest.param(
            {"mode": "Async", "compression": {"push": "Int8", "pull": "Bf16"}, "localSteps": 2}, marks=in_soak
        ),
    ],
    ids=str,
)
def test_compressed_and_local_steps_count_once_in_all_layouts(
    tmp_path: Path, haste: Path, monkeypatch: pytest.MonkeyPatch, training: dict[str, Any]
) -> None:
    """The sum of all updates is right but for the last residuals."""
    monkeypatch.setenv("ORDERED_SUMS", "1100")  # units: each server has a segment that is encoded
    with elastic(tmp_path / "run", epochs=LONGER, **training) as run:
        until(run, lambda: step(run) > 0, "training")
        for shards in NEXT:
            lead_to(run, shards)
        haste.touch()
        assert finished(run, LONG) == 0, transcript(run)
        print(layouts(run), run.processes["chief"].events("layout_waits"))
        assert not run.processes["chief"].events("restored")
        assert {process.starts for process in run.processes.values()} == {1}, transcript(run)
    if training["mode"] == "Async":
        share = 1 / 2 if "localSteps" in training else 1  # a worker's part of a step of both
        expected = share * deterministic_program.sums(LONGER)
    else:
        with elastic(tmp_path / "undisturbed", epochs=LONGER, **{**training, "compression": {}}) as run:
            assert finished(run, LONG) == 0, transcript(run)
        expected = kernel(tmp_path / "undisturbed")
    off = kernel(tmp_path / "run") - expected
    print(off.min(), off.max(), off.std(), expected.min(), expected.max())
    assert np.abs(off).max() < 0.1


def kernel(folder: Path) -> Any:
    """Return the trained kernel. [64, units]."""
    (found,) = [value for path, value in last(folder).variables.items() if path.endswith("kernel")]
    return found
