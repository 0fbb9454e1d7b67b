"""The next attempt of a role, by observation and record, and the deletion of older attempts."""

from datetime import timedelta
from typing import Any

import pytest

from pstraining.api import names
from pstraining.core.actions import Kind
from pstraining.core.policies.attempts import Attempts, Step, is_wanted, next_step, observed
from pstraining.core.snapshot import Child, Container, Pod, Termination
from tests.support.builders import NOW, job, stamp, typed
from tests.support.simulation import running
from tests.support.snapshots import a_child, a_pod, facts_of, snapshot_of

EVALUATED = {"evaluator": {"enabled": True}}
COMPLETE, FAILED = ([{"type": kind, "status": "True"}] for kind in ("Complete", "Failed"))
OTHER_LABEL = {names.CHIEF: names.LABEL_ATTEMPT, names.EVALUATOR: names.LABEL_TERM}
OWN_LABEL = {names.CHIEF: names.LABEL_TERM, names.EVALUATOR: names.LABEL_ATTEMPT}


def attempt(number: int, role: str = names.CHIEF, restarts: int = 0, conditions: Any = (), **more: Any) -> Child:
    labels = {names.LABEL_ROLE: role, OWN_LABEL[role]: str(number), OTHER_LABEL[role]: "9"}
    labels |= {names.LABEL_RESTART_ATTEMPT: str(restarts)} if restarts else {}
    return a_child(Kind.JOB, f"digits-{role}-{number}", labels=labels, status={"conditions": conditions}, **more)


def ended(term: int, code: int, role: str = names.CHIEF, **more: Any) -> Pod:
    return a_pod(role, 0, "n", term=term, container=Container(terminated=Termination(code, "", "", None)), **more)


def runs(term: int, role: str = names.CHIEF, **more: Any) -> Pod:
    return a_pod(role, 0, "n", term=term, **more)


def seen(*items: Pod | Child, role: str = names.CHIEF, **status: Any) -> Attempts:
    facts = facts_of(EVALUATED, *items, **status)
    assert facts.attempts[role] == observed(facts.job, facts.snapshot, facts.status, role)
    return facts.attempts[role]


@pytest.mark.parametrize("role", [names.CHIEF, names.EVALUATOR])
@pytest.mark.parametrize("enabled", [True, False])
def test_whether_a_role_has_attempts_is_its_own_choice(role: str, enabled: bool) -> None:
    other = {names.CHIEF: names.EVALUATOR, names.EVALUATOR: names.CHIEF}[role]
    spec = typed(job(spec={role: {"enabled": enabled}, other: {"enabled": not enabled}}))
    assert is_wanted(spec, role) is enabled
    assert observed(spec, snapshot_of(job()), facts_of({}).status, role).wanted is enabled


@pytest.mark.parametrize(
    ("items", "recorded", "newest"),
    [
        ((), 0, 0),
        ((), 3, 3),
        ((attempt(2),), 1, 2),
        ((attempt(2), runs(4)), 3, 4),
        ((attempt(2), runs(1)), 5, 5),
        ((attempt(7, names.EVALUATOR), runs(8, names.EVALUATOR)), 1, 1),
    ],
)
def test_no_number_of_a_chief_is_used_twice(items: tuple[Pod | Child, ...], recorded: int, newest: int) -> None:
    assert seen(*items, term=recorded, evaluatorAttempt=6).newest == newest


def test_the_evaluator_has_numbers_of_its_own() -> None:
    found = seen(attempt(7), attempt(2, names.EVALUATOR), role=names.EVALUATOR, term=9, evaluatorAttempt=1)
    assert (found.role, found.newest, list(found.jobs)) == (names.EVALUATOR, 2, [2])
    assert seen(role=names.EVALUATOR, term=9, evaluatorAttempt=4).newest == 4


SUCCEEDED = {"succeeded": 1}
SUCCESSES: dict[str, tuple[tuple[Pod | Child, ...], dict[str, Any], bool]] = {
    "nothing is seen": ((), {}, False),
    "its Job": ((attempt(2, conditions=COMPLETE),), {"term": 2}, True),
    "a Job that failed": ((attempt(2, conditions=FAILED),), {"term": 2}, False),
    "the Job of an older attempt": ((attempt(1, conditions=COMPLETE), attempt(2)), {}, False),
    "the Job of a newer attempt than is on record": ((attempt(2, conditions=COMPLETE),), {"term": 1}, True),
    "a Job from before the job was restarted": ((attempt(2, conditions=COMPLETE),), {"jobRestarts": 1}, False),
    "a Job since the job was restarted": ((attempt(2, restarts=1, conditions=COMPLETE),), {"jobRestarts": 1}, True),
    "its pod": ((attempt(2), ended(2, 0)), {}, True),
    "a pod that failed": ((attempt(2), ended(2, 1)), {}, False),
    "the pod of an older attempt": ((attempt(2), ended(1, 0)), {}, False),
    "a pod without its Job": ((ended(2, 0),), {}, True),
    "a pod from before the job was restarted": ((ended(2, 0),), {"jobRestarts": 1}, False),
    "a pod since the job was restarted": ((ended(2, 0, job_restarts=1),), {"jobRestarts": 1}, True),
    "the evaluator's pod": ((ended(2, 0, names.EVALUATOR),), {}, False),
    "on record": ((attempt(2, conditions=FAILED),), {"term": 2, "chief": SUCCEEDED}, True),
    "on record, for an older attempt": ((attempt(2),), {"term": 1, "chief": SUCCEEDED}, False),
    "on record, for the evaluator": ((attempt(2),), {"term": 2, "evaluator": SUCCEEDED}, False),
    "on record, before the job was restarted": (
        (attempt(2),),
        {"term": 2, "chief": SUCCEEDED, "jobRestarts": 1},
        False,
    ),
    "a failure on record": ((attempt(2),), {"term": 2, "chief": {"succeeded": 0}}, False),
}


@pytest.mark.parametrize("by", SUCCESSES)
def test_evidence_of_the_newest_attempts_success(by: str) -> None:
    items, status, expected = SUCCESSES[by]
    assert seen(*items, **status).succeeded is expected


def test_the_evaluators_success_is_recorded_like_the_chiefs() -> None:
    record = {"evaluatorAttempt": 2, "term": 1, "evaluator": SUCCEEDED}
    assert seen(attempt(2, names.EVALUATOR), role=names.EVALUATOR, **record).succeeded
    record = {"evaluatorAttempt": 2, "term": 1, "chief": SUCCEEDED}
    assert not seen(attempt(2, names.EVALUATOR), role=names.EVALUATOR, **record).succeeded


def test_the_newest_job_is_the_one_of_the_highest_number() -> None:
    first, second = attempt(9), attempt(10)
    found = seen(first, second)
    assert (found.is_newest_job(first), found.is_newest_job(second)) == (False, True)
    assert not seen().is_newest_job(first)


NEXT: dict[str, tuple[tuple[Pod | Child, ...], int | None]] = {
    "the first": ((), 1),
    "a Job without a pod": ((attempt(1),), None),
    "it runs": ((attempt(1), runs(1)), None),
    "it has failed": ((attempt(1), ended(1, 1)), 2),
    "its Job has failed": ((attempt(1, conditions=FAILED),), 2),
    "its Job has failed, but a pod of it runs": ((attempt(1, conditions=FAILED), runs(1)), None),
    "its Job is being deleted": ((attempt(1, deleting=True),), 2),
    "its Job is being deleted, and its pod runs": ((attempt(1, deleting=True), runs(1, deleting=True)), None),
    "its Job is gone": ((ended(3, 1),), 4),
    "one of its pods runs": ((attempt(1), ended(1, 1), runs(1)), None),
    "an older attempt runs": ((attempt(2), ended(2, 1), runs(1)), None),
    "an older attempt may run on a lost node": ((attempt(2), ended(2, 1), runs(1, lost=True)), 3),
    "it may run on a lost node": ((attempt(1), runs(1, lost=True)), 2),
    "an older attempt has failed, and it has no pod yet": ((attempt(2), ended(1, 1)), None),
    "it has succeeded": ((attempt(1), ended(1, 0)), None),
}


@pytest.mark.parametrize("when", NEXT)
def test_the_next_attempt_waits_for_the_end_of_all_others(when: str) -> None:
    items, number = NEXT[when]
    attempts = seen(*items)
    snapshot = snapshot_of(job(), *items, runs(1, names.EVALUATOR))
    assert next_step(attempts, snapshot, NOW, failures_recorded=False) == Step(number)


def test_an_unwanted_or_succeeded_role_changes_nothing() -> None:
    older, newest = attempt(1), attempt(2, conditions=COMPLETE)
    found, snapshot = seen(older, newest), snapshot_of(job(), older, newest)
    assert next_step(found, snapshot, NOW, failures_recorded=True) == Step()
    unwanted = Attempts(names.CHIEF, False, {1: older}, 2, succeeded=False)
    assert next_step(unwanted, snapshot, NOW, failures_recorded=True) == Step()


def test_older_attempts_are_deleted_in_order_once_recorded() -> None:
    items = attempt(10), attempt(9), attempt(8, deleting=True), attempt(11), runs(11)
    attempts, snapshot = seen(*items), snapshot_of(job(), *items)
    assert next_step(attempts, snapshot, NOW, failures_recorded=False).delete == ()
    assert next_step(attempts, snapshot, NOW, failures_recorded=True).delete == (items[1], items[0])


@pytest.mark.parametrize("role", [names.CHIEF, names.EVALUATOR])
def test_an_attempt_that_its_kubelet_rejects_is_followed_by_the_next_after_a_pause(role: str) -> None:
    """A kubelet rejects each pod at once until its device plugin has registered. No budget would end that."""
    world = running(evaluator={"enabled": True})
    (rejected,) = [p for p in world.pods.values() if p["metadata"]["labels"][names.LABEL_ROLE] == role]
    rejected["status"] = {"phase": "Failed", "reason": "UnexpectedAdmissionError", "message": "no devices"}
    world.now = NOW + timedelta(minutes=1)
    rejected["metadata"]["creationTimestamp"] = stamp(world.now)
    world.settle()
    assert f"digits-{role}-2" not in world.names_of("Job")
    assert world.plan().requeue_at == world.now + timedelta(seconds=10)
    world.now += timedelta(seconds=10)
    world.settle()
    assert f"digits-{role}-2" in world.names_of("Job")


@pytest.mark.parametrize("role", [names.CHIEF, names.EVALUATOR])
def test_numbers_continue_after_a_time_without_the_role(role: str) -> None:
    """A chief with a term that was used is superseded in the job's checkpoints."""
    world = running(evaluator={"enabled": True})
    for enabled in (False, True):
        world.edit({"runPolicy": {"suspend": True}})
        world.settle()
        world.edit({"runPolicy": {"suspend": False}, role: {"enabled": enabled}})
        world.settle()
        attempts = [name for name in world.names_of("Job") if role in name]
        assert attempts == ([f"digits-{role}-2"] if enabled else [])
