"""Incremental saves in an object store: each checkpoint is whole without any other, wherever a writer ends."""

import itertools
from collections.abc import Mapping, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import pytest
from hypothesis import given
from obstore.store import MemoryStore

from pstraining.runtime.checkpoint import manifest
from pstraining.runtime.checkpoint.fencing import Writer
from pstraining.runtime.checkpoint.objects import keys
from pstraining.runtime.checkpoint.objects.bucket import Bucket
from pstraining.runtime.checkpoint.objects.choice import storage_at
from pstraining.runtime.checkpoint.objects.place import ObjectsPlace
from pstraining.runtime.checkpoint.objects.storage import BucketCheckpoints
from pstraining.runtime.checkpoint.parts import Parts
from pstraining.runtime.checkpoint.ports.part_place import PartPlace
from tests.support.fake_s3 import DENIED, FakeS3
from tests.unit.runtime.test_checkpoint import layout
from tests.unit.runtime.test_checkpoint_parts import find_damaged
from tests.unit.runtime.test_incremental_checkpoints import ROWS, OnServers, Training, rows_of_saves, table_of
from tests.unit.runtime.test_object_checkpoints import Killed, in_memory, killed_at

URI = "s3://bucket/jobs/a"
OLD, NEW = Writer("job", 1), Writer("job", 2)


class Stored(OnServers):
    """A state of which two servers store the table, or its changed rows."""

    def write_parts(self, place: PartPlace) -> Mapping[str, Parts]:
        assert isinstance(place, ObjectsPlace)
        with TemporaryDirectory() as folder:
            parts = self.written(Path(folder))
            for file in sorted(Path(folder).iterdir()):
                place._bucket.put(place._key(file.name), file.read_bytes())
        return parts


def opened(bucket: Bucket, *, keep: int = 1, writer: Writer = OLD) -> BucketCheckpoints:
    checkpoints = BucketCheckpoints(bucket, keep=keep, writer=writer, damaged=find_damaged, links=True)
    checkpoints.open()
    return checkpoints


@given(rows_of_saves)
def test_the_newest_checkpoint_alone_has_every_row(changes: Sequence[set[int]]) -> None:
    """After a full save and any incremental ones, only the newest checkpoint is left, with the rows of all."""
    store = MemoryStore()
    training = Training(opened(in_memory(store)), Stored)
    training.save(range(ROWS))
    for rows in changes:
        assert training.checkpoints.base is not None
        training.save(rows)
    bucket = in_memory(store)
    assert len(keys.whole(bucket.sizes())) == 1
    assert keys.orphans(bucket.sizes(), 10) == []
    np.testing.assert_array_equal(table_of(opened(bucket, writer=NEW))[1], training.values)


def test_rows_that_have_not_changed_are_not_uploaded_again(s3: FakeS3) -> None:
    checkpoints = opened(Bucket.at(URI))
    training = Training(checkpoints, Stored)
    training.save(range(ROWS))
    full = {key.rpartition("/")[2] for key in s3.objects if "/ps-" in key}
    s3.requests.clear()
    text = bytes(Bucket.at(training.save((1, 4))).get(manifest.NAME)).decode()
    assert '"format": 3' in text
    of_parts = [(request.method, request.key.rpartition("/")[2]) for request in s3.requests if "/ps-" in request.key]
    assert full < {name for method, name in of_parts if method == "PUT"}, "the others are copied within the store"
    assert not [name for method, name in of_parts if method == "GET"]
    np.testing.assert_array_equal(table_of(checkpoints)[1], training.values)
    assert getattr(storage_at(URI, keep=1, full_every=2), "_links", False)
    assert not getattr(storage_at(URI, keep=1), "_links", True)


def test_an_incremental_save_that_ends_at_any_moment_keeps_the_previous_state() -> None:
    """The next chief's save is full, and nothing else is left after it."""
    kept = set[int]()
    for moment in itertools.count(1):
        store = MemoryStore()
        bucket = in_memory(store)
        training = Training(opened(bucket), Stored)
        training.save(range(ROWS))
        known = {1: training.values}
        bucket.at_moment = killed_at(bucket.moments + moment)
        try:
            training.save((1, 4, 7))
        except Killed:
            pass
        else:
            break
        known[2] = training.values
        new = opened(in_memory(store), writer=NEW)
        step, values = table_of(new)
        kept.add(step)
        np.testing.assert_array_equal(values, known[step])
        assert new.base is None
        after = Training(new, Stored)
        after.step = 2
        after.save(range(ROWS))
        assert keys.orphans(in_memory(store).sizes(), 10) == []
        assert table_of(new)[0] == 3
    assert moment > 20  # uploads, copies, manifest, deletions
    assert kept == {1, 2}


def test_a_copy_that_fails_ends_the_save_and_the_next_one_is_full(s3: FakeS3) -> None:
    checkpoints = opened(Bucket.at(URI))
    training = Training(checkpoints, Stored)
    training.save(range(ROWS))
    before = training.values
    s3.fault = lambda request: DENIED if request.method == "PUT" and request.key.endswith("ps-1-0-0.npy") else None
    with pytest.raises(OSError, match="AccessDenied"):
        training.save((1, 4))
    s3.fault = lambda _: None
    assert checkpoints.base is None
    np.testing.assert_array_equal(table_of(checkpoints)[1], before)
    training.save(range(ROWS))
    gone = training.change((1,))
    assert gone.base is not None
    for key in [key for key in s3.objects if key.endswith("ps-1-0-0.npy")]:
        del s3.objects[key]
    with pytest.raises(FileNotFoundError):
        checkpoints.save(gone, term=1, layout=layout())
    assert checkpoints.base is None
