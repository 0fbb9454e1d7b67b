"""Tensors that servers store as objects: moved by their launchers with signed URLs, and rejected if damaged."""

import http.client
import json
import threading
import zlib
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from pstraining.api import contract
from pstraining.launcher import keepalive, transfers
from pstraining.runtime.checkpoint import checksums
from pstraining.runtime.checkpoint.checksums import find_damaged
from pstraining.runtime.checkpoint.errors import CorruptCheckpointError
from pstraining.runtime.checkpoint.objects import keys
from pstraining.runtime.checkpoint.objects import place as place_module
from pstraining.runtime.checkpoint.objects.bucket import RETRIES, Bucket
from pstraining.runtime.checkpoint.objects.place import ObjectsPlace
from pstraining.runtime.checkpoint.objects.storage import BucketCheckpoints
from pstraining.runtime.checkpoint.parts import PartFile, Parts, StoredParts, header
from pstraining.runtime.checkpoint.ports.part_place import FolderPlace, PartPlace
from pstraining.runtime.checkpoint.state import Entry, State
from pstraining.runtime.chief.state import file_access
from pstraining.runtime.chief.state.file_access import SignedTransfers, access_to
from pstraining.runtime.config.cluster import Cluster, Task
from tests.support.fake_s3 import DENIED, EXPIRED, SLOW_DOWN, FakeS3, Fault, Request
from tests.support.launchers import start_launcher
from tests.unit.runtime.test_checkpoint import layout
from tests.unit.runtime.test_checkpoint_parts import TABLE, newest, table, write_rows
from tests.unit.runtime.test_checkpoint_parts import find_damaged as damaged_parts

URI = "s3://bucket/jobs/a"


class LocalServers:
    """Two servers whose folder is a folder of this machine, each with a launcher."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.addresses = [[start_launcher(folder)] for _ in range(2)]

    def copy_file(self, shard: int, member: int, source: str, target: str) -> None:
        raise AssertionError("there is no shared folder")

    def put_file(self, shard: int, member: int, path: str, content: bytes) -> None:
        Path(path).write_bytes(content)

    def left(self) -> dict[str, int]:
        """Return the sizes of the files in the servers' folder."""
        return {path.name: path.stat().st_size for path in self.folder.iterdir()}


@pytest.fixture
def servers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> LocalServers:
    (folder := tmp_path / "run").mkdir()
    monkeypatch.setattr(contract, "RUN_DIR", str(folder))
    monkeypatch.setattr(file_access, "BACKOFF_SECONDS", 0.01)
    return LocalServers(folder)


@pytest.fixture
def place(s3: FakeS3) -> ObjectsPlace:
    return ObjectsPlace(Bucket.at(URI), "ckpt-0000000007-term-1/1-ab")


class Stored:
    """A state of which two servers write the table through their launchers."""

    copy, base, ended_early = 1, None, False

    def __init__(self, step: int, servers: LocalServers, folder: Path) -> None:
        self.step, self._servers, self._folder = step, servers, folder
        self._rest = State(step, {"bias": np.full(3, step, np.float32)}, {}, {})

    @property
    def entries(self) -> dict[str, Entry]:
        return {TABLE: Entry("float32", table(0).shape), **self._rest.entries}

    def blocks(self) -> Iterator[tuple[str, Any]]:
        raise AssertionError("the table is written by servers")

    def write_parts(self, place: PartPlace) -> Mapping[str, Parts]:
        assert isinstance(place, ObjectsPlace)
        access = SignedTransfers(place, self._servers, self._servers.addresses)
        (folder := self._folder / f"{self.step}").mkdir(exist_ok=True)
        parts = write_rows(folder, table(self.step), 2, 5)
        for file in parts.files:
            content, shard = (folder / file.name).read_bytes(), int(file.name.split("-")[1])
            self._servers.put_file(shard, 0, access.path(shard, file.name), content)
            access.store(shard, file.name, len(content))
        return {TABLE: parts}

    def without(self, left_out: Collection[str]) -> State:
        assert set(left_out) == {TABLE}
        return self._rest


@pytest.fixture
def checkpoints(servers: LocalServers, s3: FakeS3, tmp_path: Path) -> BucketCheckpoints:
    """Return two checkpoints, of the steps 7 and 9."""
    found = BucketCheckpoints(Bucket.at(URI), keep=2, damaged=damaged_parts)
    found.open()
    for step in (7, 9):
        found.save(Stored(step, servers, tmp_path), term=1, layout=layout())
    return found


def parts_of(s3: FakeS3, step: int) -> list[str]:
    return sorted(key for key in s3.objects if f"ckpt-{step:010d}" in key and "/ps-" in key)


def test_rows_in_objects_are_read_like_others(
    checkpoints: BucketCheckpoints, servers: LocalServers, s3: FakeS3
) -> None:
    assert newest(checkpoints) == 9
    assert len(parts_of(s3, 9)) == 6
    assert servers.left() == {}
    assert checkpoints.size(9) == sum(len(content) for key, content in s3.objects.items() if "ckpt-0000000009" in key)
    state = checkpoints.load(9)
    s3.requests.clear()
    np.testing.assert_array_equal(state.read(TABLE, 3, 9), table(9).reshape(-1)[3:9])
    assert {request.method for request in s3.requests} <= {"GET", "HEAD"}
    assert len({request.key for request in s3.requests}) == 2, "only the files with these rows are read"


@pytest.mark.parametrize("instead", [lambda own: own[:-1], lambda own: own[:-1] + bytes([own[-1] ^ 1]), None])
def test_a_damaged_object_gives_way_to_the_checkpoint_before(
    checkpoints: BucketCheckpoints, s3: FakeS3, instead: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    key = parts_of(s3, 9)[3]
    content = s3.objects.pop(key)
    if instead is not None:
        s3.objects[key] = instead(content)
    assert newest(checkpoints) == 7
    assert '"checkpoint_unreadable", "step": 9' in capsys.readouterr().out


def test_a_store_that_does_not_answer_hides_no_checkpoint(checkpoints: BucketCheckpoints, s3: FakeS3) -> None:
    s3.fault = lambda request: EXPIRED if request.method == "GET" and "/ps-" in request.key else None
    with pytest.raises(OSError, match="ExpiredToken"):
        checkpoints.newest()
    s3.fault = lambda _: None
    assert newest(checkpoints) == 9


def test_damage_on_the_way_is_no_damage(place: ObjectsPlace, s3: FakeS3, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checksums, "fingerprint", lambda content: f"{zlib.crc32(content):08x}")
    s3.objects["jobs/a/ckpt-0000000007-term-1/1-ab/part"] = b"content"
    checksum = checksums.fingerprint(b"content")
    assert find_damaged(place, {"part": checksum[::-1], "none": checksum}) == ["part", "none"]
    flips = iter([Fault(flip=True)])
    s3.fault = lambda _: next(flips, None)
    assert find_damaged(place, {"part": checksum}) == []


def test_a_save_that_ends_at_any_object_leaves_no_orphan_after_the_next(
    checkpoints: BucketCheckpoints, servers: LocalServers, s3: FakeS3, tmp_path: Path
) -> None:
    for failing in range(6):
        count = iter(range(100))
        s3.fault = lambda request: DENIED if request.method == "PUT" and next(count) == failing else None  # noqa: B023
        with pytest.raises(OSError, match="403"):
            checkpoints.save(Stored(11, servers, tmp_path), term=1, layout=layout())
        s3.fault = lambda _: None
        assert newest(checkpoints) == 9
        assert keys.orphans([key.removeprefix("jobs/a/") for key in s3.objects], 10) == []
    checkpoints.save(Stored(12, servers, tmp_path), term=1, layout=layout())
    assert checkpoints.steps() == [9, 12]
    assert newest(checkpoints) == 12


def test_a_checkpoint_without_one_of_its_objects_is_not_written(
    checkpoints: BucketCheckpoints, servers: LocalServers, s3: FakeS3, tmp_path: Path
) -> None:
    """A store, or something before it, acknowledges an upload that it does not keep."""

    def lost(request: Request) -> Fault | None:
        if "list-type" in request.query and (kept := parts_of(s3, 11)):
            del s3.objects[kept[2]]
        return None

    s3.fault = lost
    with pytest.raises(OSError, match=r"an object was not stored.*/ps-0-0-5\.npy"):
        checkpoints.save(Stored(11, servers, tmp_path), term=1, layout=layout())
    assert newest(checkpoints) == 9


def test_a_transfer_is_repeated_with_a_new_url(servers: LocalServers, place: ObjectsPlace, s3: FakeS3) -> None:
    access, content = SignedTransfers(place, servers, servers.addresses), b"0123456789"
    spoiled = iter([SLOW_DOWN, Fault(503, "SlowDown", after=True), Fault(429, "TooManyRequests")])
    s3.fault = lambda _: next(spoiled, None)
    servers.put_file(0, 0, access.path(0, "part"), content)
    access.store(0, "part", len(content))
    assert list(s3.objects.values()) == [content]
    spoiled = iter([SLOW_DOWN, Fault(cut=4)])
    access.fetch(1, 0, "part")
    assert Path(access.path(1, "part")).read_bytes() == content
    access.release(1, 0, "part")
    assert set(servers.left().values()) == {0}
    s3.requests.clear()
    s3.fault = lambda _: EXPIRED
    with pytest.raises(OSError, match=r"could not download a file \(400 .*s3://bucket/jobs/a/part"):
        access.fetch(1, 0, "part")
    assert len(s3.requests) == 1, "a refusal is not repeated"


def test_a_transfer_is_repeated_for_as_long_as_the_chiefs_own_requests(
    servers: LocalServers, place: ObjectsPlace, s3: FakeS3, monkeypatch: pytest.MonkeyPatch
) -> None:
    waited = list[float]()
    clock = SimpleNamespace(monotonic=lambda: sum(waited), sleep=waited.append)
    monkeypatch.setattr(file_access, "time", clock)
    s3.objects["jobs/a/ckpt-0000000007-term-1/1-ab/part"] = b"0"
    s3.fault = lambda _: SLOW_DOWN if sum(waited) < 30 else None
    access = SignedTransfers(place, servers, servers.addresses)
    access.fetch(0, 0, "part")
    s3.fault, begin = lambda _: SLOW_DOWN, sum(waited)
    with pytest.raises(OSError, match="503"):
        access.fetch(0, 0, "part")
    seconds = RETRIES["retry_timeout"].total_seconds()
    assert seconds - file_access.LONGEST_BACKOFF <= sum(waited) - begin <= seconds
    assert max(waited) == file_access.LONGEST_BACKOFF
    waited.clear()
    with pytest.raises(OSError, match="503"):
        access.fetch(0, 0, "part", is_trial=True)
    assert sum(waited) < file_access.TRIAL_RETRY_SECONDS


def test_an_upload_whose_answer_is_lost_is_no_failure(
    servers: LocalServers, place: ObjectsPlace, s3: FakeS3, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The launcher has deleted the file, and cannot upload it again."""
    transfer, lost = transfers.transfer, list[transfers.Answer]()

    def loses_first_answer(folder: str, name: str) -> transfers.Answer:
        answer = transfer(folder, name)
        if not lost:
            lost.append(answer)
            raise ConnectionResetError
        return answer

    monkeypatch.setattr(transfers, "transfer", loses_first_answer)
    access = SignedTransfers(place, servers, servers.addresses)
    servers.put_file(0, 0, access.path(0, "part"), b"rows")
    access.store(0, "part", 4)
    assert list(s3.objects.values()) == [b"rows"]
    with pytest.raises(OSError, match=r"404 the file is missing"):
        access.store(0, "part", 5)


def test_a_server_without_a_route_to_the_store_delays_a_save_by_seconds(
    servers: LocalServers, place: ObjectsPlace, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A NetworkPolicy may drop its packets. A chief that was asked to stop has half a minute for its save."""
    assert file_access.TRIAL_SECONDS + file_access.TRIAL_RETRY_SECONDS < 15
    tried, is_over = list[str](), threading.Event()

    def waits(folder: str, name: str) -> transfers.Answer:
        tried.append(name)
        is_over.wait(20)
        return 404, {}

    monkeypatch.setattr(transfers, "transfer", waits)
    monkeypatch.setattr(file_access, "TRIAL_SECONDS", 0.3)
    monkeypatch.setattr(file_access, "TRIAL_RETRY_SECONDS", 0.1)
    reason = SignedTransfers(place, servers, servers.addresses).why_not(0)
    is_over.set()
    assert "the store has not answered within 0.3 s" in str(reason)
    assert len(tried) == 1


def test_the_loss_of_a_servers_node_ends_a_transfer_within_seconds(
    servers: LocalServers, place: ObjectsPlace, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A lost node does not end its connections. The chief would wait for two minutes, and hold no view meanwhile."""
    found, getresponse = list[list[int]](), http.client.HTTPConnection.getresponse
    own = threading.get_ident()

    def answered(connection: http.client.HTTPConnection) -> http.client.HTTPResponse:
        if threading.get_ident() == own:  # a thread of an earlier test may still send requests
            found.append([connection.sock.getsockopt(level, name) for level, name, _ in keepalive.PROBES])
        return getresponse(connection)

    monkeypatch.setattr(http.client.HTTPConnection, "getresponse", answered)
    assert SignedTransfers(place, servers, servers.addresses).why_not(0) is None
    assert found[0] == [value for _, _, value in keepalive.PROBES]


def test_a_file_of_another_size_is_no_part(servers: LocalServers, place: ObjectsPlace) -> None:
    access = SignedTransfers(place, servers, servers.addresses)
    servers.put_file(0, 0, access.path(0, "part"), b"012")
    with pytest.raises(OSError, match="another number of bytes"):
        access.store(0, "part", 4)


def test_a_trial_shows_whether_a_server_reaches_the_store(
    servers: LocalServers, place: ObjectsPlace, s3: FakeS3, monkeypatch: pytest.MonkeyPatch
) -> None:
    access = SignedTransfers(place, servers, servers.addresses)
    assert [access.why_not(shard) for shard in range(2)] == [None, None]
    assert s3.objects == {}

    def stored_elsewhere(request: Request) -> Fault | None:
        s3.objects.clear()
        return None

    s3.fault = stored_elsewhere
    assert "is missing" in str(access.why_not(0))
    s3.fault = lambda request: DENIED if request.method == "PUT" else None
    assert "could not upload a file (403" in str(access.why_not(0))
    s3.fault = lambda _: None
    unreachable = SignedTransfers(place, servers, [["127.0.0.1:1"]])
    assert "no answer on port 2" in str(unreachable.why_not(0))
    other = SignedTransfers(place, servers, [[start_launcher(None)]])
    assert "(501 the launcher knows no such transfer)" in str(other.why_not(0))


def test_servers_reach_a_store_only_where_nothing_is_lost_by_it(
    servers: LocalServers, place: ObjectsPlace, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def access(place: PartPlace, *, in_pod: bool = True) -> Any:
        cluster = Cluster(job="a", task=Task("chief", 0), addresses={}, in_pod=in_pod)
        return access_to(place, servers, servers.addresses, cluster)

    assert isinstance(access(place), SignedTransfers)
    assert isinstance(access(FolderPlace(tmp_path), in_pod=False), file_access.SharedFolder)
    assert access(place, in_pod=False).unavailable == "outside of pods, no launcher runs beside a parameter server"
    files = ObjectsPlace(Bucket.at(f"file://{tmp_path}/objects"), "a")
    assert access(files).unavailable == access(files).why_not(0) == "the store has no signed URLs"
    with pytest.raises(OSError, match="the store has no signed URLs"):
        access(files).fetch(0, 0, "part")
    with pytest.raises(OSError, match="the store has no signed URLs"):
        access(files).store(0, "part", 1)
    with pytest.raises(OSError, match="no signed URLs"):
        files.sign("PUT", "part")
    for name in ("AWS_SERVER_SIDE_ENCRYPTION", "aws_sse_kms_key_id"):
        with monkeypatch.context() as patch:
            patch.setenv(name, "aws:kms")
            assert access(place).unavailable == f"a signed URL would not have the encryption that {name} requests"
    assert json.dumps(place.sign("GET", "part")).count("X-Amz-Signature") == 1


def test_an_object_that_is_read_in_pieces_costs_few_requests(
    s3: FakeS3, place: ObjectsPlace, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The chief restores a large dense tensor in pieces, which become smaller with every server."""
    monkeypatch.setattr(place_module, "AHEAD_BYTES", 400)
    values = np.arange(1000, dtype=np.int32)
    key = "jobs/a/ckpt-0000000007-term-1/1-ab/part"
    s3.objects[key] = header("int32", 1000, 1) + values.tobytes()
    parts = StoredParts(place, {TABLE: Entry("int32", (1000,))}, {TABLE: Parts(1, [PartFile("part", 0, 1, 1000, "")])})
    pieces = [parts.read(TABLE, begin, begin + 10) for begin in range(0, 1000, 10)]
    np.testing.assert_array_equal(np.concatenate(pieces), values)
    assert len(s3.requests) < 15
    np.testing.assert_array_equal(parts.read(TABLE, 5, 995), values[5:995])
    np.testing.assert_array_equal(parts.read(TABLE, 990, 1000), values[990:])


def test_numbers_and_bytes_of_objects(place: ObjectsPlace, s3: FakeS3) -> None:
    s3.objects["jobs/a/ckpt-0000000007-term-1/1-ab/part"] = b"head" + np.arange(5, dtype=np.int64).tobytes()
    np.testing.assert_array_equal(place.integers("part", 4, 5), np.arange(5))
    with pytest.raises(CorruptCheckpointError, match="part ends too early"):
        place.integers("part", 4, 6)
    with pytest.raises(CorruptCheckpointError, match="none is missing"):
        place.content("none")
