"""The waiting pods that the operator replaces within their budget, once their failures are recorded."""

from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest

from pstraining.api import names
from pstraining.api.conditions import Reason
from pstraining.core.actions import Delete, Kind
from pstraining.core.policies.stuck_pods import deletions
from pstraining.core.snapshot import Container, Pod, Termination
from tests.support.builders import NOW
from tests.support.simulation import phase, running
from tests.support.snapshots import a_pod, facts_of


def container(code: int | None = None, now: int | None = None, waiting: str = "") -> Container:
    last, terminated = (None if each is None else Termination(each, "Error", "", None) for each in (code, now))
    return Container(restarts=int(code is not None), last=last, terminated=terminated, waiting_reason=waiting)


def seen(role: str, **more: Any) -> Pod:
    return a_pod(role, 0, "n", **{"name": "p", "uid": "7"} | more)


RULE = {"failurePolicy": {"rules": [{"exitCodes": {"values": [42, 43]}, "action": "RestartReplica"}]}}
RULE_1 = {"failurePolicy": {"rules": [{"exitCodes": {"values": [1]}, "action": "RestartReplica"}]}}
IGNORE = {"failurePolicy": {"rules": [{"exitCodes": {"values": [42]}, "action": "Ignore"}]}}
NEVER = {role: {"restartPolicy": "Never"} for role in (names.PS, names.WORKER, names.CHIEF)}
CRASHING = container(1, waiting="CrashLoopBackOff")
IDLE, BACK_OFF = Reason.FAILURE_RULE, Reason.STUCK_IN_BACK_OFF
CASES: dict[str, tuple[dict[str, Any], Pod, Reason | None]] = {
    "a server in back-off": ({}, seen("ps", container=CRASHING), BACK_OFF),
    "a server that waits for something else": ({}, seen("ps", container=container(1, waiting="ErrImagePull")), None),
    "a worker in back-off": ({}, seen("worker", container=CRASHING), None),
    "a server in back-off that goes": ({}, seen("ps", container=CRASHING, deleting=True), None),
    "a worker whose code 1 a rule runs again": (NEVER | RULE_1, seen("worker", container=container(1)), IDLE),
    "a worker whose code is final without the rule": (
        {"worker": {"restartPolicy": "ExitCode"}} | RULE,
        seen("worker", container=container(42)),
        IDLE,
    ),
    "a worker that a rule runs again": (NEVER | RULE, seen("worker", container=container(42)), IDLE),
    "a server that a rule runs again": (NEVER | RULE, seen("ps", container=container(42)), IDLE),
    "a chief that a rule runs again": (NEVER | RULE, seen("chief", container=container(42)), None),
    "a worker that has just ended": (NEVER | RULE, seen("worker", container=container(now=42)), IDLE),
    "a worker whose failure is ignored": (NEVER | IGNORE, seen("worker", container=container(42)), IDLE),
    "a worker whose final failure did not end the job": (NEVER, seen("worker", container=container(9)), IDLE),
    "a worker that ended well": (
        NEVER | {"failurePolicy": {"rules": [{"action": "Ignore"}]}},
        seen("worker", container=container(0)),
        None,
    ),
    "a worker that runs": (NEVER | RULE, seen("worker"), None),
    "a worker whose pod has ended": (NEVER | RULE, seen("worker", container=container(42), phase="Failed"), None),
    "a worker that its launcher runs again": (RULE, seen("worker", container=container(42)), None),
    "the previous run decides while the idle launcher has ended": (
        {"worker": {"restartPolicy": "ExitCode"}},
        seen("worker", container=container(9, now=143)),
        IDLE,
    ),
    "a server whose init container fails": (
        NEVER,
        seen("ps", blocked_init=Container(terminated=Termination(1, "Error", "", None)), init_failures=1),
        None,
    ),
}


@pytest.mark.parametrize("which", CASES)
def test_a_waiting_pod_is_replaced_once_its_failures_are_recorded(which: str) -> None:
    spec, pod, reason = CASES[which]
    assert list(deletions(facts_of(spec, pod))) == [], "not before"
    counted = facts_of(spec, pod).failures.records
    records = [each.model_dump(by_alias=True, mode="json") for each in counted]
    expected = [] if reason is None else [Delete(Kind.POD, "p", "7", reason)]
    assert list(deletions(facts_of(spec, pod, replicaRecords=records))) == expected


def test_a_worker_that_is_given_up_stays_as_it_is() -> None:
    pod, spec = seen("worker", container=container(1)), {"worker": {"restartPolicy": "Never", "minReplicas": 1}}
    (counted,) = facts_of(spec, pod).failures.records
    assert counted.given_up
    record = counted.model_dump(by_alias=True, mode="json")
    assert list(deletions(facts_of(spec, pod, replicaRecords=[record]))) == []


def recorded(*pods: Pod, spec: dict[str, Any]) -> list[str]:
    """Return the uids of the pods that are replaced once their failures are recorded."""
    counted = facts_of(spec, *pods).failures.records
    records = [each.model_dump(by_alias=True, mode="json") for each in counted]
    return [each.uid for each in deletions(facts_of(spec, *pods, replicaRecords=records))]


def test_a_pod_whose_failures_do_not_count_is_not_replaced_for_them() -> None:
    idle = seen("worker", container=container(42))
    newer = seen("worker", uid="8", created=NOW + timedelta(seconds=1), container=container(42))
    assert recorded(idle, newer, spec=NEVER | RULE) == ["8"], "the newer pod is the worker's"
    assert recorded(replace(idle, created=NOW - timedelta(seconds=1)), spec=NEVER | RULE) == [], "before the start"


def test_a_worker_that_fails_for_good_while_the_number_of_servers_changes_runs_again() -> None:
    """Such a failure does not count, but the launcher idles after it."""
    checkpoint = {"volume": {"hostPath": {"path": "/x"}}}
    world = running(ps={"replicas": 1}, worker={"restartPolicy": "Never"}, checkpoint=checkpoint)
    world.lingering.add("chief")
    world.edit({"ps": {"replicas": 2}})
    world.settle()
    before = {name for name in world.pods if "worker-0" in name}
    world.end("worker", 0, 1)
    world.settle()
    world.gone("chief")
    world.settle()
    assert phase(world) == "Running"
    assert not before & world.pods.keys()
    assert world.job is not None
    assert [r["failures"] for r in world.job["status"]["replicaRecords"]] == [0]


@pytest.mark.parametrize(("code", "fails"), [(78, True), (1, False)])
def test_failures_count_while_the_chief_leads_training_to_another_number_of_servers(code: int, fails: bool) -> None:
    standby, checkpoint = {"mode": "Hot"}, {"volume": {"hostPath": {"path": "/x"}}}
    world = running(ps={"replicas": 1, "standby": standby}, training={"mode": "Sync"}, checkpoint=checkpoint)
    world.edit({"ps": {"replicas": 2}})
    world.settle()
    assert world.condition("Rescaling")["reason"] == "Checkpointing"
    world.end("worker", 0, code)
    world.settle()
    assert world.job is not None
    assert world.condition("Failed")["status"] == str(fails)
    assert [r["failures"] for r in world.job["status"]["replicaRecords"]] == [1]


@pytest.mark.parametrize("changed", [{"podUID": "6"}, {"member": 1}])
def test_a_record_of_another_pod_does_not_count(changed: dict[str, Any]) -> None:
    pod = seen("ps", container=CRASHING)
    (counted,) = facts_of({}, pod).failures.records
    record = counted.model_dump(by_alias=True, mode="json") | changed
    assert list(deletions(facts_of({}, pod, replicaRecords=[record]))) == []
