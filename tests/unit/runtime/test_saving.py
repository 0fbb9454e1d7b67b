"""The times of saves, and a disk that is full, cannot be written to, or returns other data than was written."""

import errno
import json
import os
import subprocess
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from tempfile import gettempdir
from typing import Any

import numpy as np
import pytest

from pstraining.runtime.checkpoint import files
from pstraining.runtime.checkpoint.errors import CorruptCheckpointError, NotSavedError
from pstraining.runtime.checkpoint.naming import Key
from pstraining.runtime.checkpoint.objects.bucket import Bucket
from pstraining.runtime.checkpoint.objects.storage import BucketCheckpoints
from pstraining.runtime.checkpoint.saver import Saver
from pstraining.runtime.checkpoint.state import State, SupersededError
from pstraining.runtime.config.settings import CheckpointSettings, SettingsError
from pstraining.runtime.model.partition import Tensor, partition
from pstraining.runtime.telemetry.counters import ChiefCounters
from tests.support.fake_s3 import DENIED, FakeS3
from tests.support.volumes import filled, small_disk
from tests.unit.runtime.test_checkpoint import cut, flip

SIZE = 50_000


class Clock:
    """A clock that advances on request."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


def state(step: int) -> State:
    values = np.random.default_rng(step).normal(size=SIZE).astype(np.float32)  # 200 KB that cannot be compressed
    return State(step, {"kernel": values}, {}, {})


def saver(
    folder: Path | str,
    clock: Callable[[], float] = Clock(),  # noqa: B008
    account: ChiefCounters | None = None,
    **settings: Any,
) -> Saver:
    layout = partition([Tensor("kernel", (SIZE,), "float32", "trainable")], 1)
    own = CheckpointSettings(path=str(folder), **settings)
    return Saver(own, layout, term=lambda: 1, counters=account, clock=clock)


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    with small_disk(tmp_path / "disk", "1m") as folder:
        yield folder


def reported(capsys: pytest.CaptureFixture[str]) -> list[dict[str, Any]]:
    return [json.loads(line) for line in capsys.readouterr().out.splitlines()]


def names(folder: Path) -> list[str]:
    return sorted(entry.name for entry in folder.iterdir())


@pytest.mark.parametrize("leave", [0, 4096, 100_000])
def test_a_full_disk_is_reported_and_leaves_no_partial_checkpoint(
    disk: Path, capsys: pytest.CaptureFixture[str], leave: int
) -> None:
    clock, account = Clock(), ChiefCounters()
    keeper = saver(disk, clock, account, interval_seconds=7)
    keeper.try_to_save(state(1))
    with filled(disk, leave=leave):
        capsys.readouterr()
        for expected in (10, 20, 40):
            keeper.try_to_save(state(2))
            (event,) = reported(capsys)
            assert (event["event"], event["step"], event["newest"]) == ("checkpoint_failed", 2, 1)
            assert "No space left" in event["reason"]
            assert event["retry_seconds"] == expected
            assert names(disk) == ["ballast", Key(1, 1).name, "term-1"]
            clock.now += expected - 1
            assert not keeper.is_due()
            clock.now += 1
            assert keeper.is_due()
    keeper.try_to_save(state(3))
    assert reported(capsys)[0]["event"] == "checkpoint"
    assert names(disk) == [Key(1, 1).name, Key(1, 3).name, "term-1"]
    assert not keeper.is_due()
    assert (keeper.interval(), account.checkpoint_interval) == (7, 7)
    assert (account.checkpoints, account.checkpoint_failures, account.checkpoint_step) == (2, 3, 3)
    np.testing.assert_array_equal(keeper.checkpoints.load(1).variables["kernel"], state(1).variables["kernel"])


def test_at_the_end_a_full_disk_is_an_error_that_names_the_last_checkpoint(disk: Path) -> None:
    keeper = saver(disk)
    with filled(disk), pytest.raises(NotSavedError, match=r"step 5 could not be saved .*No space.*no earlier"):
        keeper.save_last(state(5))
    keeper.save_last(state(5))
    with filled(disk), pytest.raises(NotSavedError, match=r"step 6 .* the newest checkpoint has step 5\. Make room"):
        keeper.save_last(state(6))
    with filled(disk), pytest.raises(NotSavedError, match="the result could not be written"), keeper.exporting():
        (disk / "result.json").write_text("result" * 1000)


@pytest.mark.parametrize("error", [OSError(errno.ESTALE, "Stale file handle"), CorruptCheckpointError("not there")])
def test_a_checkpoint_whose_size_cannot_be_read_is_saved(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    account = ChiefCounters()
    keeper = saver(tmp_path, account=account)

    def unknown(_: int) -> int:
        raise error

    monkeypatch.setattr(keeper.checkpoints, "size", unknown)
    keeper.save_last(state(5))
    assert (account.checkpoints, account.checkpoint_step, account.checkpoint_bytes) == (1, 5, None)


def test_a_checkpoint_is_saved_although_earlier_ones_cannot_be_deleted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    keeper, real = saver(tmp_path, keep=1), os.listdir
    keeper.try_to_save(state(1))
    capsys.readouterr()

    def failing(path: Path) -> list[str]:
        if (tmp_path / Key(1, 2).name).exists():
            raise OSError(errno.ESTALE, "Stale file handle")
        return real(path)

    with monkeypatch.context() as volume:
        volume.setattr(os, "listdir", failing)
        keeper.save_last(state(2))
    found = reported(capsys)
    assert [event["event"] for event in found] == ["not_deleted", "checkpoint"]
    assert (found[0]["step"], "Stale file handle" in found[0]["reason"]) == (2, True)
    keeper.save_last(state(3))
    assert names(tmp_path) == [Key(1, 3).name, "term-1"]


def test_a_checkpoint_is_saved_in_a_bucket_that_denies_to_delete(
    s3: FakeS3, capsys: pytest.CaptureFixture[str]
) -> None:
    account, uri = ChiefCounters(), "s3://bucket/a"
    keeper = saver(uri, account=account, keep=1)
    s3.fault = lambda request: DENIED if request.method == "DELETE" or "delete" in request.query else None
    for step in (1, 2, 3):
        keeper.save_last(state(step))
    assert (account.checkpoints, account.checkpoint_failures) == (3, 0)
    found = [event for event in reported(capsys) if event["event"] == "not_deleted"]
    assert [event["step"] for event in found] == [2, 3]
    assert "AccessDenied" in found[0]["reason"]
    s3.fault = lambda _: None
    keeper.save_last(state(4))
    assert keeper.checkpoints.steps() == [4]


def test_the_reason_of_a_failed_save_is_its_first_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    keeper, real = saver(tmp_path), os.listdir
    begun: list[Path] = []

    def full(path: Path, _: Any) -> None:
        begun.append(path)
        raise OSError(errno.ENOSPC, "No space left on device")

    def failing(path: Path) -> list[str]:
        if begun:
            raise OSError(errno.ESTALE, "Stale file handle")
        return real(path)

    monkeypatch.setattr(files, "write_durably", full)
    monkeypatch.setattr(os, "listdir", failing)
    with pytest.raises(NotSavedError, match="No space left on device"):
        keeper.save_last(state(5))
    begun.clear()
    with pytest.raises(OSError, match="No space left on device"):
        keeper.checkpoints.write_folder_whole("history", {"log": b"line"})


def test_a_disk_that_stays_full_for_days_ends_no_training(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    keeper = saver(tmp_path)

    def full(*_: Any, **__: Any) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(keeper.checkpoints, "save", full)
    for _ in range(1100):
        keeper.try_to_save(state(2))
    assert keeper.interval() == 300


def test_training_starts_with_a_full_disk(disk: Path) -> None:
    with filled(disk):
        saver(disk)


def test_a_folder_that_cannot_be_written_to_is_named_at_the_start(disk: Path, tmp_path: Path) -> None:
    subprocess.run(["mount", "-o", "remount,ro", str(disk)], check=True)
    with pytest.raises(
        SettingsError, match=rf"^checkpoint\.path: {disk} cannot be written to \(Read-only.*is not read"
    ):
        saver(disk)
    file = tmp_path / "file"
    file.touch()
    with pytest.raises(SettingsError, match=r"^checkpoint\.path: .*/file/below cannot be written to \(Not a directory"):
        saver(file / "below")


def test_a_disk_that_has_become_read_only_is_no_wrong_setting(disk: Path, tmp_path: Path) -> None:
    """After errors the kernel makes a file system read-only, and its mounts keep their option: another pod may help."""
    mounted = tmp_path / "in a pod"
    mounted.mkdir()
    subprocess.run(["mount", "--bind", str(disk), str(mounted)], check=True)
    try:
        subprocess.run(["mount", "-o", "remount,ro", str(disk)], check=True)
        with pytest.raises(OSError, match=f"has become read-only.*'{mounted}/below'") as raised:
            saver(mounted / "below")
        assert raised.value.errno == errno.EROFS
        subprocess.run(["mount", "-o", "remount,bind,ro", str(mounted)], check=True)
        with pytest.raises(SettingsError, match=r"^checkpoint\.path: .*mount a volume that is not read-only there"):
            saver(mounted)
    finally:
        subprocess.run(["umount", str(mounted)], check=True)


def test_a_state_that_is_saved_is_not_written_again(tmp_path: Path) -> None:
    keeper = saver(tmp_path)
    keeper.restored(state(4), lost=False)
    keeper.save_last(state(4))
    assert names(tmp_path) == ["term-1"]
    keeper.save_last(state(5))
    written = (tmp_path / Key(1, 5).name / "state.npz").stat().st_mtime_ns
    keeper.save_last(state(5))
    assert (tmp_path / Key(1, 5).name / "state.npz").stat().st_mtime_ns == written


@dataclass(frozen=True)
class CopiedState(State):
    """A state that was copied from two servers."""

    updates: tuple[int, ...] = ()


def test_a_state_of_the_same_step_is_written_again_with_an_update_that_was_under_way(tmp_path: Path) -> None:
    """In mode Async an update may be on the first server alone while the state is copied."""
    account = ChiefCounters()
    keeper = saver(tmp_path, account=account)
    for seed, updates in enumerate([(5, 4), (5, 4), (5, 5), (5, 5)]):
        keeper.save_last(CopiedState(5, state(seed).variables, {}, {}, updates))
    assert account.checkpoints == 2
    np.testing.assert_array_equal(keeper.checkpoints.load(5).variables["kernel"], state(2).variables["kernel"])


def test_a_chief_whose_folder_belongs_to_a_successor_exits_for_good(tmp_path: Path) -> None:
    keeper = saver(tmp_path)
    saver(tmp_path)
    for save in (keeper.try_to_save, keeper.save_last):
        with pytest.raises(SupersededError, match="term is over"):
            save(state(5))
    with pytest.raises(SupersededError), keeper.exporting():
        keeper.checkpoints.write_whole("result.json", lambda path: path.write_text("{}"))
    assert names(tmp_path) == ["term-2"]


@pytest.mark.parametrize("damage", [cut, flip, Path.unlink])
def test_an_unreadable_last_checkpoint_is_saved_again(
    tmp_path: Path, damage: Callable[[Path], None], capsys: pytest.CaptureFixture[str]
) -> None:
    keeper = saver(tmp_path)
    keeper.save_last(state(5))
    damage(tmp_path / Key(1, 5).name / "state.npz")
    found = keeper.read_back(state(5))
    np.testing.assert_array_equal(found.variables["kernel"], state(5).variables["kernel"])
    assert [event["event"] for event in reported(capsys)] == ["checkpoint", "checkpoint_unreadable", "checkpoint"]


def test_a_disk_that_returns_corrupted_data_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    keeper = saver(tmp_path)
    keeper.save_last(state(5))

    def load(_: int) -> State:
        raise CorruptCheckpointError("nonsense")

    monkeypatch.setattr(keeper.checkpoints, "load", load)
    with pytest.raises(CorruptCheckpointError):
        keeper.read_back(state(5))


def test_the_interval_follows_the_cost_of_a_save_and_its_changes_are_reported(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = Clock()
    keeper = saver(tmp_path, clock)
    assert keeper.interval() == 10
    save = keeper.checkpoints.save

    def slow(*arguments: Any, **options: Any) -> Path | str:
        clock.now += 2
        return save(*arguments, **options)

    monkeypatch.setattr(keeper.checkpoints, "save", slow)
    keeper.try_to_save(state(1))
    assert [keeper.interval() for _ in range(3)] == [600] * 3
    clock.now = 1000.0 + 7200
    keeper.restored(state(1), lost=True)
    keeper.restored(state(1), lost=True)
    assert keeper.interval() == pytest.approx(120)  # two losses in two hours
    found = [event for event in reported(capsys) if event["event"] == "checkpoint_interval"]
    assert [(event["seconds"], event["losses"]) for event in found] == [(600, 0), (120, 2)]
    assert saver(tmp_path, clock, interval_seconds=33).interval() == 33


def test_the_remedy_of_a_failed_save_fits_its_cause(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    keeper = saver(tmp_path)

    def failing(*_: Any, **__: Any) -> None:
        raise OSError(errno.EROFS, "Read-only file system")

    monkeypatch.setattr(files, "write_durably", failing)
    keeper.try_to_save(state(1))
    assert f". Check that {tmp_path} can be written to" in reported(capsys)[-1]["help"]
    bucket = BucketCheckpoints(Bucket.at(f"file://{tmp_path}/objects"), keep=1)
    full = OSError(errno.ENOSPC, "No space left on device")
    assert bucket.remedy(full) == f"Make room in {gettempdir()}, the folder for temporary files"
    assert bucket.remedy(OSError()).startswith(f"Check that {bucket.location} can be written to, and that the cred")
