"""Events of pods that wait for a volume are read rarely, and only without another explanation."""

import asyncio
from typing import Any

import pytest

from pstraining.controller.failed_creates import MESSAGE_MAX
from pstraining.controller.mount_failures import REREAD_SECONDS, MountFailures, newest
from pstraining.core.observe import observe
from pstraining.kube.errors import Refused
from tests.support.builders import job, pod
from tests.support.fakekube import FakeKube

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


def test_without_the_right_to_read_events_nothing_is_reported(now: list[float]) -> None:
    kube = FakeKube()
    kube.failures = lambda verb, *_: Refused("no", status=403, reason="Forbidden") if verb == "warnings" else None
    failures = MountFailures(kube, lambda: now[0])
    assert not asyncio.run(failures.read(KEY, SEEN.pods))
    assert failures.of(KEY) == {}


def test_a_message_is_bounded_and_printable() -> None:
    found = newest([event("FailedMount", "\x1b[8m" + "x" * 5000, "2030-01-01T12:00:00Z")])
    assert len(found) == MESSAGE_MAX
    assert found.startswith("\\x1b[8mx")
    assert newest([]) == ""
