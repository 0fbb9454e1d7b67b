"""One primary per shard in every epoch, after any loss and request, and with stale observations."""

from contextlib import suppress
from typing import Any

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from pstraining.api import names
from pstraining.core.actions import Action, Apply, Kind
from pstraining.core.snapshot import Snapshot
from tests.property.test_planner_properties import EXAMPLES
from tests.support.builders import job, terminated
from tests.support.simulation import StaleError, World
from tests.support.soak_marks import ALL

SHARDS, STANDBYS = 2, 2
INDEX, MEMBER = st.integers(0, SHARDS - 1), st.integers(0, STANDBYS)


class Redundancy(RuleBasedStateMachine):
    """A job with standbys in a world with random faults at random times."""

    def __init__(self) -> None:
        super().__init__()
        self.primaries: dict[tuple[int, int], str] = {}
        """The primary of each shard and epoch."""
        self.epochs: dict[int, int] = {}

    @initialize(standbys=st.integers(1, STANDBYS))
    def start(self, standbys: int) -> None:
        spec = {"ps": {"standby": {"mode": "Warm", "replicasPerShard": standbys}}, "runPolicy": {"backoffLimit": 1000}}
        self.world = World(job(ps=SHARDS, spec=spec))
        self.world.settle()

    def pod(self, index: int, member: int) -> dict[str, Any] | None:
        base = "ps" if not member else "standby" if member == 1 else f"standby-{member}"
        return self.world.pods.get(f"digits-{base}-{index}")

    @rule(index=INDEX, member=MEMBER, ready=st.booleans(), ended=st.booleans())
    def turn(self, index: int, member: int, ready: bool, ended: bool) -> None:
        """Let a member lose its readiness, because its container ended or for an unknown reason, or become ready
        again.
        """
        found = self.pod(index, member)
        if found is None:
            return
        status = found["status"]["containerStatuses"][0]
        found["status"]["conditions"] = [
            {"type": "Ready", "status": str(ready), "lastTransitionTime": "2030-01-02T00:00:00Z"}
        ]
        if ready or not ended:
            status |= {"ready": ready, "state": {"running": {"startedAt": "2030-01-01T12:00:00Z"}}}
        else:
            status |= {"ready": False, "state": terminated(137), "restartCount": status["restartCount"] + 1}

    @rule(index=INDEX, member=MEMBER)
    def delete(self, index: int, member: int) -> None:
        found = self.pod(index, member)
        if found is not None:
            found["metadata"]["deletionTimestamp"] = "2030-01-01T12:00:00Z"

    @rule(index=INDEX, epoch=st.integers(0, 5))
    def ask(self, index: int, epoch: int) -> None:
        assert self.world.job is not None
        self.world.job["metadata"]["annotations"] = {names.ANNOTATION_TAKEOVER: f"{index}@{epoch}"}

    @rule(suspend=st.booleans())
    def suspend(self, suspend: bool) -> None:
        self.world.edit({"runPolicy": {"suspend": suspend}})

    @rule(index=INDEX)
    def disturb(self, index: int) -> None:
        """Edit a field of the Service other than the selector of the primary."""
        service = self.world.children.get(("Service", f"digits-ps-{index}"))
        if service is not None:
            service["spec"]["ports"] = []
            self.world.touch(service)

    @rule(after=st.integers(0, 6))
    def die(self, after: int) -> None:
        """Crash the operator between two writes."""
        self.check(self.world.snapshot(), self.world.plan().actions[:after])
        self.world.reconcile(stop_after=after)

    @rule(index=INDEX, spoil=st.booleans(), flips=st.integers(0, 2))
    def act_late(self, index: int, spoil: bool, flips: int) -> None:
        """Let a slow operator act on an outdated observation, after another one has acted on a newer one."""
        if spoil:
            self.turn(index, self.primary_of(index), ready=False, ended=True)
        else:
            self.disturb(index)
        snapshot, made = self.world.snapshot(), self.world.plan()
        for _ in range(flips):
            self.reconcile()
            lost = self.primary_of(index)
            for member in range(STANDBYS + 1):
                self.turn(index, member, ready=member != lost, ended=True)
        self.reconcile()
        services = [a for a in made.actions if isinstance(a, Apply) and a.kind is Kind.SERVICE]
        self.check(snapshot, services)
        with suppress(StaleError, KeyError):
            for action in services:
                self.world._write(action)

    def primary_of(self, index: int) -> int:
        service = self.world.children.get(("Service", f"digits-ps-{index}"))
        name = service["spec"]["selector"][names.LABEL_STS_POD] if service else ""
        found = self.world.pods.get(name)
        return int(found["metadata"]["labels"][names.LABEL_MEMBER]) if found else 0

    @rule()
    def reconcile(self) -> None:
        self.check(self.world.snapshot(), self.world.plan().actions)
        self.world.reconcile()
        self.one_primary_in_an_epoch()

    @rule()
    def controllers(self) -> None:
        self.world.controllers()

    @rule()
    def settle(self) -> None:
        self.world.settle(40)
        assert not self.world.plan().actions

    def check(self, snapshot: Snapshot, actions: Any) -> None:
        """Demand that a failover is the first action, and that its target was ready."""
        other = False
        for action in actions:
            if not _takes_over(action):
                other = True
                continue
            assert not other, "something else came first"
            target = action.body["spec"]["selector"][names.LABEL_STS_POD]
            (found,) = [p for p in snapshot.pods if p.name == target]
            assert found.ready
            assert not found.deleting

    @invariant()
    def one_primary_in_an_epoch(self) -> None:
        for index in range(SHARDS):
            service = getattr(self, "world", World(None)).children.get(("Service", f"digits-ps-{index}"))
            if service is None:
                continue
            epoch = int(service["metadata"]["annotations"][names.ANNOTATION_EPOCH])
            primary = service["spec"]["selector"][names.LABEL_STS_POD]
            assert self.primaries.setdefault((index, epoch), primary) == primary
            assert epoch >= self.epochs.get(index, 0)
            self.epochs[index] = epoch


def _takes_over(action: Action) -> bool:
    return isinstance(action, Apply) and action.reason == "TakeOver"


TestRedundancy = Redundancy.TestCase
TestRedundancy.settings = settings(
    max_examples=EXAMPLES if ALL else max(1, EXAMPLES // 2), stateful_step_count=30, deadline=None
)
