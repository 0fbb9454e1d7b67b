"""Each mechanism that protects quota is needed: with one of them switched off, a scenario has pods without quota, keeps
quota without pods, or ends otherwise.

tests/campaign/guards.py does the same for the guards against faults of the API server and of the operator.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import timedelta
from typing import Any
from unittest import mock

import pytest

from pstraining.api import names
from pstraining.core.policies import admission, queue_writes, queueing
from pstraining.core.policies.admission import QueueState
from pstraining.core.snapshot import Pod
from tests.property.test_queue_campaign import (
    CrashingWorld,
    Scenario,
    changes_its_pods,
    changes_its_terms,
    gets_more_workers_and_fewer,
    is_admitted_in_part,
    play,
    returns_the_quota_of_workers,
    state,
    waits_for_admission_checks,
)


def reaches_its_time_limit(world: CrashingWorld) -> Iterator[None]:
    yield
    world.stop_queue("MaximumExecutionTimeExceeded")
    yield
    world.workload["spec"]["active"] = True
    yield


def gets_workers_while_kueue_stops(world: CrashingWorld) -> Iterator[None]:
    yield
    world.forgets = True
    world.edit({"worker": {"replicas": 4}})
    yield
    world.now += timedelta(minutes=1)
    yield


def is_resumed_at_once(world: CrashingWorld) -> Iterator[None]:
    world.edit({"successPolicy": "AllWorkers", "worker": {"minReplicas": 2}})
    yield
    world.end(names.WORKER, 1)
    yield
    world.edit({"runPolicy": {"suspend": True}})
    while world.names_of("Deployment"):
        world.controllers()
        world.reconcile()
    world.edit({"runPolicy": {"suspend": False}})
    yield


def is_preempted_and_stops_slowly(world: CrashingWorld) -> Iterator[None]:
    yield
    world.lingering = {names.PS}
    world.evict()
    yield
    world.gone(names.PS)
    yield


def succeeds_and_stops_slowly(world: CrashingWorld) -> Iterator[None]:
    yield
    world.lingering = {names.PS}
    world.end(names.CHIEF)
    yield
    world.gone(names.PS)
    yield


@dataclass(frozen=True)
class QueueGuard:
    """A mechanism that can be switched off, and a scenario that needs it."""

    what: str
    owner: Any
    name: str
    without: Any
    scenario: Scenario


def _no(*_: Any, **__: Any) -> bool:
    return False


GUARDS = {
    "admission": QueueGuard("no pod exists before the admission", admission, "is_held", _no, changes_its_terms),
    "count": QueueGuard(
        "a job has as many workers as were admitted",
        QueueState,
        "workers",
        property(lambda state: state.job.spec.worker.replicas),
        is_admitted_in_part,
    ),
    "requests": QueueGuard(
        "a job that requests other pods queues again", QueueState, "matches", property(lambda _: True), changes_its_pods
    ),
    "last pod": QueueGuard(
        "an evicted job keeps its quota until its last pod has stopped",
        Pod,
        "stopped",
        property(lambda _: True),
        is_preempted_and_stops_slowly,
    ),
    "end": QueueGuard(
        "a job that has ended keeps its quota until its pods are deleted",
        queueing,
        "_is_about_to_go",
        _no,
        succeeds_and_stops_slowly,
    ),
    "scale-down": QueueGuard(
        "the quota of a superfluous worker is kept until its pod has stopped",
        queueing,
        "_leaves",
        _no,
        gets_more_workers_and_fewer,
    ),
    "reclaimed": QueueGuard(
        "ended workers return their quota", queueing, "_reclaimable", lambda *_: 0, returns_the_quota_of_workers
    ),
    "spent": QueueGuard(
        "quota that workers have returned is requested again before they run again",
        QueueState,
        "is_spent",
        property(lambda _: False),
        is_resumed_at_once,
    ),
    "former": QueueGuard(
        "a job runs on while admission checks hold its slice",
        QueueState,
        "former",
        property(lambda _: None),
        waits_for_admission_checks,
    ),
    "replaced": QueueGuard(
        "a Workload that a slice has replaced returns its quota",
        queueing,
        "_left_over",
        lambda _: iter(()),
        gets_workers_while_kueue_stops,
    ),
    "reason": QueueGuard(
        "quota is returned with a reason after which Kueue lets the job queue again",
        queue_writes,
        "_DEACTIVATED",
        "no reason",
        reaches_its_time_limit,
    ),
}


@pytest.mark.parametrize("guard", GUARDS.values(), ids=GUARDS)
def test_a_mechanism_that_is_switched_off_is_noticed(guard: QueueGuard) -> None:
    wanted = state(play(guard.scenario))
    assert hasattr(guard.owner, guard.name), f"{guard.owner} has no {guard.name} any more: change this guard with it"
    with mock.patch.object(guard.owner, guard.name, guard.without):
        try:
            found = state(play(guard.scenario))
        except AssertionError:
            return
    assert found != wanted, f"no scenario notices that {guard.what!r} is off"
