"""Budgets are counted per replica, within a window, survive restarts of the operator, and are reported when
exhausted.
"""

from datetime import timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pstraining.core.actions import Create
from pstraining.core.policies import budgets
from tests.support.builders import NOW, job, stamp, typed
from tests.support.simulation import World, phase, running


def fail(world: World, role: str, index: int = 0, code: int = 1, at: float = 0) -> None:
    """Let a task fail a number of seconds after the start."""
    world.end(role, index, code, "the last words")
    for found in world.pods.values():
        state = found["status"]["containerStatuses"][0]
        for end in (state.get("state"), state.get("lastState")):
            if end and "terminated" in end:
                end["terminated"]["finishedAt"] = stamp(NOW + timedelta(seconds=at))
    world.settle()


@pytest.mark.parametrize("role", ["worker", "ps", "chief"])
def test_a_roles_own_limit(role: str) -> None:
    world = running(**{role: {"backoff": {"limit": 1}}})
    fail(world, role)
    assert phase(world) != "Failed"
    fail(world, role)
    failed = world.condition("Failed")
    assert (failed["status"], failed["reason"]) == ("True", "BackoffLimitExceeded")
    assert f"{role} 0 failed 2 times, more than {role}.backoff.limit 1" in failed["message"]
    assert "the last words" in failed["message"]
    assert world.job is not None
    assert world.job["status"]["failedReplica"] == f"{role}/0"
    assert world.job["status"][role]["lastFailure"]["count"] == 2


def test_budgets_are_each_replicas_own() -> None:
    world = running(worker={"backoff": {"limit": 1}})
    for index in (0, 1):
        fail(world, "worker", index)
    assert phase(world) == "Running"


def test_failures_outside_the_window_are_forgotten() -> None:
    world = running(worker={"backoff": {"limit": 1, "windowSeconds": 60}})
    for at in (0, 61, 122):
        fail(world, "worker", at=at)
    assert phase(world) == "Running"
    fail(world, "worker", at=150)
    assert "failed 2 times within 60 s" in world.condition("Failed")["message"]


@given(
    times=st.lists(st.integers(0, 1000), max_size=30),
    limit=st.integers(0, 4),
    seconds=st.integers(1, 300),
)
def test_the_window_is_exact_and_its_memory_bounded(times: list[int], limit: int, seconds: int) -> None:
    spec = typed(job(spec={"worker": {"backoff": {"limit": limit, "windowSeconds": seconds}}}))
    kept: list[Any] = []
    for number, time in enumerate(sorted(times), start=1):
        kept = budgets.remembered(spec, "worker", [*kept, NOW + timedelta(seconds=time)])
        exact = sum(1 for t in sorted(times)[:number] if t > time - seconds)
        assert (len(kept) > limit) == (exact > limit), "spent at the same failure as with a perfect memory"
        assert len(kept) <= limit + 1


def test_a_failure_as_old_as_the_window_does_not_count() -> None:
    spec = typed(job(spec={"worker": {"backoff": {"limit": 3, "windowSeconds": 60}}}))
    newest = NOW + timedelta(seconds=60)
    assert budgets.remembered(spec, "worker", [newest, NOW]) == [newest]
    inside = NOW + timedelta(seconds=1)
    assert budgets.remembered(spec, "worker", [newest, inside]) == [inside, newest]


def test_never_fails_the_job_with_the_first_failure() -> None:
    world = running(worker={"restartPolicy": "Never"})
    fail(world, "worker", 1, code=9)
    failed = world.condition("Failed")
    assert (failed["status"], failed["reason"]) == ("True", "ReplicaFailed")
    assert "worker.restartPolicy Never" in failed["message"]
    assert "exit code 9" in failed["message"]


def test_a_deleted_pod_does_not_fail_a_job_under_never() -> None:
    world = running(worker={"restartPolicy": "Never"}, chief={"restartPolicy": "Never"})
    world.delete_pod("worker", 0)
    world.settle()
    world.delete_pod("chief")
    world.settle()
    assert phase(world) == "Running"


@pytest.mark.parametrize(("code", "end"), [(1, "Failed"), (127, "Failed"), (137, "Running")])
def test_exit_code(code: int, end: str) -> None:
    world = running(worker={"restartPolicy": "ExitCode"})
    fail(world, "worker", code=code)
    assert phase(world) == end


def test_a_worker_is_given_up_while_enough_remain() -> None:
    world = running(worker={"replicas": 3, "minReplicas": 2, "restartPolicy": "Never"})
    fail(world, "worker", 1)
    assert phase(world) == "Running"
    deployment = world.children["Deployment", "digits-worker-1"]
    assert deployment["spec"]["replicas"] == 0
    assert deployment["metadata"]["annotations"]["pstraining.dev/given-up"] == "true"
    fail(world, "worker", 2)
    failed = world.condition("Failed")
    assert (failed["status"], failed["reason"]) == ("True", "TooFewWorkers")
    assert "minReplicas 2" in failed["message"]


@pytest.mark.parametrize("change", [{"replicas": 2, "minReplicas": 2}, {"replicas": 3, "minReplicas": 3}])
def test_a_change_that_leaves_too_few_workers_is_the_cause_of_the_wait(change: dict[str, int]) -> None:
    """The job could continue with the user's help, so it does not fail; no worker is being restarted."""
    world = running(worker={"replicas": 3, "minReplicas": 2, "restartPolicy": "Never"})
    fail(world, "worker", 1)
    world.edit({"worker": change})
    world.settle()
    count, least = change["replicas"], change["minReplicas"]
    words = f"1 of {count} workers were given up, and {count - 1} are left, fewer than worker.minReplicas {least}: "
    assert phase(world) == "Restarting"
    assert world.condition("Restarting")["reason"] == "WorkersLost"
    assert world.condition("Restarting")["message"].startswith(words)
    world.edit({"worker": {"replicas": 4, "minReplicas": 2}})
    world.settle()
    assert phase(world) == "Running"


@pytest.mark.parametrize(
    ("worker", "reason", "words"),
    [
        ({"restartPolicy": "Never"}, "ReplicaFailed", "worker.restartPolicy Never takes that as final"),
        ({"backoff": {"limit": 0}}, "BackoffLimitExceeded", "more than worker.backoff.limit 0"),
    ],
)
def test_worker_zero_is_not_given_up_if_its_success_is_the_jobs(
    worker: dict[str, Any], reason: str, words: str
) -> None:
    """Without it, the job would keep its other workers, and never end."""
    world = running(chief={"enabled": False}, worker={"replicas": 3, "minReplicas": 1, **worker})
    fail(world, "worker", 0)
    failed = world.condition("Failed")
    assert (failed["status"], failed["reason"]) == ("True", reason)
    assert words in failed["message"]
    assert "minReplicas" not in failed["message"]


@pytest.mark.parametrize("role", ["worker", "chief", "ps", "evaluator"])
def test_invalid_settings_fail_the_job_at_once_with_their_message(role: str) -> None:
    world = running(worker={"replicas": 3, "minReplicas": 1}, evaluator={"enabled": True})
    fail(world, role, code=78)
    failed = world.condition("Failed")
    assert (failed["status"], failed["reason"]) == ("True", "BadSettings")
    assert f"{role}" in failed["message"]
    assert "the last words; another run would fail as well" in failed["message"]


def test_a_rule_may_retry_invalid_settings() -> None:
    rules = [{"reasons": ["BadSettings"], "action": "RestartReplica"}]
    world = running(failurePolicy={"rules": rules})
    fail(world, "worker", 1, code=78)
    assert phase(world) == "Running"


def test_a_rule_that_fails_the_job_gives_no_worker_up() -> None:
    rules = [{"exitCodes": {"values": [42]}, "action": "FailJob"}]
    world = running(worker={"replicas": 3, "minReplicas": 1}, failurePolicy={"rules": rules})
    fail(world, "worker", 1, code=42)
    failed = world.condition("Failed")
    assert (failed["status"], failed["reason"]) == ("True", "FailureRule")
    assert "rules[0]" in failed["message"]


def test_an_idle_pod_that_a_rule_restarts_is_replaced() -> None:
    rules = [{"exitCodes": {"values": [42]}, "action": "RestartReplica"}]
    world = running(worker={"restartPolicy": "Never"}, failurePolicy={"rules": rules})
    fail(world, "worker", 1, code=42)
    assert ("Delete", "Pod") in {(verb, kind) for verb, kind, _ in world.writes}
    assert phase(world) == "Running"


def restart_job(**spec: Any) -> World:
    return running(failurePolicy={"rules": [{"exitCodes": {"values": [3]}, "action": "RestartJob"}]}, **spec)


def test_the_job_is_restarted_as_a_whole() -> None:
    world = restart_job()
    before = {p["metadata"]["uid"] for p in world.pods.values()}
    fail(world, "worker", 1, code=3)
    assert world.job is not None
    assert world.job["status"]["jobRestarts"] == 1
    assert world.job["status"]["term"] == 2
    assert not before & {p["metadata"]["uid"] for p in world.pods.values()}, "every pod is new"
    assert phase(world) == "Running"
    assert world.names_of("StatefulSet") == ["digits-ps"]


def test_the_job_is_restarted_although_a_change_of_it_was_refused() -> None:
    """It waits without pods then: a state that a rule discards must not train on, and no budget counts its failures."""
    world = restart_job(worker={"replicas": 2})
    world.refuse = lambda action: "imge: unknown" if isinstance(action, Create) and action.kind == "Deployment" else ""
    world.edit({"worker": {"replicas": 3}})
    world.settle()
    fail(world, "worker", 1, code=3)
    assert not world.pods
    assert world.condition("Restarting")["message"].startswith("The job has no pods until its spec is corrected")
    assert "imge" in world.condition("InvalidTemplate")["message"]
    assert phase(world) == "Invalid"
    world.refuse = None
    world.edit({"worker": {"replicas": 2}})
    world.settle()
    assert phase(world) == "Running"


def test_the_failure_that_restarts_the_job_is_an_event() -> None:
    world = restart_job()
    fail(world, "ps", 0, code=1)
    fail(world, "worker", 1, code=3)
    failures = [e.message for e in world.reported if e.reason == "ReplicaFailed"]
    assert [text.partition(":")[0] for text in failures] == [
        "ps 0 failed (1), exit code 1",
        "worker 1 failed (1), exit code 3",
    ]


def test_restarts_of_the_job_are_bounded() -> None:
    world = restart_job(runPolicy={"maxRestarts": 1})
    for _ in range(2):
        fail(world, "worker", 0, code=3)
    failed = world.condition("Failed")
    assert (failed["status"], failed["reason"]) == ("True", "RestartsExceeded")


@pytest.mark.parametrize("dies_after", range(8))
def test_a_restart_of_the_job_is_counted_before_any_deletion(dies_after: int) -> None:
    world = restart_job()
    world.end("worker", 1, 3)
    world.reconcile(stop_after=dies_after)
    world.settle()
    assert world.job is not None
    assert world.job["status"]["jobRestarts"] == 1
    assert phase(world) == "Running"
