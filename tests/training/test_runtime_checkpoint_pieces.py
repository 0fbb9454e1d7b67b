"""A state that is saved and restored in pieces is bit-equal, needs bounded memory in the chief, and survives the
chief's crash.
"""

import itertools
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pstraining.runtime.checkpoint.state import State, whole
from pstraining.runtime.checkpoint.storage import Checkpoints
from tests.support.servers import GENERATION, Rig
from tests.support.soak_marks import in_all
from tests.support.worker_threads import Crew

pytestmark = [pytest.mark.training, pytest.mark.timeout(300)]
PIECE = 1024
"""Bytes of a piece: fewer than the tables have, with 7 rows for each of 8 columns, and than the larger dense tensor."""
ROWS, WIDTH = 200, 8


def model() -> Any:
    """Return a model with a table and a dense tensor that are cut into pieces, and small tensors that are not."""
    import keras

    from pstraining.runtime import Embedding

    items = keras.Input((3,), dtype="int32")
    rows = keras.layers.Flatten()(Embedding(ROWS, WIDTH, name="items")(items))
    hidden = keras.layers.BatchNormalization()(keras.layers.Dense(32, activation="tanh")(rows))
    return keras.Model(items, keras.layers.Dense(1, activation="sigmoid")(hidden))


def batches(number: int, *, seed: int) -> list[Any]:
    import tensorflow as tf

    random = np.random.default_rng(seed)
    return [
        (tf.constant(random.integers(0, ROWS, (16, 3))), tf.constant(random.integers(0, 2, (16, 1)).astype("float32")))
        for _ in range(number)
    ]


def adam() -> Any:
    import keras

    return keras.optimizers.Adam(1e-2)


def rig_of(client: Any, ps: int) -> Rig:
    return Rig(client, adam, ps=ps, build=model, loss="binary_crossentropy")


@pytest.fixture
def pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    """Limit the size of pieces, so that even a small model has several of them."""
    from pstraining.runtime.chief.state import server_parts, state_copies, table_moves
    from pstraining.runtime.ps.saving import part_copies

    monkeypatch.setattr(part_copies, "SMALL_TABLE", 0)
    monkeypatch.setattr(server_parts, "PIECE_BYTES", PIECE)
    monkeypatch.setattr(state_copies, "RANGE_BYTES", PIECE)
    monkeypatch.setattr(table_moves, "RANGE_BYTES", PIECE)


def assert_same(state: Any, expected: State) -> None:
    assert (state.step, set(state.entries)) == (expected.step, set(expected.entries))
    for name, value in expected.tensors.items():
        np.testing.assert_array_equal(state.read(name, 0, value.size).reshape(value.shape), value, err_msg=name)


def kept(rig: Rig, parts: Sequence[Any] | None = None) -> list[bool]:
    """Return for each server whether it holds a part of a copy; None: for the servers whose state is saved."""
    import tensorflow as tf

    def look() -> list[Any]:
        return [
            rig.control.client.to_local(tf.reduce_any([copy.initialized() for copy in own._copies]))
            for own in parts or rig.control.parts.sources
        ]

    return [bool(found) for found in rig.control.client.call(tf.function(look, autograph=False))]


def at_once(rig: Rig) -> State:
    """Return the state, read in one call, without a copy on the servers."""
    from pstraining.runtime.chief.state import server_parts, state_copies
    from pstraining.runtime.ps.record import RecordField

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(server_parts, "PIECE_BYTES", 1 << 30)
        states = state_copies.StateCopies(server_parts.ServerParts(rig.store, rig.control._demand))
    records, state = states.copy(1, 0, lambda: None)
    return whole(state(int(records[0][RecordField.STEP])))


def wait() -> None:
    raise AssertionError("no worker has newer parameters in this mode")


@pytest.mark.usefixtures("pieces")
def test_a_state_of_any_size_passes_through_the_chief_in_pieces(
    client: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A state of any size passes through the chief in pieces. It is copied on three servers while they train, and
    restored onto two.
    """
    first = rig_of(client, 3)
    first.start()
    Crew(first, [batches(4, seed=0)]).join()
    sizes: list[int] = []

    def counted(*arguments: Any) -> Any:
        import tensorflow as tf

        replies = call(*arguments)
        sizes.extend(np.asarray(value).nbytes for value in tf.nest.flatten((arguments[1:], replies)))
        return replies

    call, checkpoints = client.call, Checkpoints(tmp_path, keep=1)
    before = first.control.snapshot(fence=1)
    with monkeypatch.context() as patch, first.control.copied(fence=1, wait=wait) as state:
        patch.setattr(client, "call", counted)
        Crew(first, [batches(3, seed=1)]).join()
        checkpoints.save(state, term=1, layout=first.store.layout)
    after = first.control.snapshot(fence=1)
    assert (before.step, after.step) == (4, 7)
    assert not any(kept(first))
    with np.load(next(tmp_path.glob("ckpt-*")) / "state.npz", allow_pickle=False) as plain:
        assert_same(State.of(4, dict(plain)), before)
    client.container += ".after"
    second = rig_of(client, 2)
    stored = checkpoints.newest()
    assert stored is not None
    with monkeypatch.context() as patch:
        patch.setattr(client, "call", counted)
        second.start(stored)
    assert PIECE // 4 < max(sizes) <= PIECE, "the largest array that a call sent or returned"
    assert not any(kept(second))
    assert_same(second.control.snapshot(fence=1), before)
    monkeypatch.undo()
    assert_same(rig_of(client, 2).control.snapshot(fence=1), before)  # in one call


@pytest.mark.usefixtures("pieces")
def test_tables_are_copied_while_steps_change_them(client: Any) -> None:
    """Tables are copied while steps change them: with a step after every range, the copy is the state at its end."""
    rig = rig_of(client, 2)
    rig.start()
    coming = itertools.cycle(batches(10, seed=0))
    with rig.control.copied(fence=1, wait=wait, between=lambda: rig.train([next(coming)])) as state:
        now = at_once(rig)
        assert state.step == now.step == 12, "a table and two slots, in four ranges each"
        rig.train([next(coming)])
        saved = whole(state)
    assert_same(saved, now)
    assert not any(kept(rig))


@pytest.mark.usefixtures("pieces")
def test_a_chief_that_dies_while_it_saves_leaves_nothing_behind(client: Any) -> None:
    from pstraining.runtime.chief.errors import FencedError

    rig = rig_of(client, 2)
    rig.start()
    token = rig.control.copies.copy_ahead(1, lambda: None)
    records, state = rig.control.copies.copy(1, token, lambda: None)
    blocks = state(0).blocks()
    next(blocks)
    assert all(kept(rig))
    assert [int(record[0]) for record in records] == [1, 1]
    rig.control.raise_fence(rig.store.read(), 2)
    rig.control.release(1)
    assert all(kept(rig)), "the former chief changes nothing any more"
    rig.control.release(2)
    assert not any(kept(rig))
    with pytest.raises(FencedError, match="no longer keeps"):
        list(blocks)
    with pytest.raises(FencedError, match="another term"), rig.control.copied(fence=1, wait=wait):
        pass
    assert not any(kept(rig)), "a former chief creates no copy either"


@in_all(
    "tests/training/test_runtime_checkpoint_pieces.py::test_a_chief_that_dies_while_it_saves_leaves_nothing_behind"
)  # by a second copy
@pytest.mark.usefixtures("pieces")
def test_two_saves_are_never_mixed(client: Any) -> None:
    from pstraining.runtime.chief.errors import FencedError

    rig = rig_of(client, 2)
    rig.start()
    with rig.control.copied(fence=1, wait=wait) as state:
        blocks = state.blocks()
        next(blocks)
        rig.control.copies.copy(1, rig.control.copies.copy_ahead(1, lambda: None), lambda: None)
        with pytest.raises(FencedError, match="no longer keeps"):
            list(blocks)


class Cut:
    """A checkpoint that cannot be read to its end, as if the chief crashed."""

    def __init__(self, state: Any, pieces: int) -> None:
        self._state, self._left = state, pieces
        self.step, self.ended_early, self.entries = state.step, state.ended_early, state.entries

    def read(self, name: str, begin: int, end: int) -> Any:
        self._left -= 1
        if self._left < 0:
            raise KeyboardInterrupt
        return self._state.read(name, begin, end)


@pytest.mark.usefixtures("pieces")
def test_a_chief_that_dies_while_it_restores_leaves_servers_that_do_not_count(client: Any, tmp_path: Path) -> None:
    rig = rig_of(client, 2)
    rig.start()
    rig.train(batches(3, seed=0))
    saved = rig.control.snapshot(fence=1)
    rig.train(batches(1, seed=1))
    for number in (1, 12):
        with pytest.raises(KeyboardInterrupt):
            rig.control.restore(Cut(saved, number), fence=1, generation=GENERATION + 1, fresh=False)
        assert {record.generation for record in rig.store.read()} == {0}
        assert not rig.step(batches(1, seed=2)[0]).session_valid
    rig.control.raise_fence(rig.store.read(), 2)
    rig.control.restore(saved, fence=2, generation=GENERATION + 2, fresh=False)
    assert not any(kept(rig))
    assert_same(rig.control.snapshot(fence=2), saved)


@in_all("tests/training/test_runtime_updates.py::test_a_late_restore_changes_nothing")  # in pieces
@pytest.mark.usefixtures("pieces")
def test_calls_of_a_restore_in_pieces_that_arrive_late_change_nothing(client: Any) -> None:
    from pstraining.runtime.chief.errors import FencedError

    rig = rig_of(client, 2)
    sent = rig.start_noted()
    rig.train(batches(2, seed=0))
    before = rig.control.snapshot(fence=1)
    assert len(sent) > 20
    for call in sent:
        with pytest.raises(FencedError):
            rig.control._demand(*call)
    assert_same(rig.control.snapshot(fence=1), before)


@in_all(
    "tests/training/test_runtime_checkpoint_pieces.py::test_a_chief_that_dies_while_it_saves_leaves_nothing_behind"
)  # with a folder
@pytest.mark.usefixtures("pieces")
def test_a_save_that_no_server_can_complete_leaves_the_folder_as_it_was(client: Any, tmp_path: Path) -> None:
    from pstraining.runtime.chief.errors import FencedError

    checkpoints = Checkpoints(tmp_path, keep=2)
    rig = rig_of(client, 2)
    rig.start()
    saved = checkpoints.save(rig.control.snapshot(fence=1), term=1, layout=rig.store.layout)
    rig.train(batches(1, seed=0))
    with rig.control.copied(fence=1, wait=wait) as state:
        rig.control.release(1)
        with pytest.raises(FencedError, match="no longer keeps"):
            checkpoints.save(state, term=1, layout=rig.store.layout)
    newest = checkpoints.newest()
    assert newest is not None
    assert newest.step == 0
    assert [path.name for path in tmp_path.iterdir() if path.name.startswith(("ckpt", ".tmp"))] == [saved.name]
