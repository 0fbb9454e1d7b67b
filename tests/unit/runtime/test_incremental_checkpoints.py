"""Checkpoints of incremental saves: complete in every folder, damaged or interrupted anywhere."""

from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pstraining.runtime.checkpoint import manifest
from pstraining.runtime.checkpoint.fencing import Writer
from pstraining.runtime.checkpoint.parts import ChangedFile, Parts, header
from pstraining.runtime.checkpoint.ports.checkpoint_storage import CheckpointStorage
from pstraining.runtime.checkpoint.ports.part_place import FolderPlace, PartPlace
from pstraining.runtime.checkpoint.saver import Saver
from pstraining.runtime.checkpoint.state import FULL, Entry, SavePlan, State, whole
from pstraining.runtime.checkpoint.storage import Checkpoints
from pstraining.runtime.config.settings import CheckpointSettings
from tests.support.stepping import Stepped, install
from tests.unit.runtime.test_checkpoint import layout, names
from tests.unit.runtime.test_checkpoint_parts import TABLE, crc, find_damaged, flip_last, write_rows

SERVERS, ROWS, WIDTH = 2, 11, 3
FILE_ROWS = 3
"""Rows of a file of changed rows."""


def write_changes(folder: Path, values: Any, changed: Collection[int], copy: int) -> Parts:
    """Write the changed rows of a table as servers do, each server every n-th row."""
    files = []
    for server in range(SERVERS):
        own = sorted(row // SERVERS for row in changed if row % SERVERS == server)
        for begin in range(0, len(own), FILE_ROWS):
            local = np.array(own[begin : begin + FILE_ROWS], np.int64)
            rows = values[server::SERVERS][local]
            paths = [folder / f"ps-{server}-{kind}-changed-{copy:x}-{begin}.npy" for kind in ("0", "rows-0")]
            headers = [header("float32", len(local), WIDTH), header("int64", len(local), 1)]
            for path, start, content in zip(paths, headers, (rows, local), strict=True):
                path.write_bytes(start + content.tobytes())
            checksums = [crc(path) for path in paths]
            files.append(ChangedFile(paths[0].name, paths[1].name, server, SERVERS, len(local), *checksums))
    return Parts(WIDTH, [], files)


class OnServers:
    """A state of which two servers write the table, or its changed rows, themselves."""

    def __init__(self, step: int, values: Any, *, copy: int, base: int | None, changed: Collection[int] = ()) -> None:
        self.step, self.ended_early, self.copy, self.base = step, False, copy, base
        self._values, self._changed = values, changed
        self._rest = State(step, {"bias": np.full(3, step, np.float32)}, {}, {})

    @property
    def entries(self) -> dict[str, Entry]:
        return {TABLE: Entry("float32", self._values.shape), **self._rest.entries}

    def blocks(self) -> Iterator[tuple[str, Any]]:
        raise AssertionError("the table is written by servers")

    def write_parts(self, place: PartPlace) -> Mapping[str, Parts]:
        assert isinstance(place, FolderPlace)
        return self.written(place.folder)

    def written(self, folder: Path) -> Mapping[str, Parts]:
        """Write the table, or its changed rows, to a folder."""
        if self.base is None:
            return {TABLE: write_rows(folder, self._values, SERVERS, 4)}
        return {TABLE: write_changes(folder, self._values, self._changed, self.copy)}

    def without(self, left_out: Collection[str]) -> State:
        assert set(left_out) == {TABLE}
        return self._rest


def opened(folder: Path, term: int = 1, *, keep: int = 1) -> Checkpoints:
    checkpoints = Checkpoints(folder, keep=keep, writer=Writer("job", term), damaged=find_damaged, links=True)
    checkpoints.open()
    return checkpoints


class Training:
    """A table whose rows change between saves."""

    def __init__(self, checkpoints: CheckpointStorage, state: type[OnServers] = OnServers) -> None:
        self.checkpoints, self._state = checkpoints, state
        self.values = np.arange(ROWS * WIDTH, dtype=np.float32).reshape(ROWS, WIDTH)
        self.step = 0

    def change(self, rows: Collection[int]) -> OnServers:
        """Change rows, and return the state as a save that may be incremental gets it."""
        self.step += 1
        self.values = self.values.copy()
        self.values[list(rows)] += 1000 * self.step
        return self._state(self.step, self.values, copy=self.step, base=self.checkpoints.base, changed=rows)

    def save(self, rows: Collection[int]) -> Any:
        """Save after a change of rows; return the checkpoint's folder, or its URI."""
        return self.checkpoints.save(self.change(rows), term=1, layout=layout())


def table_of(checkpoints: CheckpointStorage) -> tuple[int, Any]:
    """Return the newest step and its table."""
    found = checkpoints.newest()
    assert found is not None
    return found.step, whole(found).variables["items"]


rows_of_saves = st.lists(st.sets(st.integers(0, ROWS - 1)), min_size=1, max_size=5)


@given(rows_of_saves, st.data())
def test_the_newest_folder_alone_has_every_row(
    tmp_path_factory: pytest.TempPathFactory, changes: Sequence[set[int]], data: st.DataObject
) -> None:
    """After a full save and any incremental ones, only the newest folder is left, and all rows are read from it."""
    folder = tmp_path_factory.mktemp("checkpoints")
    training = Training(opened(folder))
    training.save(range(ROWS))
    for rows in changes:
        path = training.save(rows)
    assert names(folder) == [path.name, "term-1"]
    found = opened(folder, 2).newest()
    assert found is not None
    begin = data.draw(st.integers(0, ROWS * WIDTH))
    end = data.draw(st.integers(begin, ROWS * WIDTH))
    np.testing.assert_array_equal(found.read(TABLE, begin, end), training.values.reshape(-1)[begin:end])


def test_an_earlier_version_does_not_read_changed_rows_as_a_whole_table(tmp_path: Path) -> None:
    """The format differs only if a checkpoint has changed rows."""
    training = Training(opened(tmp_path, keep=3))
    formats = []
    for rows in (range(ROWS), (), (2, 3)):
        text = (training.save(rows) / manifest.NAME).read_text(encoding="utf-8")
        formats.append(text.partition('"format": ')[2][:1])
    assert formats == ["2", "2", "3"]


@pytest.mark.parametrize("kind", ["ps-1-0-0.npy", "ps-1-0-changed-2-0.npy", "ps-1-rows-0-changed-2-0.npy"])
@pytest.mark.parametrize("damage", [flip_last, Path.unlink])
def test_any_damaged_file_gives_way_to_the_checkpoint_before(tmp_path: Path, kind: str, damage: Any) -> None:
    training = Training(opened(tmp_path, keep=2))
    training.save(range(ROWS))
    before = training.values
    path = training.save((1, 4, 7)) / kind
    content = path.read_bytes()
    path.unlink()  # the file may be linked from the checkpoint before
    path.write_bytes(content)
    damage(path)
    step, values = table_of(opened(tmp_path, 2, keep=2))
    assert step == 1
    np.testing.assert_array_equal(values, before)


def test_an_incremental_save_that_dies_at_any_call_keeps_the_previous_state(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The next chief's save is full, and nothing else is left after it."""
    install(monkeypatch, can_exchange=True)
    die_at, kept = 0, set[int]()
    while True:
        folder = tmp_path / str(die_at)
        training = Training(opened(folder))
        training.save(range(ROWS))
        known = {1: training.values}
        state = training.change((1, 4, 7))
        known[2] = training.values
        saving = Stepped(lambda own=training, new=state: own.checkpoints.save(new, term=1, layout=layout()))  # type: ignore[misc]
        while saving.calls < die_at and not saving.is_over:
            saving.step()
        if saving.is_over:
            break
        saving.kill()
        new = opened(folder, 2)
        step, values = table_of(new)
        kept.add(step)
        np.testing.assert_array_equal(values, known[step])
        assert new.base is None
        after = Training(new)
        after.step = 2
        path = after.save(range(ROWS))
        assert names(folder) == [path.name, "term-2"]
        die_at += 1
    assert die_at > 20
    assert kept == {1, 2}


def test_a_save_without_its_base_fails_and_the_next_one_is_full(tmp_path: Path) -> None:
    training = Training(opened(tmp_path, keep=3))
    training.save(range(ROWS))
    state = training.change((1,))
    training.save(())
    with pytest.raises(OSError, match="the checkpoint that an incremental save continues is gone"):
        training.checkpoints.save(state, term=1, layout=layout())
    assert training.checkpoints.base is None
    assert table_of(training.checkpoints)[0] == 3
    training.save(range(ROWS))
    np.testing.assert_array_equal(table_of(training.checkpoints)[1], training.values)


def test_one_save_of_each_number_is_full(tmp_path: Path) -> None:
    """With fullEvery 3 two incremental saves follow a full one; a repeated step is not saved, and does not count."""
    saver = Saver(CheckpointSettings(path=str(tmp_path), full_every=3), layout(), term=lambda: 1)
    saver.checkpoints._damaged = find_damaged  # type: ignore[attr-defined]
    training = Training(saver.checkpoints)
    plans = []
    for _ in range(7):
        plans.append(saver.plan())
        state = training.change((1,))
        state.base = plans[-1].base
        saver.try_to_save(state)
        saver.try_to_save(state)
    assert [plan.base for plan in plans] == [None, 1, 2, None, 4, 5, None]
    assert all(plan.recorded for plan in plans)
    usual = Saver(CheckpointSettings(path=str(tmp_path / "other")), layout(), term=lambda: 1)
    usual.try_to_save(OnServers(1, training.values, copy=1, base=None))
    assert usual.plan() == FULL == SavePlan(None, recorded=False)
