"""The life of a job in a simulated world, one scenario per test."""

import copy
from datetime import timedelta
from typing import Any

import pytest

from pstraining.resources.launcher import LauncherFiles
from tests.support.builders import job, stamp
from tests.support.simulation import World, phase, running


def test_a_new_job_gets_all_children_in_one_pass_and_runs() -> None:
    world = World(job())
    world.reconcile()
    assert {(k, n) for k, n in world.children} == {
        ("ConfigMap", "digits"),
        ("ConfigMap", "digits-launcher-v1"),
        ("StatefulSet", "digits-ps"),
        ("Service", "digits-ps-0"),
        ("Service", "digits-hs"),
        ("Deployment", "digits-worker-0"),
        ("Deployment", "digits-worker-1"),
        ("Job", "digits-chief-1"),
        ("NetworkPolicy", "digits"),
    }
    assert world.job is not None
    assert {c["type"] for c in world.job["status"]["conditions"]} >= {
        "Created", "Running", "Restarting", "Suspended", "Succeeded", "Failed",
    }  # fmt: skip
    world.settle()
    assert phase(world) == "Running"
    assert world.job["status"]["ps"]["summary"] == "1/1"
    assert world.job["status"]["worker"]["summary"] == "2/2"
    assert world.job["status"]["term"] == 1


def test_no_time_in_the_status_has_fractions_of_a_second() -> None:
    world = running()
    world.now += timedelta(milliseconds=700)
    world.end("chief", code=0)
    world.settle()
    assert world.job is not None
    status = world.job["status"]
    succeeded = next(c for c in status["conditions"] if c["type"] == "Succeeded")
    assert {status["completionTime"], succeeded["lastTransitionTime"]} == {stamp(world.now)}


def test_success_is_recorded_before_any_deletion() -> None:
    world = running()
    world.end("chief")
    writes = len(world.writes)
    world.reconcile()
    assert len(world.writes) == writes, "the end is recorded first"
    assert phase(world) == "Succeeded"
    world.settle()
    assert set(world.children) == {("Job", "digits-chief-1")}
    assert world.job is not None
    assert world.job["status"]["worker"]["ready"] == 0
    assert world.job["status"]["completionTime"]


def test_a_whole_life_writes_each_child_once_and_status_for_transitions_only() -> None:
    world = running()
    world.end("chief")
    world.settle()
    creates = [w for w in world.writes if w[0] == "Create"]
    deletes = [w for w in world.writes if w[0] == "Delete"]
    assert len(creates) == len(set(creates)) == 9
    assert len(deletes) == len(set(deletes)) == 8
    assert len(world.writes) == 17
    assert world.status_writes <= 6
    assert [e.reason for e in world.reported] == ["Created", "CheckpointNotDurable", "Running", "Succeeded"]


@pytest.mark.parametrize(("policy", "left"), [("All", set()), ("None", 9), ("Running", {("Job", "digits-chief-1")})])
def test_clean_pod_policy(policy: str, left: Any) -> None:
    world = running(runPolicy={"cleanPodPolicy": {"onSuccess": policy}})
    world.end("chief")
    world.settle()
    assert (len(world.children) if isinstance(left, int) else set(world.children)) == left


def test_without_a_chief_worker_zero_decides() -> None:
    world = running(chief={"enabled": False})
    assert world.names_of("Job") == []
    world.end("worker", 1)
    world.settle()
    assert phase(world) == "Running"
    world.end("worker", 0)
    world.settle()
    assert phase(world) == "Succeeded"


def test_a_worker_that_has_succeeded_stays_at_zero_replicas() -> None:
    world = running()
    world.end("worker", 1)
    world.settle()
    deployment = world.children["Deployment", "digits-worker-1"]
    assert deployment["spec"]["replicas"] == 0
    assert deployment["metadata"]["annotations"]["pstraining.dev/succeeded"] == "true"
    assert phase(world) == "Running"
    assert world.job is not None
    assert world.job["status"]["worker"]["succeeded"] == 1
    assert world.settle() == 0, "and nothing more is written"


def test_a_worker_that_has_succeeded_does_not_run_again_without_its_deployment() -> None:
    world = running()
    world.end("worker", 1)
    world.settle()
    assert world.job is not None
    assert world.job["status"]["completedIndexes"] == "1"
    del world.children["Deployment", "digits-worker-1"]
    world.settle()
    assert world.names_of("Deployment") == ["digits-worker-0"]
    assert (phase(world), world.job["status"]["worker"]["succeeded"]) == ("Running", 1)
    assert world.settle() == 0


@pytest.mark.parametrize("stopped", ["suspended", "restarted"])
def test_after_a_stop_workers_that_have_succeeded_run_again(stopped: str) -> None:
    world = running(failurePolicy={"rules": [{"exitCodes": {"values": [7]}, "action": "RestartJob"}]})
    world.end("worker", 1)
    world.settle()
    del world.children["Deployment", "digits-worker-1"]
    world.settle()
    if stopped == "suspended":
        world.edit({"runPolicy": {"suspend": True}})
        world.settle()
        world.edit({"runPolicy": {"suspend": False}})
    else:
        world.end("worker", 0, code=7)
    world.settle()
    assert world.names_of("Deployment") == ["digits-worker-0", "digits-worker-1"]
    assert world.job is not None
    assert (phase(world), world.job["status"]["completedIndexes"]) == ("Running", "")


@pytest.mark.parametrize("has_stopped", [False, True])
@pytest.mark.parametrize(("policy", "failures"), [("Never", 1), ("OnFailure", 3)])
def test_a_worker_that_was_given_up_runs_again_after_a_suspension(
    policy: str, failures: int, *, has_stopped: bool
) -> None:
    world = running(
        worker={"replicas": 3, "minReplicas": 1, "restartPolicy": policy}, runPolicy={"backoffLimit": failures - 1}
    )

    def fail() -> None:
        for _ in range(failures):
            world.end("worker", 1, code=1)
            world.settle()
        assert world.children["Deployment", "digits-worker-1"]["spec"]["replicas"] == 0

    fail()
    world.edit({"runPolicy": {"suspend": True}})
    if has_stopped:
        world.settle()
    else:
        world.reconcile()
    world.now += timedelta(seconds=20)
    world.edit({"runPolicy": {"suspend": False}})
    world.settle()
    assert world.children["Deployment", "digits-worker-1"]["spec"]["replicas"] == 1
    assert (phase(world), world.job and world.job["status"]["worker"]["replicas"]) == ("Running", 3)
    fail()


def test_a_failed_chief_is_followed_by_the_next_term_at_once() -> None:
    world = running()
    world.end("chief", code=1, message="Traceback\nValueError: no")
    made = world.reconcile()
    assert [a.name for a in made.actions] == ["digits", "digits-chief-2", "digits-ps-0"], "and the PS is notified"
    world.settle()
    assert world.names_of("Job") == ["digits-chief-2"], "the older attempt is deleted once it is recorded"
    assert world.job is not None
    status = world.job["status"]
    assert (status["term"], status["restarts"], status["phase"]) == (2, 1, "Running")
    assert status["chief"]["lastFailure"]["exitCode"] == 1
    assert status["chief"]["lastFailure"]["message"] == "ValueError: no"


def test_a_deleted_chief_costs_no_budget() -> None:
    world = running(runPolicy={"backoffLimit": 0})
    world.delete_pod("chief")
    world.settle()
    assert phase(world) == "Running"
    assert world.job is not None
    assert world.job["status"]["term"] == 2
    assert world.job["status"]["replicaRecords"][0]["failures"] == 0
    assert world.job["status"]["restarts"] == 1


def test_no_second_chief_while_the_first_may_still_run() -> None:
    world = running()
    del world.children["Job", "digits-chief-1"]
    assert world.plan().actions == ()
    world.controllers()
    assert [a.name for a in world.plan().actions] == ["digits", "digits-chief-2", "digits-ps-0"]


@pytest.mark.parametrize("role", ["worker", "ps"])
def test_the_budget_of_one_replica_ends_the_job(role: str) -> None:
    world = running(runPolicy={"backoffLimit": 2})
    for failures in range(1, 4):
        assert phase(world) == "Running"
        world.end(role, 0, code=3, message="boom")
        world.reconcile()
        assert world.job is not None
        assert world.job["status"]["replicaRecords"][0]["failures"] == failures
    assert phase(world) == "Failed"
    failed = world.condition("Failed")
    assert failed["reason"] == "BackoffLimitExceeded"
    assert f"{role} 0 failed 3 times" in failed["message"]
    assert "boom" in failed["message"]
    world.settle()
    kept = {"worker": ("Deployment", "digits-worker-0"), "ps": ("StatefulSet", "digits-ps")}[role]
    with_it = {("ConfigMap", "digits"), ("ConfigMap", "digits-launcher-v1"), ("NetworkPolicy", "digits")}
    assert set(world.children) - {kept} <= with_it
    assert kept in world.children, "the failed replica is kept for inspection"


def test_failures_are_counted_once() -> None:
    world = running()
    world.end("worker", 0, code=1)
    for _ in range(5):
        world.reconcile()
    assert world.job is not None
    assert world.job["status"]["replicaRecords"] == [world.job["status"]["replicaRecords"][0]]
    assert world.job["status"]["replicaRecords"][0]["failures"] == 1


def test_suspend_frees_what_runs_and_resume_starts_the_next_term() -> None:
    world = running()
    world.edit({"runPolicy": {"suspend": True}})
    world.settle()
    assert phase(world) == "Suspended"
    assert not world.pods
    assert {k for k, _ in world.children} == {"NetworkPolicy", "Service", "ConfigMap"}
    world.edit({"runPolicy": {"suspend": False}})
    world.settle()
    assert phase(world) == "Running"
    assert world.names_of("Job") == ["digits-chief-2"]
    assert world.job is not None
    assert world.job["status"]["restarts"] == 0, "a suspension is no failure"


@pytest.mark.parametrize(
    ("spec", "stop", "resume"),
    [
        ({}, {"runPolicy": {"suspend": True}}, {"runPolicy": {"suspend": False}}),
        (
            {"ps": {"replicas": 1, "standby": {"mode": "Hot"}}, "training": {"mode": "Sync"}},
            {"ps": {"replicas": 2}},
            {},
        ),
    ],
)
def test_pods_stopped_before_the_suspension_is_reported_have_not_failed(
    spec: dict[str, Any], stop: dict[str, Any], resume: dict[str, Any]
) -> None:
    """Such pods have not failed, although the status with the stop's reason was rejected, or an operator crashed before
    writing it.
    """
    world = running(**spec)
    world.edit(stop)
    world.reconcile(stop_after=len(world.plan().actions))
    for pod in world.pods.values():
        pod["metadata"] |= {"deletionTimestamp": stamp(world.now), "deletionGracePeriodSeconds": 30}
    world.reconcile()
    world.settle()
    world.edit(resume)
    world.settle()
    assert phase(world) == "Running"
    assert world.job is not None
    assert (world.job["status"]["restarts"], world.job["status"]["replicaRecords"]) == (0, [])


def test_a_job_that_is_created_suspended_creates_nothing() -> None:
    world = World(job(spec={"runPolicy": {"suspend": True}}))
    world.settle()
    assert not world.children
    assert phase(world) == "Suspended"
    world.edit({"runPolicy": {"suspend": False}})
    world.settle()
    assert phase(world) == "Running"


def test_scaling_workers_changes_no_other_child_but_the_map() -> None:
    world = running()
    before = copy.deepcopy(world.children)
    world.edit({"worker": {"replicas": 3}})
    world.settle()
    assert world.names_of("Deployment") == ["digits-worker-0", "digits-worker-1", "digits-worker-2"]
    changed = {k for k, v in before.items() if world.children[k] != v}
    assert changed == {("ConfigMap", "digits")}
    world.edit({"worker": {"replicas": 1}})
    world.settle()
    assert world.names_of("Deployment") == ["digits-worker-0"]


def test_another_operator_version_changes_nothing() -> None:
    world = running()
    world.launcher = LauncherFiles("v2", {"launch.py": "# another"})
    assert world.settle() == 0
    world.edit({"worker": {"replicas": 3}})
    world.settle()
    assert world.names_of("ConfigMap") == ["digits", "digits-launcher-v1"], "a running job keeps its launcher"
    assert probed(world) == {"digits-worker-0", "digits-worker-1"}, "the kept launcher may report none"
    world.edit({"runPolicy": {"suspend": True}})
    world.settle()
    world.edit({"runPolicy": {"suspend": False}})
    world.settle()
    assert world.names_of("ConfigMap") == ["digits", "digits-launcher-v2"], "a resumed one takes the new"
    assert probed(world) == {"digits-worker-0", "digits-worker-1", "digits-worker-2"}


def probed(world: World) -> set[str]:
    """Return the workers whose container has a readiness probe."""
    made = {name: child["spec"]["template"] for (kind, name), child in world.children.items() if kind == "Deployment"}
    return {name for name, template in made.items() if "readinessProbe" in template["spec"]["containers"][0]}


def test_time_to_live() -> None:
    world = running(runPolicy={"ttlSecondsAfterFinished": 60})
    world.end("chief")
    world.settle()
    made = world.plan()
    assert made.actions == ()
    assert made.requeue_at is not None
    world.now = made.requeue_at - timedelta(seconds=1)
    assert world.plan().actions == ()
    world.now = made.requeue_at
    world.reconcile()
    assert world.job is None


def test_a_changed_cluster_map_reaches_every_pod_once() -> None:
    world = running()
    world.edit({"worker": {"replicas": 3}})
    world.settle()
    applied = [w for w in world.writes if w[:2] == ("Apply", "Pod")]
    assert len(applied) == 4, "the PS, two workers and the chief; the new worker has it from the start"
    assert len({p["metadata"]["annotations"]["pstraining.dev/cluster-hash"] for p in world.pods.values()}) == 1


def test_the_start_time_is_that_of_the_last_resume() -> None:
    world = running()
    assert world.job is not None
    first = world.job["status"]["startTime"]
    world.edit({"runPolicy": {"suspend": True}})
    world.settle()
    assert "startTime" not in world.job["status"]
    world.edit({"runPolicy": {"suspend": False}})
    world.settle()
    assert world.job["status"]["startTime"] > first


def test_a_transition_keeps_its_time() -> None:
    world = running()
    since = {c["type"]: c["lastTransitionTime"] for c in (world.job or {})["status"]["conditions"]}
    world.now += timedelta(minutes=5)
    world.end("worker", 1, code=1)
    world.reconcile()
    assert {c["type"]: c["lastTransitionTime"] for c in (world.job or {})["status"]["conditions"]} == since
