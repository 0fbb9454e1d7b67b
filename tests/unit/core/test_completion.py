"""The end of a job as a whole: the roles whose success counts, its deadline, its freed resources, and its manager."""

from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest

from pstraining.api import names
from pstraining.core.actions import Apply, Kind, Outcomes
from pstraining.core.facts import gather
from pstraining.core.status import next_status
from tests.support.builders import deep_merge, job
from tests.support.copying import made_once
from tests.support.simulation import World, phase, running


def status(world: World) -> dict[str, Any]:
    assert world.job is not None
    found: dict[str, Any] = world.job["status"]
    return found


@pytest.mark.parametrize(
    "spec",
    [{"runPolicy": {"managedBy": "other.dev/operator"}}, {"managedBy": "other.dev/operator"}],
    ids=["runPolicy", "spec"],
)
@pytest.mark.parametrize("mode", ["Async", "ModeOfALaterVersion"])
def test_a_job_of_another_manager_is_left_alone(spec: dict[str, Any], mode: str) -> None:
    """Even a job that this version cannot read, because the other manager is of a later one."""
    world = World(job(spec={**spec, "training": {"mode": mode}}))
    assert world.job is not None
    world.job["status"] = {"theirs": True}
    world.reconcile()
    assert (world.writes, world.status_writes, world.reported) == ([], 0, [])
    assert next_status(gather(world.snapshot(), world.now), Outcomes()) == {"theirs": True}


def test_all_workers_have_to_succeed() -> None:
    world = running(successPolicy="AllWorkers")
    world.end("worker", 0)
    world.settle()
    world.end("chief")
    world.settle()
    assert phase(world) == "Running", "the chief is done, worker 1 is not"
    assert status(world)["term"] == 1, "a finished chief does not run again"
    assert status(world)["chief"]["succeeded"] == 1
    world.end("worker", 1)
    world.settle()
    assert world.condition("Succeeded")["reason"] == "AllWorkersSucceeded"


def test_workers_that_were_given_up_are_not_waited_for() -> None:
    world = running(successPolicy="AllWorkers", worker={"minReplicas": 1, "restartPolicy": "Never"})
    world.end("worker", 1, 1)
    world.settle()
    world.end("worker", 0)
    world.end("chief")
    world.settle()
    assert phase(world) == "Succeeded"


def test_the_other_workers_go_on_without_a_worker_0_that_was_given_up() -> None:
    spec = {"chief": {"enabled": False}, "worker": {"minReplicas": 1, "restartPolicy": "Never"}}
    world = running(successPolicy="AllWorkers", **spec)
    world.end("worker", 0, 1)
    world.settle()
    assert phase(world) == "Running"
    message = "Every parameter server is ready and the other workers run; worker 0 was given up."
    assert world.condition("Running")["message"] == message


@pytest.mark.parametrize(("training", "reported"), [({"steps": 9}, {}), ({}, {"layout": 1})])
def test_the_other_workers_of_the_runtime_do_not_go_on_without_worker_0(
    training: dict[str, int], reported: dict[str, int]
) -> None:
    """Only worker 0 declares training over, and saves its state: the others would train forever."""
    spec = {"chief": {"enabled": False}, "worker": {"minReplicas": 1, "restartPolicy": "Never"}}
    world = running(successPolicy="AllWorkers", training=training, **spec)
    assert world.job is not None
    world.job["status"]["training"] = reported
    world.end("worker", 0, 1)
    world.settle()
    assert phase(world) == "Failed"
    assert "worker.restartPolicy Never takes that as final" in world.condition("Failed")["message"]


def test_without_a_chief_all_workers_count() -> None:
    world = running(successPolicy="AllWorkers", chief={"enabled": False})
    world.end("worker", 0)
    world.settle()
    assert phase(world) == "Running"
    world.end("worker", 1)
    world.settle()
    assert phase(world) == "Succeeded"


def test_the_deadline_is_met_to_the_second() -> None:
    world = running(runPolicy={"activeDeadlineSeconds": 100})
    started = world.plan().requeue_at
    assert started is not None, "the plan has the time, so that no pass polls"
    world.now = started - timedelta(seconds=1)
    world.reconcile()
    assert phase(world) == "Running"
    world.now = started
    world.settle()
    failed = world.condition("Failed")
    assert (failed["status"], failed["reason"]) == ("True", "DeadlineExceeded")


def test_suspended_time_is_not_active() -> None:
    world = running(runPolicy={"activeDeadlineSeconds": 100})
    end = world.plan().requeue_at
    assert end is not None
    world.now = end - timedelta(seconds=40)
    world.edit({"runPolicy": {"suspend": True}})
    world.settle()
    assert status(world)["activeSeconds"] == 60
    world.now += timedelta(days=1)
    world.settle()
    assert phase(world) == "Suspended"
    world.edit({"runPolicy": {"suspend": False}})
    resumed = world.now
    world.reconcile()
    assert world.plan().requeue_at == resumed + timedelta(seconds=40)


def test_the_evaluator_runs_beside_the_others() -> None:
    world = running(evaluator={"enabled": True}, checkpoint={"volume": {"nfs": {"server": "s", "path": "/"}}})
    made = world.children["Job", "digits-evaluator-1"]["spec"]["template"]["spec"]
    mounts = {m["name"]: m for m in made["containers"][0]["volumeMounts"]}
    assert mounts["pstraining-checkpoint"]["readOnly"] is True
    assert made["hostname"] == "digits-evaluator"
    assert status(world)["evaluator"]["summary"] == "1/1"
    world.end("evaluator", code=1)
    world.settle()
    assert world.names_of("Job") == ["digits-chief-1", "digits-evaluator-2"]
    assert status(world)["evaluatorAttempt"] == 2
    assert status(world)["evaluator"]["restarts"] == 1
    world.end("evaluator")
    world.settle()
    assert status(world)["evaluator"]["succeeded"] == 1
    assert phase(world) == "Running", "its end is not the job's"
    world.settle()
    assert world.names_of("Job") == ["digits-chief-1", "digits-evaluator-2"], "and it does not run again"
    world.end("chief")
    world.settle()
    assert phase(world) == "Succeeded"
    assert world.names_of("Job") == ["digits-chief-1", "digits-evaluator-2"], "both have ended and hold their logs"


RESTART: dict[str, Any] = {"failurePolicy": {"rules": [{"role": "worker", "action": "RestartJob"}]}}
STOPS: dict[str, Callable[[World], None]] = {
    # each stops the chief, or all pods, and then starts them again
    "a suspension": lambda world: world.edit({"runPolicy": {"suspend": True}}),
    "a restart of the job": lambda world: world.end("worker", code=1),
    "another number of servers": lambda world: world.edit({"ps": {"replicas": 2}}),
}


@made_once
def without_job(role: str, **spec: Any) -> World:
    """Return a job that trains after a role's Job, which has succeeded, was deleted, such as by a policy."""
    world = running(successPolicy="AllWorkers", evaluator={"enabled": True}, **RESTART, **spec)
    world.end(role)
    world.settle()
    del world.children["Job", f"digits-{role}-1"]
    world.pods = {n: p for n, p in world.pods.items() if p["metadata"]["labels"][names.LABEL_ROLE] != role}
    world.settle()
    return world


def resume(world: World) -> None:
    world.settle()
    world.edit({"runPolicy": {"suspend": False}})
    world.settle()


@pytest.mark.parametrize(("role", "other"), [("chief", "evaluator"), ("evaluator", "chief")])
def test_what_has_succeeded_does_not_run_again_if_its_job_is_deleted(role: str, other: str) -> None:
    world = without_job(role)
    assert world.names_of("Job") == [f"digits-{other}-1"]
    assert status(world)[role]["succeeded"] == 1
    for index in range(2):
        world.end("worker", index)
    world.end("chief")
    world.settle()
    assert phase(world) == "Succeeded"
    assert status(world)[role]["succeeded"] == 1


@pytest.mark.parametrize("stop", STOPS)
@pytest.mark.parametrize("role", ["chief", "evaluator"])
def test_what_has_succeeded_runs_again_after_a_stop(role: str, stop: str) -> None:
    """A stop of all pods deletes the Jobs, too, and another number of servers needs another chief."""
    world = without_job(role)
    STOPS[stop](world)
    resume(world)
    stays = (role, stop) == ("evaluator", "another number of servers")
    assert (f"digits-{role}-2" in world.names_of("Job")) is not stays
    assert status(world)[role]["succeeded"] == stays
    assert "digits-chief-2" in world.names_of("Job")


@pytest.mark.parametrize("role", ["chief", "evaluator"])
def test_what_has_succeeded_runs_again_if_all_pods_are_replaced_for_another_number_of_servers(role: str) -> None:
    standby = {"mode": "Hot", "replicasPerShard": 1}
    world = without_job(role, ps={"replicas": 2, "standby": standby}, training={"mode": "Async"})
    world.edit({"ps": {"replicas": 3}})
    world.settle()
    assert world.names_of("Job") == ["digits-chief-2", "digits-evaluator-2"], "no checkpoint keeps the state"


def servers(world: World) -> tuple[Any, ...]:
    """Return what changes when the servers, or all pods, are restarted."""
    found = world.children["StatefulSet", "digits-ps"]
    return found["metadata"]["uid"], found["metadata"]["annotations"][names.ANNOTATION_LAYOUT]


@pytest.mark.parametrize("stop", STOPS)
@pytest.mark.parametrize("passes", range(3))
@pytest.mark.parametrize("writes", range(3))
def test_a_chief_follows_a_stop_in_which_the_operator_crashes(stop: str, passes: int, writes: int) -> None:
    """Without a chief, the workers would wait for the new servers' parameters."""
    world = without_job("chief")
    before = servers(world)
    STOPS[stop](world)
    for _ in range(passes):
        world.reconcile()
        world.controllers()
    world.reconcile(stop_after=writes)
    world.edit({"runPolicy": {"suspend": False}})
    world.settle()
    assert "digits-chief-2" in world.names_of("Job") or servers(world) == before


def test_the_evaluators_budget_fails_the_job() -> None:
    world = running(evaluator={"enabled": True, "backoff": {"limit": 0}})
    world.end("evaluator", code=1)
    world.settle()
    assert status(world)["failedReplica"] == "evaluator/0"
    assert phase(world) == "Failed"


@pytest.mark.parametrize("within", [True, False])
def test_the_evaluator_is_in_the_cluster_only_on_request(within: bool) -> None:
    world = running(evaluator={"enabled": True, "inCluster": within})
    assert ('"evaluator"' in world.children["ConfigMap", "digits"]["data"]["cluster.json"]) is within


FAILURES = {
    "worker": ("Deployment", "digits-worker-1", 1),
    "chief": ("Job", "digits-chief-1", 0),
    "ps": ("StatefulSet", "digits-ps", 1),
}


@pytest.mark.parametrize("role", FAILURES)
def test_only_the_failed_replica_is_kept_for_a_limited_time(role: str) -> None:
    kind, name, index = FAILURES[role]
    world = World(job(ps=3, spec={role: {"backoff": {"limit": 0}}}))
    world.settle()
    world.end(role, index, 1)
    world.settle()
    assert phase(world) == "Failed"
    workloads = {k for k in world.children if k[0] in ("Deployment", "Job", "StatefulSet")}
    assert workloads == {(kind, name)}
    assert len(world.pods) == 1, "of three parameter servers the one that failed"
    if kind != "Job":
        assert '"ended": true' in world.children["ConfigMap", "digits"]["data"]["cluster.json"]
    until = world.plan().requeue_at
    assert until is not None
    world.now = until
    world.settle()
    assert world.children == {}


def test_the_failed_server_keeps_the_layout_of_its_parameters() -> None:
    """Its cluster map would otherwise have the first layout, which is no longer that of the job."""
    world = World(job(ps=3, spec={"ps": {"backoff": {"limit": 0}}}))
    world.settle()
    world.edit({"ps": {"replicas": 2}})
    world.settle()
    layout = world.children["StatefulSet", "digits-ps"]["metadata"]["annotations"]
    assert layout[names.ANNOTATION_LAYOUT] == "2"
    world.end("ps", 1, 1)
    world.reconcile()
    (narrowed,) = (a for a in world.plan().actions if isinstance(a, Apply) and a.kind is Kind.STATEFUL_SET)
    assert narrowed.body["metadata"]["annotations"].items() <= layout.items(), "an apply without them removes them"
    assert narrowed.body["metadata"]["annotations"].keys() >= {names.ANNOTATION_LAYOUT, names.ANNOTATION_SHARDS}


def test_a_job_that_ran_out_of_time_keeps_nothing() -> None:
    world = running(runPolicy={"activeDeadlineSeconds": 10})
    world.now += timedelta(seconds=10)
    world.settle()
    assert world.children == {}


LEFT = {
    # policy on failure: the owners of pods that remain after worker 1 failed
    "All": set[str](),
    "Running": set[str](),
    "None": {"digits-chief-1", "digits-ps", "digits-worker-0", "digits-worker-1"},
    "Failed": {"digits-worker-1"},
}


@pytest.mark.parametrize("policy", LEFT)
def test_clean_pod_policy_on_failure(policy: str) -> None:
    world = running(worker={"backoff": {"limit": 0}}, runPolicy={"cleanPodPolicy": {"onFailure": policy}})
    world.end("worker", 1, 1)
    world.settle()
    assert {n for k, n in world.children if k in ("Deployment", "Job", "StatefulSet")} == LEFT[policy]


WORKLOADS = {
    "ps": {("StatefulSet", "digits-ps")},
    "worker": {("Deployment", "digits-worker-0"), ("Deployment", "digits-worker-1")},
    "chief": {("Job", "digits-chief-1")},
    "evaluator": {("Job", "digits-evaluator-1")},
}


def workloads(world: World) -> set[tuple[str, str]]:
    return {k for k in world.children if k[0] in ("Deployment", "Job", "StatefulSet")}


@pytest.mark.parametrize("role", WORKLOADS)
def test_a_roles_policy_decides_about_its_pods_on_success(role: str) -> None:
    spec = deep_merge({"evaluator": {"enabled": True}}, {role: {"cleanPodPolicy": {"onSuccess": "None"}}})
    world = running(**spec, runPolicy={"cleanPodPolicy": {"onSuccess": "All"}})
    world.end("chief")
    world.settle()
    assert workloads(world) == WORKLOADS[role]
    if role != "chief":
        assert {r for r in WORKLOADS if status(world)[r]["ready"]} == {role}


@pytest.mark.parametrize("role", WORKLOADS)
def test_a_roles_policy_decides_about_its_pods_on_failure(role: str) -> None:
    spec = deep_merge({"evaluator": {"enabled": True}}, {role: {"cleanPodPolicy": {"onFailure": "None"}}})
    world = running(**spec, runPolicy={"activeDeadlineSeconds": 10})
    world.now += timedelta(seconds=10)
    world.settle()
    assert workloads(world) == WORKLOADS[role]


def test_the_failed_replica_is_kept_for_the_requested_time() -> None:
    keep = {"onFailure": "Failed", "keepFailedSeconds": 60}
    world = running(worker={"backoff": {"limit": 0}}, runPolicy={"cleanPodPolicy": keep})
    world.end("worker", 0, 1)
    world.settle()
    assert world.plan().requeue_at == world.now + timedelta(seconds=60)


def test_a_finished_job_is_three_objects() -> None:
    world = running()
    world.end("chief")
    world.settle()
    assert len(world.children) + len(world.pods) + 1 == 3


def test_a_finished_chief_is_kept_despite_an_outdated_pod() -> None:
    world = running()
    (name,) = (n for n, p in world.pods.items() if "chief" in n)
    before = deep_merge({}, world.pods[name])
    world.end("chief")
    world.settle()
    world.pods[name] = before
    assert phase(world) == "Succeeded"
    assert not world.plan().actions, "an operator that has just started may get an outdated list; the log is not lost"
