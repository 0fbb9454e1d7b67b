"""A file in segments, and the keys of a checkpoint's objects."""

import itertools
import threading

import numpy as np
import pytest

from pstraining.runtime.checkpoint.naming import Key
from pstraining.runtime.checkpoint.objects import keys
from pstraining.runtime.checkpoint.objects.segments import IN_FLIGHT, SegmentedFile, SegmentWriter


def test_a_file_in_segments_is_read_in_any_ranges() -> None:
    objects: dict[int, bytes] = {}
    content = np.random.default_rng(0).bytes(1000)
    with SegmentWriter(lambda index, given: objects.update({index: bytes(given)}), 64) as file:
        for begin, end in itertools.pairwise([0, 1, 64, 64, 500, 501, 1000]):
            assert file.write(content[begin:end]) == end - begin
        segments = file.finish()
    assert [segment.size for segment in segments] == [64] * 15 + [40]
    stored = SegmentedFile(segments, lambda index: memoryview(objects[index]))
    for begin, end in [(0, 1000), (63, 65), (999, 1000), (64, 128)]:
        target, at = bytearray(end - begin), 0
        while at < len(target):
            at += stored.read_into(begin + at, memoryview(target)[at:])
        assert target == content[begin:end]
    assert stored.read_into(1000, memoryview(bytearray(1))) == 0
    assert SegmentedFile([], lambda _: memoryview(b"")).read_into(0, memoryview(bytearray(1))) == 0


def test_a_slow_store_bounds_the_segments_in_memory() -> None:
    started, go, running = threading.Semaphore(0), threading.Semaphore(0), []

    def put(index: int, content: bytearray) -> None:
        running.append(index)
        started.release()
        go.acquire()

    written: list[int] = []

    def write() -> None:
        with SegmentWriter(put, 10) as file:
            for number in range(6):
                file.write(bytes(10))
                written.append(number)
            file.finish()

    thread = threading.Thread(target=write, daemon=True)
    thread.start()
    try:
        for done in range(6):
            assert started.acquire(timeout=60)
            assert len(running) <= done + IN_FLIGHT
            assert len(written) <= done + IN_FLIGHT
            go.release()
    finally:
        go.release(6)  # the upload threads end also after a failure
    thread.join(60)
    assert len(written) == 6


def test_an_upload_that_fails_ends_the_file_and_leaves_no_request_in_flight() -> None:
    def put(index: int, content: bytearray) -> None:
        if index == 1:
            raise OSError("slow down")
        done.append(index)

    done: list[int] = []
    with pytest.raises(OSError, match="slow down"), SegmentWriter(put, 10) as file:
        file.write(bytes(200))
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("pstraining-upload")]
    assert len(done) < 19


@pytest.mark.parametrize(
    "key",
    ["ckpt-0000000005-term-1", "ckpt-0000000005-term-1/x", "final.keras", "logs/ckpt-0000000005-term-1/1-a", "a/1-a/b"],
)
def test_other_objects_belong_to_no_checkpoint(key: str) -> None:
    assert keys.attempt_of(key) is None
    assert keys.orphans([key], 9) == []


def test_orphans_are_those_without_a_manifest_of_terms_up_to_ones_own() -> None:
    one, two, later = (keys.Attempt(Key(term, 5), 1, "ab") for term in (1, 2, 3))
    listed = [one.segment(0), one.manifest, two.segment(0), later.segment(0), "terms/term-2", "result.json"]
    assert keys.orphans(listed, 2) == [two.segment(0)]
    assert keys.whole(listed) == {one}
    assert keys.next_attempt(listed, Key(1, 5), "cd") == keys.Attempt(Key(1, 5), 2, "cd")
