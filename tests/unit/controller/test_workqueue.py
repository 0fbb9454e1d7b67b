"""The work queue on virtual time."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from pstraining.controller.informer_cache import Key
from pstraining.controller.workqueue import BASE_DELAY_SECONDS, DELAY_SECONDS_MAX, WorkQueue, backoff
from pstraining.kube.errors import Transient
from pstraining.kube.slots import HOLD_SECONDS_MAX
from tests.support.virtual_time import now, virtually

A, B = ("ns", "a"), ("ns", "b")


@pytest.mark.parametrize(
    ("failures", "luck", "expected"),
    [
        (1, 1.0, BASE_DELAY_SECONDS),
        (1, 0.0, BASE_DELAY_SECONDS / 2),
        (2, 1.0, 0.1),
        (5, 1.0, 0.8),
        (11, 1.0, 51.2),
        (13, 1.0, DELAY_SECONDS_MAX),
        (13, 0.0, DELAY_SECONDS_MAX / 2),
        (10**6, 1.0, DELAY_SECONDS_MAX),
    ],
)
def test_backoff(failures: int, luck: float, expected: float) -> None:
    assert backoff(failures, luck) == pytest.approx(expected)


class Bench:
    """A running queue that records the time and key of each pass."""

    def __init__(self, handler: Callable[[Key], Awaitable[float | None]] | None = None, **options: Any) -> None:
        self.queue = WorkQueue(luck=lambda: 1.0, **options)
        self.passes: list[tuple[float, str]] = []
        self.errors: list[tuple[str, float]] = []
        self._handler = handler

    async def _pass(self, key: Key) -> float | None:
        self.passes.append((round(now(), 3), key[1]))
        return await self._handler(key) if self._handler else None

    def start(self, workers: int = 1, *, opened: bool = True) -> "asyncio.Task[None]":
        if opened:
            self.queue.open()
        reported = lambda key, error, delay: self.errors.append((key[1], round(delay, 3)))  # noqa: E731
        return asyncio.create_task(self.queue.run(self._pass, workers, reported))

    async def end(self, task: "asyncio.Task[None]") -> None:
        self.queue.stop()
        await task


def test_a_key_is_queued_once() -> None:
    async def story() -> None:
        bench = Bench()
        for key in (A, B, A, A):
            bench.queue.add(key)
        assert bench.queue.depth == 2
        task = bench.start()
        await asyncio.sleep(1)
        assert bench.passes == [(0, "a"), (0, "b")]
        await bench.end(task)

    virtually(story())


def test_no_pass_starts_before_the_caches_are_filled() -> None:
    async def story() -> None:
        bench = Bench()
        bench.queue.add(A)
        task = bench.start(opened=False)
        await asyncio.sleep(100)
        assert bench.passes == []
        assert bench.queue.stuck_for() == 0
        bench.queue.open()
        await asyncio.sleep(1)
        assert bench.passes == [(100, "a")]
        await bench.end(task)

    virtually(story())


def test_no_pass_starts_while_another_operator_may_act() -> None:
    async def story() -> None:
        may_act = False
        bench = Bench(may_act=lambda: may_act)
        bench.queue.add(A)
        task = bench.start()
        await asyncio.sleep(10)
        assert bench.passes == []
        assert bench.queue.stuck_for() == 0
        may_act = True
        await asyncio.sleep(1)
        assert [key for _, key in bench.passes] == ["a"]
        await bench.end(task)

    virtually(story())


def test_a_change_during_a_pass_triggers_another_pass() -> None:
    async def story() -> None:
        async def slow(key: Key) -> None:
            await asyncio.sleep(2)

        bench = Bench(slow)
        bench.queue.add(A)
        task = bench.start(workers=4)
        await asyncio.sleep(1)
        bench.queue.add(A)
        bench.queue.add(A)
        assert bench.queue.depth == 0
        await asyncio.sleep(10)
        assert bench.passes == [(0, "a"), (2, "a")]
        await bench.end(task)

    virtually(story())


def test_passes_over_several_keys_run_side_by_side() -> None:
    async def story() -> None:
        async def slow(key: Key) -> None:
            await asyncio.sleep(0.5)

        bench = Bench(slow)
        for name in "abcd":
            bench.queue.add(("ns", name))
        task = bench.start(workers=2)
        await asyncio.sleep(10)
        assert bench.passes == [(0, "a"), (0, "b"), (0.5, "c"), (0.5, "d")]
        await bench.end(task)

    virtually(story())


def test_a_slow_pass_yields_its_slot() -> None:
    async def story() -> None:
        async def slow(key: Key) -> None:
            await asyncio.sleep(10 if key[1] in "ab" else 0.5)

        bench = Bench(slow)
        for name in "abcde":
            bench.queue.add(("ns", name))
        task = bench.start(workers=2)
        await asyncio.sleep(9)
        late = HOLD_SECONDS_MAX
        assert bench.passes == [(0, "a"), (0, "b"), (late, "c"), (late, "d"), (late + 0.5, "e")]
        await asyncio.sleep(5)
        for name in "fghi":
            bench.queue.add(("ns", name))
        await asyncio.sleep(0.25)
        assert [name for _, name in bench.passes[5:]] == ["f", "g"], (
            "places that were given away do not come back twice"
        )
        await bench.end(task)

    virtually(story())


def test_failures_are_retried_with_backoff_and_forgotten_after_success() -> None:
    async def story() -> None:
        failing = True

        async def handler(key: Key) -> None:
            if failing:
                raise RuntimeError("boom")

        bench = Bench(handler)
        bench.queue.add(A)
        task = bench.start()
        await asyncio.sleep(1)
        assert bench.errors == [("a", 0.05), ("a", 0.1), ("a", 0.2), ("a", 0.4), ("a", 0.8)]
        assert [t for t, _ in bench.passes] == [0, 0.05, 0.15, 0.35, 0.75]
        assert bench.queue.failures(A) == 5
        failing = False
        await asyncio.sleep(1)
        assert bench.queue.failures(A) == 0
        await bench.end(task)

    virtually(story())


def test_an_event_is_not_delayed_by_a_backoff() -> None:
    async def story() -> None:
        async def handler(key: Key) -> None:
            if now() < 5:
                raise RuntimeError("boom")

        bench = Bench(handler)
        bench.queue.add(A)
        task = bench.start()
        await asyncio.sleep(5.5)
        count = len(bench.passes)
        bench.queue.add(A)
        await asyncio.sleep(0.01)
        assert bench.passes[count:] == [(5.5, "a")]
        await asyncio.sleep(100)
        assert len(bench.passes) == count + 1
        await bench.end(task)

    virtually(story())


def test_retry_after_of_the_api_server_is_respected() -> None:
    async def story() -> None:
        async def handler(key: Key) -> None:
            if len(bench.passes) == 1:
                raise Transient("slow down", status=429, retry_after=30)

        bench = Bench(handler)
        bench.queue.add(A)
        task = bench.start()
        await asyncio.sleep(1)
        bench.queue.add(A)
        await asyncio.sleep(28)
        assert bench.passes == [(0, "a")]
        await asyncio.sleep(2)
        assert bench.passes == [(0, "a"), (30, "a")]
        assert bench.errors == [("a", 30)]
        await bench.end(task)

    virtually(story())


@pytest.mark.parametrize("seconds", [3600, float("inf")])
def test_a_long_retry_after_is_shortened_to_the_longest_back_off(seconds: float) -> None:
    """A load balancer's page for maintenance asks for an hour, and the API server is back after a minute."""

    async def story() -> None:
        async def handler(key: Key) -> None:
            if len(bench.passes) == 1:
                raise Transient("maintenance", status=503, retry_after=seconds)

        bench = Bench(handler)
        bench.queue.add(A)
        task = bench.start()
        await asyncio.sleep(200)
        assert bench.passes == [(0, "a"), (DELAY_SECONDS_MAX, "a")]
        assert bench.errors == [("a", DELAY_SECONDS_MAX)]
        await bench.end(task)

    virtually(story())


@pytest.mark.parametrize("moment", [0, 1])
def test_no_delayed_event_precedes_the_retry_after_of_the_api_server(moment: int) -> None:
    """Events of starting pods are delayed, and arrive during the failing pass or after it."""

    async def story() -> None:
        async def handler(key: Key) -> None:
            if len(bench.passes) == 1:
                await asyncio.sleep(0.5)
                raise Transient("slow down", status=429, retry_after=30)

        bench = Bench(handler)
        bench.queue.add(A)
        task = bench.start()
        await asyncio.sleep(0.25 + moment)
        bench.queue.add_after(A, 1)
        await asyncio.sleep(100)
        assert bench.passes == [(0, "a"), (30.5, "a")]
        await bench.end(task)

    virtually(story())


def test_the_earliest_deadline_counts() -> None:
    async def story() -> None:
        bench = Bench()
        task = bench.start()
        bench.queue.add_after(A, 30)
        bench.queue.add_after(A, 10)
        bench.queue.add_after(A, 20)
        await asyncio.sleep(100)
        assert bench.passes == [(10, "a")]
        await bench.end(task)

    virtually(story())


def test_a_pass_replaces_the_next_deadline() -> None:
    async def story() -> None:
        async def handler(key: Key) -> float | None:
            return 50 if len(bench.passes) == 1 else None

        bench = Bench(handler)
        task = bench.start()
        bench.queue.add_after(A, 10)
        await asyncio.sleep(5)
        bench.queue.add(A)
        await asyncio.sleep(200)
        assert bench.passes == [(5, "a"), (55, "a")]
        await bench.end(task)

    virtually(story())


def test_a_forgotten_key_has_no_deadline() -> None:
    async def story() -> None:
        bench = Bench()
        task = bench.start()
        bench.queue.add_after(A, 10)
        bench.queue.forget(A)
        await asyncio.sleep(100)
        assert bench.passes == []
        await bench.end(task)

    virtually(story())


def test_stopping_finishes_running_passes_and_starts_none() -> None:
    async def story() -> None:
        ended = []

        async def slow(key: Key) -> None:
            await asyncio.sleep(2)
            ended.append(key[1])

        bench = Bench(slow)
        bench.queue.add(A)
        bench.queue.add(B)
        task = bench.start()
        await asyncio.sleep(1)
        bench.queue.add(A)
        bench.queue.stop()
        await task
        assert ended == ["a"]
        assert now() == 2

    virtually(story())


def test_a_stuck_queue_is_distinguished_from_an_idle_one() -> None:
    async def story() -> None:
        async def hangs(key: Key) -> None:
            if key == A:
                await asyncio.sleep(500)

        bench = Bench(hangs)
        task = bench.start(workers=1)
        await asyncio.sleep(1000)
        assert bench.queue.stuck_for() == 0
        bench.queue.add(A)
        await asyncio.sleep(100)
        assert bench.queue.stuck_for() == pytest.approx(100)
        await asyncio.sleep(500)
        assert (bench.queue.stuck_for(), bench.queue.oldest_age()) == (0, 0)
        await bench.end(task)

    virtually(story())


def test_a_long_pass_whose_writes_succeed_is_not_stuck() -> None:
    """A busy API server takes minutes for the Services of a thousand workers."""

    async def story() -> None:
        async def write() -> None:
            await asyncio.sleep(100)
            bench.queue.moved()

        async def creates(key: Key) -> None:
            for _ in range(3):
                await asyncio.gather(write(), write())
            await asyncio.sleep(150)

        bench = Bench(creates)
        bench.queue.add(A)
        task = bench.start()
        await asyncio.sleep(299)
        bench.queue.moved()  # not in a pass
        assert bench.queue.stuck_for() == pytest.approx(99)
        await asyncio.sleep(150)
        assert bench.queue.stuck_for() == pytest.approx(149)
        await asyncio.sleep(100)
        await bench.end(task)

    virtually(story())


def test_a_long_moving_queue_is_not_stuck() -> None:
    async def story() -> None:
        async def slow(key: Key) -> None:
            await asyncio.sleep(1)

        bench = Bench(slow)
        for number in range(500):
            bench.queue.add(("ns", str(number)))
        task = bench.start()
        await asyncio.sleep(400.5)
        assert bench.queue.oldest_age() > 400
        assert bench.queue.stuck_for() <= 1
        await bench.end(task)

    virtually(story())
