"""The end of a job by one observation: the condition, its reason, its message, and the failed replica."""

from datetime import timedelta
from typing import Any

import pytest

from pstraining.api.conditions import Condition
from pstraining.core.facts import Facts, gather
from pstraining.core.observe import observe
from pstraining.core.policies.completion import End, end, new_end
from tests.support.builders import NOW, job, pod, stamp, terminated
from tests.support.simulation import phase, running

KEYERROR = terminated(1, "Traceback\nKeyError: 'a'")
DONE = [pod("chief", term=1, phase="Succeeded", state=terminated(0)), *(pod("worker", i) for i in (0, 1))]


def facts(spec: dict[str, Any], *pods: dict[str, Any], now: Any = NOW, **status: Any) -> Facts:
    manifest = job(spec=spec)
    manifest["status"] = {"startTime": stamp(NOW), **status}
    found = gather(observe(manifest, (), pods), now)
    assert isinstance(found, Facts)
    return found


def reported(found: End | None) -> tuple[str, str, str] | None:
    if found is None:
        return None
    assert found.condition == (Condition.SUCCEEDED if "Succeeded" in found.reason else Condition.FAILED)
    return found.reason, found.message, found.replica


def failed(index: int, code: int = 1, restarts: int = 1) -> dict[str, Any]:
    return pod("worker", index, restarts=restarts, last={"terminated": {**KEYERROR["terminated"], "exitCode": code}})


def ended_well(*indices: int) -> list[dict[str, Any]]:
    return [pod("worker", i, state=terminated(0)) for i in indices]


def record(index: int, **more: Any) -> dict[str, Any]:
    return {"role": "worker", "index": index, "podUid": f"digits-worker-{index}-uid", "ended": 1, **more}


WORDS = "pod digits-worker-1 ended with exit code 1 (Error): KeyError: 'a'"
ALL, ALONE = {"successPolicy": "AllWorkers"}, {"chief": {"enabled": False}}
NEVER = {"worker": {"restartPolicy": "Never"}}
FEWER = "; fewer than worker.minReplicas 2 are left"
ENDS: dict[str, tuple[dict[str, Any], list[dict[str, Any]], tuple[str, str, str] | None]] = {
    "training runs": ({}, [pod("chief", term=1), pod("worker", 0)], None),
    "the chief": ({}, DONE, ("ChiefSucceeded", "The chief has ended with exit code 0.", "")),
    "worker 0 beside a chief": ({}, ended_well(0, 1), None),
    "worker 0": (ALONE, ended_well(0), ("WorkerZeroSucceeded", "Worker 0 has ended with exit code 0.", "")),
    "worker 1": (ALONE, ended_well(1), None),
    "a chief that is not in the job": (ALONE, DONE, None),
    "all but the chief": (ALL, ended_well(0, 1), None),
    "all but a worker": (ALL, [DONE[0], *ended_well(1)], None),
    "all": (
        ALL,
        [DONE[0], *ended_well(0, 1)],
        ("AllWorkersSucceeded", "The chief and every worker have ended with exit code 0.", ""),
    ),
    "all workers of a job without a chief": (
        ALL | ALONE,
        ended_well(0, 1),
        ("AllWorkersSucceeded", "Every worker has ended with exit code 0.", ""),
    ),
    "a failure within its budget": ({}, [failed(1)], None),
    "restartPolicy": (
        NEVER,
        [failed(1)],
        ("ReplicaFailed", f"{WORDS}: worker.restartPolicy Never takes that as final", "worker/1"),
    ),
    "a failure beside the success": (
        NEVER,
        [*DONE[:2], failed(1)],
        ("ChiefSucceeded", "The chief has ended with exit code 0.", ""),
    ),
    "a worker that the others do not need": (
        {"worker": {"restartPolicy": "Never", "minReplicas": 1}},
        [failed(1)],
        None,
    ),
    "a worker too many": (
        {"worker": {"restartPolicy": "Never", "minReplicas": 2}},
        [failed(1)],
        ("TooFewWorkers", f"{WORDS}: fewer than worker.minReplicas 2 are left", "worker/1"),
    ),
    "a chief of a job that may have fewer workers": (
        {"worker": {"minReplicas": 1}, "chief": {"restartPolicy": "Never"}},
        [pod("chief", term=1, phase="Failed", state=terminated(1))],
        (
            "ReplicaFailed",
            "pod digits-chief-1 ended with exit code 1 (Error): chief.restartPolicy Never takes that as final",
            "chief/0",
        ),
    ),
    "wrong settings": (
        {},
        [failed(1, 78)],
        (
            "BadSettings",
            "pod digits-worker-1 ended with exit code 78 (BadSettings): KeyError: 'a'; another run would fail as well, "
            "so it was not retried",
            "worker/1",
        ),
    ),
    "a rule": (
        {"failurePolicy": {"rules": [{"role": "ps", "action": "Ignore"}, {"action": "FailJob"}]}},
        [failed(1)],
        ("FailureRule", f"{WORDS}: spec.failurePolicy.rules[1] fails the job", "worker/1"),
    ),
    "one restart of the job too many": (
        {"failurePolicy": {"rules": [{"action": "RestartJob"}]}, "runPolicy": {"maxRestarts": 0}},
        [failed(1)],
        ("RestartsExceeded", f"{WORDS}: one restart of the job too many, as runPolicy.maxRestarts is 0", "worker/1"),
    ),
    "a restart of the job": (
        {"failurePolicy": {"rules": [{"action": "RestartJob"}]}, "runPolicy": {"maxRestarts": 1}},
        [failed(1)],
        None,
    ),
    "the budget of the job": (
        {"runPolicy": {"backoffLimit": 1}},
        [failed(1, restarts=2)],
        (
            "BackoffLimitExceeded",
            f"worker 1 failed 2 times, more than runPolicy.backoffLimit 1; last: {WORDS}",
            "worker/1",
        ),
    ),
    "the whole budget and no more": ({"runPolicy": {"backoffLimit": 2}}, [failed(1, restarts=2)], None),
    "the budget of the role": (
        {"worker": {"backoff": {"limit": 0, "windowSeconds": 60}}},
        [failed(0, restarts=0), failed(1)],
        (
            "BackoffLimitExceeded",
            f"worker 1 failed 1 times within 60 s, more than worker.backoff.limit 0; last: {WORDS}",
            "worker/1",
        ),
    ),
    "the budget of a worker that the others need": (
        {"worker": {"backoff": {"limit": 0}, "minReplicas": 2}},
        [failed(1)],
        (
            "TooFewWorkers",
            f"worker 1 failed 1 times, more than worker.backoff.limit 0; last: {WORDS}{FEWER}",
            "worker/1",
        ),
    ),
    "the budget of a worker that the others do not need": (
        {"worker": {"backoff": {"limit": 0}, "minReplicas": 1}},
        [failed(1)],
        None,
    ),
}


@pytest.mark.parametrize("what", ENDS)
def test_the_end_that_one_observation_shows(what: str) -> None:
    spec, pods, expected = ENDS[what]
    assert reported(new_end(facts(spec, *pods))) == expected


def test_all_workers_are_those_that_were_not_given_up() -> None:
    given_up = [record(i, givenUp=True) for i in (0, 1)]
    spec = ALL | ALONE | {"worker": {"minReplicas": 1}}
    assert reported(new_end(facts(spec, *ended_well(1), replicaRecords=given_up[:1]))) is not None
    assert new_end(facts(spec, replicaRecords=given_up)) is None, "no worker is left that could have succeeded"


def test_a_job_whose_worker_0_an_earlier_operator_has_given_up_ends() -> None:
    """Without a chief it could never end."""
    spec = ALONE | {"worker": {"minReplicas": 1}, "runPolicy": {"backoffLimit": 1}}
    spent = facts(spec, replicaRecords=[record(0, failures=2, givenUp=True)])
    assert reported(new_end(spent)) == (
        "BackoffLimitExceeded",
        "worker 0 failed 2 times, more than runPolicy.backoffLimit 1",
        "worker/0",
    )
    left = facts(spec, replicaRecords=[record(i, failures=1, givenUp=True) for i in (0, 1)])
    assert new_end(left) is None
    assert left.failures.given_up == {1}, "worker 0 runs again"
    over = facts(spec, replicaRecords=[record(0, failures=1, givenUp=True)], completionTime=stamp(NOW))
    assert over.failures_recorded, "a job that has ended stays as it is"


def test_a_worker_0_that_an_earlier_operator_has_given_up_runs_again() -> None:
    world = running(**ALONE, worker={"replicas": 2, "minReplicas": 1})
    assert world.job is not None
    world.job["status"]["replicaRecords"] = [record(0, failures=1, givenUp=True)]
    deployment = world.children["Deployment", "digits-worker-0"]
    deployment["spec"]["replicas"] = 0
    world.controllers()
    world.settle()
    assert deployment["spec"]["replicas"] == 1
    assert phase(world) == "Running"


def test_a_recorded_spent_budget_ends_the_job_without_a_new_failure() -> None:
    found = new_end(facts({"runPolicy": {"backoffLimit": 1}}, replicaRecords=[record(1, failures=2)]))
    assert reported(found) == (
        "BackoffLimitExceeded",
        "worker 1 failed 2 times, more than runPolicy.backoffLimit 1",
        "worker/1",
    )
    assert (
        new_end(facts({"runPolicy": {"backoffLimit": 1}}, replicaRecords=[record(1, failures=2, givenUp=True)])) is None
    )


def test_the_last_failure_of_a_replica_with_a_spent_budget_is_reported() -> None:
    spec = {"runPolicy": {"backoffLimit": 1}}
    found = new_end(facts(spec, failed(1, restarts=2), pod("ps", 1, restarts=1, last=terminated(9))))
    assert found is not None
    assert found.message.endswith(f"; last: {WORDS}")


@pytest.mark.parametrize(("seconds", "is_over"), [(99, False), (100, True), (101, True)])
def test_the_deadline_comes_after_success_and_failure(seconds: int, is_over: bool) -> None:
    spec, now = {"runPolicy": {"activeDeadlineSeconds": 100}}, NOW + timedelta(seconds=seconds)
    message = "The job was active for 100 s, which is all that runPolicy.activeDeadlineSeconds allows"
    assert reported(new_end(facts(spec, now=now))) == (("DeadlineExceeded", message, "") if is_over else None)
    assert reported(new_end(facts(spec, *DONE, now=now))) == reported(new_end(facts({}, *DONE)))
    assert reported(new_end(facts(spec | NEVER, failed(1), now=now))) == reported(new_end(facts(NEVER, failed(1))))


def test_an_end_on_record_is_final() -> None:
    known = {"status": "True", "lastTransitionTime": stamp(NOW)}
    recorded = {**known, "type": "Failed", "reason": "DeadlineExceeded", "message": "late"}
    suspended = {**known, "type": "Suspended", "reason": "Suspended", "message": ""}
    assert reported(end(facts({}, *DONE, conditions=[suspended, recorded]))) == ("DeadlineExceeded", "late", "")
    assert reported(end(facts({}, *DONE, conditions=[suspended]))) == reported(new_end(facts({}, *DONE)))


@pytest.mark.parametrize("first", [0, 1])
def test_a_failure_that_fails_the_job_prevails_over_its_restart(first: int) -> None:
    rules = [{"exitCodes": {"values": [3]}, "action": "FailJob"}, {"action": "RestartJob"}]
    found = facts({"failurePolicy": {"rules": rules}}, failed(first, code=3), failed(1 - first, code=4))
    ended = reported(new_end(found))
    assert ended is not None
    assert (ended[0], ended[2]) == ("FailureRule", f"worker/{first}")
    assert found.failures.restart_job is None
    assert [r.failures for r in found.failures.records] == [1, 1]


def test_a_worker_that_may_be_given_up_does_not_prevent_the_restart_of_the_job() -> None:
    rule = {"exitCodes": {"values": [137]}, "action": "RestartJob"}
    spec = {"worker": {"minReplicas": 1, "restartPolicy": "ExitCode"}, "failurePolicy": {"rules": [rule]}}
    found = facts(spec, failed(0, code=1), failed(1, code=137))
    assert new_end(found) is None
    assert found.failures.restart_job == found.failures.failures[1]
    assert found.failures.fail_job is None
    assert not any(r.given_up for r in found.failures.records)


def test_a_spent_budget_prevails_over_the_restart_that_another_replica_causes() -> None:
    rule = {"exitCodes": {"values": [3]}, "action": "RestartJob"}
    spec = {"runPolicy": {"backoffLimit": 0}, "failurePolicy": {"rules": [rule]}}
    found = facts(spec, failed(0, code=3), failed(1))
    ended = reported(new_end(found))
    assert ended is not None
    assert (ended[0], ended[2]) == ("BackoffLimitExceeded", "worker/1")
    assert found.failures.restart_job is None


def test_a_budget_does_not_prevail_over_the_restart_that_the_same_replica_causes() -> None:
    rule = {"exitCodes": {"values": [3]}, "action": "RestartJob"}
    spec = {"runPolicy": {"backoffLimit": 0}, "failurePolicy": {"rules": [rule]}}
    assert new_end(facts(spec, failed(0, code=3))) is None
    fewest = spec | {"worker": {"minReplicas": 1}}
    found = facts(fewest, failed(0, code=3), failed(1))
    assert new_end(found) is None, "the job gives up a worker, and needs no budget for it"
    assert found.failures.restart_job is not None
