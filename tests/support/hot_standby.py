"""A job with hot standbys, and what its tests read: its tasks' events and its status."""

import math
from collections.abc import Sequence
from typing import Any

from tests.support.examples import Example
from tests.support.kube import DeadlineError, Object, wait_for

SPEC: Object = {
    "training": {"mode": "Sync", "steps": 10_000_000, "minShardBytes": 0},
    "ps": {"replicas": 2, "standby": {"mode": "Hot"}},
    "checkpoint": {"intervalSeconds": 3600},
}
ONE_SHARD: Object = {**SPEC, "ps": {**SPEC["ps"], "replicas": 1}}
RESUME_SECONDS = 20.0
"""Seconds within which a busy machine makes the first step without a lost member; tests print the measured time."""


def is_prepared(chief: Sequence[Object], *workers: Sequence[Object]) -> bool:
    """Return whether all workers are prepared for the loss of any member in the present view.

    Args:
        chief: the chief's events.
        workers: each worker's events. A renewed process prepares again.
    """
    views = [e for e in chief if e["event"] == "view"]
    ballots = [(e["term"], e["epoch"]) for e in views]
    # A chief that has connected again reports the same view again, which interrupts no worker.
    since = views[ballots.index(ballots[-1])]["time"] if views else math.inf
    lasts = [[e for e in own if e["event"] in ("failover_ready", "renews")][-1:] for own in workers]
    return all(own and own[0]["event"] == "failover_ready" and own[0]["time"] >= since for own in lasts)


class HotStandbyJob:
    """A job with hot standbys, observed by its events and its status.

    Args:
        example: the job.
        shards: the number of its shards.
        workers: the number of its workers.
    """

    def __init__(self, example: Example, shards: int = 2, workers: int = 2) -> None:
        self.example = example
        self.workers = range(workers)
        self._all = [[f"ps-{index}", f"ps-{index + shards}"] for index in range(shards)]
        self.shard_count = shards
        self.all_in_sync = f"{shards}/{shards}"

    def views(self) -> list[Any]:
        return [event["members"] for event in self.example.events("chief") if event["event"] == "view"]

    def is_whole(self) -> bool:
        return self.views()[-1:] == [self._all]

    def shards(self) -> list[Object]:
        return list((self.example.job().get("status") or {}).get("shards") or ())

    def summary(self) -> str:
        return str((self.example.job().get("status") or {}).get("standbySummary"))

    def condition(self, kind: str) -> Object:
        found = (self.example.job().get("status") or {}).get("conditions") or ()
        return next((c for c in found if c["type"] == kind), {"status": ""})

    def degraded(self) -> str:
        """Return why the job is degraded; empty while it is not."""
        found = self.condition("Degraded")
        return str(found["message"]) if found["status"] == "True" else ""

    def pod_uids(self) -> dict[str, str]:
        """Return the uid of each member's pod."""
        selector = f"pstraining.dev/job-name={self.example.name},pstraining.dev/role=ps"
        found = self.example.kube.list("Pod", self.example.namespace, selector)
        return {pod["metadata"]["name"]: pod["metadata"]["uid"] for pod in found}

    def nothing_is_restored(self) -> None:
        events = self.example.events("chief")
        assert sum(e["event"] == "initialized" for e in events) == 1
        assert not [e for e in events if e["event"] in ("restored", "not_marked")], "not one step was lost"
        assert {e["term"] for e in events if e["event"] == "view"} == {1}

    def wait_prepared(self) -> None:
        """Wait until all workers are prepared for the loss of any member in the present view."""

        def are_prepared() -> bool:
            reports = self.example.events
            return is_prepared(reports("chief"), *(reports("worker", index) for index in self.workers))

        try:
            wait_for(are_prepared, "all workers are prepared", 480, every=0.5)
        except DeadlineError as error:
            tasks = [*(("worker", index) for index in self.workers), ("chief", 0)]
            reports = [self.example.last_reports(*task) for task in tasks]
            raise DeadlineError("\n\n".join([str(error), *reports])) from None

    def steps(self, index: int = 0, since: float = 0.0) -> list[Any]:
        """Return a worker's events of its steps since this time."""
        return [e for e in self.example.events("worker", index) if e["event"] == "worker" and e["time"] >= since]

    def resumed(self, index: int) -> list[Any]:
        """Return a worker's events of its resumptions."""
        return [e for e in self.example.events("worker", index) if e["event"] == "resumed"]

    def switched_over(self, since: float) -> list[str]:
        """Return the members that a switchover since this time has replaced."""
        found = self.example.events("chief")
        return [e["server"] for e in found if e["event"] == "switchover" and e["time"] >= since]

    def standstill(self, why: str, since: float) -> float:
        """Return the longest time, in seconds, that a worker made no step after this kind of event."""
        return max(float(self._resumptions(i, since, 1, why)[0]["seconds"]) for i in self.workers)

    def standstills(self, since: float) -> tuple[float, float]:
        """Return the longest standstill of any worker since this time: the first one, and the last one."""
        found = [self._resumptions(i, since, 2) for i in self.workers]
        first, last = (max(float(own[at]["seconds"]) for own in found) for at in (0, -1))
        return first, last

    def _resumptions(self, index: int, since: float, number: int, why: str = "") -> list[Any]:
        """Return a worker's events of resumptions, once there are that many."""

        def events() -> list[Any]:
            return [e for e in self.resumed(index) if e["time"] >= since and why in ("", e["after"])]

        try:
            return wait_for(
                lambda: found if len(found := events()) >= number else None, f"worker {index} continues", 60
            )
        except DeadlineError as error:
            raise DeadlineError(f"{error}; since {since} it reports {events()}, after {why or 'anything'}") from None
