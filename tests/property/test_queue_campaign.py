"""The operator of a job with a queue crashes before or after every write, and the job ends as without the crash.

`make campaign` does the same on a real API server with Kueue (tests/campaign). Here a crash is tried at every write of
every scenario; `make test-all` also tries a second crash at the next write. At no moment do pods exist without quota.
"""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import pytest

from pstraining.api import names
from pstraining.core.actions import Action, Event, Outcome, Plan
from tests.support.queued_world import QueuedWorld, queued
from tests.support.soak_marks import ALL, in_all, some

TIMES = ("lastTransitionTime", "resourceVersion", "startTime", "completionTime", "creationTimestamp", "activeSeconds")


class CrashError(Exception):
    """The operator's crash."""


@dataclass
class CrashingWorld(QueuedWorld):
    """A world whose operator crashes at some of its writes."""

    strikes: frozenset[int] = frozenset()
    """The writes, counted from 1, at which the operator crashes."""
    after: bool = False
    """Whether it crashes after the write, instead of before it."""
    count: int = 0

    def reconcile(self, *, stop_after: int | None = None) -> Plan:
        try:
            return super().reconcile(stop_after=stop_after)
        except CrashError:
            self.versions += 1  # the next operator runs a pass, although nothing has changed
            return Plan()

    def _write(self, action: Action) -> Outcome:
        with_fault = self._strikes()
        outcome = super()._write(action)
        self._die(with_fault)
        return outcome

    def _store(self, status: dict[str, Any], found: Iterable[Event]) -> None:
        with_fault = self._strikes()
        super()._store(status, found)
        self._die(with_fault)

    def _strikes(self) -> bool:
        self.count += 1
        if self.count in self.strikes and not self.after:
            raise CrashError
        return self.count in self.strikes

    def _die(self, with_fault: bool) -> None:
        if with_fault:
            raise CrashError


Scenario = Callable[[CrashingWorld], Iterator[None]]


def succeeds(world: CrashingWorld) -> Iterator[None]:
    yield
    world.end(names.CHIEF)
    yield


def is_preempted(world: CrashingWorld) -> Iterator[None]:
    yield
    world.evict()
    world.quota = 0
    yield
    world.quota = 100
    yield


def is_stopped_by_its_user(world: CrashingWorld) -> Iterator[None]:
    yield
    world.stop_queue()
    yield
    world.workload["spec"]["active"] = True
    yield


def is_suspended(world: CrashingWorld) -> Iterator[None]:
    yield
    world.edit({"runPolicy": {"suspend": True}})
    yield
    world.edit({"runPolicy": {"suspend": False}})
    yield


def gets_more_workers_and_fewer(world: CrashingWorld) -> Iterator[None]:
    yield
    world.quota = 4
    world.edit({"worker": {"replicas": 5}})
    yield
    world.quota = 100
    yield
    world.edit({"worker": {"replicas": 1}})
    yield


def returns_the_quota_of_workers(world: CrashingWorld) -> Iterator[None]:
    world.edit({"successPolicy": "AllWorkers"})
    yield
    world.end(names.WORKER, 1)
    yield
    world.edit({"worker": {"replicas": 4}})
    yield


def is_admitted_in_part(world: CrashingWorld) -> Iterator[None]:
    world.quota = 4
    world.edit({"worker": {"replicas": 6, "minReplicas": 2}})
    yield
    world.quota = 100
    world.evict()
    yield


def changes_its_pods(world: CrashingWorld) -> Iterator[None]:
    yield
    world.edit({"ps": {"replicas": 2, "resources": {"requests": {"cpu": "2"}}}})
    yield


def changes_its_terms(world: CrashingWorld) -> Iterator[None]:
    world.quota = 4
    world.edit({"worker": {"replicas": 6}})
    yield
    world.edit({"worker": {"minReplicas": 2}})
    yield
    world.edit({"worker": {"minReplicas": None, "replicas": 2}})
    world.evict()
    yield


def waits_for_admission_checks(world: CrashingWorld) -> Iterator[None]:
    yield
    world.checks = True
    world.edit({"worker": {"replicas": 4}})
    yield
    world.pass_checks()
    yield


SCENARIOS: tuple[Scenario, ...] = (
    is_preempted,
    succeeds,
    is_stopped_by_its_user,
    is_suspended,
    gets_more_workers_and_fewer,
    returns_the_quota_of_workers,
    is_admitted_in_part,
    changes_its_pods,
    changes_its_terms,
    waits_for_admission_checks,
)


def play(scenario: Scenario, strikes: frozenset[int] = frozenset(), *, after: bool = False) -> CrashingWorld:
    """Play a scenario to its end.

    Raises:
        AssertionError: pods exist without quota, or the operator does not become quiet.
    """
    found = queued(ps={"replicas": 1})
    world = CrashingWorld(found.job, quota=found.quota, strikes=strikes, after=after)
    for _ in scenario(world):
        for _ in world.steps():
            assert not world.without_quota(), f"{strikes}: {world.without_quota()}, {world.writes[-8:]}"
    count = world.count
    for _ in range(3):
        world.reconcile()
    assert world.count == count, f"writes in the steady state: {world.writes[-3:]}"
    return world


def state(world: CrashingWorld) -> dict[str, Any]:
    """Return the final state, without parts that differ from run to run."""
    assert world.job is not None
    return {
        "status": _plain(world.job["status"]),
        "children": sorted(world.children),
        "workloads": [_plain(w.get("status", {})) | {"spec": w["spec"]} for w in world.workloads],
        "quota": world.with_quota(),
        "pods": world.existing(),
    }


def _plain(found: Any) -> Any:
    if isinstance(found, dict):
        return {k: _plain(v) for k, v in found.items() if k not in TIMES}
    return [_plain(v) for v in found] if isinstance(found, list) else found


others = in_all("tests/property/test_queue_campaign.py::test_a_crash_at_any_write_changes_nothing")


@pytest.mark.parametrize("after", [False, True], ids=["before", "after"])
@pytest.mark.parametrize("scenario", some(SCENARIOS, lambda s: s is is_preempted, others), ids=lambda s: s.__name__)
def test_a_crash_at_any_write_changes_nothing(scenario: Scenario, after: bool) -> None:
    undisturbed = play(scenario)
    wanted = state(undisturbed)
    numbers = range(1, undisturbed.count + 1)
    twice = [frozenset({n, n + 1}) for n in numbers] if ALL else []
    for strikes in (*(frozenset({n}) for n in numbers), *twice):
        assert state(play(scenario, strikes, after=after)) == wanted, strikes
