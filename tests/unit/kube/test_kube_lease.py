"""The Lease in virtual time: at most one operator acts, and a successor only after the holder."""

import asyncio
from typing import Any

import pytest

from pstraining.kube.errors import Transient
from pstraining.kube.lease import Lease, LeaseLostError
from tests.support.fakekube import FakeKube
from tests.support.virtual_time import now, virtually

DURATION = 15.0


def candidate(kube: FakeKube, identity: str) -> Lease:
    return Lease(kube, namespace="ns", name="operator", identity=identity, duration=DURATION, clock=now)


def holder(kube: FakeKube) -> str:
    return str(kube.objects["Lease", "ns", "operator"]["spec"]["holderIdentity"])


def away(verb: str, kind: str, namespace: str, name: str) -> Exception:
    return Transient("the API server is away")


async def _cancel(task: asyncio.Task[Any]) -> None:
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


def test_the_first_operator_acquires_the_lease_at_once() -> None:
    async def story() -> None:
        kube = FakeKube()
        a = candidate(kube, "a")
        assert (a.held, a.version) == (False, 0)
        await a.acquire()
        assert str(a.version) == kube.objects["Lease", "ns", "operator"]["metadata"]["resourceVersion"]
        assert (a.held, holder(kube), now()) == (True, "a", 0.0)
        assert kube.objects["Lease", "ns", "operator"]["spec"]["leaseDurationSeconds"] == 15

    virtually(story())


def test_the_second_operator_waits_while_the_first_renews() -> None:
    async def story() -> None:
        kube = FakeKube()
        a, b = candidate(kube, "a"), candidate(kube, "b")
        await a.acquire()
        keeping, acquiring = asyncio.create_task(a.keep()), asyncio.create_task(b.acquire())
        for _ in range(1000):
            await asyncio.sleep(0.5)
            assert a.held
            assert not b.held
        assert not acquiring.done()
        await _cancel(keeping)
        await _cancel(acquiring)

    virtually(story())


def test_a_dead_holders_lease_is_acquired_only_after_its_duration() -> None:
    async def story() -> None:
        kube = FakeKube()
        a, b = candidate(kube, "a"), candidate(kube, "b")
        await a.acquire()
        acquiring = asyncio.create_task(b.acquire())
        while not acquiring.done():
            await asyncio.sleep(0.05)
            assert not (a.held and b.held)
        assert DURATION <= now() <= DURATION + 1.5
        assert holder(kube) == "b"
        assert kube.objects["Lease", "ns", "operator"]["spec"]["leaseTransitions"] == 1

    virtually(story())


def test_a_clean_exit_releases_the_lease_at_once() -> None:
    async def story() -> None:
        kube = FakeKube()
        a, b = candidate(kube, "a"), candidate(kube, "b")
        await a.acquire()
        acquiring = asyncio.create_task(b.acquire())
        await asyncio.sleep(5)
        await a.release()
        assert not a.held
        released = now()
        await acquiring
        assert now() - released <= 1.0

    virtually(story())


def test_an_operator_paused_for_long_does_not_release_anothers_lease() -> None:
    async def story() -> None:
        kube = FakeKube()
        a, b = candidate(kube, "a"), candidate(kube, "b")
        await a.acquire()
        acquiring = asyncio.create_task(b.acquire())
        await asyncio.sleep(3 * DURATION)  # a renews nothing, because its process was stopped
        await acquiring
        await a.release()
        assert holder(kube) == "b"

    virtually(story())


def test_a_restarted_container_of_the_same_pod_resumes_at_once() -> None:
    async def story() -> None:
        kube = FakeKube()
        await candidate(kube, "a").acquire()
        await asyncio.sleep(1)
        again = candidate(kube, "a")
        await again.acquire()
        assert (now(), again.held) == (1.0, True)

    virtually(story())


def test_losing_the_lease_is_final() -> None:
    async def story() -> None:
        kube = FakeKube()
        a = candidate(kube, "a")
        await a.acquire()
        keeping = asyncio.create_task(a.keep())
        await asyncio.sleep(1)
        kube.objects["Lease", "ns", "operator"]["spec"]["holderIdentity"] = "b"
        with pytest.raises(LeaseLostError):
            await keeping
        assert not a.held
        await a.release()
        assert holder(kube) == "b"

    virtually(story())


def test_a_lease_that_another_operator_has_held_and_released_is_lost() -> None:
    """Our process was paused meanwhile, and its cache lacks the other operator's writes."""

    async def story() -> None:
        kube = FakeKube()
        a, b = candidate(kube, "a"), candidate(kube, "b")
        await a.acquire()
        await b.acquire()
        await b.release()
        with pytest.raises(LeaseLostError, match="released by another operator"):
            async with asyncio.timeout(DURATION):
                await a.keep()
        assert (a.held, holder(kube)) == (False, "")

    virtually(story())


def test_an_outage_pauses_the_operator_without_ending_it() -> None:
    async def story() -> None:
        kube = FakeKube()
        a = candidate(kube, "a")
        await a.acquire()
        keeping = asyncio.create_task(a.keep())
        kube.failures = away
        await asyncio.sleep(DURATION * 0.8 - 0.1)
        before = a.held
        await asyncio.sleep(0.2)
        assert (before, a.held) == (True, False)
        await asyncio.sleep(600)
        assert not keeping.done()
        kube.failures = lambda *_: None
        await asyncio.sleep(1.1)
        assert a.held
        await _cancel(keeping)

    virtually(story())


def test_a_renewal_that_hangs_does_not_cost_the_lease() -> None:
    async def story() -> None:
        kube = FakeKube()
        a = candidate(kube, "a")
        await a.acquire()
        get, hanging = kube.get_lease, [True]

        async def slow(namespace: str, name: str) -> dict[str, Any]:
            if hanging.pop() if hanging else False:
                await asyncio.sleep(60)
            return await get(namespace, name)

        kube.get_lease = slow  # type: ignore[method-assign]
        keeping = asyncio.create_task(a.keep())
        for _ in range(600):
            await asyncio.sleep(0.1)
            assert a.held
        await _cancel(keeping)

    virtually(story())


def test_an_outage_at_the_start_is_waited_for() -> None:
    async def story() -> None:
        kube = FakeKube()
        kube.failures = away
        a = candidate(kube, "a")
        acquiring = asyncio.create_task(a.acquire())
        await asyncio.sleep(100)
        kube.failures = lambda *_: None
        await acquiring
        assert a.held

    virtually(story())


def test_one_of_many_operators_acquires_the_lease() -> None:
    async def story() -> None:
        kube = FakeKube()
        all_of_them = [candidate(kube, name) for name in "abcde"]
        tasks = [asyncio.create_task(c.acquire()) for c in all_of_them]
        await asyncio.sleep(3)
        assert [c.held for c in all_of_them].count(True) == 1
        for task in tasks:
            await _cancel(task)

    virtually(story())
