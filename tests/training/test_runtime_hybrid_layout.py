"""The number of shards changes while a Hybrid job with hot standbys trains: no step is lost, no process restarts."""

from pathlib import Path
from typing import Any

import pytest

from pstraining.runtime.ps.record import Session
from pstraining.runtime.replication.view import LayoutPostponedError
from tests.support.elastic_job import ElasticJob
from tests.support.servers import GENERATION
from tests.support.soak_marks import THOROUGH, in_all
from tests.training import test_runtime_checkpoint_pieces as in_pieces
from tests.training.test_runtime_checkpoint_pieces import assert_same, batches
from tests.training.test_runtime_faults import finished, transcript, until
from tests.training.test_runtime_hot import LONG, last, step
from tests.training.test_runtime_hybrid_hot import assert_all_the_same
from tests.training.test_runtime_live_layout import layouts, lead_to
from tests.training.test_runtime_table_moves import FENCE, move_most, next_admin, read, rig_of, transfer_to

pytestmark = [pytest.mark.training, pytest.mark.minutes, pytest.mark.timeout(1100)]
pieces = in_pieces.pieces
FIRST, NEXT = (2, (3, 2, 1)) if THOROUGH else (1, (2,))
"""Numbers of shards at the start and later."""
STEPS = 300
"""More than are trained while training has the pace ROWS_PAUSE."""


def job(folder: Path, *, shards: int, standbys: int) -> ElasticJob:
    return ElasticJob(
        ["-m", "tests.support.rows"],
        ps=shards,
        standbys=standbys,
        workers=2,
        restarts=10_000,
        training={"mode": "Hybrid", "steps": STEPS, "minShardBytes": 0},
        checkpoint={"path": str(folder), "intervalSeconds": 3600},
    )


@in_all(
    "tests/training/test_runtime_hybrid_layout.py::test_a_worker_finds_the_outcome_of_its_last_sum_on_the_next_servers"
)  # with launchers
def test_dense_parameters_and_tables_continue_on_other_servers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two workers make every step together. So the end is that of an undisturbed run, bit for bit."""
    monkeypatch.setenv("ROWS_PAUSE", "1")
    monkeypatch.setenv("ROWS_HURRY", str(tmp_path / "hurry"))
    with job(tmp_path / "changed", shards=FIRST, standbys=1) as run:
        until(run, lambda: step(run) > 0, "training", LONG)
        for shards in NEXT:
            lead_to(run, shards)
        (tmp_path / "hurry").touch()
        assert finished(run, LONG) == 0, transcript(run)
        print(layouts(run), resumed(run))
        assert not run.processes["chief"].events("restored")
        assert {process.starts for process in run.processes.values()} == {1}, transcript(run)
    with job(tmp_path / "undisturbed", shards=1, standbys=0) as run:
        assert finished(run, LONG) == 0, transcript(run)
    assert_all_the_same(last(tmp_path / "changed"), last(tmp_path / "undisturbed"))


def resumed(run: ElasticJob) -> list[dict[str, Any]]:
    """Return the workers' reports of times without a step."""
    return [event for worker in (0, 1) for event in run.processes[f"worker-{worker}"].events("resumed")]


@pytest.mark.usefixtures("pieces")
@pytest.mark.parametrize("made", [True, False], ids=["part of the last step", "not part of it"])
def test_a_worker_finds_the_outcome_of_its_last_sum_on_the_next_servers(client: Any, made: bool) -> None:
    """A step that others have applied counts once; a gradient that is in no step is computed again."""
    rig = rig_of(client, 2, mode="Hybrid")
    rig.start()
    first, second, third = batches(3, seed=0)
    rig.train([first, second])
    (worker,) = rig.workers
    target = next_admin(client, rig, 3)
    transfer = transfer_to(rig, target)
    move_most(transfer, rig)
    with pytest.raises(LayoutPostponedError, match="after workers had pushed"):
        transfer.copy(rig.control, 1)
    transfer.complete_updates(rig.control, 1, lambda: worker.on_idle(rig.store.read()))
    transfer.copy(rig.control, 1)
    transfer.write(target, FENCE)
    target.set_record(FENCE, generation=GENERATION)
    attempt = int(read(rig.control, rig.store.shards[0].mode_state.made_in))
    rig.train([third] if made else [second, third])
    expected = rig.snapshot()

    # The worker has the knowledge that it had before the last step.
    worker._dense.step, worker._member.held = 1, attempt if made else attempt - 1
    worker._worker_progress.tried = repeated = [second]
    following = worker.bind(worker._store.on(target.store.servers, 0))
    following.trace(repeated)
    following.start_session(Session(FENCE, GENERATION))
    result = following.step(repeated)
    assert (result.session_valid, result.applied, result.step) == (True, True, 2 if made else 3)
    assert following.step([third]).applied
    target.flush_dense(lambda: following.on_idle(target.store.read()))
    target.resume_steps()
    assert_same(target.snapshot(fence=FENCE), expected)
    following.close()
