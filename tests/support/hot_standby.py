"""A job with hot standbys, and what tests read of it: its tasks' events and its status."""

from typing import Any

from tests.support.examples import Example
from tests.support.kube import DeadlineError, Object, wait_for

SPEC: Object = {
    "training": {"mode": "Sync", "steps": 10_000_000, "minShardBytes": 0},
    "ps": {"replicas": 2, "standby": {"mode": "Hot"}},
    "checkpoint": {"intervalSeconds": 3600},
}
ONE_SHARD: Object = {**SPEC, "ps": {**SPEC["ps"], "replicas": 1}}
WENT_ON = 20.0
"""Seconds until the first step without a lost member, on a machine that does much else; the figures are printed."""


class Watched:
    """A job with hot standbys, and what it tells.

    Args:
        example: the job.
        shards: how many it has.
    """

    def __init__(self, example: Example, shards: int = 2) -> None:
        self.example = example
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
        """Why the job is degraded; empty while it is not."""
        found = self.condition("Degraded")
        return str(found["message"]) if found["status"] == "True" else ""

    def lives(self) -> dict[str, str]:
        """The pods of all members."""
        selector = f"pstraining.dev/job-name={self.example.name},pstraining.dev/role=ps"
        found = self.example.kube.list("Pod", self.example.namespace, selector)
        return {pod["metadata"]["name"]: pod["metadata"]["uid"] for pod in found}

    def nothing_is_restored(self) -> None:
        reported = self.example.events("chief")
        assert sum(e["event"] == "initialized" for e in reported) == 1
        assert not [e for e in reported if e["event"] in ("restored", "not_marked")], "not one step was lost"
        assert {e["term"] for e in reported if e["event"] == "view"} == {1}

    def wait_prepared(self, times: int) -> None:
        """Wait until both workers have everything ready for a loss, so often since they began."""
        for index in (0, 1):
            self.example.wait_event("failover_ready", "worker", index, count=times)

    def wait_prepared_again(self) -> None:
        """Wait until both workers are prepared for the next loss, after what interrupted them last."""

        def is_prepared() -> bool:
            lines = [[e["event"] for e in self.example.events("worker", index)] for index in (0, 1)]
            told = [[name for name in own if name in ("failover_ready", "resumed")] for own in lines]
            return [own[-1:] for own in told] == 2 * [["failover_ready"]]

        wait_for(is_prepared, "both workers are prepared again", 300, every=0.5)

    def steps(self, index: int = 0, since: float = 0.0) -> list[Any]:
        """A worker's lines about its steps since then."""
        return [e for e in self.example.events("worker", index) if e["event"] == "worker" and e["time"] >= since]

    def resumed(self, index: int) -> list[Any]:
        """A worker's lines about its standstills."""
        return [e for e in self.example.events("worker", index) if e["event"] == "resumed"]

    def handed_over(self, since: float) -> list[str]:
        """Members that others did without before they ended."""
        found = self.example.events("chief")
        return [e["server"] for e in found if e["event"] == "switchover" and e["time"] >= since]

    def stood(self, why: str, since: float) -> float:
        """How long the workers made no step since then, until the first one after what happened."""
        return max(float(self._told(i, since, 1, why)[0]["seconds"]) for i in (0, 1))

    def standstills(self, since: float) -> tuple[float, float]:
        """The same, and how long it was when the member was back; whatever showed a worker that something happened."""
        found = [self._told(i, since, 2) for i in (0, 1)]
        first, last = (max(float(own[at]["seconds"]) for own in found) for at in (0, -1))
        return first, last

    def _told(self, index: int, since: float, number: int, why: str = "") -> list[Any]:
        """What a worker tells of its standstills, once there are so many."""

        def reported() -> list[Any]:
            return [e for e in self.resumed(index) if e["time"] >= since and why in ("", e["after"])]

        try:
            return wait_for(
                lambda: found if len(found := reported()) >= number else None, f"worker {index} continues", 60
            )
        except DeadlineError as error:
            raise DeadlineError(f"{error}; since {since} it reports {reported()}, after {why or 'anything'}") from None
