"""Parameter servers with hot standbys are only ended while all are in sync, and all are recreated in the end."""

from typing import Any

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, rule

from pstraining.api import names
from pstraining.api.conditions import Reason
from pstraining.core.actions import Delete, Kind, Plan
from pstraining.resources.standbys import server_template
from tests.property.test_planner_properties import EXAMPLES
from tests.support.builders import job
from tests.support.simulation import World
from tests.support.soak_marks import ALL

SHARDS, STANDBYS = 2, 2
SIZE, PICK = st.sampled_from(["1Gi", "2Gi", "4Gi"]), st.integers(0, SHARDS * (STANDBYS + 1) - 1)


class Renewal(RuleBasedStateMachine):
    """Servers whose spec changes repeatedly, and that lose and receive the state meanwhile."""

    @initialize(standbys=st.integers(1, STANDBYS))
    def start(self, standbys: int) -> None:
        self.standbys = standbys
        standby = {"mode": "Hot", "replicasPerShard": standbys}
        spec = {"ps": {"standby": standby}, "training": {"mode": "Sync"}, "runPolicy": {"backoffLimit": 1000}}
        self.world = World(job(ps=SHARDS, spec=spec))
        self.world.settle()

    def servers(self) -> list[dict[str, Any]]:
        return [p for p in self.world.pods.values() if p["metadata"]["labels"][names.LABEL_ROLE] == names.PS]

    @rule(size=SIZE)
    def resize(self, size: str) -> None:
        self.world.edit({"ps": {"resources": {"requests": {"memory": size}}}})

    @rule(pick=PICK, ready=st.booleans(), runs=st.booleans())
    def turn(self, pick: int, ready: bool, runs: bool) -> None:
        """Let a server be in sync, lose the state, or stop running."""
        found = self.servers()[pick % len(self.servers())]["status"] if self.servers() else {}
        if found:
            state = {"running": {}} if runs or ready else {"waiting": {"reason": "ContainerCreating"}}
            found["conditions"] = [{"type": "Ready", "status": str(ready)}]
            found["containerStatuses"][0] |= {"ready": ready, "state": state}

    @rule(pick=PICK)
    def delete(self, pick: int) -> None:
        if self.servers():
            self.servers()[pick % len(self.servers())]["metadata"]["deletionTimestamp"] = "2030-01-01T12:00:00Z"

    @rule(after=st.integers(0, 3))
    def die(self, after: int) -> None:
        """Crash the operator between two writes."""
        self.check(self.world.plan())
        self.world.reconcile(stop_after=after)

    @rule()
    def reconcile(self) -> None:
        self.check(self.world.plan())
        self.world.reconcile()

    @rule()
    def controllers(self) -> None:
        self.world.controllers()

    @rule()
    def calm_down(self) -> None:
        """Let every member receive the state after each loss, until all match the spec."""
        for _ in range(SHARDS * (STANDBYS + 1) + 1):
            self.world.controllers()
            for number in range(len(self.servers())):
                self.turn(number, ready=True, runs=True)
            self.world.settle(40)
        wanted = self.world.snapshot().typed_job
        assert not isinstance(wanted, str)
        for found in self.servers():
            made_from = found["metadata"]["annotations"][names.ANNOTATION_SERVER_TEMPLATE]
            assert made_from == server_template(wanted)
        assert not self.world.plan().actions

    def check(self, made: Plan) -> None:
        """Demand that a running server is only ended while all are in sync, and by itself."""
        ended = [a for a in made.actions if isinstance(a, Delete) and a.kind is Kind.POD]
        there = {p["metadata"]["name"]: p for p in self.servers()}
        states = {n: p["status"]["containerStatuses"][0]["state"] for n, p in there.items()}
        if any(a.reason is Reason.SPEC_CHANGED and "running" in states[a.name] for a in ended):
            assert len(ended) == 1
            assert len(there) == SHARDS * (self.standbys + 1)
            assert all(p["status"]["conditions"][0]["status"] == "True" for p in there.values())
            assert not any(p["metadata"].get("deletionTimestamp") for p in there.values())


TestRenewal = Renewal.TestCase
TestRenewal.settings = settings(
    max_examples=EXAMPLES if ALL else max(1, EXAMPLES // 4), stateful_step_count=30, deadline=None
)
