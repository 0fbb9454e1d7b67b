"""Servers read their own copies of objects in a restore, and only whole ones."""

import errno
import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from pstraining.api import contract
from pstraining.runtime.checkpoint import checksums
from pstraining.runtime.checkpoint.objects.bucket import Bucket
from pstraining.runtime.checkpoint.objects.place import ObjectsPlace
from pstraining.runtime.checkpoint.parts import PartFile, Parts, SharedRows, StoredParts
from pstraining.runtime.checkpoint.state import Entry
from pstraining.runtime.chief.state.file_plan import FilePiece
from pstraining.runtime.chief.state.server_files import ServerFiles, _in_parallel
from pstraining.runtime.config.cluster import Cluster, Task
from pstraining.runtime.ps.saving.part_files import PartFiles
from tests.support.fake_s3 import FakeS3, Fault
from tests.support.launchers import start_launcher

NAME, FILE = "model/items", "ps-0-0-0.npy"
KEY = f"jobs/a/ckpt-0000000007-term-1/1-ab/{FILE}"


@pytest.fixture
def files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ServerFiles:
    """Return the files of one server in this process, with a launcher."""
    monkeypatch.setattr(contract, "RUN_DIR", str(tmp_path))
    device, addresses = "/device:CPU:0", {"ps": (start_launcher(tmp_path),)}
    client: Any = SimpleNamespace(
        shards=[device],
        addresses=addresses["ps"],
        cluster=Cluster(job="a", task=Task("chief", 0), addresses=addresses, in_pod=True),
        call=lambda function, *given: tf.nest.map_structure(lambda tensor: tensor.numpy(), function(*given)),
        to_local=lambda result: result,
    )
    server: Any = SimpleNamespace(shard=SimpleNamespace(device=device), units=lambda _: [None])

    def demand(function: Any, *given: Any) -> None:
        assert [int(applied) for applied in function(*given)] == [1]

    def load(_: PartFiles, unit: None, fence: Any, token: Any, file: Any, *rows: Any) -> Any:
        with tf.control_dependencies([tf.raw_ops.ReadFile(filename=file)]):
            return tf.constant(1)

    monkeypatch.setattr(PartFiles, "load", load)
    return ServerFiles(client, [[server]], 1, demand)


def test_a_copy_that_was_damaged_on_its_way_is_not_restored(
    files: ServerFiles, s3: FakeS3, capsys: pytest.CaptureFixture[str]
) -> None:
    s3.objects[KEY] = np.arange(64, dtype=np.float32).tobytes()
    place = ObjectsPlace(Bucket.at("s3://bucket/jobs/a"), "ckpt-0000000007-term-1/1-ab")
    part = PartFile(FILE, 0, 1, 64, checksums.fingerprint(place.content(FILE)))
    stored = StoredParts(place, {NAME: Entry("float32", (64,))}, {NAME: Parts(1, [part])})
    pieces = [FilePiece(NAME, 0, 0, FILE, 0, SharedRows(0, 1, 0, 1, 64))]
    assert files.load(stored, pieces, 1, tf.constant(1, tf.int64)) == {NAME}
    reads = iter([None, Fault(flip=True)])  # the trial's copy is whole
    s3.fault = lambda _: next(reads)
    assert files.load(stored, pieces, 1, tf.constant(1, tf.int64)) == set()
    assert '"by": "chief", "reason": "' in (told := capsys.readouterr().out)
    assert "does not match its checksum" in told


def test_the_save_after_a_failed_upload_passes_through_the_chief(
    files: ServerFiles, s3: FakeS3, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A proxy may limit the size of bodies, which the trial's small object does not show."""

    def too_large(*_: object) -> None:
        raise OSError(errno.EIO, "its launcher could not upload a file (413 Content Too Large)")

    monkeypatch.setattr(PartFiles, "put", lambda _, path, content: files_of_this_machine(path, content))
    monkeypatch.setattr(ServerFiles, "_write_all", too_large)
    place = ObjectsPlace(Bucket.at("s3://bucket/jobs/a"), "ckpt-0000000007-term-1/1-ab")
    planned: Any = {NAME: [object()]}
    with pytest.raises(OSError, match="413"):
        files.write(place, planned, 1, lambda: None)
    assert files.write(place, planned, 1, lambda: None) == {}
    assert "last save was interrupted" in capsys.readouterr().out
    with pytest.raises(OSError, match="413"):
        files.write(place, planned, 1, lambda: None)


def test_the_chief_renews_its_view_while_transfers_end_after_an_error() -> None:
    renewed, began, ended = list[int](), threading.Event(), threading.Event()

    def work(shard: int, _: None) -> None:
        if shard == 0:
            assert began.wait(60)
            raise OSError("not stored")
        began.set()
        assert ended.wait(60)

    def between() -> None:
        renewed.append(1)
        if len(renewed) == 3:
            ended.set()

    with pytest.raises(OSError, match="not stored"):
        _in_parallel({0: [None], 1: [None, None]}, work, between)
    assert len(renewed) >= 3


def files_of_this_machine(path: Any, content: Any) -> Any:
    with tf.control_dependencies([tf.raw_ops.WriteFile(filename=path, contents=content)]):
        return tf.constant(1)
