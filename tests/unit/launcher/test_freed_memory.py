"""Memory that a server has freed returns to the system."""

import ctypes
import itertools
import os
import threading
from types import SimpleNamespace

import pytest

from bench.usage import anonymous_megabytes
from pstraining.launcher import freed_memory, keepalive

MEGABYTES = 64
BLOCK = 4096


def test_freed_memory_between_blocks_in_use_is_returned(monkeypatch: pytest.MonkeyPatch) -> None:
    libc = ctypes.CDLL(None)
    libc.malloc.argtypes, libc.malloc.restype = [ctypes.c_size_t], ctypes.c_void_p
    libc.free.argtypes = [ctypes.c_void_p]
    blocks = [libc.malloc(BLOCK) for _ in range(MEGABYTES * 2**20 // BLOCK)]
    for block in blocks:
        ctypes.memset(block, 1, BLOCK)
    in_use = {*blocks[::16], blocks[-1]}
    for block in blocks:
        if block not in in_use:
            libc.free(block)
    before = anonymous_megabytes(os.getpid())
    real, calls, enough = libc.malloc_trim, itertools.count(), threading.Event()

    class Library:
        @staticmethod
        def malloc_trim(pad: ctypes.c_size_t) -> int:
            if next(calls) == 1:  # the first call has ended
                enough.set()
            return int(real(pad))

    monkeypatch.setattr(ctypes, "CDLL", lambda _: Library)
    monkeypatch.setattr(freed_memory, "EACH_SECONDS", 0.01)
    freed_memory.return_regularly()
    assert enough.wait(30)
    assert anonymous_megabytes(os.getpid()) < before - MEGABYTES / 2
    for block in in_use:
        libc.free(block)


def test_nothing_is_returned_while_connections_stay_as_they_are(monkeypatch: pytest.MonkeyPatch) -> None:
    peers, looks, returns = {"a:1"}, threading.Semaphore(0), threading.Semaphore(0)

    def look() -> set[str]:
        looks.release()
        return set(peers)

    monkeypatch.setattr(keepalive, "peers", look)
    monkeypatch.setattr(ctypes, "CDLL", lambda _: SimpleNamespace(malloc_trim=lambda _: returns.release()))
    monkeypatch.setattr(freed_memory, "EACH_SECONDS", 0.001)
    monkeypatch.setattr(freed_memory, "AFTER_SECONDS", 0.0)
    freed_memory.return_regularly()
    for _ in range(20):
        assert looks.acquire(timeout=30)
    assert not returns.acquire(blocking=False)
    monkeypatch.setattr(freed_memory, "AFTER_SECONDS", 1e6)
    assert returns.acquire(timeout=30)


def test_another_client_starts_the_time_again(monkeypatch: pytest.MonkeyPatch) -> None:
    peers, moment, returns, looks = {"a:1"}, [0.0], threading.Semaphore(0), threading.Semaphore(0)

    def look() -> set[str]:
        looks.release()
        return set(peers)

    def looked(times: int) -> None:
        for _ in range(times):
            assert looks.acquire(timeout=30)

    monkeypatch.setattr(keepalive, "peers", look)
    monkeypatch.setattr(freed_memory, "time", SimpleNamespace(monotonic=lambda: moment[0]))
    monkeypatch.setattr(ctypes, "CDLL", lambda _: SimpleNamespace(malloc_trim=lambda _: returns.release()))
    monkeypatch.setattr(freed_memory, "EACH_SECONDS", 0.001)
    freed_memory.return_regularly()
    assert returns.acquire(timeout=30)
    moment[0] = freed_memory.AFTER_SECONDS
    looked(20)
    while returns.acquire(blocking=False):
        pass
    looked(20)
    assert not returns.acquire(blocking=False)
    peers.add("b:1")
    assert returns.acquire(timeout=30)


def test_another_c_library_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ctypes, "CDLL", lambda _: object())
    before = threading.active_count()
    freed_memory.return_regularly()
    assert threading.active_count() == before
