"""Servers that reach a checkpoint's folder write and read the checkpoint's large tensors themselves."""

import fcntl
import json
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pstraining.runtime.checkpoint.ports.part_place import FolderPlace
from pstraining.runtime.checkpoint.state import whole
from pstraining.runtime.checkpoint.storage import Checkpoints
from tests.support.servers import Rig
from tests.support.soak_marks import ALL
from tests.training import test_runtime_checkpoint_pieces as in_pieces
from tests.training.test_runtime_checkpoint_pieces import PIECE, ROWS, WIDTH, assert_same, batches, kept, wait

pytestmark = [pytest.mark.training, pytest.mark.timeout(300), pytest.mark.usefixtures("pieces", "small_files")]
pieces = in_pieces.pieces
FILE = 512
TABLES = {"model/items", "slot/momentum/items"}
SERVERS, OTHERS = (3, (2, 3)) if ALL else (2, (1,))
"""Numbers of servers that save and that restore."""


def model() -> Any:
    """Return a model with a large table, a large dense tensor, and small tensors."""
    import keras

    from pstraining.runtime import Embedding

    items = keras.Input((3,), dtype="int32")
    rows = keras.layers.Flatten()(Embedding(ROWS, WIDTH, name="items")(items))
    hidden = keras.layers.Dense(32, activation="tanh")(rows)
    return keras.Model(items, keras.layers.Dense(1, activation="sigmoid")(hidden))


def momentum() -> Any:
    import keras

    return keras.optimizers.SGD(1e-2, momentum=0.9)


def rig_of(client: Any, ps: int, **options: Any) -> Rig:
    return Rig(client, momentum, ps=ps, build=model, loss="binary_crossentropy", **options)


@pytest.fixture
def small_files(monkeypatch: pytest.MonkeyPatch) -> None:
    """Limit the size of files, so that even a small table has several of them."""
    from pstraining.runtime.chief.state import file_plan

    monkeypatch.setattr(file_plan, "FILE_BYTES", FILE)
    monkeypatch.setattr(file_plan, "SMALL", PIECE // 2)


def trained(client: Any, ps: int, number: int = 4, **options: Any) -> Rig:
    rig = rig_of(client, ps, **options)
    rig.start()
    rig.train(batches(number, seed=0))
    return rig


def trained_on_two(shared: Callable[..., Rig]) -> Rig:
    """Return the rig that the tests of this file share, after the same steps."""
    return trained_on(shared, 2)


def trained_on(shared: Callable[..., Rig], ps: int) -> Rig:
    rig = shared(momentum, ps=ps, build=model, loss="binary_crossentropy")
    rig.control.copies.files._reported.clear()  # as with a new chief
    rig.train(batches(4, seed=0))
    return rig


def other_on(client: Any, shared: Callable[..., Rig], ps: int) -> Rig:
    """Return the rig of the next processes, in another container; tests of this file share it, too."""
    client.container += ".after"
    rig = shared(momentum, ps=ps, build=model, loss="binary_crossentropy", with_ledger=False)
    rig.control.copies.files._reported.clear()
    return rig


def save(rig: Rig, checkpoints: Checkpoints) -> Any:
    with rig.control.copied(fence=1, wait=wait) as state:
        return checkpoints.save(state, term=1, layout=rig.store.layout)


def checkpoints_of(rig: Rig, folder: Path) -> Checkpoints:
    return Checkpoints(folder, keep=3, damaged=rig.control.find_damaged)


def ways(capsys: pytest.CaptureFixture[str]) -> list[tuple[str, str]]:
    """Return the writers and readers of large tensors, as reported since the last call."""
    found = (json.loads(line) for line in capsys.readouterr().out.splitlines() if line.startswith("{"))
    return [(event["what"], event["by"]) for event in found if event["event"] == "checkpoint_way"]


@pytest.mark.parametrize("target", OTHERS)
def test_servers_write_and_read_tables_on_any_number_of_them(
    client: Any,
    shared: Callable[..., Rig],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    target: int,
) -> None:
    """Servers write and read tables, on any number of servers: no row passes through the chief, and training continues
    meanwhile.
    """
    first = trained_on(shared, SERVERS)
    before, moved = first.control.snapshot(fence=1), list[int]()

    def counted(*arguments: Any) -> Any:
        import tensorflow as tf

        replies = call(*arguments)
        values = [np.asarray(value) for value in tf.nest.flatten((arguments[1:], replies))]
        moved.append(sum(value.nbytes for value in values if value.dtype.kind == "f"))
        return replies

    call, checkpoints = client.call, checkpoints_of(first, tmp_path)
    with first.control.copied(fence=1, wait=wait) as state:
        first.train(batches(2, seed=1))
        monkeypatch.setattr(client, "call", counted)
        path = checkpoints.save(state, term=1, layout=first.store.layout)
        monkeypatch.setattr(client, "call", call)
    dense = sum(own.nbytes for name, own in before.tensors.items() if name not in TABLES)
    assert sum(moved) <= dense
    assert not any(kept(first))
    manifest = json.loads((path / "metadata.json").read_text())
    assert TABLES <= set(manifest["parts"]) <= set(manifest["arrays"])
    with np.load(path / "state.npz") as rest:
        assert set(rest) == set(manifest["arrays"]) - set(manifest["parts"])
    files = [file for own in manifest["parts"].values() for file in own["files"]]
    assert {entry.name for entry in path.iterdir()} == {"state.npz", "metadata.json", *(file[0] for file in files)}
    name, begin, stride, rows, _ = manifest["parts"]["model/items"]["files"][1]
    expected = before.variables["items"][begin : begin + stride * rows : stride]
    np.testing.assert_array_equal(np.load(path / name), expected)
    second = other_on(client, shared, target)
    stored = checkpoints.newest()
    assert stored is not None
    assert_same(whole(stored), before)
    moved.clear()
    monkeypatch.setattr(client, "call", counted)
    second.start(stored)
    monkeypatch.setattr(client, "call", call)
    assert sum(moved) <= dense
    assert_same(second.control.snapshot(fence=1), before)
    assert ways(capsys) == [("save", "servers"), ("restore", "servers")]


@pytest.fixture
def of_the_chief(tmp_path: Path) -> Iterator[Path]:
    """Return a folder that only this process can open, by one of its descriptors."""
    opened = os.open(tmp_path, os.O_RDONLY)
    own = fcntl.fcntl(opened, fcntl.F_DUPFD, 700)
    yield Path(f"/proc/self/fd/{own}")
    os.close(own)
    os.close(opened)


def test_a_folder_that_servers_do_not_reach_is_written_and_read_by_the_chief(
    client: Any,
    shared: Callable[..., Rig],
    of_the_chief: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """The chief writes and reads a folder that servers do not reach.

    It also reads files that servers wrote earlier, and the files that one server cannot read during a restore.
    """
    from pstraining.runtime.chief.state import server_files

    rig = trained_on_two(shared)
    path = save(rig, checkpoints_of(rig, of_the_chief))
    assert not list(path.glob("ps-*"))
    assert not list(path.glob("*question*"))
    assert ways(capsys) == [("save", "chief")]
    rig.train(batches(1, seed=1))
    before = rig.control.snapshot(fence=1)
    assert list(save(rig, checkpoints_of(rig, tmp_path)).glob("ps-*"))
    other = other_on(client, shared, 1)
    other.start(checkpoints_of(other, of_the_chief).newest())
    assert_same(other.control.snapshot(fence=1), before)
    assert ways(capsys) == [("save", "servers"), ("restore", "chief")]
    load = server_files.ServerFiles._load

    def failing(own: Any, access: Any, expected: Any, piece: Any, *given: Any) -> None:
        load(own, access, expected, piece._replace(file=piece.file if piece.rows.target == 0 else "none"), *given)

    monkeypatch.setattr(server_files.ServerFiles, "_load", failing)
    other.train(batches(1, seed=2))
    other.control.restore(checkpoints_of(other, tmp_path).newest(), fence=1, generation=9, fresh=False)
    assert_same(other.control.snapshot(fence=1), before)
    assert ways(capsys) == [("restore", "chief")]


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-4])


def flip(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(content)


def foreign(path: Path) -> None:
    path.write_bytes((path.parent.parent / "ckpt-0000000004-term-1" / path.name).read_bytes())


def test_a_damaged_file_gives_way_to_the_checkpoint_before(shared: Callable[..., Rig], tmp_path: Path) -> None:
    """A damaged file makes the previous checkpoint the restored one, whether servers or the chief read it."""
    rig = trained_on_two(shared)
    save(rig, checkpoints_of(rig, tmp_path))
    rig.train(batches(1, seed=1))
    path = min(save(rig, checkpoints_of(rig, tmp_path)).glob("ps-1-*-0.npy"))
    for found in (checkpoints_of(rig, tmp_path), Checkpoints(tmp_path, keep=3)):
        good = path.read_bytes()
        for damage in (cut, flip, foreign, Path.unlink):
            damage(path)
            newest = found.newest()
            assert newest is not None
            assert newest.step == 4
            path.write_bytes(good)
        newest = found.newest()
        assert newest is not None
        assert newest.step == 5


def test_faults_that_end_a_save_by_the_servers(
    client: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A full disk, a lost server, and a copy that another chief has released each end a save by the servers. Only the
    loss ends a single save.
    """
    from pstraining.runtime.chief.errors import FencedError
    from pstraining.runtime.chief.state import server_files
    from pstraining.runtime.transport.client import ShardLostError

    def lost(*_: Any) -> Any:
        raise ShardLostError("ABORTED: Stale file handle", 0)

    rig = trained(client, 2 if ALL else 1)  # its own rig: another one no longer lets servers try that reach no folder
    with rig.control.copied(fence=1, wait=wait) as state:
        for folder in (tmp_path / "good", tmp_path / "full"):
            folder.mkdir()
        good, full = FolderPlace(tmp_path / "good"), FolderPlace(tmp_path / "full")
        files = [file.name for own in state.write_parts(good).values() for file in own.files]
        (full.folder / files[-1]).symlink_to("/dev/full")
        with pytest.raises(OSError, match="No space left on device"):
            state.write_parts(full)
        with monkeypatch.context() as patch:
            patch.setattr(server_files.ServerFiles, "_write", lost)
            with pytest.raises(ShardLostError):
                state.write_parts(good)
            assert not state.write_parts(good)
        assert state.write_parts(good)
        rig.control.release(1)
        with pytest.raises(FencedError, match="no longer keeps"):
            state.write_parts(good)
    assert ways(capsys) == [("save", "servers"), ("save", "chief"), ("save", "servers")]


def test_a_save_that_dies_while_servers_write_leaves_nothing_after_the_next(
    shared: Callable[..., Rig], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from pstraining.runtime.chief.state import server_files

    rig = trained_on_two(shared)
    checkpoints, write = checkpoints_of(rig, tmp_path), server_files.ServerFiles._write
    first, number = save(rig, checkpoints), 0
    rig.train(batches(1, seed=1))

    def dying(own: Any, access: Any, *given: Any) -> Any:
        nonlocal number
        number += 1
        if number == 5:
            raise KeyboardInterrupt
        return write(own, access, *given)

    with monkeypatch.context() as patch:
        patch.setattr(server_files.ServerFiles, "_write", dying)
        with pytest.raises(KeyboardInterrupt):
            save(rig, checkpoints)
    assert not any(kept(rig))
    (left,) = tmp_path.glob(".tmp-*")
    assert list(left.glob("ps-*"))
    newest = checkpoints.newest()
    assert newest is not None
    assert newest.step == 4
    second = save(rig, checkpoints)
    assert {path.name for path in tmp_path.iterdir() if not path.name.startswith("term")} == {first.name, second.name}
