"""The ended runs that count, their cause and replica, and the workers that are given up because of them."""

from datetime import datetime, timedelta
from typing import Any

import pytest

from pstraining.api import names
from pstraining.api.conditions import Condition
from pstraining.api.run_policy import FailureReason
from pstraining.core.actions import Kind
from pstraining.core.policies.failure_counts import Failure, FailureCounts, count_failures
from pstraining.core.policies.failures import Consequence, Decision
from pstraining.core.snapshot import Child, Container, Pod, Termination
from pstraining.resources.fixed_fields import FORMAT
from tests.support.builders import NOW, stamp
from tests.support.snapshots import a_child, a_pod, facts_of

SECOND = timedelta(seconds=1)
SPEC: dict[str, Any] = {"ps": {"replicas": 1}, "worker": {"replicas": 3}}


def end(code: int, at: datetime | None = NOW, reason: str = "Error", message: str = "") -> Termination:
    return Termination(code, reason, message, at)


def failed(role: str, index: int = 0, code: int = 1, **more: Any) -> Pod:
    """Return a pod whose program has ended once."""
    known = {"container": Container(terminated=end(code)), "uid": f"{role}-{index}"}
    return a_pod(role, index, "n", **known | more)


def counted(*seen: Pod | Child, spec: dict[str, Any] | None = None, **status: Any) -> FailureCounts:
    facts = facts_of(SPEC | (spec or {}), *seen, **status)
    return count_failures(facts.job, facts.snapshot, facts.status, stops=facts.resharding.stops)


def numbers(found: FailureCounts) -> dict[str, tuple[int, int]]:
    return {f"{r.role}/{r.index}/{r.member}": (r.failures, r.restarts) for r in found.records}


def record(role: str, index: int = 0, **more: Any) -> dict[str, Any]:
    return {"role": role, "index": index, "podUID": "earlier", **more}


def condition(kind: Condition, reason: str, status: str = "True") -> dict[str, Any]:
    later = stamp(NOW + 10 * SECOND)
    return {"type": kind, "status": status, "reason": reason, "message": "", "lastTransitionTime": later}


@pytest.mark.parametrize(
    ("conditions", "first"),
    [
        ([], 0),
        ([condition(Condition.RESCALING, "Resharding")], 10),
        ([condition(Condition.RESCALING, "Rescaled", "False")], 0),
        ([condition(Condition.RESTARTING, "SpecChanged")], 10),
        ([condition(Condition.RESTARTING, "PSLost")], 0),
        ([condition(Condition.RESTARTING, "SpecChanged", "False")], 0),
    ],
)
def test_only_pods_since_the_last_stop_of_the_job_count(conditions: list[dict[str, Any]], first: int) -> None:
    for at in (first - 1, first):
        found = counted(failed("worker", created=NOW + at * SECOND), conditions=conditions)
        assert bool(found.records) is (at >= first)


@pytest.mark.parametrize(
    ("reason", "counts"), [("StartingServers", True), ("Checkpointing", False), ("Resuming", False)]
)
def test_ends_of_pods_that_stay_while_training_stops_for_another_number_of_servers_never_count(
    reason: str, counts: bool
) -> None:
    stops: dict[str, Any] = {"conditions": [condition(Condition.RESCALING, reason)]}
    over: dict[str, Any] = {"conditions": [condition(Condition.RESCALING, "Rescaled", "False")]}
    first, second = failed("worker"), failed("worker", container=Container(restarts=1, terminated=end(1)))
    during = counted(first, **stops)
    recorded = [r.model_dump(by_alias=True, mode="json") for r in during.records]
    assert sum(r.failures for r in during.records) == int(counts)
    assert numbers(counted(first, **over, replicaRecords=recorded)) == {"worker/0/0": (int(counts), int(counts))}
    later = counted(second, **over, replicaRecords=recorded)
    assert sum(r.failures for r in later.records) == int(counts) + 1, "the next end counts"


RESUMING: dict[str, Any] = {"conditions": [condition(Condition.RESCALING, "Resuming")]}


@pytest.mark.parametrize(
    ("at", "deleting", "recorded", "expected"),
    [
        (9, False, {}, (0, 0, 1, NOW + 9 * SECOND)),  # a run of a pod that stays: recorded, and not a failure
        (9, True, {}, None),  # a pod that is deleted has no further run
        (10, False, {}, (1, 1, 1, NOW + 10 * SECOND)),  # a later pod
        (9, False, {"podUID": "worker-0", "ended": 1, "failures": 3}, (3, 0, 1, None)),  # recorded already
        (9, False, {"podUID": "earlier", "ended": 5, "failures": 3}, (3, 0, 1, NOW + 9 * SECOND)),  # of another pod
    ],
)
def test_records_of_pods_that_stay(
    at: int, deleting: bool, recorded: dict[str, Any], expected: tuple[int, int, int, datetime | None] | None
) -> None:
    records = [record("worker", **recorded)] if recorded else []
    seen = failed("worker", created=NOW + at * SECOND, deleting=deleting)
    found = counted(seen, failed("worker", 1, created=NOW + 10 * SECOND), **RESUMING, replicaRecords=records)
    own = [(r.failures, r.restarts, r.ended, r.pod_created) for r in found.records if r.index == 0]
    assert own == ([] if expected is None else [expected])
    assert [r.failures for r in found.records if r.index == 1] == [1], "the other pods are counted as well"


def test_a_job_that_has_not_started_counts_nothing() -> None:
    conditions = [condition(Condition.RESCALING, "Resharding")]
    assert counted(failed("worker"), startTime=None, conditions=conditions).records == ()


GOING = failed("worker", 1, deleting=True)
STOPS: dict[str, tuple[dict[str, Any], tuple[Child, ...]]] = {
    "suspended": ({"runPolicy": {"suspend": True}}, ()),
    "another number of servers": ({}, (a_child(Kind.STATEFUL_SET, "digits-ps", spec={"replicas": 2}),)),
    "other settings": (
        {},
        (a_child(Kind.DEPLOYMENT, "digits-worker-0", annotations={names.ANNOTATION_FIXED: f"{FORMAT}x"}),),
    ),
}


@pytest.mark.parametrize("why", STOPS)
def test_pods_stopped_by_the_operator_have_not_failed(why: str) -> None:
    spec, children = STOPS[why]
    assert numbers(counted(GOING, failed("worker", 0), *children, spec=spec)) == {"worker/0/0": (1, 1)}


def test_pods_stopped_by_others_are_restarted() -> None:
    assert numbers(counted(GOING, failed("worker", 0))) == {"worker/0/0": (1, 1), "worker/1/0": (0, 1)}


@pytest.mark.parametrize(
    ("role", "index", "member", "wanted"),
    [
        ("ps", 0, 0, True),
        ("ps", 1, 0, False),
        ("ps", 0, 1, True),
        ("ps", 0, 2, False),
        ("worker", 2, 0, True),
        ("worker", 3, 0, False),
        ("chief", 0, 0, True),
        ("chief", 1, 0, False),
        ("evaluator", 0, 0, False),
    ],
)
def test_the_record_of_a_replica_is_deleted_with_its_last_pod(role: str, index: int, member: int, wanted: bool) -> None:
    spec = {"ps": {"replicas": 1, "standby": {"mode": "Warm"}}}
    kept = record(role, index, member=member, failures=2)
    gone = a_pod(role, index, "n", member=member)
    assert bool(counted(spec=spec, replicaRecords=[kept]).records) is wanted
    assert counted(gone, spec=spec, replicaRecords=[kept]).records
    assert bool(counted(failed(role, index, member=member), spec=spec).records) is wanted


def test_the_evaluator_is_counted_where_it_is_wanted() -> None:
    assert counted(failed("evaluator"), spec={"evaluator": {"enabled": True}}).records


def test_records_are_in_order_and_known_by_replica() -> None:
    spec = {"ps": {"replicas": 1, "standby": {"mode": "Warm"}}}
    standby = failed("ps", member=1, uid="s")
    found = counted(failed("worker", 1), failed("ps"), standby, failed("worker"), spec=spec)
    assert list(numbers(found)) == ["ps/0/0", "ps/0/1", "worker/0/0", "worker/1/0"]
    ps, other, worker, _ = found.records
    assert found.record(standby) == other
    assert found.record(a_pod("worker", 2, "n")) is None
    assert (found.of("ps", 0), found.of("worker", 0), found.of("ps", 1)) == ((ps, other), (worker,), ())
    assert (found.restarts("worker"), found.restarts("ps"), found.restarts("chief")) == (2, 2, 0)
    assert found.restart_job is None


def test_counters_are_recorded_when_the_status_has_them_all() -> None:
    found, stored = counted(failed("worker")), facts_of(SPEC).status
    assert not found.is_recorded(stored)
    assert found.is_recorded(stored.model_copy(update={"replica_records": list(found.records)}))


CRASHING = Container(restarts=2, waiting_reason="CrashLoopBackOff", last=end(1))
RUNS: dict[str, tuple[dict[str, Any], tuple[int, int] | None]] = {
    # the observation of a worker's pod: its failures and restarts
    "it runs": ({"container": Container(running=True)}, None),
    "it waits": ({"container": Container(waiting_reason="ContainerCreating")}, None),
    "it has ended": ({"container": Container(terminated=end(1))}, (1, 1)),
    "it runs again": ({"container": Container(restarts=2, last=end(1))}, (2, 2)),
    "it waits to run again": ({"container": CRASHING}, (3, 3)),
    "its init container has failed": ({"init_failures": 2}, (2, 2)),
    "its init container has failed, then it": ({"init_failures": 1, "container": CRASHING}, (4, 4)),
    "its pod has failed": ({"phase": "Failed", "container": Container()}, (1, 1)),
    "its pod has failed in the init container": (
        {"phase": "Failed", "init_failures": 1, "container": Container()},
        (1, 1),
    ),
    "its pod was deleted": ({"deleting": True}, (0, 1)),
    "its node was lost": ({"deleting": True, "disruption": "NodeLost", "container": CRASHING}, (0, 3)),
    "its node was lost long after a failure": (
        {"phase": "Failed", "disruption": "NodeLost", "container": Container(restarts=2, last=end(1))},
        (0, 3),
    ),
    "it was evicted": ({"phase": "Failed", "disruption": "Evicted", "container": Container()}, (0, 1)),
    "it was evicted after it was killed": (
        {"phase": "Failed", "disruption": "Evicted", "container": Container(restarts=2, last=end(137))},
        (1, 3),
    ),
    "it was evicted after it was stopped": (
        {"phase": "Failed", "disruption": "Evicted", "container": Container(restarts=2, last=end(143))},
        (1, 3),
    ),
    "it was evicted after it had failed": (
        {"phase": "Failed", "disruption": "Evicted", "container": Container(restarts=2, last=end(138))},
        (2, 3),
    ),
}


@pytest.mark.parametrize("when", RUNS)
def test_each_ended_run_is_counted_once_with_its_cause(when: str) -> None:
    state, expected = RUNS[when]
    found = counted(a_pod("worker", 0, "n", **state))
    assert numbers(found) == ({} if expected is None else {"worker/0/0": expected})
    assert len(found.failures) == int(expected is not None and expected[0] > 0)
    known = [r.model_dump(by_alias=True, mode="json") for r in found.records]
    again = counted(a_pod("worker", 0, "n", **state), replicaRecords=known)
    assert (again.records, again.failures) == (found.records, ())


def test_a_further_run_of_a_pod_adds_to_what_was_counted() -> None:
    known = record("worker", podUID="worker-0", failures=3, restarts=5, ended=2)
    pod = failed("worker", container=Container(restarts=3, last=end(1)))
    assert numbers(counted(pod, replicaRecords=[known])) == {"worker/0/0": (4, 6)}
    (new,) = counted(pod, replicaRecords=[known]).records
    assert (new.ended, new.pod_uid, new.pod_created) == (3, "worker-0", NOW)
    fewer = failed("worker", container=Container(restarts=1, last=end(1)))
    assert numbers(counted(fewer, replicaRecords=[known])) == {"worker/0/0": (3, 5)}, "an older observation"


@pytest.mark.parametrize(
    ("pod", "at"),
    [
        (failed("worker", container=Container(terminated=end(1, NOW + SECOND)), deleted_at=NOW), NOW + SECOND),
        (failed("worker", container=Container(terminated=end(1, None)), deleted_at=NOW + SECOND), NOW + SECOND),
        (failed("worker", container=Container(terminated=end(1, None)), created=NOW + SECOND), NOW + SECOND),
    ],
)
def test_a_failure_is_remembered_with_its_time(pod: Pod, at: datetime) -> None:
    windowed = {"worker": {"replicas": 3, "backoff": {"limit": 5, "windowSeconds": 60}}}
    known = record("worker", failureTimes=[stamp(NOW - SECOND)], failures=1)
    (found,) = counted(pod, spec=windowed, replicaRecords=[known]).records
    assert found.failure_times == [NOW - SECOND, at]
    assert counted(pod).records[0].failure_times == []


@pytest.mark.parametrize(
    ("later", "superseded"),
    [
        ({"created": NOW}, True),
        ({"created": NOW + SECOND, "term": 0, "uid": "a"}, True),
        ({"created": NOW + SECOND, "term": 1, "uid": "a"}, True),
        ({"created": NOW + SECOND, "term": 1, "uid": "c"}, False),
        ({"created": NOW + SECOND, "term": 2, "uid": "a"}, False),
        ({"created": NOW + 2 * SECOND, "term": 0, "uid": "a"}, False),
    ],
)
def test_a_replaced_pod_does_not_count(later: dict[str, Any], superseded: bool) -> None:
    """A replaced pod does not count: the counted pod is that of term 1 and uid b, created in the second after the
    start.
    """
    counts = record("chief", podUID="b", podCreated=stamp(NOW + SECOND), ended=1, failures=1, restarts=1)
    last = failed("chief", uid="b", created=NOW + SECOND, term=1)
    other = failed("chief", **{"uid": "a", "term": 1, **later})
    expected = (1, 1) if superseded else (2, 2)
    found = counted(other, last, failed("worker"), replicaRecords=[counts])
    assert numbers(found) == {"chief/0/0": expected, "worker/0/0": (1, 1)}


def test_a_pod_older_than_a_deleted_one_does_not_count() -> None:
    counts = record("worker", podCreated=stamp(NOW + SECOND), failures=1, restarts=1)
    for created, expected in ((NOW, (1, 1)), (NOW + SECOND, (2, 2))):
        pod = failed("worker", created=created)
        assert numbers(counted(pod, replicaRecords=[counts])) == {"worker/0/0": expected}
    del counts["podCreated"]
    assert numbers(counted(failed("worker"), replicaRecords=[counts])) == {"worker/0/0": (2, 2)}


def rules(*found: dict[str, Any]) -> dict[str, Any]:
    return {"failurePolicy": {"rules": list(found)}}


def test_a_restart_of_the_job_gives_every_replica_a_new_budget() -> None:
    others = (
        record("ps", failures=4, restarts=4),
        record("worker", 2, failures=1, givenUp=True, failureTimes=[stamp(NOW)]),
    )
    found = counted(failed("worker"), spec=rules({"action": "RestartJob"}), replicaRecords=list(others))
    assert numbers(found) == {"ps/0/0": (0, 4), "worker/0/0": (0, 1), "worker/2/0": (0, 0)}
    assert all(not r.failure_times and not r.given_up for r in found.records)
    assert found.restart_job == found.failures[0]
    assert (found.restart_job.role, found.restart_job.index) == ("worker", 0)


@pytest.mark.parametrize("action", ["RestartJob", "FailJob"])
def test_a_rule_acts_on_disruptions_by_kubernetes(action: str) -> None:
    evicted = a_pod("worker", 0, "n", phase="Failed", disruption="Evicted", container=Container())
    found = counted(evicted, spec=rules({"reasons": ["Evicted"], "action": action}))
    assert [f.decision for f in found.failures] == [Decision(Consequence(action), FailureReason.EVICTED, 0)]
    assert counted(evicted).failures == ()
    assert counted(evicted, spec=rules({"reasons": ["Evicted"], "action": "Ignore"})).failures == ()


@pytest.mark.parametrize("action", ["RestartJob", "FailJob", "RestartReplica"])
def test_no_rule_acts_on_a_program_that_succeeded_and_restarts(action: str) -> None:
    """No rule acts on a program that succeeded and restarts: restartPolicy Always runs a worker again after exit code
    0, which is not a failure.
    """
    always = {"worker": {"replicas": 3, "restartPolicy": "Always"}, **rules({"action": action})}
    again = a_pod("worker", 1, "n", container=Container(restarts=2, last=end(0)))
    found = counted(again, spec=always)
    assert (numbers(found), found.failures) == ({"worker/1/0": (0, 2)}, ())
    deleted = a_pod("worker", 1, "n", deleting=True, container=Container(last=end(0)))
    assert counted(deleted, spec=always).failures, "its deletion is a cause of its own"


@pytest.mark.parametrize(("code", "expected"), [(9, (0, 1)), (8, (1, 1))])
def test_a_rule_matches_the_exit_code_of_the_newest_run(code: int, expected: tuple[int, int]) -> None:
    ignored = rules({"exitCodes": {"values": [9]}, "action": "Ignore"})
    assert numbers(counted(failed("worker", code=code), spec=ignored)) == {"worker/0/0": expected}


def reported(pod: Pod, spec: dict[str, Any] | None = None, **status: Any) -> tuple[Any, ...]:
    (found,) = counted(pod, spec=spec, **status).failures
    assert isinstance(found, Failure)
    last = found.last_failure
    return found.role, found.index, last.pod, last.exit_code, last.reason, last.message, last.time, last.count


def test_a_failure_is_reported_with_its_cause_and_last_line() -> None:
    ran = failed("worker", 1, container=Container(terminated=end(3, NOW, "Error", "a\nb\n")))
    assert reported(ran) == ("worker", 1, "worker-1", 3, "Error", "b", NOW, 1)
    own = failed("worker", 1, container=Container(terminated=end(3, NOW, "ContainerCannotRun")))
    assert reported(own) == ("worker", 1, "worker-1", 3, "ContainerCannotRun", "", NOW, 1)
    nameless = failed("worker", 1, container=Container(terminated=end(3, NOW, "")))
    assert reported(nameless) == ("worker", 1, "worker-1", 3, "Error", "", NOW, 1)
    big = failed("worker", 1, container=Container(terminated=end(137, NOW, "OOMKilled")))
    assert reported(big, replicaRecords=[record("worker", 1, failures=4)]) == (
        "worker",
        1,
        "worker-1",
        137,
        "OOMKilled",
        "",
        NOW,
        5,
    )
    without = a_pod("worker", 1, "n", phase="Failed", reason="Shut", container=Container())
    assert reported(without) == ("worker", 1, "worker-1", 0, "Shut", "", None, 1)
    evicted = a_pod("worker", 1, "n", phase="Failed", disruption="Evicted", container=Container(terminated=end(3)))
    counts = rules({"reasons": ["Evicted"], "action": "RestartReplica"})
    assert reported(evicted, counts) == ("worker", 1, "worker-1", 3, "Evicted", "", NOW, 1)


def given_up(*seen: Pod, fewest: int | None = 1, policy: str = "Never", spec: Any = None, **status: Any) -> set[int]:
    worker: dict[str, Any] = {"replicas": 3, "restartPolicy": policy, "backoff": {"limit": 1}}
    worker |= {} if fewest is None else {"minReplicas": fewest}
    return set(counted(*seen, spec={"worker": worker, **(spec or {})}, **status).given_up)


def test_workers_are_given_up_while_enough_remain() -> None:
    ends = [failed("worker", index) for index in range(3)]
    assert given_up(ends[1]) == {1}
    worker = {"replicas": 3, "minReplicas": 1, "restartPolicy": "Never"}
    assert [f.index for f in counted(ends[1], spec={"worker": worker}).failures] == [1], "it is reported nevertheless"
    assert given_up(*ends) == {0, 1}
    assert given_up(*ends, fewest=2) == {0}
    assert given_up(*ends, fewest=3) == set()
    assert given_up(*ends, fewest=None) == set()
    gone = [record("worker", 2, givenUp=True)]
    assert given_up(*ends[:2], replicaRecords=gone) == {0, 2}
    assert given_up(*ends[:2], fewest=2, replicaRecords=gone) == {2}
    assert given_up(failed("worker", 2), fewest=1, replicaRecords=gone) == {2}
    gone = [record("worker", 3, givenUp=True)]  # not among the three any more, and its pod still ends
    assert given_up(ends[1], failed("worker", 3), fewest=2, replicaRecords=gone) == {1, 3}


def test_a_worker_is_given_up_when_its_budget_is_spent() -> None:
    twice = a_pod("worker", 1, "n", container=Container(restarts=2, last=end(1)))
    assert given_up(failed("worker", 1), policy="OnFailure") == set()
    assert given_up(twice, policy="OnFailure") == {1}


def test_only_workers_are_given_up_and_only_for_failures_of_their_own() -> None:
    restarted = [record("worker", 0, restarts=1), record("ps", 0, failures=9)]
    assert (
        given_up(failed("ps"), spec={"ps": {"replicas": 1, "restartPolicy": "Never"}}, replicaRecords=restarted)
        == set()
    )
    assert given_up(failed("worker", 1, code=78)) == set(), "the other workers run the same program"
    assert given_up(failed("worker", 1), spec=rules({"action": "FailJob"})) == set()
    assert given_up(failed("worker", 1), spec=rules({"action": "RestartReplica"})) == set()
