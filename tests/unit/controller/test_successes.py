"""The pod of a worker that has succeeded stays for its log for a time by the operator's clock, not by its node's."""

from datetime import datetime, timedelta

import pytest

from pstraining.controller.successes import Successes
from pstraining.controller.watch_state import WatchState
from pstraining.core.policies.retired_workers import LOGS_KEPT, pod_stays_until
from pstraining.launcher.launch import IDLE_SECONDS
from pstraining.resources.installation import Installation, ProgressEndpoint
from tests.support.builders import NOW, job, pod, stamp, terminated, typed

KEY = ("default", "digits")
JOB = job(spec={"checkpoint": {"uri": "s3://bucket/digits"}})


class Watched:
    """An operator whose clock shows `NOW` at the success of worker 1, and the worker's node with another clock."""

    def __init__(self, ahead: int) -> None:
        self.now, self.ahead, self.version = NOW, timedelta(seconds=ahead), 1
        self.state = WatchState(successes=Successes(lambda: self.now))
        self.state.installation = Installation(progress=ProgressEndpoint("https://operator", "authority"))
        self.state.cache.observed(JOB)
        self.state.receive(pod("worker", 1), None)

    def succeeds(self, uid: str = "") -> None:
        """Report exit code 0 of a container that has started again."""
        end = terminated(0)
        end["terminated"]["finishedAt"] = stamp(self.now + self.ahead)
        found = pod("worker", 1, last=end, uid=uid)
        self.version += 1
        found["metadata"]["resourceVersion"] = str(self.version)
        self.state.receive(found, "MODIFIED")

    @property
    def stays_until(self) -> datetime | None:
        return pod_stays_until(typed(JOB), self.state.snapshot(KEY), 1)


@pytest.mark.parametrize("ahead", [-3600, 0, 11, 3600])
def test_a_pod_stays_as_long_whatever_its_node_takes_for_the_time(ahead: int) -> None:
    watched = Watched(ahead)
    assert watched.stays_until is None
    watched.succeeds()
    assert watched.stays_until == NOW + LOGS_KEPT
    watched.now += timedelta(seconds=IDLE_SECONDS)
    watched.succeeds()
    assert watched.stays_until == NOW + LOGS_KEPT, "the idle launcher has only repeated it"


def test_the_time_is_that_of_one_pod() -> None:
    watched = Watched(0)
    watched.succeeds()
    assert watched.stays_until == NOW + LOGS_KEPT
    watched.state.receive(pod("worker", 1), "DELETED")
    assert not watched.state.successes._seen, "a large cluster has many pods"
    watched.now += timedelta(hours=1)
    watched.succeeds("another-uid")
    assert watched.stays_until == watched.now + LOGS_KEPT
