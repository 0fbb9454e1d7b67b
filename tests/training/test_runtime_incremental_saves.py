"""Incremental saves write the rows of tables that have changed, and every checkpoint is whole without any other."""

import itertools
import json
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pstraining.runtime.checkpoint.state import SavePlan, State, whole
from pstraining.runtime.checkpoint.storage import Checkpoints
from pstraining.runtime.ps.record import Session
from tests.support.replicated_job import ReplicatedJob
from tests.support.servers import GENERATION, Rig
from tests.support.soak_marks import ALL, in_all, some
from tests.training import test_runtime_checkpoint_parts as in_parts
from tests.training import test_runtime_checkpoint_pieces as in_pieces
from tests.training.test_runtime_checkpoint_parts import momentum, rig_of
from tests.training.test_runtime_checkpoint_pieces import PIECE, ROWS, WIDTH, assert_same, wait

pytestmark = [pytest.mark.training, pytest.mark.timeout(300), pytest.mark.usefixtures("pieces", "small_files")]
pieces, small_files = in_pieces.pieces, in_parts.small_files
PS = 2 if ALL else 1
"""Number of servers of most tests: each records its own changes."""
SAVING = 3 if ALL else 2
"""Number of servers whose state is restored onto two of them, or onto one."""


def with_keys() -> Any:
    """Return a model with a table of rows by key before one with a fixed number of rows."""
    import keras

    from pstraining.runtime import Embedding

    items = keras.Input((3,), dtype="int32")
    rows = [Embedding(None, 4, name="a")(items), Embedding(ROWS, WIDTH, name="items")(items)]
    hidden = keras.layers.Flatten()(keras.layers.Concatenate()(rows))
    return keras.Model(items, keras.layers.Dense(1, activation="sigmoid")(hidden))


def batches_of(rows: range, *, seed: int) -> Iterator[Any]:
    """Yield batches that change only these rows of the table, without an end."""
    import tensorflow as tf

    random = np.random.default_rng(seed)
    while True:
        items = tf.constant(random.choice(rows, (16, 3)))
        yield items, tf.constant(random.integers(0, 2, (16, 1)).astype("float32"))


def checkpoints_of(rig: Rig, folder: Path, **options: Any) -> Checkpoints:
    return Checkpoints(folder, keep=1, damaged=rig.control.find_damaged, links=True, **options)


def save(rig: Rig, checkpoints: Checkpoints, *, full: bool = False) -> tuple[Path, bool]:
    """Save as the chief does; return the checkpoint's folder, and whether it was incremental."""
    plan = SavePlan(None if full else checkpoints.base, recorded=True)
    with rig.control.copied(plan, fence=1, wait=wait) as state:
        return checkpoints.save(state, term=1, layout=rig.store.layout), state.base is not None


def newest(rig: Rig, folder: Path) -> Any:
    """Return the newest checkpoint as another chief reads it."""
    found = checkpoints_of(rig, folder).newest()
    assert found is not None
    return found


def with_both_tables(shared: Callable[..., Rig]) -> Rig:
    """Return the rig that most tests of this file share."""
    return shared(momentum, ps=PS, build=with_keys, loss="binary_crossentropy", mode="Sync")


def state_of(rig: Rig) -> State:
    state: State = rig.control.snapshot(fence=1)
    return state


def new_rows(path: Path, former: set[str]) -> set[int]:
    """Return the rows whose changes this checkpoint was the first to have."""
    found = set[int]()
    for file in path.glob("ps-*-rows-*"):
        if file.name not in former:
            found |= {int(file.name.split("-")[1]) + SAVING * int(row) for row in np.load(file)}
    return found


def test_changed_rows_of_several_saves_restore_onto_any_number_of_servers(client: Any, tmp_path: Path) -> None:
    """Two incremental saves after a full one: the newest folder alone has the state, bit for bit, for two numbers of
    servers and for the chief.
    """
    rig = rig_of(client, SAVING, mode="Sync")
    rig.start()
    few, checkpoints = batches_of(range(5, 25), seed=0), checkpoints_of(rig, tmp_path)
    rig.train(itertools.islice(batches_of(range(ROWS), seed=1), 4))
    first, incremental = save(rig, checkpoints)
    assert not incremental
    known = {file.name for file in first.iterdir()}
    for _ in range(2):
        rig.train(itertools.islice(few, 2))
        expected = state_of(rig)
        path, incremental = save(rig, checkpoints)
        assert incremental
        assert not first.exists(), "one checkpoint is kept"
        rows = new_rows(path, known)
        assert rows
        assert rows <= set(range(5, 25))
        known |= {file.name for file in path.iterdir()}
        assert_same(whole(newest(rig, tmp_path)), expected)
    rig.control.restore(newest(rig, tmp_path), fence=1, generation=9, fresh=False)
    assert_same(state_of(rig), expected)
    client.container += ".after"
    second = rig_of(client, SAVING - 1, mode="Sync")
    second.start(newest(second, tmp_path))
    assert_same(state_of(second), expected)


def test_a_step_after_the_copy_belongs_to_the_next_save(shared: Callable[..., Rig], tmp_path: Path) -> None:
    """Rows that change while an incremental save is written are not in it, and are in the next one."""
    rig = with_both_tables(shared)
    few, checkpoints = batches_of(range(5, 25), seed=0), checkpoints_of(rig, tmp_path)
    save(rig, checkpoints)
    rig.train([next(few)])
    copied = state_of(rig)
    with rig.control.copied(SavePlan(checkpoints.base, recorded=True), fence=1, wait=wait) as state:
        rig.train([next(few)])
        checkpoints.save(state, term=1, layout=rig.store.layout)
    assert_same(whole(newest(rig, tmp_path)), copied)
    now = state_of(rig)
    assert save(rig, checkpoints)[1]
    assert_same(whole(newest(rig, tmp_path)), now)


def test_a_copy_that_is_repeated_has_the_rows_of_both(shared: Callable[..., Rig], tmp_path: Path) -> None:
    """The servers copy again if one of them was a step behind: the first copy has already emptied the record."""
    rig = with_both_tables(shared)
    states, checkpoints = rig.control.copies, checkpoints_of(rig, tmp_path)
    save(rig, checkpoints)
    plan, token = SavePlan(checkpoints.base, recorded=True), 1
    assert states.continues(1, checkpoints.base)
    for rows in (range(5, 15), range(15, 25)):
        rig.train([next(batches_of(rows, seed=0))])
        _, state = states.copy(1, token, lambda: None, plan)
    checkpoints.save(state(2), term=1, layout=rig.store.layout)
    rig.control.release(1)
    assert_same(whole(newest(rig, tmp_path)), state_of(rig))


def test_what_makes_the_next_save_full(
    shared: Callable[..., Rig], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A failed save, many changed rows, a restore, a copy that was not saved, and another chief's term."""
    from pstraining.runtime.chief.state import state_copies

    rig = with_both_tables(shared)
    few, many = batches_of(range(5, 25), seed=0), batches_of(range(ROWS), seed=1)
    checkpoints = checkpoints_of(rig, tmp_path)

    def saved() -> bool:
        rig.train([next(few)])
        expected = state_of(rig)
        _, incremental = save(rig, checkpoints)
        assert_same(whole(newest(rig, tmp_path)), expected)
        return incremental

    assert [saved(), saved()] == [False, True]
    with monkeypatch.context() as patch:
        patch.setattr("os.link", lambda *_: (_ for _ in ()).throw(OSError(95, "no links")))
        with pytest.raises(OSError, match="no links"):
            saved()
    assert [saved(), saved()] == [False, True]
    rig.train(itertools.islice(many, 8))
    assert [saved(), saved()] == [False, True]
    with rig.control.copied(SavePlan(checkpoints.base, recorded=True), fence=1, wait=wait):
        rig.train([next(few)])
    assert [saved(), saved()] == [False, True]
    before = newest(rig, tmp_path)
    rig.train([next(few)])
    rig.start(before, generation=GENERATION + 1)
    assert [saved(), saved()] == [False, True]
    with monkeypatch.context() as patch:
        patch.setattr(state_copies, "MOST_CHANGED_BYTES", 1)
        assert not saved()
    assert saved()
    assert checkpoints_of(rig, tmp_path).base is None, "a new chief begins with a full save"


def test_the_first_save_of_a_standby_that_returns_is_full(
    client: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It may still have the record of before its absence, which lacks the steps meanwhile."""
    from pstraining.runtime.chief.store_admin import StoreAdmin

    def rig(client: Any) -> Rig:
        return rig_of(client, 1, members=2, mode="Sync")

    steps = [next(batches_of(range(first, first + 9), seed=0)) for first in range(0, 60, 10)]
    job = ReplicatedJob(client, monkeypatch, rig, steps, shards=1, chunk_bytes=PIECE, incremental_bytes=1 << 30)
    control = StoreAdmin(job.rig.store.for_assignment(((0, 1),)))
    checkpoints = Checkpoints(tmp_path, keep=1, damaged=control.find_damaged, links=True)

    def saved() -> bool:
        job.train()
        expected, fence = control.snapshot(fence=job.view_changer.fence), job.view_changer.fence
        with control.copied(SavePlan(checkpoints.base, recorded=True), fence=fence, wait=wait) as state:
            checkpoints.save(state, term=1, layout=job.rig.store.layout)
        found = checkpoints.newest()
        assert found is not None
        assert_same(whole(found), expected)
        return state.base is not None

    assert [saved(), saved()] == [False, True]
    job.lose(0, 1)
    assert len(job.establish().shards[0]) == 1
    job.train()
    assert len(job.establish(readmit=True).shards[0]) == 2
    assert [saved(), saved()] == [False, True]


def test_a_damaged_file_of_changed_rows_is_noticed(shared: Callable[..., Rig], tmp_path: Path) -> None:
    """The servers, which read the files in a restore, notice it; the checkpoint before is used."""
    rig = with_both_tables(shared)
    checkpoints = Checkpoints(tmp_path, keep=2, damaged=rig.control.find_damaged, links=True)
    save(rig, checkpoints)
    rig.train([next(batches_of(range(5, 25), seed=0))])
    path, incremental = save(rig, checkpoints)
    assert incremental
    file = next(path.glob(f"ps-{PS - 1}-*-changed-*"))
    file.write_bytes(file.read_bytes()[:-1] + b"?")
    assert newest(rig, tmp_path).step == 0


@pytest.mark.parametrize(
    "lost",
    some(
        [False, True],
        lambda lost: not lost,
        in_all("tests/training/test_runtime_incremental_saves.py::test_the_last_save_needs_no_former_checkpoint"),
    ),
)
def test_the_last_save_needs_no_former_checkpoint(
    client: Any,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    *,
    lost: bool,
) -> None:
    """A user may delete the checkpoint whose files an incremental save links."""
    from pstraining.runtime.chief.chief import Chief
    from pstraining.runtime.chief.options import ChiefOptions
    from pstraining.runtime.chief.shutdown import GracefulStop
    from pstraining.runtime.config.settings import CheckpointSettings, TrainingSettings

    rig = rig_of(client, PS, mode="Sync")
    rig.start()
    rig.train([next(batches_of(range(ROWS), seed=1))])
    few, stop = batches_of(range(5, 25), seed=0), GracefulStop()
    checkpoint = CheckpointSettings(path=str(tmp_path), interval_seconds=1, full_every=9)
    chief = Chief(client, rig.store, ChiefOptions(TrainingSettings(steps=99), checkpoint, None), stop=stop)

    expected: list[State] = []

    def report(*_: Any) -> None:
        """Train one step after the first save, and then stop the chief."""
        if saved := list(tmp_path.glob("ckpt-*")):
            server, *_ = rig.store.read()
            assert rig.step(next(few), Session(server.fence, server.generation)).session_valid
            expected.append(rig.control.snapshot(fence=server.fence))
            if lost:
                shutil.rmtree(saved[0])
            stop._asked = True

    monkeypatch.setattr(chief._reporter, "report", report)
    with pytest.raises(SystemExit, match="143"):
        chief.run()
    reported = [json.loads(line) for line in capsys.readouterr().out.splitlines() if line.startswith("{")]
    saves = [(e["step"], e["full"]) for e in reported if e["event"] == "checkpoint"]
    assert saves == [(1, True), (2, lost)]
    assert [e["step"] for e in reported if e["event"] == "checkpoint_failed"] == [2] * lost
    assert not [e for e in reported if e["event"] == "not_saved"]
    assert_same(whole(newest(rig, tmp_path)), expected[0])
