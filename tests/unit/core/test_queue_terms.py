"""Fields of a job that its Workload depends on besides its pods: a change of any of them reaches Kueue in time.

A Workload without quota is corrected in place. A Workload with quota keeps the fields that Kueue makes immutable, and
the job runs under it.
"""

from dataclasses import replace
from typing import Any

import pytest

from pstraining.api import names
from pstraining.core.actions import Kind, Replace
from pstraining.core.policies.queueing import LOOK_AGAIN
from pstraining.core.snapshot import QueueObjects, Snapshot
from pstraining.resources import kueue
from tests.support.kueue_webhook import is_true
from tests.support.queued_world import QueuedWorld, queued, running
from tests.support.simulation import phase

CLASSES = {(Kind.WORKLOAD_PRIORITY_CLASS, "high"): 1000, (Kind.WORKLOAD_PRIORITY_CLASS, "low"): 1}
CLASSES |= {(Kind.PRIORITY_CLASS, "high"): 7}


class WithClasses(QueuedWorld):
    """A world in which the operator has read the priority classes."""

    classes = CLASSES

    def snapshot(self) -> Snapshot:
        return replace(super().snapshot(), queue_objects=QueueObjects(priorities=self.classes))


def labelled(quota: int = 100, **labels: str) -> WithClasses:
    found = queued(quota)
    assert found.job is not None
    found.job["metadata"]["labels"] |= {f"kueue.x-k8s.io/{key.replace('_', '-')}": v for key, v in labels.items()}
    return WithClasses(found.job, quota=quota)


def relabel(world: QueuedWorld, label: str, value: str | None) -> None:
    assert world.job is not None
    labels = world.job["metadata"]["labels"]
    labels.pop(label, None)
    if value is not None:
        labels[label] = value


def waiting(**spec: Any) -> QueuedWorld:
    world = queued(0, **spec)
    world.run()
    assert phase(world) == "Queued"
    return world


def workers(world: QueuedWorld) -> dict[str, Any]:
    (found,) = [s for s in world.workload["spec"]["podSets"] if s["name"] == names.WORKER]
    return {key: found[key] for key in ("count", "minCount") if key in found}


def is_elastic(world: QueuedWorld) -> bool:
    return bool(world.workload["metadata"]["annotations"].get(kueue.ANNOTATION_ELASTIC) == "true")


def test_devices_that_workers_claim_are_part_of_the_workload() -> None:
    claims = [{"name": "gpu", "resourceClaimTemplateName": "gpu"}]
    trains = {"name": "tensorflow", "image": "i", "command": ["c"], "resources": {"claims": [{"name": "gpu"}]}}
    world = waiting(worker={"template": {"spec": {"resourceClaims": claims, "containers": [trains]}}})
    found = {s["name"]: s["template"]["spec"].get("resourceClaims") for s in world.workload["spec"]["podSets"]}
    assert found == {"ps": None, "worker": claims, "chief": None}


def test_a_job_that_waits_may_accept_fewer_workers_and_keeps_its_place() -> None:
    world = waiting(worker={"replicas": 4})
    uid = world.workload["metadata"]["uid"]
    world.edit({"worker": {"minReplicas": 2}})
    world.run()
    assert world.workload["metadata"]["uid"] == uid
    assert (workers(world), is_elastic(world)) == ({"count": 4, "minCount": 2}, False)
    world.quota = 5
    world.run()
    assert world.existing()["worker"] == 3


def test_a_job_that_waits_may_insist_on_all_workers() -> None:
    world = waiting(worker={"replicas": 4, "minReplicas": 2})
    world.edit({"worker": {"minReplicas": None}})
    world.run()
    assert (workers(world), is_elastic(world)) == ({"count": 4}, True)
    world.quota = 100
    world.run()
    world.edit({"worker": {"replicas": 6}})
    world.run()
    assert world.existing()["worker"] == 6, "it is elastic"


def test_a_minimum_that_is_lowered_reaches_kueue() -> None:
    world = waiting(worker={"replicas": 4, "minReplicas": 3})
    world.edit({"worker": {"minReplicas": 1}})
    world.run()
    assert workers(world) == {"count": 4, "minCount": 1}


def test_a_partially_admitted_job_is_not_elastic_before_it_queues_again() -> None:
    world = running(quota=6, worker={"replicas": 8, "minReplicas": 2})
    before = len(world.writes)
    world.edit({"worker": {"minReplicas": None}})
    world.quota = 100
    world.run()
    for replicas in (3, 8):
        world.edit({"worker": {"replicas": replicas}})
        world.run()
        assert world.existing()["worker"] == min(replicas, 4)
        assert workers(world) == {"count": 8, "minCount": 2}, "Kueue lets nothing of it change"
    assert {w[0] for w in world.writes[before:] if w[1] == Kind.WORKLOAD} <= {"PatchStatus"}
    world.evict()
    world.run()
    assert (workers(world), is_elastic(world)) == ({"count": 8}, True)
    assert world.existing()["worker"] == 8


def test_a_greater_minimum_waits_until_a_partially_admitted_job_queues_again() -> None:
    world = running(quota=3, worker={"replicas": 4, "minReplicas": 1})
    assert world.existing()["worker"] == 1
    world.edit({"worker": {"minReplicas": 2}})
    world.run()
    assert phase(world) == "Running"
    assert "worker.minReplicas" in world.condition("Queued")["message"]
    world.evict()
    world.run()
    assert phase(world) == "Queued"
    world.quota = 4
    world.run()
    assert (phase(world), world.existing()["worker"]) == ("Running", 2)


def test_an_elastic_job_that_gets_a_minimum_stays_elastic_until_it_queues_again() -> None:
    world = running(worker={"replicas": 2})
    world.edit({"worker": {"replicas": 4, "minReplicas": 1}})
    world.run()
    assert (workers(world), is_elastic(world)) == ({"count": 4}, True), "Kueue refuses slices with a minimum"
    assert world.existing()["worker"] == 4
    world.edit({"worker": {"replicas": 3}})
    world.run()
    assert world.with_quota()["worker"] == world.existing()["worker"] == 3
    world.quota = 6
    world.evict()
    world.run()
    assert (workers(world), is_elastic(world)) == ({"count": 3, "minCount": 1}, False)
    assert kueue.ANNOTATION_REPLACES not in world.workload["metadata"]["annotations"]


@pytest.mark.parametrize(("before", "after"), [("high", "low"), ("low", None), (None, "high")])
def test_a_job_that_waits_gets_its_new_priority_and_keeps_its_place(before: str | None, after: str | None) -> None:
    world = labelled(0, **({"priority_class": before} if before else {}))
    world.run()
    uid = world.workload["metadata"]["uid"]
    relabel(world, kueue.LABEL_PRIORITY_CLASS, after)
    world.run()
    spec = world.workload["spec"]
    assert (spec.get("priorityClassRef") or {}).get("name") == after
    assert spec["priority"] == CLASSES.get((Kind.WORKLOAD_PRIORITY_CLASS, after or ""), 0)
    assert world.workload["metadata"]["uid"] == uid
    writes = len(world.writes)
    world.reconcile()
    assert len(world.writes) == writes


def test_classes_of_two_kinds_may_share_a_name() -> None:
    world = labelled(0, priority_class="high")
    world.run()
    world.edit({"runPolicy": {"schedulingPolicy": {"priorityClass": "high"}}})
    relabel(world, kueue.LABEL_PRIORITY_CLASS, None)
    world.run()
    ref = {"group": "scheduling.k8s.io", "kind": "PriorityClass", "name": "high"}
    assert (world.workload["spec"]["priorityClassRef"], world.workload["spec"]["priority"]) == (ref, 7)


def test_a_running_job_changes_its_priority_without_a_stop() -> None:
    world = labelled(priority_class="low")
    world.run()
    pods = dict(world.pods)
    relabel(world, kueue.LABEL_PRIORITY_CLASS, "high")
    world.run()
    assert world.workload["spec"]["priority"] == 1000
    assert world.workload["spec"]["priorityClassRef"]["name"] == "high"
    assert world.pods.keys() == pods.keys()
    writes = len(world.writes)
    world.reconcile()
    assert len(world.writes) == writes


def test_a_job_with_quota_that_admission_checks_hold_gets_its_new_priority() -> None:
    world = labelled(priority_class="low")
    world.checks = True
    world.run()
    relabel(world, kueue.LABEL_PRIORITY_CLASS, "high")
    world.run()
    assert (phase(world), world.workload["spec"]["priority"]) == ("Queued", 1000)


def test_both_workloads_of_a_growing_job_get_its_priority() -> None:
    world = labelled(priority_class="low")
    world.run()
    world.quota = 0
    world.edit({"worker": {"replicas": 4}})
    world.run()
    relabel(world, kueue.LABEL_PRIORITY_CLASS, "high")
    world.run()
    assert [w["spec"]["priority"] for w in world.workloads] == [1000, 1000]


@pytest.mark.parametrize(("before", "after"), [("high", None), (None, "high")])
def test_an_immutable_class_waits_for_the_next_workload(before: str | None, after: str | None) -> None:
    world = labelled(100, **({"priority_class": before} if before else {}))
    world.run()
    writes = len(world.writes)
    relabel(world, kueue.LABEL_PRIORITY_CLASS, after)
    world.run()
    assert not world.writes[writes:]
    assert phase(world) == "Running"
    world.evict()
    world.run()
    assert (world.workload["spec"].get("priorityClassRef") or {}).get("name") == after


def test_an_unreadable_class_changes_nothing() -> None:
    world = labelled(priority_class="low")
    world.run()
    writes = len(world.writes)
    relabel(world, kueue.LABEL_PRIORITY_CLASS, "unknown")
    world.run()
    assert not world.writes[writes:]
    assert phase(world) == "Running"


def test_a_job_keeps_running_while_admission_checks_hold_its_next_slice() -> None:
    """A job keeps running while admission checks hold its next slice, although Kueue has finished the former Workload,
    so that its quota is the slice's.
    """
    world = running(worker={"replicas": 2})
    before = dict(world.pods)
    world.checks = True
    world.edit({"worker": {"replicas": 4}})
    world.run()
    assert world.pods.keys() == before.keys()
    assert phase(world) == "Running"
    slice_ = world.workloads[-1]["metadata"]["name"]
    words = f"with 2 of 4 workers; Workload {slice_} waits. Admission check capacity is Pending: waits for nodes."
    assert world.condition("Queued")["message"].endswith(words)
    assert not is_true(world.workloads[-1], "PodsReady"), "it runs by the former Workload"
    world.edit({"worker": {"replicas": 6}})
    world.run()
    assert len(world.workloads) == 2, "a further slice waits for this one"
    world.edit({"worker": {"replicas": 4}})
    world.pass_checks()
    world.run()
    assert world.existing()["worker"] == 4
    assert before.keys() <= world.pods.keys()
    assert len(world.workloads) == 1


def test_an_obsolete_slice_held_by_admission_checks_is_not_waited_for() -> None:
    world = running(worker={"replicas": 2})
    world.checks = True
    world.edit({"worker": {"replicas": 4}})
    world.run()
    world.edit({"worker": {"replicas": 2}})
    world.run()
    assert world.with_quota()["worker"] == world.existing()["worker"] == 2


def test_a_worker_that_ends_while_a_slice_is_checked_costs_no_other_worker() -> None:
    world = running(worker={"replicas": 4}, successPolicy="AllWorkers")
    world.checks = True
    world.edit({"worker": {"replicas": 5}})
    world.run()
    world.end("worker", 1)
    world.run()
    world.edit({"worker": {"replicas": 4}})
    world.run()
    world.pass_checks()
    for _ in world.steps():
        assert not world.without_quota()
        assert world.existing()["worker"] == 3, "workers 0, 2 and 3 run"
    assert world.with_quota()["worker"] == 3


def test_a_slice_that_is_evicted_before_it_is_admitted_stops_the_job() -> None:
    world = running(worker={"replicas": 2})
    world.checks = True
    world.edit({"worker": {"replicas": 4}})
    world.run()
    world.evict("AdmissionCheck", "no nodes")
    world.quota = 0
    world.run()
    assert not world.pods
    assert not world.with_quota()
    assert phase(world) == "Queued"


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"worker": {"minReplicas": 1}}, "worker.minReplicas."),
        ({}, f"the label {kueue.LABEL_MAX_SECONDS}, the priority class."),
    ],
)
def test_a_running_job_reports_which_changes_wait(change: dict[str, Any], words: str) -> None:
    world = labelled()
    world.run()
    assert world.condition("Queued")["message"] == "ClusterQueue cq has admitted the job."
    if not change:
        relabel(world, kueue.LABEL_MAX_SECONDS, "60")
        relabel(world, kueue.LABEL_PRIORITY_CLASS, "high")
    world.edit(change)
    world.run()
    message = f"ClusterQueue cq has admitted the job. These changes wait until the job queues again: {words}"
    assert world.condition("Queued")["message"] == message
    assert phase(world) == "Running"


def test_a_missing_class_is_read_again() -> None:
    world = labelled(priority_class="missing")
    world.run()
    assert world.plan().requeue_at == world.now + LOOK_AGAIN
    world.classes = {**CLASSES, (Kind.WORKLOAD_PRIORITY_CLASS, "missing"): 3}
    world.run()
    assert world.workload["spec"]["priority"] == 3
    assert world.plan().requeue_at is None


def test_a_running_job_reads_its_new_class_again_and_reports_it() -> None:
    world = labelled(priority_class="low")
    world.run()
    relabel(world, kueue.LABEL_PRIORITY_CLASS, "missing")
    world.run()
    assert world.plan().requeue_at == world.now + LOOK_AGAIN
    words = "WorkloadPriorityClass missing does not exist or cannot be read: create it, or name another one."
    assert world.condition("Queued")["message"].endswith(f"has admitted the job. {words}")


def test_a_stopped_workload_of_a_changed_job_stays_stopped() -> None:
    """A stopped Workload of a changed job stays stopped, because a new one would run against the user's decision."""
    world = labelled(max_exec_time_seconds="60")
    world.run()
    uid = world.workload["metadata"]["uid"]
    relabel(world, kueue.LABEL_MAX_SECONDS, "90")
    world.stop_queue()
    world.run()
    assert phase(world) == "Queued"
    assert world.workload["metadata"]["uid"] == uid
    assert world.workload["spec"]["active"] is False
    assert world.workload["spec"]["maximumExecutionTimeSeconds"] == 90


@pytest.mark.parametrize(
    ("before", "after"), [("60", "90"), (None, "60"), *(("60", none) for none in (None, "soon", "0", "2147483648"))]
)
def test_the_time_limit_of_a_job_that_waits_is_corrected(before: str | None, after: str | None) -> None:
    world = labelled(0, **({"max_exec_time_seconds": before} if before else {}))
    world.run()
    uid = world.workload["metadata"]["uid"]
    relabel(world, kueue.LABEL_MAX_SECONDS, after)
    world.run()
    wanted = int(after) if after in ("60", "90") else None
    assert world.workload["spec"].get("maximumExecutionTimeSeconds") == wanted
    assert world.workload["metadata"]["uid"] == uid


def test_the_time_limit_of_a_running_job_applies_to_the_next_admission() -> None:
    world = labelled(max_exec_time_seconds="60")
    world.run()
    writes = len(world.writes)
    relabel(world, kueue.LABEL_MAX_SECONDS, "90")
    world.run()
    assert not world.writes[writes:]
    world.evict()
    world.run()
    assert world.workload["spec"]["maximumExecutionTimeSeconds"] == 90


def test_a_correction_keeps_fields_of_other_writers() -> None:
    world = waiting()
    world.workload["spec"]["active"] = False
    world.workload["metadata"]["annotations"]["example.com/note"] = "kept"
    world.touch(world.workload)
    world.edit({"worker": {"replicas": 3}})
    world.run()
    assert world.workload["spec"]["active"] is False
    assert world.workload["metadata"]["annotations"]["example.com/note"] == "kept"
    assert workers(world)["count"] == 3


def test_a_correction_requires_the_version_that_it_was_computed_from() -> None:
    world = waiting()
    world.edit({"worker": {"replicas": 3}})
    (action,) = [a for a in world.plan().actions if isinstance(a, Replace)]
    assert action.parts["/metadata/resourceVersion"] == world.workload["metadata"]["resourceVersion"]
