"""A concurrency limit that hung requests do not consume."""

import asyncio

from pstraining.kube.slots import HOLD_SECONDS_MAX, OVERTAKEN_FACTOR, AdaptiveLimiter
from tests.support.virtual_time import now, virtually


async def hold(slots: AdaptiveLimiter, seconds: float, log: list[float]) -> None:
    release = await slots.acquire()
    log.append(now())
    await asyncio.sleep(seconds)
    release()


def test_concurrency_is_limited() -> None:
    async def story() -> None:
        slots, log = AdaptiveLimiter(2), list[float]()
        await asyncio.gather(*(hold(slots, 0.5, log) for _ in range(5)))
        assert log == [0, 0, 0.5, 0.5, 1.0]

    virtually(story())


def test_an_often_overtaken_request_releases_its_slot_exactly_once() -> None:
    async def story() -> None:
        slots = AdaptiveLimiter(2)
        hung = asyncio.create_task(hold(slots, 100, []))
        await asyncio.sleep(0)
        for _ in range(OVERTAKEN_FACTOR * 2):
            await hold(slots, 0.1, [])
        await asyncio.sleep(1.5 - now())
        log: list[float] = []
        await asyncio.gather(hold(slots, 0.5, log), hold(slots, 0.5, log))
        assert log == [1.5, 1.5]
        await hung
        log.clear()
        start = now()
        await asyncio.gather(*(hold(slots, 0.5, log) for _ in range(3)))
        assert log == [start, start, start + 0.5]

    virtually(story())


def test_a_key_that_hung_starts_without_a_slot_until_it_is_fast_again() -> None:
    async def story() -> None:
        slots = AdaptiveLimiter(2)

        async def crowd() -> None:
            for _ in range(OVERTAKEN_FACTOR * 2):
                await hold(slots, 0.1, [])

        async def sick(seconds: float) -> None:
            release = await slots.acquire("sick")
            await asyncio.sleep(seconds)
            release()

        async def waited() -> float:
            """Return the seconds that a third request waits beside the hung one and another one."""
            start, log = now(), list[float]()
            tasks = [asyncio.create_task(each) for each in (sick(0.5), hold(slots, 0.5, []), hold(slots, 0.1, log))]
            await asyncio.gather(*tasks)
            return log[0] - start

        assert await waited() == 0.5
        await asyncio.gather(sick(10), crowd())
        assert await waited() == 0, "it hung, and has no place"
        assert await waited() == 0.5, "it did not, and has one again"

    virtually(story())


def test_the_number_of_known_hung_keys_is_bounded() -> None:
    async def story() -> None:
        slots = AdaptiveLimiter(1, uncounted_max=2)
        for name in range(5):
            release = await slots.acquire(name)
            await asyncio.sleep(HOLD_SECONDS_MAX)
            for _ in range(OVERTAKEN_FACTOR):
                await hold(slots, 0.1, [])
            release()
        assert list(slots._hung_keys) == [3, 4]

    virtually(story())


def test_a_generally_slow_server_keeps_the_limit() -> None:
    async def story() -> None:
        slots, log = AdaptiveLimiter(2), list[float]()
        await asyncio.gather(*(hold(slots, 3, log) for _ in range(6)))
        assert log == [0, 0, 3, 3, 6, 6]

    virtually(story())


def test_with_everything_hung_a_limited_number_of_slots_is_released() -> None:
    async def story() -> None:
        slots, log = AdaptiveLimiter(1, uncounted_max=2), list[float]()
        tasks = [asyncio.create_task(hold(slots, 100, log)) for _ in range(5)]
        await asyncio.sleep(50)
        assert log == [0, HOLD_SECONDS_MAX, 2 * HOLD_SECONDS_MAX]
        await asyncio.gather(*tasks)

    virtually(story())
