"""The operator's writes to a job's Workload: each at its time, with every field that Kueue needs."""

from dataclasses import replace
from datetime import datetime, timedelta
from typing import Any

import pytest

from pstraining.api import names
from pstraining.api.conditions import Condition, Reason
from pstraining.core.actions import Kind, Verdict
from pstraining.core.policies import queueing
from pstraining.core.snapshot import Child, Container, Pod, Termination
from pstraining.resources import kueue
from tests.support.kueue_webhook import is_true
from tests.support.queued_world import QueuedWorld, queued, running
from tests.support.simulation import phase
from tests.support.snapshots import a_child, a_pod, facts_of


def condition(world: QueuedWorld, kind: str) -> dict[str, Any]:
    found: list[dict[str, Any]] = [c for c in world.workload["status"]["conditions"] if c["type"] == kind]
    return found[0]


def workers(workload: dict[str, Any]) -> int:
    return next(int(s["count"]) for s in workload["spec"]["podSets"] if s["name"] == names.WORKER)


def test_pods_kept_after_the_end_do_not_keep_the_quota() -> None:
    kept = {"cleanPodPolicy": {"onSuccess": "None"}}
    world = running(runPolicy=kept, ps={"replicas": 1, "standby": {"mode": "Warm"}}, evaluator={"enabled": True})
    world.end(names.CHIEF)
    world.run()
    assert phase(world) == "Succeeded"
    assert world.existing() == {"ps": 1, "standby": 1, "worker": 2, "evaluator": 1}
    assert condition(world, "Finished")["message"] == "The PSTrainingJob has succeeded."


def test_a_chief_kept_after_the_end_does_not_keep_the_quota() -> None:
    world = running(runPolicy={"cleanPodPolicy": {"onFailure": "None"}})
    world.end(names.WORKER, code=78)
    world.run()
    assert phase(world) == "Failed"
    assert world.existing()[names.CHIEF] == 1
    assert condition(world, "Finished")["status"] == "True"


def test_an_orphaned_standby_keeps_the_quota_until_its_deletion() -> None:
    kept = {"cleanPodPolicy": {"onSuccess": "None"}}
    world = running(runPolicy=kept, ps={"replicas": 1, "standby": {"mode": "Warm"}})
    world.end(names.CHIEF)
    world.reconcile()
    assert phase(world) == "Succeeded"
    del world.children["StatefulSet", names.standby_stateful_set("digits", 1)]
    world.reconcile()
    assert not is_true(world.workload, "Finished")
    world.run()
    assert is_true(world.workload, "Finished")


def test_the_returned_quota_has_kueues_message() -> None:
    world = running(successPolicy="AllWorkers")
    world.end(names.WORKER, 1)
    world.run()
    assert world.workload["status"]["reclaimablePods"]
    world.evict("Preempted", "Preempted to accommodate a workload")
    world.quota = 0
    for _ in range(12):
        world.reconcile()
        world.controllers()
    for kind in ("QuotaReserved", "Requeued"):
        assert condition(world, kind)["message"] == "Preempted to accommodate a workload", kind
    assert condition(world, "QuotaReserved")["reason"] == "Pending"
    admitted = condition(world, "Admitted")
    stated = admitted["status"], admitted["reason"], admitted["message"]
    assert stated == ("False", "NoReservation", "The workload has no reservation")
    assert world.workload["status"].keys() == {"conditions"}, "neither an admission nor pods that returned its quota"


def test_the_time_before_an_eviction_counts_against_the_time_limit() -> None:
    world = queued()
    assert world.job is not None
    world.job["metadata"]["labels"][kueue.LABEL_MAX_SECONDS] = "3600"
    world.run()
    spent = 0
    for reason in ("Preempted", "PodsReadyTimeout"):
        since = datetime.fromisoformat(condition(world, "Admitted")["lastTransitionTime"])
        world.now += timedelta(seconds=600)
        world.evict(reason)
        world.quota = 0
        world.run()
        spent += int((world.now - since).total_seconds())
        assert world.workload["status"]["accumulatedPastExecutionTimeSeconds"] == spent >= 600
        world.quota = 100
        world.run()
    world.evict("DeactivatedDueToMaximumExecutionTimeExceeded")
    world.quota = 0
    world.run()
    assert "accumulatedPastExecutionTimeSeconds" not in world.workload["status"], "it may run once more"


@pytest.mark.parametrize("checked", [True, False], ids=["admission checks", "clock"])
def test_only_time_in_which_a_job_runs_counts_against_its_time_limit(checked: bool) -> None:
    """Neither the time of admission checks counts, nor a clock that is behind Kueue's."""
    world = queued()
    assert world.job is not None
    world.job["metadata"]["labels"][kueue.LABEL_MAX_SECONDS] = "3600"
    world.checks = checked
    world.run()
    world.now += timedelta(seconds=600 if checked else -600)
    world.evict()
    world.quota = 0
    world.run()
    assert not world.with_quota()
    assert world.workload["status"].get("accumulatedPastExecutionTimeSeconds", 0) == 0


def test_a_job_that_waits_asks_for_the_workers_that_it_is_scaled_to() -> None:
    world = queued(quota=0)
    world.run()
    world.edit({"worker": {"replicas": 3}})
    world.run()
    assert workers(world.workload) == 3


def test_every_slice_names_the_first() -> None:
    world = running()
    first = world.workload["metadata"]["name"]
    for replicas in (3, 4):
        before = world.workload["metadata"]["name"]
        world.edit({"worker": {"replicas": replicas}})
        world.run()
        annotations = world.workload["metadata"]["annotations"]
        assert annotations[kueue.ANNOTATION_SLICE] == first
        assert annotations[kueue.ANNOTATION_REPLACES] == f"default/{before}"


def test_the_first_workload_names_itself() -> None:
    workload = running().workload
    assert workload["metadata"]["annotations"][kueue.ANNOTATION_SLICE] == workload["metadata"]["name"]


def test_an_evicted_job_asks_for_one_workload() -> None:
    world = running(quota=4, ps={"replicas": 1})
    uid = world.workload["metadata"]["uid"]
    world.edit({"worker": {"replicas": 4}})
    world.run()
    assert len(world.workloads) == 2
    world.evict()
    world.quota = 0
    world.run()
    assert workers(world.workload) == 4
    assert world.workload["metadata"]["uid"] == uid, "it keeps its place in the queue"


def test_a_worker_that_still_stops_keeps_its_quota() -> None:
    world = running(worker={"replicas": 3})
    world.lingering.add(names.WORKER)
    world.edit({"worker": {"replicas": 2}})
    for _ in range(4):
        world.reconcile()
        world.controllers()
        assert not world.without_quota()
    assert world.existing()[names.WORKER] == workers(world.workload) == 3
    world.gone(names.WORKER)
    world.run()
    assert workers(world.workload) == 2


def test_readiness_is_reported_in_the_terms_in_which_kueue_counts_time() -> None:
    world = queued()
    world.reconcile()
    world.admit()
    world.reconcile()
    assert not [c for c in world.workload["status"]["conditions"] if c["type"] == "PodsReady"], "since the admission"
    seen = []
    world.run()
    seen.append(condition(world, "PodsReady"))
    world.delete_pod(names.PS, 0)
    world.reconcile()
    seen.append(condition(world, "PodsReady"))
    world.controllers()
    world.run()
    seen.append(condition(world, "PodsReady"))
    world.delete_pod(names.PS, 0)
    world.reconcile()
    seen.append(condition(world, "PodsReady"))
    ready, waits = "All pods that training needs are ready", "A pod that training needs has failed and is replaced"
    assert [(c["status"], c["reason"], c["message"]) for c in seen] == [
        ("True", "Started", ready),
        ("False", "WaitForRecovery", waits),
        ("True", "Recovered", ready),
        ("False", "WaitForRecovery", waits),
    ]


def test_the_end_waits_for_pods_that_the_garbage_collector_has_not_reached_yet() -> None:
    world = running()
    world.end(names.CHIEF)
    for _ in range(4):
        world.reconcile()
    assert phase(world) == "Succeeded"
    assert not world.names_of("Deployment")
    assert world.existing()[names.WORKER] == 2
    assert not world.without_quota()
    world.run()
    assert condition(world, "Finished")["status"] == "True"


WORKLOAD = a_child(Kind.WORKLOAD, "w", spec={"queueName": "team-a"})
SECOND = a_child(Kind.DEPLOYMENT, "digits-worker-1")
STANDBYS = a_child(Kind.STATEFUL_SET, names.standby_stateful_set("digits", 2))
CHIEF = a_child(Kind.JOB, "digits-chief-3")
ENDED = Container(terminated=Termination(0, "Completed", "", None))
KEPT = a_child(Kind.STATEFUL_SET, names.ps_stateful_set("digits"), spec={"replicas": 1, "ordinals": {"start": 1}})
EMPTY = replace(SECOND, manifest={**SECOND.manifest, "spec": {"replicas": 0}})


@pytest.mark.parametrize(
    ("seen", "returned"),
    [
        ((), True),
        ((SECOND, a_pod(names.WORKER, 1, "n")), True),
        ((SECOND, a_pod(names.WORKER, 0, "n")), False),
        ((SECOND, a_pod(names.WORKER, 1, "n", deleting=True)), False),
        ((SECOND, a_pod(names.WORKER, 1, "n", deleting=True, phase="Failed")), True),
        ((replace(SECOND, deleting=True), a_pod(names.WORKER, 1, "n")), False),
        ((STANDBYS, a_pod(names.PS, 0, "n", member=2)), True),
        ((STANDBYS, a_pod(names.PS, 0, "n", member=1)), False),
        ((STANDBYS, a_pod(names.PS, 0, "n")), False),
        ((CHIEF, a_pod(names.CHIEF, 0, "n", term=3)), True),
        ((CHIEF, a_pod(names.EVALUATOR, 0, "n", term=3)), False),
        ((KEPT, a_pod(names.PS, 1, "n")), True),
        ((KEPT, a_pod(names.PS, 0, "n")), False),
        ((KEPT, a_pod(names.PS, 2, "n")), False),
        ((EMPTY, a_pod(names.WORKER, 1, "n")), False),
        ((a_pod(names.CHIEF, 0, "n", term=3, container=ENDED, others_run=True),), False),
        ((CHIEF, a_pod(names.CHIEF, 0, "n", term=3, container=ENDED, others_run=True)), True),
    ],
)
def test_the_end_waits_for_pods_that_are_about_to_go(seen: tuple[Pod | Child, ...], returned: bool) -> None:
    assert bool(list(queueing.ended(facts_of({}, WORKLOAD, *seen), Condition.SUCCEEDED))) is returned


def test_a_slice_that_is_no_longer_needed_is_deleted() -> None:
    world = running(quota=4, ps={"replicas": 1})
    world.edit({"worker": {"replicas": 4}})
    world.run()
    assert len(world.workloads) == 2
    uid = world.workloads[0]["metadata"]["uid"]
    world.quota = 0
    world.edit({"worker": {"replicas": 2}})
    world.run()
    assert workers(world.workload) == 2
    assert world.workload["metadata"]["uid"] == uid, "the running pods keep theirs"


def test_a_workload_that_a_slice_has_replaced_is_deleted_once() -> None:
    world = queued(quota=0)
    world.run()
    world._set(world.workload, "Finished", True, "WorkloadSliceReplaced", "replaced")
    world.run()
    assert [write for write in world.writes if write[0] == "Delete"] == [world.writes[1]]
    assert len(world.workloads) == 1


def test_a_replaced_workload_that_kueue_has_not_finished_returns_its_quota() -> None:
    world = running()
    world.edit({"worker": {"replicas": 4}})
    world.reconcile()
    world.admit()
    former, current = world.workloads
    # Kueue was stopped between its two writes.
    former["status"]["conditions"] = [c for c in former["status"]["conditions"] if c["type"] != "Finished"]
    world.run()
    assert len(world.workloads) == 2, "Kueue may be about to finish it"
    requeue_at = world.plan().requeue_at
    assert requeue_at is not None
    world.now = requeue_at
    assert world.plan().requeue_at != world.now, "this pass deletes it"
    for _ in world.steps():
        assert not world.without_quota()
    assert world.workload["metadata"]["uid"] == current["metadata"]["uid"]
    assert world.with_quota() == world.existing()


def test_a_replaced_workload_that_kueue_has_not_finished_returns_its_quota_after_further_slices() -> None:
    world = running()
    for replicas, world.forgets in ((3, True), (4, False)):
        world.edit({"worker": {"replicas": replicas}})
        world.run()
    assert world.with_quota()[names.WORKER] == 2 + 4
    world.now += queueing.LOOK_AGAIN
    world.run()
    assert world.with_quota() == world.existing()
    world.quota = 0
    world.edit({"worker": {"replicas": 5}})
    world.run()
    assert len(world.workloads) == 2, "a slice that waits for quota stays"


def test_a_container_beside_the_chief_keeps_the_quota_until_it_has_stopped() -> None:
    world = queued()
    world.beside = True
    world.run()
    world.lingering.add(names.CHIEF)
    world.evict()
    world.quota = 0
    for _ in range(10):
        world.reconcile()
        world.controllers()
        world.end(names.CHIEF, code=143)
        assert not world.without_quota()
    assert set(world.existing()) == {names.CHIEF}
    world.gone(names.CHIEF)
    world.run()
    assert not world.with_quota()


def test_a_running_job_is_looked_after_while_kueue_accepts_no_writes() -> None:
    world = running(worker={"replicas": 3})
    world.refuse = lambda action: "no endpoints available" if action.kind is Kind.WORKLOAD else ""
    world.verdict = Verdict.REFUSED
    del world.children["Deployment", "digits-worker-1"]
    for _ in range(4):
        world.controllers()
        world.reconcile()
    assert "digits-worker-1" in world.names_of("Deployment")
    world.edit({"worker": {"replicas": 2}})
    world.run()
    assert phase(world) == "Running"
    created = world.condition("Created")
    workload = world.workload["metadata"]["name"]
    assert created["reason"] == Reason.WRITE_REFUSED
    assert created["message"] == f"Workload {workload} was refused: no endpoints available"
    world.refuse = None
    world.run()
    assert world.with_quota() == world.existing()
    assert world.condition("Created")["status"] == "True"


@pytest.mark.parametrize("minimum", [2, None], ids=["partial admission", "elastic"])
def test_a_job_resumed_at_once_does_not_reuse_its_former_workers_quota(
    minimum: int | None,
) -> None:
    """A resumed job does not reuse its former workers' quota. A worker ended and returned its quota, which the next run
    needs again.
    """
    world = running(worker={"replicas": 2, "minReplicas": minimum}, successPolicy="AllWorkers")
    world.end("worker", 1)
    world.run()
    former = world.workload["metadata"]["uid"]
    assert world.workload["status"]["reclaimablePods"] == [{"name": "worker", "count": 1}]
    world.edit({"runPolicy": {"suspend": True}})
    while any(kind == "Deployment" for kind, _ in world.children):
        world.controllers()
        world.reconcile()
    world.edit({"runPolicy": {"suspend": False}})  # before its pods and its Workload are deleted
    assert world.existing()
    world.run()
    assert (phase(world), world.existing()["worker"]) == ("Running", 2)
    assert world.workload["metadata"]["uid"] != former
