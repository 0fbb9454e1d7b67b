"""The folder of TensorBoard's event files, and its uploads to an object store."""

import json
import tempfile
import threading
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest

from pstraining.runtime.checkpoint.objects.bucket import Bucket
from pstraining.runtime.checkpoint.objects.choice import bucket_at, local_files
from pstraining.runtime.telemetry.summaries_folder import SummaryUploads, Upload, summaries_folder
from tests.support.fake_s3 import EXPIRED, FakeS3, Fault, Request

URI = "s3://bucket/jobs/a"
SOON = 0.01
NEVER = 3600.0


def no_upload(uri: str) -> Upload:
    raise AssertionError(uri)


@pytest.mark.parametrize(
    ("tensorboard", "checkpoints", "expected"),
    [
        (None, None, None),
        (None, "/c", Path("/c/tensorboard")),
        (False, "/c", None),
        (False, URI, None),
        ("/t", None, Path("/t")),
        (Path("/t"), "/c", Path("/t")),
        ("/t", URI, Path("/t")),
    ],
)
def test_summaries_lie_beside_the_checkpoints(
    tensorboard: str | Path | bool | None, checkpoints: str | None, expected: Path | None
) -> None:
    assert summaries_folder(tensorboard, checkpoints, no_upload).path == expected


def test_summaries_beside_checkpoints_in_an_object_store_are_uploaded(s3: FakeS3) -> None:
    with summaries_folder(None, URI, lambda uri: bucket_at(uri).put_file) as found:
        assert found.path is not None
        (found.path / "validation").mkdir()
        (found.path / "events.1").write_bytes(b"one")
        (found.path / "validation" / "events.1").write_bytes(b"two")
    assert s3.objects == {
        "jobs/a/tensorboard/events.1": b"one",
        "jobs/a/tensorboard/validation/events.1": b"two",
    }
    assert not found.path.exists(), "the local files are deleted"


def test_a_disk_without_room_for_a_temporary_folder_ends_no_training(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", "/absent")
    with summaries_folder(None, URI, lambda uri: lambda key, path: None) as found:
        assert found.path is None
    (line,) = capsys.readouterr().out.splitlines()
    assert json.loads(line)["event"] == "no_summaries"
    assert "/absent" in json.loads(line)["reason"]


def test_summaries_that_have_no_folder_are_reported(capsys: pytest.CaptureFixture[str]) -> None:
    assert summaries_folder(True, None, no_upload).path is None
    (line,) = capsys.readouterr().out.splitlines()
    assert json.loads(line)["event"] == "no_summaries"
    assert "tensorboard=True" in json.loads(line)["reason"]
    assert summaries_folder(True, "/c", no_upload).path == Path("/c/tensorboard")


def uploads(folder: Path, bucket: Bucket, period: float, done: Callable[[str], None]) -> SummaryUploads:
    def upload(key: str, path: Path) -> None:
        bucket.put_file(key, path)
        done(key)

    return SummaryUploads(folder, upload, period)


def test_a_file_is_uploaded_again_only_if_it_has_grown(tmp_path: Path, s3: FakeS3) -> None:
    first, second, sent = tmp_path / "events.1", tmp_path / "events.2", threading.Semaphore(0)
    first.write_bytes(b"a")
    running = uploads(tmp_path, bucket_at(URI), SOON, lambda _: sent.release())
    assert sent.acquire(timeout=60)
    second.write_bytes(b"b")
    assert sent.acquire(timeout=60)
    first.write_bytes(b"ab")
    assert sent.acquire(timeout=60)
    running.close(60)
    keys = [request.key for request in s3.requests if request.method == "PUT"]
    assert keys == [f"jobs/a/tensorboard/events.{number}" for number in (1, 2, 1)]
    assert s3.objects["jobs/a/tensorboard/events.1"] == b"ab"


def test_a_failed_upload_is_reported_and_repeated(
    tmp_path: Path, s3: FakeS3, capsys: pytest.CaptureFixture[str]
) -> None:
    failed = threading.Event()

    def fault(request: Request) -> Fault | None:
        is_first = not failed.is_set()
        failed.set()
        return EXPIRED if is_first else None

    s3.fault = fault
    (tmp_path / "events.1").write_bytes(b"a")
    sent = threading.Event()
    running = uploads(tmp_path, bucket_at(URI), SOON, lambda _: sent.set())
    assert sent.wait(60)
    running.close(60)
    found = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [event["event"] for event in found] == ["summaries_not_uploaded"]
    assert "ExpiredToken" in found[0]["reason"]
    assert "next attempt in 0 s" in found[0]["reason"]
    assert s3.objects == {"jobs/a/tensorboard/events.1": b"a"}


def test_the_end_does_not_wait_for_a_store_that_does_not_answer(tmp_path: Path) -> None:
    answer = threading.Event()

    def upload(key: str, path: Path) -> None:
        assert answer.wait(60)

    (tmp_path / "events.1").write_bytes(b"a")
    running = SummaryUploads(tmp_path, upload, NEVER)
    running.close(0.01)
    answer.set()
    running.close(60)


def test_results_in_an_object_store_are_copied(tmp_path: Path, s3: FakeS3) -> None:
    content = bytes(range(256)) * 100_000
    bucket_at(URI).put("final.keras", content)
    found = local_files(URI, ("final.keras", "result.json"), tmp_path)
    assert found == [tmp_path / "final.keras"], "the one that exists"
    assert found[0].read_bytes() == content


def test_results_on_a_volume_are_not_copied(tmp_path: Path) -> None:
    (tmp_path / "result.json").write_text("{}")
    find = partial(local_files, names=("final.keras", "result.json"), folder=tmp_path / "none")
    assert find(str(tmp_path)) == [tmp_path / "result.json"]
    assert find(None) == []
