"""Checkpoints are complete or absent, the newest readable one is used, and the requested number is kept."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pstraining.runtime.checkpoint import manifest
from pstraining.runtime.checkpoint.errors import CorruptCheckpointError, UnusableCheckpointsError
from pstraining.runtime.checkpoint.fencing import Writer
from pstraining.runtime.checkpoint.naming import Key, aside, key_of, set_aside, superfluous, term_of_temporary
from pstraining.runtime.checkpoint.state import State
from pstraining.runtime.checkpoint.storage import Checkpoints
from pstraining.runtime.model.partition import Layout, Tensor, partition


def state(step: int) -> State:
    return State(
        step=step,
        variables={"dense/kernel": np.full((2, 3), step, np.float32), "dense/bias": np.zeros(3, np.float32)},
        slots={"momentum": {"dense/kernel": np.ones((2, 3), np.float32)}},
        scalars={"counter0": np.array(step)},
    )


def layout() -> Layout:
    return partition([Tensor("dense/kernel", (2, 3), "float32", "trainable")], 1)


def opened(folder: Path, *, keep: int = 3, writer: Writer | None = None) -> Checkpoints:
    checkpoints = Checkpoints(folder, keep=keep, writer=writer)
    checkpoints.open()
    return checkpoints


def names(folder: Path) -> list[str]:
    return sorted(entry.name for entry in folder.iterdir())


def saved(folder: Path, *steps: int, keep: int = 3) -> Checkpoints:
    checkpoints = opened(folder, keep=keep)
    for step in steps:
        checkpoints.save(state(step), term=1, layout=layout())
    return checkpoints


def test_what_is_saved_is_read_back(tmp_path: Path) -> None:
    found = saved(tmp_path / "not" / "there", 7).newest()
    assert found is not None
    expected = state(7)
    assert found.step == 7
    assert found.scalars == expected.scalars
    np.testing.assert_array_equal(found.variables["dense/kernel"], expected.variables["dense/kernel"])
    np.testing.assert_array_equal(found.slots["momentum"]["dense/kernel"], expected.slots["momentum"]["dense/kernel"])


def test_an_empty_folder_and_a_missing_one_hold_nothing(tmp_path: Path) -> None:
    assert Checkpoints(tmp_path, keep=1).newest() is None
    assert Checkpoints(tmp_path / "none", keep=1).newest() is None


def test_the_requested_number_is_kept(tmp_path: Path) -> None:
    assert saved(tmp_path, 1, 2, 30, 4_000, keep=2).steps() == [30, 4_000]


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-50])


def flip(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[len(content) // 3] ^= 255
    path.write_bytes(content)


def change(path: Path, **fields: Any) -> None:
    """Change a manifest and its checksum; a field that is None is removed."""
    changed = json.loads(path.read_text()) | fields
    path.write_text(json.dumps(manifest.sealed({name: value for name, value in changed.items() if value is not None})))


def other_format(path: Path) -> None:
    change(path, format=99)


def other_step(path: Path) -> None:
    change(path, step=21)


def other_term(path: Path) -> None:
    change(path, folderTerm=2)


def other_text(path: Path) -> None:
    path.write_text(path.read_text().replace('"term": 1', '"term": 2'))


def other_shape(path: Path) -> None:
    tensors = json.loads(path.read_text())["arrays"]
    tensors["model/dense/kernel"][1] = [3, 2]
    change(path, arrays=tensors)


def one_less(path: Path) -> None:
    tensors = json.loads(path.read_text())["arrays"]
    del tensors["model/dense/kernel"]
    change(path, arrays=tensors)


@pytest.mark.timeout(60)
def test_a_link_to_nothing_gives_way_to_the_one_before(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A user may have moved a checkpoint to a volume that the chief does not mount."""
    checkpoints = saved(tmp_path, 10)
    (tmp_path / Key(1, 20).name).symlink_to(tmp_path / "elsewhere")
    found = checkpoints.newest()
    assert found is not None
    assert found.step == 10
    assert '"checkpoint_unreadable", "step": 20' in capsys.readouterr().out


@pytest.mark.parametrize(
    ("file", "damage"),
    [
        ("metadata.json", other_step),
        ("metadata.json", other_term),
        ("metadata.json", other_text),
        ("metadata.json", other_shape),
        ("metadata.json", one_less),
        ("state.npz", cut),
        ("state.npz", flip),
        ("state.npz", Path.unlink),
        ("metadata.json", cut),
        ("metadata.json", Path.unlink),
    ],
)
def test_a_damaged_newest_gives_way_to_the_one_before(
    tmp_path: Path, file: str, damage: Callable[[Path], None], capsys: pytest.CaptureFixture[str]
) -> None:
    checkpoints = saved(tmp_path, 10, 20)
    damage(checkpoints.path(20) / file)
    found = checkpoints.newest()
    assert found is not None
    assert found.step == 10
    reported = json.loads(capsys.readouterr().out)
    assert (reported["event"], reported["step"]) == ("checkpoint_unreadable", 20)
    with pytest.raises(CorruptCheckpointError):
        checkpoints.load(20)


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (cut, r"no checkpoint in .* can be read, .* The newest, of step 20: .*to restart$"),
        (other_format, r"^the checkpoint of step 20 has format 99, of a later version of pstraining\. "),
    ],
)
def test_training_does_not_restart_beside_checkpoints_that_cannot_be_read(
    tmp_path: Path, damage: Callable[[Path], None], message: str
) -> None:
    """Its first save would delete them."""
    checkpoints = saved(tmp_path, 10, 20)
    for step in (10, 20):
        damage(checkpoints.path(step) / "metadata.json")
    with pytest.raises(UnusableCheckpointsError, match=message):
        checkpoints.newest()
    assert checkpoints.steps() == [10, 20]


def test_the_same_step_is_replaced_and_an_abandoned_later_one_is_deleted(tmp_path: Path) -> None:
    checkpoints = saved(tmp_path, 10, 20)
    cut(checkpoints.path(20) / "state.npz")
    checkpoints.save(state(10), term=2, layout=layout())
    assert checkpoints.steps() == [10]
    assert json.loads((checkpoints.path(10) / "metadata.json").read_text())["term"] == 2


@pytest.mark.parametrize("temporary", [".tmp-ckpt-0000000020", ".tmp-1-0a1b2c3d-ckpt-0000000020-term-1"])
def test_a_writer_that_died_leaves_nothing_that_counts(tmp_path: Path, temporary: str) -> None:
    checkpoints = saved(tmp_path, 10)
    half = tmp_path / temporary
    half.mkdir()
    (half / "state.npz").write_bytes(b"half")
    assert checkpoints.steps() == [10]
    checkpoints.save(state(20), term=1, layout=layout())
    assert names(tmp_path) == [Key(1, 10).name, Key(1, 20).name, "term-1"]


keys = st.builds(Key, st.integers(0, 4), st.integers(0, 30))


@given(st.sets(keys), keys, st.integers(1, 5))
def test_the_one_just_written_always_stays_and_all_of_higher_terms(others: set[Key], written: Key, keep: int) -> None:
    found = others | {written}
    kept = found - set(superfluous(found, written=written, keep=keep))
    assert written in kept
    assert {key for key in found if key.term > written.term} <= kept
    counted = {key for key in kept if key.term <= written.term}
    assert len(counted) <= keep
    assert max(counted) == written
    gone = found - kept
    assert all(key.step > written.step or len([k for k in counted if k > key]) == keep for key in gone)


@given(keys)
def test_names_carry_the_term_and_the_step(key: Key) -> None:
    assert key_of(key.name) == key
    assert key.name.startswith(f"ckpt-{key.step:010d}")
    assert set_aside(aside(7, key.name)) == key
    assert term_of_temporary(aside(7, key.name)) == 7


@pytest.mark.parametrize("step", [10**10 - 1, 10**10, 2**53])
def test_a_step_may_be_as_large_as_the_settings_permit(step: int) -> None:
    assert key_of(Key(1, step).name) == Key(1, step)


@pytest.mark.parametrize(
    "name",
    [
        "ckpt-12",
        ".tmp-ckpt-0000000012",
        "ckpt-0000000012.old",
        "result.json",
        "ckpt-0000000012-term-0",
        "ckpt-00000000012",
    ],
)
def test_other_names_are_no_checkpoints(name: str) -> None:
    assert key_of(name) is None
    assert set_aside(name) is None


def test_checkpoints_of_earlier_versions_are_read_and_give_way_to_later_ones(tmp_path: Path) -> None:
    saved(tmp_path, 10, 20)
    for folder in tmp_path.glob("ckpt-*"):
        change(folder / "metadata.json", folderTerm=None, parts=None, format=1)
        folder.rename(tmp_path / folder.name.removesuffix("-term-1"))
    (tmp_path / "term-1" / "chief.json").unlink()
    (tmp_path / "term-1").rmdir()
    checkpoints = opened(tmp_path, keep=2)
    assert checkpoints.steps() == [10, 20]
    newest = checkpoints.newest()
    assert newest is not None
    assert newest.step == 20
    checkpoints.save(state(15), term=1, layout=layout())
    assert checkpoints.steps() == [10, 15]


def test_a_file_is_there_whole_or_not_at_all(tmp_path: Path) -> None:
    def fail(path: Path) -> None:
        path.write_text("half")
        raise OSError("no space")

    checkpoints = opened(tmp_path)
    with pytest.raises(OSError, match="no space"):
        checkpoints.write_whole("result.json", fail)
    assert names(tmp_path) == ["term-1"]
    checkpoints.write_whole("result.json", lambda path: path.write_text("{}"))
    assert (tmp_path / "result.json").read_text() == "{}"
    assert names(tmp_path) == ["result.json", "term-1"]
