"""A file is uploaded and downloaded by a signed URL, once for each request, and the URL appears in no message."""

import json
import os
import time
from collections.abc import Callable, Iterator
from io import BytesIO
from pathlib import Path
from typing import Any

import pytest

from pstraining.launcher import transfers
from tests.support.fake_s3 import EXPIRED, FakeS3, Fault, serving

NAME = "transfer-0123456789abcdef"
SIGNED = "X-Amz-Signature=secret"


@pytest.fixture
def store() -> Iterator[FakeS3]:
    with serving() as found:
        yield found


def ordered(folder: Path, method: str, url: str, name: str = NAME) -> tuple[int, dict[str, Any]]:
    """Write a request as the chief does, and carry it out."""
    (folder / f"{name}.json").write_text(json.dumps({"method": method, "url": url}))
    return transfers.transfer(str(folder), name)


def url_of(store: FakeS3, key: str = "part", query: str = SIGNED) -> str:
    return f"{store.url}/bucket/{key}?{query}"


def test_a_file_is_uploaded_and_deleted_then_downloaded(tmp_path: Path, store: FakeS3) -> None:
    content = os.urandom(3 * transfers.BLOCK_BYTES + 1)
    (tmp_path / NAME).write_bytes(content)
    done = {"status": 200, "message": "", "size": len(content)}
    assert ordered(tmp_path, "PUT", url_of(store)) == (200, done)
    assert store.objects == {"part": content}
    assert list(tmp_path.iterdir()) == []
    assert ordered(tmp_path, "GET", url_of(store)) == (200, done)
    assert [path.name for path in tmp_path.iterdir()] == [NAME]
    assert (tmp_path / NAME).read_bytes() == content
    assert transfers.transfer(str(tmp_path), NAME)[0] == 404, "each request is carried out once"


@pytest.mark.parametrize("method", ["PUT", "GET"])
def test_a_refusal_is_returned_and_the_file_stays(tmp_path: Path, store: FakeS3, method: str) -> None:
    (tmp_path / NAME).write_bytes(b"former")
    store.objects["part"] = b"new"
    store.fault = lambda _: EXPIRED
    _, found = ordered(tmp_path, method, url_of(store))
    assert (found["status"], found["size"]) == (400, 0)
    _, found = ordered(tmp_path, method, url_of(store, query="unsigned"))
    assert found["status"] == 403
    assert (tmp_path / NAME).read_bytes() == b"former"
    assert store.objects == {"part": b"new"}


def test_a_download_that_ends_early_replaces_nothing(tmp_path: Path, store: FakeS3) -> None:
    (tmp_path / NAME).write_bytes(b"former")
    store.objects["part"] = b"0123456789"
    store.fault = lambda _: Fault(cut=4)
    assert ordered(tmp_path, "GET", url_of(store))[1] == {"status": 0, "message": "IncompleteRead", "size": 0}
    assert (tmp_path / NAME).read_bytes() == b"former"


class Body(BytesIO):
    """The store's answer to a download; `before` is called before each block."""

    status = 200

    def __init__(self, content: bytes, before: Callable[[int], object]) -> None:
        super().__init__(content)
        self.headers, self._before = {"Content-Length": str(len(content))}, before

    def read(self, size: int | None = -1) -> bytes:
        self._before(self.tell() // transfers.BLOCK_BYTES)
        return super().read(size)


def test_a_download_is_complete_although_an_earlier_one_still_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The chief repeats a request whose answer it lost. The first download begins late, and fails."""
    content = os.urandom(4 * transfers.BLOCK_BYTES)

    def fail(block: int) -> None:
        if block == 1:
            raise ConnectionResetError("reset")

    def run_earlier_one(block: int) -> None:
        if block == 2:
            assert ordered(tmp_path, "GET", "http://store/part")[1]["status"] == 0

    answers = iter([Body(content, run_earlier_one), Body(content, fail)])
    monkeypatch.setattr(transfers, "_opened", lambda _: next(answers))
    assert ordered(tmp_path, "GET", "http://store/part")[1]["status"] == 200
    assert (tmp_path / NAME).read_bytes() == content
    assert [path.name for path in tmp_path.iterdir()] == [NAME], "nothing is left of a download that failed"


def test_an_upload_has_succeeded_although_a_later_one_ended_first(
    tmp_path: Path, store: FakeS3, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / NAME).write_bytes(b"rows")
    opened = transfers._opened

    def after_later_one(request: Any) -> Any:
        monkeypatch.setattr(transfers, "_opened", opened)
        assert ordered(tmp_path, "PUT", url_of(store))[1]["status"] == 200
        return opened(request)

    monkeypatch.setattr(transfers, "_opened", after_later_one)
    assert ordered(tmp_path, "PUT", url_of(store))[1] == {"status": 200, "message": "", "size": 4}
    assert store.objects == {"part": b"rows"}
    assert list(tmp_path.iterdir()) == []


def test_a_store_that_does_not_answer_is_no_error_of_the_launcher(tmp_path: Path, store: FakeS3) -> None:
    (tmp_path / NAME).write_bytes(b"1")
    store.fault = lambda _: Fault(cut=0)
    assert ordered(tmp_path, "PUT", url_of(store))[1]["status"] == 200, "the body of the answer does not matter"
    gone = ordered(tmp_path, "GET", "http://127.0.0.1:1/bucket/part?secret")[1]
    assert gone["status"] == 0
    assert "refused" in str(gone["message"])


@pytest.mark.parametrize(
    "url",
    ["file:///etc/passwd?secret", "ftp://127.0.0.1/secret", "http://127.0.0.1:1/a b?secret", "http://[secret", ""],
)
@pytest.mark.parametrize("method", ["PUT", "GET", "DELETE"])
def test_no_message_has_the_url(tmp_path: Path, url: str, method: str) -> None:
    (tmp_path / NAME).write_bytes(b"1")
    code, found = ordered(tmp_path, method, url)
    assert (code, found["status"]) == (200, 0)
    assert found["message"]
    assert "secret" not in json.dumps(found)


@pytest.mark.parametrize("name", ["", "owned", "transfer-", "../transfer-0123456789abcdef", f"{NAME}0", NAME.upper()])
def test_only_files_of_transfers_are_moved(tmp_path: Path, store: FakeS3, name: str) -> None:
    (folder := tmp_path / "run").mkdir()
    for found in (folder, tmp_path):
        (found / NAME).write_bytes(b"1")
        (found / f"{NAME}.json").write_text(json.dumps({"method": "PUT", "url": url_of(store)}))
    assert transfers.transfer(str(folder), name)[0] == 404
    assert store.objects == {}


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"method": "PUT"}', "\xff"])
def test_an_invalid_request_is_no_transfer(tmp_path: Path, text: str) -> None:
    (tmp_path / f"{NAME}.json").write_text(text, encoding="latin-1")
    assert transfers.transfer(str(tmp_path), NAME)[0] == 404


def test_files_of_ended_chiefs_are_deleted(tmp_path: Path, store: FakeS3) -> None:
    old, new, own, marker = "transfer-" + "0" * 16, "transfer-" + "1" * 16, NAME, "owned"
    for name in (old, new, own, marker):
        (tmp_path / name).write_bytes(b"1")
    for name in (old, own, marker):
        stale = time.time() - transfers.STALE_SECONDS - 1
        os.utime(tmp_path / name, (stale, stale))
    assert ordered(tmp_path, "GET", url_of(store))[1]["status"] == 404
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted([new, own, marker])


def test_a_file_that_is_not_there_is_not_uploaded(tmp_path: Path, store: FakeS3) -> None:
    missing = {"status": 404, "message": "the file is missing", "size": 0}
    assert ordered(tmp_path, "PUT", url_of(store)) == (200, missing)
