"""Tensors in files that servers wrote: read at any place, rejected if damaged, and consistent after an interrupted
save.
"""

import shutil
import zlib
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path
from typing import Any, Final

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pstraining.runtime.checkpoint.errors import CorruptCheckpointError
from pstraining.runtime.checkpoint.fencing import Writer
from pstraining.runtime.checkpoint.parts import PartFile, Parts, StoredParts, WritesParts, header, shared_rows
from pstraining.runtime.checkpoint.ports.checkpoint_storage import CheckpointStorage
from pstraining.runtime.checkpoint.ports.part_place import FolderPlace, PartPlace
from pstraining.runtime.checkpoint.state import Entry, State, whole
from pstraining.runtime.checkpoint.storage import Checkpoints
from tests.support.stepping import Stepped, install
from tests.unit.runtime.test_checkpoint import flip, layout, names

TABLE: Final = "model/items"


def find_damaged(place: PartPlace, expected: Mapping[str, str]) -> list[str]:
    """Find damaged files with a checksum that needs no TensorFlow."""
    return [name for name, checksum in expected.items() if _checksum(place, name) != checksum]


def _checksum(place: PartPlace, name: str) -> str:
    try:
        return crc_of(place.content(name))
    except CorruptCheckpointError:
        return ""


def crc(path: Path) -> str:
    return crc_of(path.read_bytes())


def crc_of(content: bytes) -> str:
    return f"{zlib.crc32(content):08x}"


def table(step: int, rows: int = 23, width: int = 3) -> Any:
    return np.arange(rows * width, dtype=np.float32).reshape(rows, width) + step


def write_rows(folder: Path, values: Any, servers: int, length: int) -> Parts:
    """Write a table as servers do, each server every n-th row, in files of some rows."""
    files = []
    for server in range(servers):
        own = values[server::servers]
        for begin in range(0, len(own), length):
            rows = own[begin : begin + length]
            path = folder / f"ps-{server}-0-{begin}.npy"
            with path.open("wb") as file:
                file.write(header("float32", len(rows), values.shape[1]))
                file.write(rows.tobytes())
            files.append(PartFile(path.name, server + servers * begin, servers, len(rows), crc(path)))
    return Parts(values.shape[1], files)


class OnServers:
    """A state of which two servers write the table themselves."""

    copy, base = 1, None

    def __init__(self, step: int) -> None:
        self.step, self.ended_early = step, False
        self._rest = State(step, {"bias": np.full(3, step, np.float32)}, {}, {})

    @property
    def entries(self) -> dict[str, Entry]:
        return {TABLE: Entry("float32", table(0).shape), **self._rest.entries}

    def blocks(self) -> Iterator[tuple[str, Any]]:
        yield TABLE, table(self.step).reshape(-1)
        yield from self._rest.blocks()

    def write_parts(self, place: PartPlace) -> Mapping[str, Parts]:
        assert isinstance(place, FolderPlace)
        return {TABLE: write_rows(place.folder, table(self.step), 2, 5)}

    def without(self, left_out: Collection[str]) -> State:
        assert set(left_out) == {TABLE}
        return self._rest


def opened(folder: Path, term: int, keep: int = 3) -> Checkpoints:
    checkpoints = Checkpoints(folder, keep=keep, writer=Writer("job", term), damaged=find_damaged)
    checkpoints.open()
    return checkpoints


def saved(folder: Path, *steps: int) -> Checkpoints:
    checkpoints = opened(folder, 1)
    for step in steps:
        assert isinstance(OnServers(step), WritesParts)
        checkpoints.save(OnServers(step), term=1, layout=layout())
    return checkpoints


def newest(checkpoints: CheckpointStorage) -> int:
    """Return the newest step; demand that its values are those that were saved."""
    found = checkpoints.newest()
    assert found is not None
    state = whole(found)
    np.testing.assert_array_equal(state.variables["items"], table(found.step))
    np.testing.assert_array_equal(state.variables["bias"], np.full(3, found.step, np.float32))
    return found.step


def test_tensors_in_files_of_their_own_are_read_like_others_and_by_numpy(tmp_path: Path) -> None:
    checkpoints = saved(tmp_path, 7)
    assert newest(checkpoints) == 7
    np.testing.assert_array_equal(np.load(checkpoints.path(7) / "ps-1-0-5.npy"), table(7)[11:20:2])


def foreign(path: Path) -> None:
    """Replace the file by the one of the same name in the other checkpoint."""
    other = {"ckpt-0000000010-term-1": "ckpt-0000000020-term-1"}
    shutil.copy(path.parent.parent / next(k for k, v in other.items() if v == path.parent.name) / path.name, path)


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-4])


def flip_last(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(content)


@pytest.mark.parametrize("damage", [cut, flip, flip_last, foreign, Path.unlink])
def test_a_damaged_file_gives_way_to_the_checkpoint_before(tmp_path: Path, damage: Any) -> None:
    checkpoints = saved(tmp_path, 10, 20)
    damage(checkpoints.path(20) / "ps-1-0-5.npy")
    assert newest(checkpoints) == 10


def test_a_save_that_dies_at_any_call_keeps_the_previous_state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A save that dies at any call keeps the previous state: during files, at the manifest, and in the rename. The next
    save removes its leftovers.
    """
    install(monkeypatch, can_exchange=True)
    die_at, kept = 0, set[int]()
    while True:
        folder = tmp_path / str(die_at)
        old = saved(folder, 10)
        saving = Stepped(lambda own=old: own.save(OnServers(20), term=1, layout=layout()))  # type: ignore[misc]
        while saving.calls < die_at and not saving.is_over:
            saving.step()
        if saving.is_over:
            break
        saving.kill()
        new = opened(folder, 2)
        kept.add(newest(new))
        left = {f"ckpt-{new.load(step).step:010d}-term-1" for step in new.steps()}
        late_writer(folder, die_at)
        new.save(OnServers(30), term=2, layout=layout())
        assert set(names(folder)) == left | {"ckpt-0000000030-term-2", "term-2"}
        assert newest(new) == 30
        die_at += 1
    assert die_at > 20
    assert kept == {10, 20}


def late_writer(folder: Path, number: int) -> None:
    """Let a paused server write its file now: TensorFlow recreates the removed folder."""
    late = folder / f".tmp-1-{number:08x}-ckpt-0000000020-term-1"
    late.mkdir()
    (late / "ps-0-0-0.npy").write_bytes(b"late")


numbers = st.integers(1, 7)


@given(st.integers(0, 40), numbers, numbers, numbers)
def test_each_row_of_a_file_goes_to_the_server_that_has_it(rows: int, servers: int, length: int, target: int) -> None:
    """Each row of a file goes to the server that owns it, from the files of any number of servers onto any other
    number.
    """
    values = np.arange(rows)
    found: dict[int, dict[int, int]] = {server: {} for server in range(target)}
    for file, own in files_of(values, servers, length):
        for server in range(target):
            if shared := shared_rows(file, server, target):
                for number in range(shared.rows):
                    place = shared.target + shared.target_step * number
                    assert place not in found[server]
                    found[server][place] = own[shared.source + shared.source_step * number]
    for server, given_rows in found.items():
        assert given_rows == dict(enumerate(values[server::target].tolist()))


def files_of(values: Any, servers: int, length: int) -> Iterator[tuple[PartFile, list[int]]]:
    for server in range(servers):
        own = values[server::servers].tolist()
        for begin in range(0, len(own), length):
            rows = own[begin : begin + length]
            yield PartFile("", server + servers * begin, servers, len(rows), ""), rows


@given(st.integers(1, 40), numbers, numbers, st.data())
def test_any_elements_are_read(tmp_path_factory: Any, rows: int, servers: int, length: int, data: Any) -> None:
    folder = tmp_path_factory.mktemp("parts")
    values = table(0, rows)
    parts = {TABLE: write_rows(folder, values, servers, length)}
    own = StoredParts(FolderPlace(folder), {TABLE: Entry("float32", values.shape)}, parts)
    end = data.draw(st.integers(0, values.size))
    begin = data.draw(st.integers(0, end))
    np.testing.assert_array_equal(own.read(TABLE, begin, end), values.reshape(-1)[begin:end])
