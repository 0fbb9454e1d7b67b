"""Volumes that damage a checkpoint, fail in a rename, cannot rename at all, or have unexpected content."""

import errno
import os
import sys
import threading
import time
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pstraining.runtime.checkpoint import files
from pstraining.runtime.checkpoint.errors import CorruptCheckpointError
from pstraining.runtime.checkpoint.naming import Key
from pstraining.runtime.checkpoint.ports.part_place import FolderPlace
from pstraining.runtime.checkpoint.state import State
from pstraining.runtime.checkpoint.storage import Checkpoints
from pstraining.runtime.config.settings import SettingsError
from tests.support.soak_marks import ALL
from tests.unit.runtime.test_checkpoint import change, layout, names, opened, saved, state

FLIPPED = (0x01, 0x08, 0x80, 0xFF)
"""Bits of a byte."""


def small(step: int) -> State:
    return State(step, {"w": np.arange(3, dtype=np.float32) + step}, {}, {})


def of_this_thread(record: Callable[[float], None], sleep: Callable[[float], None]) -> Callable[[float], None]:
    """Return a sleep that only records in this thread; threads that other tests have started sleep as before."""
    own = threading.get_ident()

    def slept(seconds: float) -> None:
        (record if threading.get_ident() == own else sleep)(seconds)

    return slept


def what_is_left(checkpoints: Checkpoints) -> int:
    """Return the newest step; demand that its values are those that were saved."""
    found = checkpoints.newest()
    assert found is not None
    np.testing.assert_array_equal(found.variables["w"], small(found.step).variables["w"])
    return found.step


@pytest.fixture
def two(tmp_path: Path) -> Checkpoints:
    checkpoints = opened(tmp_path)
    for step in (10, 20):
        checkpoints.save(small(step), term=1, layout=layout())
    return checkpoints


@pytest.mark.parametrize(("file", "harmless"), [("state.npz", {20}), ("metadata.json", set())])
def test_a_byte_that_changed_anywhere_costs_the_newest_at_most(two: Checkpoints, file: str, harmless: set[int]) -> None:
    path = two.path(20) / file
    good = path.read_bytes()
    found = set()
    for at in range(len(good)):
        for flipped in FLIPPED if ALL else (FLIPPED[at % len(FLIPPED)],):
            path.write_bytes(good[:at] + bytes([good[at] ^ flipped]) + good[at + 1 :])
            found.add(what_is_left(two))
    assert found == {10} | harmless, "a date that changed does no harm"


@pytest.mark.parametrize("file", ["state.npz", "metadata.json"])
def test_a_file_that_was_cut_anywhere_costs_the_newest_at_most(two: Checkpoints, file: str) -> None:
    path = two.path(20) / file
    good = path.read_bytes()
    for length in range(len(good)):
        path.write_bytes(good[:length])
        assert what_is_left(two) == 10


@pytest.mark.parametrize(
    "text",
    [
        b"[]",
        b"null",
        b'{"format": 1, "step": 20, "folderTerm": 1, "arrays": null}',
        b'{"format": 1, "step": 20, "folderTerm": 1, "arrays": {"model/w": null}}',
        b'{"format": 1, "step": 20, "folderTerm": 1, "arrays":' + b"[" * 100_000 + b"]" * 100_000 + b"}",
        b"\xff\xfe",
    ],
)
def test_metadata_that_is_something_else_costs_the_newest_only(two: Checkpoints, text: bytes) -> None:
    (two.path(20) / "metadata.json").write_bytes(text)
    assert what_is_left(two) == 10


def test_a_size_that_the_file_does_not_have_is_damage_and_no_lack_of_memory(two: Checkpoints) -> None:
    folder = two.path(20)
    with zipfile.ZipFile(folder / "state.npz", "w") as archive, archive.open("model/w.npy", "w") as file:
        np.lib.format.write_array_header_1_0(file, {"descr": "<f4", "fortran_order": False, "shape": (1 << 60,)})
        file.write(b"\0" * 12)
    change(folder / "metadata.json", arrays={"model/w": ["float32", [1 << 60]]})
    assert what_is_left(two) == 10


def test_a_lack_of_memory_is_no_damage(two: Checkpoints, monkeypatch: pytest.MonkeyPatch) -> None:
    def read(*_: Any, **__: Any) -> None:
        raise MemoryError

    monkeypatch.setattr(zipfile.ZipExtFile, "read", read)
    with pytest.raises(MemoryError):
        two.newest()


def failing(monkeypatch: pytest.MonkeyPatch, number: int, *, of: str, to: int = sys.maxsize) -> None:
    """Fail renames of names that contain `of` with EIO, from this one up to another one."""
    rename, done = os.rename, [0]

    def renamed(source: Any, target: Any) -> None:
        if of in Path(source).name or of in Path(target).name:
            done[0] += 1
            if number <= done[0] <= to:
                raise OSError(errno.EIO, "Input/output error")
        rename(source, target)

    monkeypatch.setattr(os, "rename", renamed)


@pytest.mark.parametrize("last", [2, sys.maxsize])
def test_a_failed_rename_keeps_the_previous_state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, last: int) -> None:
    """A failed rename keeps the previous state: the second of two, and all later ones, including the one that would
    restore the previous state.
    """
    checkpoints = saved(tmp_path, 100, keep=1)
    monkeypatch.setattr(files, "exchange", lambda _, __: False)
    with monkeypatch.context() as broken:
        failing(broken, 2, of="ckpt", to=last)
        with pytest.raises(OSError, match="Input/output error"):
            checkpoints.save(state(100), term=1, layout=layout())
        assert checkpoints.steps() == [100]
        assert checkpoints.load(100).step == 100
    checkpoints.save(state(101), term=1, layout=layout())
    assert names(tmp_path) == [Key(1, 101).name, "term-1"]


def test_names_are_exchanged_where_the_volume_can(tmp_path: Path) -> None:
    for name in ("one", "other"):
        (tmp_path / name).mkdir()
        (tmp_path / name / name).touch()
    if not files.exchange(tmp_path / "one", tmp_path / "other"):
        pytest.skip("the file system of this folder cannot")
    assert names(tmp_path / "one") == ["other"]
    assert names(tmp_path / "other") == ["one"]
    with pytest.raises(FileNotFoundError):
        files.exchange(tmp_path / "one", tmp_path / "none")


@pytest.mark.parametrize(
    "name", [".tmp-ckpt-0000000007", ".tmp-1-0a1b2c3d-ckpt-0000000007-term-1", ".tmp-1-old-ckpt-0000000007-term-1"]
)
@pytest.mark.parametrize("kind", ["file", "symlink", "folder"])
def test_leftovers_under_a_temporary_name_stop_no_save(tmp_path: Path, name: str, kind: str) -> None:
    checkpoints = saved(tmp_path, 7)
    left = tmp_path / name
    if kind == "file":
        left.write_text("x")
    elif kind == "symlink":
        left.symlink_to(tmp_path / "term-1")
    else:
        left.mkdir()
    checkpoints.save(state(8), term=1, layout=layout())
    assert names(tmp_path) == [Key(1, 7).name, Key(1, 8).name, "term-1"]
    assert names(tmp_path / "term-1") == ["chief.json"]


def test_a_folder_that_cannot_be_removed_stops_no_save(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A folder that cannot be removed stops no save; NFS keeps files that a process has open."""
    checkpoints = saved(tmp_path, 7)
    monkeypatch.setattr(files, "remove", lambda _: None)
    with monkeypatch.context() as broken:
        failing(broken, 1, of="ckpt", to=1)
        with pytest.raises(OSError, match="Input/output error"):
            checkpoints.save(state(8), term=1, layout=layout())
    checkpoints.save(state(8), term=1, layout=layout())
    assert checkpoints.steps() == [7, 8]


def is_folder(path: Any) -> bool:
    return Path(path).is_dir()


def test_a_volume_that_cannot_rename_folders_is_named_at_the_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rename = os.rename

    def renamed(source: Any, target: Any) -> None:
        if is_folder(source):
            raise OSError(errno.ENOSYS, "Function not implemented")
        rename(source, target)

    monkeypatch.setattr(os, "rename", renamed)
    with pytest.raises(
        SettingsError,
        match=rf"^checkpoint\.path: the volume of {tmp_path} cannot rename a folder \(Function not impl.*\).*mount",
    ):
        opened(tmp_path)
    assert names(tmp_path) == []


def test_a_volume_that_cannot_link_files_refuses_incremental_saves(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: Any) -> None:
        raise OSError(errno.EPERM, "Operation not permitted")

    monkeypatch.setattr(os, "link", refuse)
    opened(tmp_path)
    with pytest.raises(
        SettingsError,
        match=rf"^checkpoint\.fullEvery: the volume of {tmp_path} cannot link a file \(Operation not permitted\)",
    ):
        Checkpoints(tmp_path, keep=1, links=True).open()


@pytest.mark.parametrize(
    ("call", "said"),
    [
        ("os.rmdir", "cannot delete a folder"),
        ("os.fsync", "cannot be written to"),
        ("os.replace", "cannot replace a file"),
        ("pstraining.runtime.checkpoint.files.exchange", "cannot replace a folder"),
    ],
)
def test_every_operation_of_a_save_is_tried_at_the_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: str, said: str
) -> None:
    def failed(*_: Any, **__: Any) -> None:
        raise OSError(errno.EPERM, "Operation not permitted")

    with monkeypatch.context() as broken:
        broken.setattr(call, failed)
        with pytest.raises(SettingsError, match=rf"{said}.*Operation not permitted"):
            opened(tmp_path)
    opened(tmp_path).save(state(1), term=1, layout=layout())
    assert names(tmp_path) == [Key(1, 1).name, "term-1"]


def test_parents_that_were_made_are_on_the_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    synced: list[Path] = []
    monkeypatch.setattr(files, "sync_folder", synced.append)
    files.make_folder(tmp_path / "a" / "b" / "c")
    assert synced == [tmp_path, tmp_path / "a", tmp_path / "a" / "b"]
    files.make_folder(tmp_path / "a" / "b" / "c")
    assert len(synced) == 3


def test_a_checkpoint_that_appears_while_the_newest_is_read_is_taken(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A checkpoint that appears while the newest is read is used. It belongs to a chief that has not noticed its
    successor yet, and deletes the one that is being read.
    """
    old = saved(tmp_path, 10, keep=1)
    read = Path.read_text

    def reading(path: Path, *arguments: Any, **options: Any) -> str:
        if path.parent == tmp_path / Key(1, 10).name:
            monkeypatch.setattr(Path, "read_text", read)
            old.save(state(11), term=1, layout=layout())
        return read(path, *arguments, **options)

    monkeypatch.setattr(Path, "read_text", reading)
    found = Checkpoints(tmp_path, keep=1).newest()
    assert found is not None
    assert found.step == 11
    with pytest.raises(CorruptCheckpointError, match="no checkpoint of step 10"):
        old.load(10)


@pytest.mark.parametrize(("failures", "step"), [(1, 20), (6, 20), (7, 10)])
def test_a_volume_that_does_not_answer_for_a_minute_costs_no_step(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, failures: int, step: int
) -> None:
    """As NFS whose server restarts. A disk whose sectors are unreadable for good gives way to the checkpoint before."""
    checkpoints, waited = saved(tmp_path, 10, 20), list[float]()
    left = [errno.EIO] * failures
    read = Path.read_text

    def failing(path: Path, *given: Any, **more: Any) -> str:
        if left and path.parent == checkpoints.path(20):
            raise OSError(left.pop(), "Input/output error")
        return read(path, *given, **more)

    monkeypatch.setattr(Path, "read_text", failing)
    monkeypatch.setattr("time.sleep", of_this_thread(waited.append, time.sleep))
    found = checkpoints.newest()
    assert found is not None
    assert found.step == step
    assert waited == [1.0, 2.0, 4.0, 8.0, 16.0, 32.0][:failures]


@pytest.mark.parametrize("number", [errno.ENOTCONN, errno.ETIMEDOUT, errno.EACCES, errno.EMFILE, errno.EIO])
def test_checkpoints_that_may_be_whole_are_not_passed_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    """A volume that does not answer for minutes, as when its mount is gone, or that denies access."""
    checkpoints = saved(tmp_path, 10, 20)

    def failing(path: Path, *_: Any, **__: Any) -> str:
        if number == errno.EIO or path.parent == checkpoints.path(20):
            raise OSError(number, os.strerror(number))
        raise AssertionError(path)

    monkeypatch.setattr(Path, "read_text", failing)
    monkeypatch.setattr("time.sleep", of_this_thread(lambda _: None, time.sleep))
    with pytest.raises(OSError, match=os.strerror(number)):
        checkpoints.newest()


def test_a_part_on_a_volume_that_does_not_answer_is_not_damaged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "part").write_bytes(b"x")
    place = FolderPlace(tmp_path)

    def failing(*_: Any, **__: Any) -> int:
        raise OSError(errno.ESTALE, "Stale file handle")

    monkeypatch.setattr(os, "open", failing)
    with pytest.raises(OSError, match="Stale"):
        place.content("part")


@pytest.mark.parametrize("call", ["mkdir", "fsync", "rename", "listdir"])
def test_a_volume_that_does_not_answer_for_a_while_refuses_no_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: str
) -> None:
    """Such as NFS whose server restarts. A refusal would end the job for good."""
    real, left, waited = getattr(os, call), [errno.ESTALE] * 2, list[float]()

    def failing(*given: Any, **more: Any) -> Any:
        if left:
            raise OSError(number := left.pop(), os.strerror(number))
        return real(*given, **more)

    monkeypatch.setattr(os, call, failing)
    monkeypatch.setattr("time.sleep", of_this_thread(waited.append, time.sleep))
    opened(tmp_path).save(state(1), term=1, layout=layout())
    assert waited == [1.0, 2.0]
    left[:] = [errno.ESTALE] * 100
    with pytest.raises(OSError, match="Stale"):
        opened(tmp_path)
    assert len(waited) == 2 + 6, "then another pod may reach the volume"
    left[:] = [errno.EIO] * 100
    with pytest.raises(SettingsError, match=r"^checkpoint\.path: .* cannot be written to \(Input/output error\)"):
        opened(tmp_path)
