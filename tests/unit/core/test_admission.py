"""Jobs with a queue of Kueue: when they run, with how many workers, and when their quota is requested and returned."""

from typing import Any

import pytest

from pstraining.api.conditions import Reason
from pstraining.core.actions import Delete, Kind, PatchStatus
from pstraining.core.snapshot import QueueObjects
from pstraining.resources import kueue
from pstraining.resources.installation import Installation, KueueSupport
from tests.support.kueue_webhook import is_true
from tests.support.queued_world import WithObjects, queued, running
from tests.support.simulation import phase

ROLES = {"ps", "worker", "chief"}


def test_no_pod_exists_before_the_admission() -> None:
    world = queued(quota=3)
    world.run()
    assert not world.pods
    assert phase(world) == "Queued"
    assert world.condition("Queued")["reason"] == Reason.AWAITS_ADMISSION
    words = "WaitingForQuota: insufficient unused quota for pods"
    assert words in world.condition("Queued")["message"]
    assert world.condition("Running")["message"] == world.condition("Queued")["message"]
    assert [e.reason for e in world.reported if e.reason == "Queued"]


def test_the_workload_asks_for_every_role() -> None:
    world = queued(ps={"replicas": 2, "standby": {"mode": "Warm"}}, evaluator={"enabled": True})
    world.reconcile()
    sets = {s["name"]: s["count"] for s in world.workload["spec"]["podSets"]}
    assert sets == {"ps": 2, "standby": 2, "worker": 2, "chief": 1, "evaluator": 1}
    assert world.workload["spec"]["queueName"] == "team-a"
    assert world.workload["spec"]["priority"] == 0
    (owner,) = world.workload["metadata"]["ownerReferences"]
    assert owner["controller"]


def test_an_admitted_job_runs_and_its_queue_is_quiet() -> None:
    world = running()
    assert world.condition("Queued")["reason"] == Reason.ADMITTED
    assert is_true(world.workload, "PodsReady")
    assert world.existing() == world.with_quota()
    writes, statuses = len(world.writes), world.status_writes
    for _ in range(3):
        world.reconcile()
    assert (len(world.writes), world.status_writes) == (writes, statuses)


def test_an_evicted_job_keeps_its_quota_until_the_last_pod_is_gone() -> None:
    world = running()
    world.lingering.add("chief")
    world.evict()
    assert [a.reason for a in world.plan().actions if isinstance(a, Delete)] == [Reason.AWAITS_ADMISSION]
    world.reconcile()
    world.controllers()
    world.reconcile()
    assert phase(world) == "Stopping"
    assert set(world.existing()) == ROLES, "the chief saves before the others stop"
    assert world.with_quota(), "its pods still run"
    world.gone("chief")
    for _ in range(4):
        world.reconcile()
        world.controllers()
    assert not world.pods
    assert not world.with_quota()
    requeued = next(c for c in world.workload["status"]["conditions"] if c["type"] == "Requeued")
    assert (requeued["status"], requeued["reason"]) == ("True", "Preempted")
    world.run()
    assert phase(world) == "Running"
    assert world.job is not None
    assert world.job["status"]["restarts"] == 0, "no failure of the job"


def test_a_preempted_job_reports_why_it_waits_now() -> None:
    world = running()
    world.evict("ClusterQueueStopped", "The ClusterQueue is stopped")
    world.quota = 0
    while world.with_quota():
        world.reconcile()
        world.controllers()
    world.reconcile()
    assert world.condition("Queued")["message"] == "ClusterQueueStopped: The ClusterQueue is stopped"
    world.run()
    assert world.condition("Queued")["message"] == "WaitingForQuota: insufficient unused quota for pods"


def test_a_stopped_workload_is_not_requeued() -> None:
    world = running()
    world.stop_queue()
    world.run()
    assert not world.with_quota()
    requeued = next(c for c in world.workload["status"]["conditions"] if c["type"] == "Requeued")
    assert requeued["status"] == "False"
    assert "spec.active" in world.condition("Queued")["message"]


@pytest.mark.parametrize("cause", ["", "MaximumExecutionTimeExceeded", "RequeuingLimitExceeded", "AdmissionCheck"])
def test_a_stopped_workload_queues_again_once_it_is_active(cause: str) -> None:
    world = running()
    world.stop_queue(cause)
    world.run()
    assert phase(world) == "Queued"
    world.workload["spec"]["active"] = True
    world.run()
    assert phase(world) == "Running"


def test_a_job_that_kueue_has_stopped_reports_the_cause() -> None:
    world = running()
    world.stop_queue("MaximumExecutionTimeExceeded")
    for _ in world.steps():
        if phase(world) != "Running":
            found = world.condition("Running")["message"]
            assert found.startswith("DeactivatedDueToMaximumExecutionTimeExceeded: The workload is deactivated. ")
            assert "spec.active" in found
    assert phase(world) == "Queued"


@pytest.mark.parametrize("code", [0, 78])
def test_a_finished_job_returns_its_quota(code: int) -> None:
    world = running()
    world.end("chief", code=code)
    world.run()
    assert is_true(world.workload, "Finished")
    finished = next(c for c in world.workload["status"]["conditions"] if c["type"] == "Finished")
    assert finished["reason"] == ("Failed" if code else "Succeeded")
    assert phase(world) == ("Failed" if code else "Succeeded")


def test_the_quota_of_an_ended_job_is_kept_while_a_pod_still_stops() -> None:
    world = running()
    world.lingering.add("worker")
    world.end("chief")
    for _ in range(6):
        world.reconcile()
        world.controllers()
    assert world.existing() == {"worker": 2}
    assert not is_true(world.workload, "Finished")
    world.gone("worker")
    world.run()
    assert is_true(world.workload, "Finished")


def test_returned_quota_is_not_reused() -> None:
    world = running(worker={"replicas": 4, "minReplicas": 2}, successPolicy="AllWorkers")
    world.end("worker", 3)
    world.run()
    for replicas in (2, 4):
        world.edit({"worker": {"replicas": replicas}})
        world.run()
        assert world.without_quota() == {}
    assert world.existing()["worker"] == 3


def test_fewer_workers_may_be_admitted() -> None:
    world = running(quota=6, worker={"replicas": 8, "minReplicas": 2})
    assert world.existing()["worker"] == 4
    assert world.condition("Queued")["message"].endswith("with 4 of 8 workers.")
    assert world.job is not None
    assert world.job["status"]["worker"]["summary"] == "4/4"


def test_a_partially_admitted_job_demands_no_more_workers_than_were_admitted() -> None:
    world = queued(quota=5, worker={"replicas": 6, "minReplicas": 2})
    world.run()
    for minimum, demanded in ((2, 2), (5, 3)):
        world.edit({"worker": {"minReplicas": minimum}})
        worker = world.effective.spec.worker
        assert (worker.replicas, worker.min_replicas) == (3, demanded)


def test_added_workers_wait_for_a_slice_and_no_pod_is_changed() -> None:
    world = running(quota=6, worker={"replicas": 4})
    before = {name: p["metadata"]["uid"] for name, p in world.pods.items()}
    world.edit({"worker": {"replicas": 8}})
    world.run()
    assert world.existing()["worker"] == 4
    assert "4 of 8 workers" in world.condition("Queued")["message"]
    world.quota = 10
    world.run()
    assert world.existing()["worker"] == 8
    assert before.items() <= {name: p["metadata"]["uid"] for name, p in world.pods.items()}.items()
    assert len(world.workloads) == 1
    assert world.with_quota()["worker"] == 8


def test_scaling_down_returns_quota_once_the_pods_are_deleted() -> None:
    world = running(worker={"replicas": 4})
    world.lingering.add("worker")
    world.edit({"worker": {"replicas": 2}})
    world.reconcile()
    world.controllers()
    world.reconcile()
    assert world.with_quota()["worker"] == 4
    world.gone("worker")
    world.run()
    assert world.with_quota()["worker"] == world.existing()["worker"] == 2
    assert phase(world) == "Running"


def test_returned_quota_is_requested_again_when_scaling_up() -> None:
    world = running(quota=10, worker={"replicas": 8})
    world.edit({"worker": {"replicas": 4}})
    world.run()
    world.quota = 6
    world.edit({"worker": {"replicas": 8}})
    world.run()
    assert world.existing()["worker"] == 4


def test_an_obsolete_slice_is_deleted() -> None:
    world = running(quota=6, worker={"replicas": 4})
    world.edit({"worker": {"replicas": 8}})
    world.run()
    assert len(world.workloads) == 2
    world.edit({"worker": {"replicas": 6}})
    world.run()
    assert [s["count"] for s in world.workloads[1]["spec"]["podSets"] if s["name"] == "worker"] == [6]
    world.edit({"worker": {"replicas": 4}})
    world.run()
    assert len(world.workloads) == 1


def test_finished_workers_return_their_quota() -> None:
    world = running(worker={"replicas": 3}, successPolicy="AllWorkers")
    world.end("worker", 1)
    world.run()
    assert world.workload["status"]["reclaimablePods"] == [{"name": "worker", "count": 1}]
    assert world.without_quota() == {}


@pytest.mark.parametrize(
    "change",
    [{"ps": {"replicas": 2}}, {"ps": {"resources": {"requests": {"cpu": "2"}}}}, {"chief": {"enabled": False}}],
)
def test_a_job_that_asks_for_other_pods_queues_again(change: dict[str, Any]) -> None:
    world = running()
    uid = world.workload["metadata"]["uid"]
    world.edit(change)
    world.quota = 0
    world.run()
    assert phase(world) == "Queued"
    assert world.workload["metadata"]["uid"] != uid
    assert not world.pods


def test_a_job_that_waits_corrects_its_workload_and_keeps_its_place() -> None:
    world = queued(quota=0)
    world.run()
    uid = world.workload["metadata"]["uid"]
    world.edit({"ps": {"replicas": 3}})
    world.run()
    assert world.workload["metadata"]["uid"] == uid
    assert {s["name"]: s["count"] for s in world.workload["spec"]["podSets"]}["ps"] == 3


def test_suspension_by_the_user_returns_the_quota() -> None:
    world = running()
    world.lingering.add("chief")
    world.edit({"runPolicy": {"suspend": True}})
    labels = world.job["metadata"].pop("labels") if world.job is not None else {}
    world.run()
    assert world.workloads, "its pods still stop, whatever its label is now"
    world.gone("chief")
    world.run()
    assert phase(world) == "Suspended"
    assert not world.workloads
    assert world.job is not None
    world.job["metadata"]["labels"] = labels
    world.edit({"runPolicy": {"suspend": False}})
    world.run()
    assert phase(world) == "Running"


def test_a_job_that_leaves_its_queue_returns_its_quota_and_runs() -> None:
    world = running()
    assert world.job is not None
    world.job["metadata"]["labels"] = {}
    world.run()
    assert (phase(world), world.workloads) == ("Running", [])


def test_a_deleted_workload_stops_the_job_and_is_recreated() -> None:
    world = running()
    world.lingering.add("chief")
    del world.children[str(Kind.WORKLOAD), world.workload["metadata"]["name"]]
    world.quota = 0
    world.run()
    assert not world.workloads, "its pods still run"
    world.gone("chief")
    world.run()
    assert phase(world) == "Queued"
    assert not world.pods
    assert world.workload["status"]["conditions"]


def test_the_value_of_the_priority_class_is_copied() -> None:
    world = WithObjects(queued().job, installation=Installation(kueue=KueueSupport.ON))
    assert world.job is not None
    world.job["metadata"]["labels"][kueue.LABEL_PRIORITY_CLASS] = "high"
    world.run()
    assert not world.workloads
    assert "WorkloadPriorityClass high does not exist" in world.condition("Queued")["message"]
    world.objects = QueueObjects(priorities={(Kind.WORKLOAD_PRIORITY_CLASS, "high"): 1000})
    world.run()
    assert world.workload["spec"]["priority"] == 1000
    assert world.workload["spec"]["priorityClassRef"]["name"] == "high"


def test_an_eviction_keeps_kueues_message_if_the_priority_class_was_not_reread() -> None:
    world = WithObjects(queued().job, installation=Installation(kueue=KueueSupport.ON))
    assert world.job is not None
    world.job["metadata"]["labels"][kueue.LABEL_PRIORITY_CLASS] = "high"
    world.objects = QueueObjects(priorities={(Kind.WORKLOAD_PRIORITY_CLASS, "high"): 1000})
    world.run()
    world.objects = QueueObjects()  # as for an operator that has just started
    world.lingering.add("chief")
    world.evict()
    world.reconcile()
    message = world.condition("Queued")["message"]
    assert message.startswith("Preempted: Preempted to accommodate a higher priority. The chief stops first")


def test_a_finished_workload_of_a_running_job_is_replaced_in_single_writes() -> None:
    world = running()
    world._set(world.workload, "Finished", True, "OwnerNotFound", "finished by mistake")
    name = world.workload["metadata"]["name"]
    writes = len(world.writes)
    world.run()
    assert phase(world) == "Running"
    assert [w for w in world.writes[writes:] if w[2] == name and w[0] != "PatchStatus"] == [
        ("Delete", Kind.WORKLOAD, name),
        ("Create", Kind.WORKLOAD, name),
    ]


@pytest.mark.parametrize(
    ("support", "expected", "reason"),
    [
        (KueueSupport.OFF, "Running", Reason.QUEUE_IGNORED),
        (KueueSupport.MISSING, "Queued", Reason.KUEUE_NOT_INSTALLED),
    ],
)
def test_an_operator_without_kueue(support: KueueSupport, expected: str, reason: Reason) -> None:
    world = queued()
    world.installation = Installation(kueue=support)
    world.run()
    assert not world.workloads
    assert phase(world) == expected
    assert world.condition("Queued")["reason"] == reason


def test_a_job_without_a_queue_is_left_alone() -> None:
    world = queued()
    assert world.job is not None
    world.job["metadata"]["labels"] = {}
    world.run()
    assert phase(world) == "Running"
    assert not world.workloads
    assert not [c for c in world.job["status"]["conditions"] if c["type"] == "Queued"]


def test_a_status_patch_requires_the_version_that_it_was_computed_from() -> None:
    world = running()
    world.evict()
    for _ in range(10):
        made = world.plan()
        for action in made.actions:
            if isinstance(action, PatchStatus):
                assert action.version == world.workload["metadata"]["resourceVersion"]
        world.reconcile()
        world.controllers()
