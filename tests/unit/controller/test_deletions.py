"""The grace period of a deleted pod is measured by the operator's clock from the event of the watch."""

from datetime import timedelta
from typing import Any

import pytest

from pstraining.controller.deletions import Deletions
from pstraining.controller.watch_state import WatchState
from pstraining.core.policies import node_loss
from tests.support.builders import NOW, job, pod, stamp
from tests.support.simulation import node

KEY = ("default", "digits")
GRACE = 30


def deleted(version: int, end: int, grace: int = GRACE) -> dict[str, Any]:
    """Return the chief's pod, whose grace period ends some seconds after `NOW` by the API server's clock."""
    found = pod("chief", term=1)
    times = {"deletionTimestamp": stamp(NOW + timedelta(seconds=end)), "deletionGracePeriodSeconds": grace}
    found["metadata"] |= {"resourceVersion": str(version), **times}
    return found


class Watched:
    """An operator whose clock shows `NOW`, and a chief on a node whose kubelet reports that it is not ready."""

    def __init__(self) -> None:
        self.now = NOW
        self.state = WatchState(watches_nodes=True, deletions=Deletions(lambda: self.now))
        self.state.cache.observed(job())
        self.state.receive(node("node-1", "False"), None)
        running = pod("chief", term=1)
        running["metadata"]["resourceVersion"] = "1"
        self.state.receive(running, None)

    def is_lost(self, seconds: float) -> bool:
        (found,) = node_loss.marked(self.state.snapshot(KEY), NOW + timedelta(seconds=seconds)).pods
        return found.lost


@pytest.mark.parametrize("skew", [-60, 0, 60])
def test_the_grace_period_begins_when_the_deletion_is_seen(skew: int) -> None:
    """The API server's clock is a minute behind the operator's, equal, or a minute ahead."""
    watched = Watched()
    watched.state.receive(deleted(2, skew + GRACE), "MODIFIED")
    watched.now += timedelta(seconds=20)
    watched.state.receive(deleted(3, skew + GRACE), "MODIFIED")
    assert [watched.is_lost(seconds) for seconds in (0, 34, 35)] == [False, False, True]


def test_a_further_deletion_has_its_own_grace_period() -> None:
    watched = Watched()
    watched.state.receive(deleted(2, 300, 300), "MODIFIED")
    watched.now += timedelta(seconds=100)
    watched.state.receive(deleted(3, 130), "MODIFIED")
    assert [watched.is_lost(seconds) for seconds in (100, 134, 135)] == [False, False, True]


def test_a_deletion_that_was_not_watched_has_the_times_of_the_api_server() -> None:
    watched = Watched()
    watched.state.receive(deleted(2, 10), None)
    watched.now += timedelta(seconds=5)
    watched.state.receive(deleted(3, 10), "MODIFIED")
    assert [watched.is_lost(seconds) for seconds in (14, 15)] == [False, True]


def test_a_pod_that_has_gone_is_forgotten() -> None:
    watched = Watched()
    watched.state.receive(deleted(2, GRACE), "MODIFIED")
    watched.state.receive(deleted(3, GRACE), "DELETED")
    assert watched.state.deletions._seen == {}
