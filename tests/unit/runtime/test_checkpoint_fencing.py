"""The marker by which a chief owns a checkpoint folder: the term that it takes, and its checks before each change."""

import shutil
from pathlib import Path
from typing import Any

import pytest
from obstore.store import MemoryStore

from pstraining.runtime.checkpoint import files
from pstraining.runtime.checkpoint.fencing import FolderTerm, Writer, decide, markers, take
from pstraining.runtime.checkpoint.naming import aside, temporary
from pstraining.runtime.checkpoint.objects.storage import BucketCheckpoints
from pstraining.runtime.checkpoint.state import SupersededError
from tests.unit.runtime import test_object_checkpoints
from tests.unit.runtime.test_checkpoint import layout, names, opened, state
from tests.unit.runtime.test_object_checkpoints import in_memory

OLD, NEW = Writer("job", 1), Writer("job", 2)


@pytest.mark.parametrize(
    ("taken", "writer", "expected"),
    [
        ({}, OLD, 1),
        ({1: OLD}, NEW, 2),
        ({1: OLD}, OLD, 1),  # the same pod's program, restarted
        ({2: NEW}, OLD, None),  # started late
        ({2: NEW, 3: Writer("other", 1)}, OLD, None),
        ({2: NEW, 3: Writer("other", 1)}, NEW, None),
        ({2: NEW, 3: Writer("other", 1)}, Writer("job", 3), 4),
        ({5: Writer("other", 7)}, OLD, 6),  # a recreated job
        ({5: Writer("", 7)}, OLD, 6),
        ({5: Writer("", 1)}, Writer("", 1), 6),  # it is unknown whether it is the same one
        ({5: Writer()}, Writer(), 6),
    ],
)
def test_the_term_that_a_chief_takes(taken: dict[int, Writer], writer: Writer, expected: int | None) -> None:
    assert decide(taken, writer) == expected


@pytest.mark.parametrize(
    ("taken", "writer", "expected"),
    [
        ({}, OLD, 8),  # checkpoints that were copied without the marker
        ({1: OLD}, OLD, 8),  # copied while the job ran
        ({7: OLD}, OLD, 7),
        ({1: OLD}, NEW, 8),
        ({9: OLD}, NEW, 10),
        ({2: NEW}, OLD, None),
    ],
)
def test_a_chief_takes_no_term_below_that_of_a_checkpoint(
    taken: dict[int, Writer], writer: Writer, expected: int | None
) -> None:
    assert decide(taken, writer, written=7) == expected


@pytest.mark.parametrize("is_aside", [False, True])
def test_copied_checkpoints_are_followed_by_those_of_the_job_that_continues(tmp_path: Path, *, is_aside: bool) -> None:
    for writer in (OLD, NEW):
        opened(tmp_path / "a", writer=writer).save(state(30), term=1, layout=layout())
    name = "ckpt-0000000030-term-2"
    copied = tmp_path / "b" / (aside(2, name) if is_aside else name)
    shutil.copytree(tmp_path / "a" / name, copied)
    opened(tmp_path / "b", keep=1, writer=Writer("another", 1)).save(state(40), term=1, layout=layout())
    assert names(tmp_path / "b") == ["ckpt-0000000040-term-3", "term-3"]
    found = opened(tmp_path / "b", writer=Writer("another", 2)).newest()
    assert found is not None
    assert found.step == 40


def test_an_older_chief_fails_with_the_newer_chiefs_term(tmp_path: Path) -> None:
    old, new = opened(tmp_path, writer=OLD), opened(tmp_path, writer=NEW)
    new.save(state(5), term=2, layout=layout())
    for late in (
        lambda: old.save(state(9), term=1, layout=layout()),
        lambda: old.write_whole("result.json", lambda path: path.write_text("{}")),
        lambda: opened(tmp_path, writer=OLD),
    ):
        with pytest.raises(SupersededError, match=r"this chief's term is over: term 2 of job job now owns .* \(term-2"):
            late()
    assert names(tmp_path) == ["ckpt-0000000005-term-2", "term-2"]


@pytest.mark.parametrize(
    ("call", "left"),
    [
        ("write_durably", ["ckpt-0000000005-term-1"]),  # it checks before it renames
        ("replace_folder", ["ckpt-0000000005-term-1", "ckpt-0000000009-term-1"]),  # and before it deletes
    ],
)
def test_a_chief_checks_the_markers_again_before_each_change(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: str, left: list[str]
) -> None:
    old = opened(tmp_path, keep=1, writer=OLD)
    old.save(state(5), term=1, layout=layout())
    real = getattr(files, call)

    def overtaken(*arguments: Any, **options: Any) -> None:
        real(*arguments, **options)
        monkeypatch.setattr(files, call, real)
        opened(tmp_path, writer=NEW)

    monkeypatch.setattr(files, call, overtaken)
    with pytest.raises(SupersededError):
        old.save(state(9), term=1, layout=layout())
    assert [name for name in names(tmp_path) if name.startswith("ckpt")] == left


def test_an_older_chief_fails_before_it_writes_a_state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    old = opened(tmp_path, writer=OLD)
    opened(tmp_path, writer=NEW)
    monkeypatch.delattr(files, "write_durably")  # a large state would take minutes
    with pytest.raises(SupersededError):
        old.save(state(9), term=1, layout=layout())


def test_an_older_chief_leaves_what_a_newer_one_is_writing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever ends an older chief's save: it removes temporary files of its own and of lower terms only."""
    old, real = opened(tmp_path, writer=OLD), files.write_durably
    lower, higher = (tmp_path / temporary(term, "ckpt") for term in (1, 2))

    def overtaken(*_: Any) -> None:
        monkeypatch.setattr(files, "write_durably", real)
        opened(tmp_path, writer=NEW)
        for folder in (lower, higher):
            folder.mkdir()
        raise RuntimeError("a server is lost")

    monkeypatch.setattr(files, "write_durably", overtaken)
    with pytest.raises(RuntimeError, match="a server is lost"):
        old.save(state(9), term=1, layout=layout())
    assert not lower.exists()
    assert higher.is_dir()


def test_a_chief_checks_the_markers_in_a_bucket_before_its_checkpoint_counts() -> None:
    store = MemoryStore()
    bucket = in_memory(store)
    old, bucket.moments = test_object_checkpoints.opened(bucket, writer=OLD), 0

    def overtaken(now: int) -> None:
        if now == 1:  # the first object of the checkpoint
            test_object_checkpoints.opened(in_memory(store), writer=NEW)

    bucket.at_moment = overtaken
    with pytest.raises(SupersededError):
        old.save(state(9), term=1, layout=layout())
    assert BucketCheckpoints(in_memory(store), keep=2).steps() == []


def test_each_jobs_marker_is_kept_and_a_damaged_one_stops_no_chief(tmp_path: Path) -> None:
    assert take(tmp_path, Writer("other", 4)).number == 1
    for term in range(1, 5):
        assert take(tmp_path, Writer("job", term)).number == 1 + term
    assert sorted(markers(tmp_path)) == [1, 5]
    (tmp_path / "term-5" / "chief.json").write_text("[")
    assert take(tmp_path, Writer("job", 5)).number == 6
    (tmp_path / "term-9").mkdir()
    with pytest.raises(SupersededError, match="another chief now owns"):
        FolderTerm(tmp_path, 6).check()
