"""Checkpoints in an object store: whole or absent, whatever the store replies, and wherever the writer ends."""

import itertools
import random
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import pytest
from obstore.store import MemoryStore

from pstraining.runtime.checkpoint.errors import CorruptCheckpointError, NotSavedError, UnusableCheckpointsError
from pstraining.runtime.checkpoint.fencing import Writer
from pstraining.runtime.checkpoint.naming import Key
from pstraining.runtime.checkpoint.objects import keys
from pstraining.runtime.checkpoint.objects.bucket import Bucket
from pstraining.runtime.checkpoint.objects.choice import storage_at
from pstraining.runtime.checkpoint.objects.storage import BucketCheckpoints
from pstraining.runtime.checkpoint.saver import Saver
from pstraining.runtime.checkpoint.state import State, SupersededError
from pstraining.runtime.checkpoint.storage import Checkpoints
from pstraining.runtime.config.settings import CheckpointSettings, SettingsError
from pstraining.runtime.telemetry.counters import ChiefCounters
from tests.support.fake_s3 import BROKEN, DENIED, EXPIRED, SLOW_DOWN, FakeS3, Fault, Request
from tests.unit.runtime.test_checkpoint import layout, state

if TYPE_CHECKING:
    from obstore.store import RetryConfig

FAST: "Final[RetryConfig]" = {
    "max_retries": 20,
    "backoff": {"init_backoff": timedelta(milliseconds=1), "max_backoff": timedelta(milliseconds=2), "base": 2},
    "retry_timeout": timedelta(seconds=600),
}
OLD, NEW = Writer("job", 1), Writer("job", 2)
SEGMENT_BYTES: Final = 300
"""A state of `test_checkpoint.state` has 4 segments of this size."""


class Killed(BaseException):
    """Ends a writer, as SIGKILL would."""


class SteppedBucket(Bucket):
    """A bucket that calls a function before and after each write, with the number of the moment."""

    at_moment: Callable[[int], None] = staticmethod(lambda _: None)
    moments = 0

    def _step(self) -> None:
        self.moments += 1
        self.at_moment(self.moments)

    def put(self, key: str, content: bytes | bytearray) -> None:
        self._step()
        super().put(key, content)
        self._step()

    def copy(self, source: str, target: str) -> None:
        self._step()
        super().copy(source, target)
        self._step()

    def create(self, key: str, content: bytes) -> bool:
        self._step()
        created = super().create(key, content)
        self._step()
        return created

    def delete(self, keys: Any) -> None:
        for key in sorted(keys):  # a request for many keys may delete some of them
            self._step()
            super().delete([key])
        self._step()


def opened(bucket: Bucket, *, keep: int = 2, writer: Writer | None = None) -> BucketCheckpoints:
    checkpoints = BucketCheckpoints(bucket, keep=keep, writer=writer, segment_bytes=SEGMENT_BYTES)
    checkpoints.open()
    return checkpoints


def in_memory(store: MemoryStore | None = None) -> SteppedBucket:
    return SteppedBucket(store or MemoryStore(), "memory://bucket")


def steps_of(bucket: Bucket) -> list[str]:
    return sorted({key.partition("/")[0] for key in bucket.sizes()})


def equals(found: State | Any, step: int) -> None:
    expected = state(step)
    assert found is not None
    assert found.step == step
    np.testing.assert_array_equal(found.variables["dense/kernel"], expected.variables["dense/kernel"])
    np.testing.assert_array_equal(found.slots["momentum"]["dense/kernel"], expected.slots["momentum"]["dense/kernel"])
    assert found.scalars == expected.scalars


def bucket_of(_: FakeS3) -> Bucket:
    return Bucket.at("s3://bucket/jobs/a", FAST)


@pytest.fixture(params=["s3", "file", "memory"])
def bucket(request: pytest.FixtureRequest, tmp_path: Path) -> Bucket:
    if request.param == "s3":
        return bucket_of(request.getfixturevalue("s3"))
    return in_memory() if request.param == "memory" else Bucket.at(f"file://{tmp_path}/objects")


def test_what_is_saved_is_read_back(bucket: Bucket) -> None:
    checkpoints = opened(bucket)
    assert checkpoints.newest() is None
    place = checkpoints.save(state(7), term=1, layout=layout())
    assert place.startswith(f"{bucket.url}/ckpt-0000000007-term-1/1-")
    assert len(bucket.sizes("ckpt-0000000007-term-1")) > 3
    assert checkpoints.size(7) == sum(bucket.sizes("ckpt-0000000007-term-1").values())
    equals(checkpoints.newest(), 7)
    equals(checkpoints.load(7), 7)
    with pytest.raises(CorruptCheckpointError, match="no checkpoint of step 8"):
        checkpoints.load(8)


def test_as_many_as_wanted_are_kept_and_an_abandoned_later_one_goes(bucket: Bucket) -> None:
    checkpoints = opened(bucket)
    for step in (5, 10, 15, 20):
        checkpoints.save(state(step), term=1, layout=layout())
    assert checkpoints.steps() == [15, 20]
    checkpoints.save(state(17), term=1, layout=layout())  # training was restored from step 15
    assert checkpoints.steps() == [15, 17]
    assert steps_of(bucket) == ["ckpt-0000000015-term-1", "ckpt-0000000017-term-1", "terms"]


def test_a_second_save_of_a_step_replaces_the_first() -> None:
    bucket = in_memory()
    checkpoints = opened(bucket)
    checkpoints.save(state(5), term=1, layout=layout())
    checkpoints.save(state(5).ended(), term=1, layout=layout())
    newest = checkpoints.newest()
    assert newest is not None
    assert newest.ended_early
    assert {keys.attempt_of(key).number for key in bucket.sizes("ckpt-0000000005-term-1")} == {2}  # type: ignore[union-attr]


def test_results_beside_the_checkpoints(bucket: Bucket) -> None:
    checkpoints = opened(bucket)
    checkpoints.write_whole("result.json", lambda path: path.write_text("{}"))
    checkpoints.write_whole("final.keras", lambda path: path.write_bytes(b"0123456789" * 1_000_000))
    assert bytes(bucket.get("result.json")) == b"{}"
    assert len(bucket.get("final.keras")) == 10_000_000
    checkpoints.write_folder_whole("logs", {"a": b"1", "b": b"2"})
    checkpoints.write_folder_whole("logs", {"b": b"3"})
    assert {key: bytes(bucket.get(key)) for key in bucket.sizes("logs")} == {"logs/b": b"3"}


def killed_at(moment: int) -> Callable[[int], None]:
    def at_moment(now: int) -> None:
        if now >= moment:  # uploads run in other threads, which end with the process as well
            raise Killed

    return at_moment


def whole_and_no_orphans(bucket: Bucket) -> None:
    listed = bucket.sizes()
    assert keys.orphans(listed, 10**9) == []
    checkpoints = BucketCheckpoints(bucket, keep=2)
    for step in checkpoints.steps():
        equals(checkpoints.load(step), step)


@pytest.mark.parametrize("second", [20, 10], ids=["the next step", "the same step"])
def test_a_writer_that_ends_at_any_moment_leaves_the_newest_whole_checkpoint(second: int) -> None:
    for moment in itertools.count(1):
        store = MemoryStore()
        before = opened(in_memory(store), writer=OLD)
        before.save(state(5), term=1, layout=layout())
        before.save(state(10), term=1, layout=layout())
        bucket = in_memory(store)
        dying = BucketCheckpoints(bucket, keep=2, writer=OLD, segment_bytes=SEGMENT_BYTES)
        bucket.at_moment = killed_at(moment)
        try:
            dying.save(state(second), term=1, layout=layout())
        except Killed:
            pass
        else:
            break
        after = opened(in_memory(store), writer=NEW)
        newest = after.newest()
        assert newest is not None
        assert newest.step in {10, second}, moment
        equals(newest, newest.step)
        after.save(state(30), term=2, layout=layout())
        whole_and_no_orphans(in_memory(store))
        equals(after.newest(), 30)
    assert moment > 15  # segments, manifest, deletions


def test_a_chief_that_is_stopped_at_any_moment_touches_nothing_of_a_later_one() -> None:
    superseded = 0
    for moment in itertools.count(1):
        store, saved = MemoryStore(), list[int]()
        bucket = in_memory(store)
        old = opened(bucket, writer=OLD)
        for step in (100, 200):
            old.save(state(step), term=1, layout=layout())
        bucket.moments = 0

        def later_chief(now: int, at: int = moment, own: list[int] = saved, store: MemoryStore = store) -> None:
            if now != at:
                return
            new = opened(in_memory(store), writer=NEW)
            restored = new.newest()
            assert restored is not None
            for more in (1, 2, 3):
                own.append(restored.step + more)
                new.save(state(own[-1]), term=2, layout=layout())

        bucket.at_moment = later_chief
        try:
            for step in (300, 400):
                old.save(state(step), term=1, layout=layout())
        except SupersededError as error:
            assert "term 2 of job job now owns memory://bucket" in str(error)  # noqa: PT017
            superseded += 1
        if not saved:
            break
        own = [name for name in steps_of(in_memory(store)) if name.endswith("-term-2")]
        assert own == [Key(2, step).name for step in saved[-2:]], moment
        checkpoints = BucketCheckpoints(in_memory(store), keep=2)
        for step in saved[-2:]:
            equals(checkpoints.load(step), step)
        equals(checkpoints.newest(), saved[-1])
    assert superseded > 30  # in its last deletions it is past its last look


def test_of_two_chiefs_that_take_a_term_at_once_one_gets_it() -> None:
    store = MemoryStore()
    bucket = in_memory(store)
    others: list[BucketCheckpoints] = []

    def other(now: int) -> None:
        if now == 1:
            others.append(opened(in_memory(store), writer=Writer("other", 1)))

    bucket.at_moment = other
    mine = opened(bucket, writer=OLD)
    mine.save(state(5), term=1, layout=layout())
    assert mine.steps() == [5]
    assert steps_of(bucket) == ["ckpt-0000000005-term-2", "terms"]
    with pytest.raises(SupersededError, match="term 1 of job job now owns"):
        others[0].save(state(6), term=1, layout=layout())


def test_a_restarted_process_keeps_its_term_and_a_late_one_gets_none() -> None:
    store = MemoryStore()
    for _ in range(2):
        opened(in_memory(store), writer=OLD)
    assert keys.terms(in_memory(store).sizes()) == [1]
    opened(in_memory(store), writer=NEW)
    assert keys.terms(in_memory(store).sizes()) == [2]
    with pytest.raises(SupersededError):
        opened(in_memory(store), writer=OLD)


def test_a_marker_that_expired_in_the_store_costs_no_step() -> None:
    bucket = in_memory()
    for writer, step in [(OLD, 5), (NEW, 10), (Writer("job", 3), 15)]:
        opened(bucket, writer=writer).save(state(step), term=1, layout=layout())
        bucket.delete(bucket.sizes(keys.TERMS))
    equals(opened(bucket).newest(), 15)


def test_a_store_that_fails_often_loses_nothing(s3: FakeS3) -> None:
    seed = random.randrange(10**6)
    print(f"seed {seed}")
    dice = random.Random(seed)
    faults = [BROKEN, SLOW_DOWN, Fault(500, "InternalError", after=True)]

    def fault(request: Request) -> Fault | None:
        if dice.random() < 0.6:
            return None
        return dice.choice([*faults, Fault(cut=100)] if request.method == "GET" and not request.query else faults)

    s3.fault = fault
    checkpoints = opened(bucket_of(s3))
    for step in (5, 10, 15):
        checkpoints.save(state(step), term=1, layout=layout())
    equals(checkpoints.newest(), 15)
    s3.fault = lambda _: None
    whole_and_no_orphans(bucket_of(s3))


def test_a_lost_reply_to_the_marker_takes_one_term(s3: FakeS3) -> None:
    lost = iter([Fault(500, "InternalError", after=True)])
    s3.fault = lambda request: next(lost, None) if request.method == "PUT" else None
    opened(bucket_of(s3), writer=Writer())  # worker 0 of a job without a chief, which takes a term at each start
    assert [key for key in s3.objects if "/terms/" in key] == ["jobs/a/terms/term-1"]


def test_an_interrupted_list_is_read_again(s3: FakeS3) -> None:
    bucket = bucket_of(s3)
    bucket.put("a", b"1")
    cuts = iter([Fault(cut=10)] * 2)
    s3.fault = lambda request: next(cuts, None) if "list-type" in request.query else None
    assert bucket.sizes() == {"a": 1}
    s3.fault = lambda _: Fault(cut=10)
    with pytest.raises(OSError, match="s3://bucket/jobs/a"):
        bucket.sizes()


def test_expired_credentials_fail_the_save_and_hide_no_checkpoint(s3: FakeS3) -> None:
    checkpoints = opened(bucket_of(s3))
    checkpoints.save(state(5), term=1, layout=layout())
    s3.fault = lambda request: EXPIRED if request.key.endswith("npz.00001") else None
    with pytest.raises(OSError, match="ExpiredToken"):
        checkpoints.save(state(10), term=1, layout=layout())
    s3.fault = lambda request: EXPIRED if request.method == "GET" and not request.query else None
    for call in (checkpoints.newest, lambda: checkpoints.load(5), lambda: opened(bucket_of(s3))):
        with pytest.raises(OSError, match="ExpiredToken"):
            call()
    s3.fault = lambda _: None
    equals(checkpoints.newest(), 5)
    checkpoints.save(state(15), term=1, layout=layout())
    whole_and_no_orphans(bucket_of(s3))


def test_a_damaged_reply_is_read_again_and_a_damaged_object_gives_way(
    s3: FakeS3, capsys: pytest.CaptureFixture[str]
) -> None:
    checkpoints = opened(bucket_of(s3))
    for step in (5, 10):
        checkpoints.save(state(step), term=1, layout=layout())
    flips = iter([Fault(flip=True)])
    s3.fault = lambda request: next(flips, None) if request.key.endswith("npz.00001") else None
    equals(checkpoints.newest(), 10)
    s3.fault = lambda _: None
    (damaged,) = (key for key in s3.objects if "ckpt-0000000010" in key and key.endswith("npz.00001"))
    content = s3.objects[damaged]
    for instead in (content[:-1], bytes([content[0] ^ 1]) + content[1:], None):
        s3.objects.pop(damaged) if instead is None else s3.objects.update({damaged: instead})
        equals(checkpoints.newest(), 5)
        assert '"checkpoint_unreadable", "step": 10' in capsys.readouterr().out
    manifest = next(key for key in s3.objects if "ckpt-0000000005" in key and key.endswith("metadata.json"))
    s3.objects[manifest] = s3.objects[manifest].replace(b"dense", b"tense")
    with pytest.raises(UnusableCheckpointsError, match="of step 10: segment 1 is missing"):
        checkpoints.newest()


def test_a_store_without_conditional_writes_is_refused(s3: FakeS3) -> None:
    s3.ignores_conditions = True
    with pytest.raises(SettingsError, match=r"s3://bucket/jobs/a ignores conditional writes"):
        opened(bucket_of(s3))


@pytest.mark.parametrize("fault", [Fault(403, "AccessDenied"), Fault(404, "NoSuchBucket")])
def test_a_store_without_access_is_named_at_the_start(s3: FakeS3, fault: Fault) -> None:
    s3.fault = lambda request: fault if request.method == "PUT" else None
    with pytest.raises(
        SettingsError, match=rf"^checkpoint\.path: s3://bucket/jobs/a cannot be written to .*{fault.code}"
    ):
        opened(bucket_of(s3))


def test_the_path_chooses_the_storage(tmp_path: Path, s3: FakeS3) -> None:
    assert isinstance(storage_at(str(tmp_path), keep=1), Checkpoints)
    assert isinstance(storage_at("s3://bucket/a", keep=1), BucketCheckpoints)
    assert isinstance(storage_at(f"file://{tmp_path}/objects", keep=1), BucketCheckpoints)
    with pytest.raises(SettingsError, match=r"checkpoint\.path: az://a/b must be a folder, or begin with s3://, gs://"):
        storage_at("az://a/b", keep=1)


def test_a_failed_save_is_retried_and_counted(s3: FakeS3, capsys: pytest.CaptureFixture[str]) -> None:
    account = ChiefCounters()
    saver = Saver(CheckpointSettings(path="s3://bucket/a"), layout(), term=lambda: 1, counters=account)
    s3.fault = lambda request: EXPIRED if request.method == "PUT" else None
    saver.try_to_save(state(5))
    assert "Check that s3://bucket/a can be written to" in capsys.readouterr().out
    s3.fault = lambda _: None
    saver.try_to_save(state(5))
    assert (account.checkpoints, account.checkpoint_failures) == (1, 1)
    assert account.checkpoint_bytes == sum(len(content) for key, content in s3.objects.items() if "/ckpt-" in key)
    equals(saver.read_back(state(5)), 5)


def test_a_store_that_denies_every_request_ends_no_training(s3: FakeS3, capsys: pytest.CaptureFixture[str]) -> None:
    """As with credentials that have expired: the list of checkpoints is denied as well."""
    saver = Saver(CheckpointSettings(path="s3://bucket/a"), layout(), term=lambda: 1)
    saver.try_to_save(state(5))
    s3.fault = lambda _: DENIED
    saver.try_to_save(state(10))
    assert '"checkpoint_failed", "step": 10' in capsys.readouterr().out
    with pytest.raises(NotSavedError, match=r"step 10 .*AccessDenied.*earlier checkpoints cannot be listed"):
        saver.save_last(state(10))
    s3.fault = lambda _: None
    saver.save_last(state(10))
