"""Events of pods that wait for a volume are read rarely, and only without another explanation."""

import asyncio
from datetime import timedelta
from typing import Any

import pytest

from pstraining.controller.clocks import ReconcilerClocks
from pstraining.controller.failed_creates import MESSAGE_MAX
from pstraining.controller.mount_failures import REREAD_SECONDS, MountFailures, newest
from pstraining.controller.watch_state import WatchState
from pstraining.core.observe import observe
from pstraining.kube.errors import Refused, Transient
from tests.support.builders import NOW, job, pod
from tests.support.fakekube import FakeKube
from tests.support.reconcilers import reconciler_at_now

KEY = ("default", "digits")
SEEN = observe(job(), (), (pod("ps"), pod("worker")))


def event(reason: str, message: str, moment: str, uid: str = "digits-ps-0-uid") -> dict[str, Any]:
    return {"reason": reason, "message": message, "lastTimestamp": moment, "involvedObject": {"uid": uid}}


EVENTS = [
    event("FailedMount", "older", "2030-01-01T12:00:00Z"),
    event("FailedAttachVolume", "newer", "2030-01-01T12:00:09Z"),
    event("Unhealthy", "of another kind", "2030-01-01T12:01:00Z"),
    event("FailedMount", "another pod", "2030-01-01T12:02:00Z", uid="other"),
]


@pytest.fixture
def now() -> list[float]:
    return [5.0]


def test_the_newest_message_about_a_volume_counts(now: list[float]) -> None:
    kube = FakeKube()
    kube.events = EVENTS
    failures = MountFailures(kube, lambda: now[0])
    assert asyncio.run(failures.read(KEY, SEEN.pods[:1]))
    assert failures.of(KEY) == {"digits-ps-0-uid": "newer"}
    kube.events = [*EVENTS, event("FailedMount", "newest", "2030-01-01T12:03:00Z")]
    assert not asyncio.run(failures.read(KEY, SEEN.pods[:1])), "read a moment ago"
    now[0] += REREAD_SECONDS
    assert asyncio.run(failures.read(KEY, SEEN.pods[:1]))
    assert failures.of(KEY) == {"digits-ps-0-uid": "newest"}
    asyncio.run(failures.read(KEY, ()))
    assert failures.of(KEY) == {}, "nothing waits any more"
    assert failures.reread_delay(KEY) == 0


def test_a_storage_that_does_not_respond_is_reported_although_its_event_comes_late() -> None:
    """A mount of NFS fails only after minutes. The pod's status stays as it is, so no event of a watch follows."""
    kube, state, seconds = FakeKube(), WatchState(), [5.0]
    state.receive(kube.put(job()), None)
    waits = {"waiting": {"reason": "ContainerCreating"}}
    body = pod("ps", job_uid=str(state.cache.job_uid(KEY)), state=waits, phase="Pending", ready=False)
    uid = kube.put(body, **body["status"])["metadata"]["uid"]
    kube.deliver(state.cache)
    clocks = ReconcilerClocks(lambda: NOW + timedelta(minutes=2), lambda: seconds[0])
    reconciler = reconciler_at_now(kube, state, clocks=clocks)

    def settled() -> float | None:
        """Make passes while they write; return the seconds until the next one without an event."""
        while (delay := asyncio.run(reconciler.reconcile(KEY))) == 0:
            kube.deliver(state.cache)
        return delay

    def reason() -> str:
        conditions = kube.objects["PSTrainingJob", *KEY]["status"]["conditions"]
        return str(next(c["reason"] for c in conditions if c["type"] == "Running"))

    assert settled() == REREAD_SECONDS
    assert reason() == "StillWaiting"
    seconds[0] += REREAD_SECONDS
    kube.events = [event("FailedMount", "mount.nfs: Connection timed out", "2030-01-01T12:01:00Z", uid)]
    assert settled() == REREAD_SECONDS
    assert reason() == "VolumeNotMounted"


def test_without_the_right_to_read_events_nothing_is_reported(now: list[float]) -> None:
    kube = FakeKube()
    kube.failures = lambda verb, *_: Refused("no", status=403, reason="Forbidden") if verb == "warnings" else None
    failures = MountFailures(kube, lambda: now[0])
    assert not asyncio.run(failures.read(KEY, SEEN.pods))
    assert failures.of(KEY) == {}
    assert failures.reread_delay(KEY) == 0


def test_a_read_that_fails_for_a_moment_is_repeated(now: list[float]) -> None:
    kube = FakeKube()
    kube.failures = lambda verb, *_: Transient("overloaded") if verb == "warnings" else None
    failures = MountFailures(kube, lambda: now[0])
    with pytest.raises(Transient):
        asyncio.run(failures.read(KEY, SEEN.pods))
    assert not asyncio.run(failures.read(KEY, SEEN.pods)), "the pass that is repeated at once does not depend on it"
    assert failures.reread_delay(KEY) == REREAD_SECONDS


def test_a_message_is_bounded_and_printable() -> None:
    found = newest([event("FailedMount", "\x1b[8m" + "x" * 5000, "2030-01-01T12:00:00Z")])
    assert len(found) == MESSAGE_MAX
    assert found.startswith("\\x1b[8mx")
    assert newest([]) == ""
