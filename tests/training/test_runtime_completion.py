"""A finished program that is run again, and a program whose disk is full."""

import json
from pathlib import Path
from typing import Any

import pytest

from pstraining.runtime.checkpoint.storage import Checkpoints
from pstraining.runtime.local import LocalJob
from tests.support.soak_marks import in_all, in_soak
from tests.support.volumes import filled, small_disk
from tests.training.test_runtime_faults import finished, job, steps_of, transcript, until

pytestmark = [pytest.mark.training, pytest.mark.timeout(300)]


def contents(folder: Path) -> dict[str, tuple[int, bytes]]:
    """Return every checkpoint's files, with the time of their last change."""
    return {
        str(path.relative_to(folder)): (path.stat().st_mtime_ns, path.read_bytes())
        for path in sorted(folder.glob("ckpt-*/*"))
    }


def run_to_the_end(folder: Path, *, steps: int) -> tuple[dict[str, Any], LocalJob]:
    with job(folder, steps=steps, ps=2) as run:
        assert finished(run) == 0, transcript(run)
        assert run.processes["worker-0"].popen.wait(120) == 0  # a chief that has nothing to train does not wait for it
        (result,) = run.processes["chief"].events("result")
    return {name: value for name, value in result.items() if name not in ("time", "monotonic")}, run


@in_all(
    "tests/training/test_example_digits.py::test_digits_reaches_its_accuracy_and_a_second_run_has_nothing_to_do"
)  # more steps, too
def test_a_second_run_trains_nothing_and_one_with_more_steps_continues(tmp_path: Path) -> None:
    first, _ = run_to_the_end(tmp_path, steps=300)
    saved, recorded = contents(tmp_path), json.loads((tmp_path / "result.json").read_text())
    assert saved
    assert recorded == {name: value for name, value in first.items() if name != "event"}

    second, run = run_to_the_end(tmp_path, steps=300)
    assert second == first
    assert contents(tmp_path) == saved
    assert json.loads((tmp_path / "result.json").read_text()) == recorded
    assert [line["steps"] for line in run.processes["worker-0"].events("worker_done")] == [0]

    third, run = run_to_the_end(tmp_path, steps=400)
    assert [line["step"] for line in run.processes["chief"].events("restored")] == [first["step"]]
    assert third["step"] >= 400
    assert run.processes["worker-0"].events("worker_done")[0]["steps"] == third["step"] - first["step"]


@in_soak
def test_a_second_run_with_a_damaged_last_checkpoint_repeats_its_steps(tmp_path: Path) -> None:
    first, _ = run_to_the_end(tmp_path, steps=6000)
    *_, before, last = Checkpoints(tmp_path, keep=3).steps()
    assert last == first["step"]
    arrays = Checkpoints(tmp_path, keep=3).path(last) / "state.npz"
    arrays.write_bytes(arrays.read_bytes()[:-100])

    second, run = run_to_the_end(tmp_path, steps=6000)
    chief = run.processes["chief"]
    assert [line["step"] for line in chief.events("checkpoint_unreadable")] == [last]
    assert [line["step"] for line in chief.events("restored")] == [before]
    assert run.processes["worker-0"].events("worker_done")[0]["steps"] == second["step"] - before
    assert json.loads((tmp_path / "result.json").read_text())["step"] == second["step"] >= 6000
    assert Checkpoints(tmp_path, keep=3).load(second["step"]).step == second["step"], "it can be read again"


@in_all(
    "tests/training/test_runtime_stop.py::test_a_stopped_chief_with_a_full_disk_reports_it_and_its_successor_continues"
)  # to the end
def test_training_continues_with_a_full_disk_and_its_final_error_is_fixed_by_another_run(tmp_path: Path) -> None:
    with small_disk(tmp_path / "disk", "40m") as disk, job(disk, steps=5000, workers=2) as run:
        chief = run.processes["chief"]
        until(run, lambda: chief.events("checkpoint"), "a checkpoint")
        with filled(disk):
            failed = until(run, lambda: chief.events("checkpoint_failed"), "a reported failure")[0]
            assert "No space left" in failed["reason"]
            assert failed["retry_seconds"] == 10
            kept = Checkpoints(disk, keep=3).steps()
            assert failed["newest"] == kept[-1]
            until(run, lambda: steps_of(run, "worker-0") > failed["step"] + 100, "training that continues")
            until(run, lambda: chief.starts == 2, "an end that cannot be saved")
            assert chief.events("not_saved")[0]["newest"] == kept[-1]
            assert any(f"Make room in {disk}" in line for line in chief.lines), transcript(run)
            assert Checkpoints(disk, keep=3).steps() == kept
            assert not [entry.name for entry in disk.iterdir() if entry.name.startswith(".tmp")]
        assert finished(run) == 0, transcript(run)
        assert not chief.events("restored"), "the servers still had the last state"
        assert chief.events("result")[0]["step"] >= 5000
