"""Jobs that MultiKueue sends from one cluster to another: the operator's part in the manager and in the worker
cluster.
"""

from datetime import timedelta
from typing import Any

import pytest

from pstraining.api import names
from pstraining.api.conditions import Reason
from pstraining.controller.watch_state import WatchState
from pstraining.core.actions import Delete, Kind, Plan
from pstraining.core.policies.dispatching import STOP_SECONDS
from pstraining.core.policies.queueing import LOOK_AGAIN
from pstraining.resources import kueue
from pstraining.resources.installation import Installation, KueueSupport
from tests.support.builders import UID, stamp
from tests.support.copying import copied
from tests.support.kueue_webhook import is_true
from tests.support.queued_world import QueuedWorld, queued
from tests.support.simulation import phase


def dispatched(**spec: Any) -> QueuedWorld:
    """Return a job in the manager cluster, whose Workload has quota there."""
    world = queued(managedBy=names.MULTIKUEUE, **spec)
    world.run()
    return world


def reports(world: QueuedWorld, phase_: str, **status: Any) -> None:
    """Copy the status from the worker cluster, as Kueue does."""
    assert world.job is not None
    world.job["status"] = {"phase": phase_, **status}


def sent(**spec: Any) -> QueuedWorld:
    """Return the same job in the worker cluster, with the Workload that Kueue has sent."""
    original = dispatched(**spec).workload
    world = queued(**spec)
    assert world.job is not None
    world.job["metadata"]["annotations"] = {kueue.PREBUILT: original["metadata"]["name"]}
    metadata = {key: original["metadata"][key] for key in ("name", "namespace", "annotations")}
    metadata["labels"] = original["metadata"]["labels"] | {names.LABEL_JOB_UID: "uid-of-the-first-job"}
    found = {key: original[key] for key in ("apiVersion", "kind", "spec")} | {"metadata": {**metadata, "uid": "uid-0"}}
    world.children["Workload", metadata["name"]] = copied(found)
    world.touch(world.workload)
    return world


def test_the_manager_cluster_requests_quota_and_runs_nothing() -> None:
    world = dispatched()
    assert list(world.children) == [("Workload", world.workload["metadata"]["name"])]
    assert not world.pods
    assert world.job is not None
    assert not world.job.get("status"), "its status comes from the other cluster"
    assert kueue.ANNOTATION_ELASTIC not in world.workload["metadata"]["annotations"]


@pytest.mark.parametrize("support", [KueueSupport.OFF, KueueSupport.MISSING])
def test_without_kueue_nothing_happens(support: KueueSupport) -> None:
    world = queued(managedBy=names.MULTIKUEUE)
    world.installation = Installation(kueue=support)
    world.reconcile()
    assert not world.writes


def test_a_suspended_job_is_removed_from_the_worker_cluster() -> None:
    world = dispatched()
    world.edit({"runPolicy": {"suspend": True}})
    world.run()
    assert not world.children
    world.edit({"runPolicy": {"suspend": False}})
    world.run()
    assert world.with_quota()


def test_a_changed_job_is_dispatched_again() -> None:
    world = dispatched()
    before = world.workload["metadata"]["uid"]
    world.edit({"training": {"mode": "Sync"}})
    world.run()
    assert world.workload["metadata"]["uid"] != before
    assert world.with_quota()


def test_a_job_that_waits_is_corrected() -> None:
    world = queued(quota=0, managedBy=names.MULTIKUEUE)
    world.run()
    before = world.workload["metadata"]["uid"]
    world.edit({"worker": {"replicas": 3}})
    world.run()
    assert world.workload["metadata"]["uid"] == before
    assert {s["name"]: s["count"] for s in world.workload["spec"]["podSets"]}["worker"] == 3
    count = len(world.writes)
    world.reconcile()
    assert len(world.writes) == count


def test_an_evicted_job_returns_its_quota_once_stopped_in_the_worker_cluster() -> None:
    world = dispatched()
    reports(world, "Running")
    world.evict()
    plan = world.reconcile()
    assert world.with_quota()
    assert plan.requeue_at == world.now + timedelta(seconds=STOP_SECONDS)
    reports(world, "Queued")
    world.reconcile()
    assert not world.with_quota()
    conditions = {c["type"]: c for c in world.workload["status"]["conditions"]}
    assert conditions["QuotaReserved"]["message"] == "Preempted to accommodate a higher priority"
    assert (conditions["Requeued"]["status"], conditions["Requeued"]["reason"]) == ("True", "Preempted")


def test_a_return_of_quota_that_is_refused_is_not_repeated_at_once() -> None:
    """While Kueue's webhook does not answer, the operator tries again after 30 s, and not at once."""
    world = dispatched()
    world.evict()
    reports(world, "Queued")
    found = world.plan()
    assert [a.reason for a in found.actions] == [Reason.QUOTA_RETURNED]
    assert found.requeue_at is None


def test_a_lost_cluster_does_not_hold_the_quota() -> None:
    world = dispatched()
    reports(world, "Running")
    world.evict()
    world.now += timedelta(seconds=STOP_SECONDS)
    world.reconcile()
    assert not world.with_quota()


def test_the_end_is_left_to_kueue_and_the_ttl_is_not() -> None:
    world = dispatched(runPolicy={"ttlSecondsAfterFinished": 60})
    ended = {"type": "Succeeded", "status": "True", "reason": "ChiefSucceeded", "message": ""}
    ended["lastTransitionTime"] = stamp(world.now)
    reports(world, "Succeeded", conditions=[ended], completionTime=stamp(world.now))
    assert world.plan().requeue_at == world.now + timedelta(seconds=60)
    count = len(world.writes)
    world.reconcile()
    world.children.clear()
    world.reconcile()
    assert len(world.writes) == count
    world.now += timedelta(seconds=60)
    assert world.plan() == Plan((Delete(Kind.PS_TRAINING_JOB, "digits", UID, Reason.TTL_EXPIRED),))
    world.reconcile()
    assert world.job is None


def test_a_missing_priority_class_is_read_again() -> None:
    world = queued(managedBy=names.MULTIKUEUE)
    assert world.job is not None
    world.job["metadata"]["labels"][kueue.LABEL_PRIORITY_CLASS] = "missing"
    assert world.plan() == Plan((), world.now + LOOK_AGAIN)


def test_a_workload_finished_by_kueue_is_not_recreated() -> None:
    """A Workload that Kueue has finished is not recreated, because the news of the job's end may arrive later."""
    world = dispatched()
    world._set(world.workload, "Finished", True, "Succeeded", "")
    count = len(world.writes)
    world.reconcile()
    assert len(world.writes) == count


def test_the_worker_cluster_uses_the_dispatched_workload() -> None:
    world = sent()
    sent_labels = {**world.workload["metadata"]["labels"], kueue.LABEL_ORIGIN: "first"}
    world.workload["metadata"]["labels"] = sent_labels
    world.quota = 0
    world.run()
    assert phase(world) == "Queued"
    (owner,) = world.workload["metadata"]["ownerReferences"]
    assert world.job is not None
    uid, labels = world.job["metadata"]["uid"], world.workload["metadata"]["labels"]
    assert (owner["uid"], owner["controller"]) == (uid, True)
    assert labels == sent_labels | {names.LABEL_JOB_UID: uid, kueue.LABEL_JOB_UID: uid}
    assert not world.pods
    world.quota = 100
    world.run()
    assert phase(world) == "Running"
    world.end(names.CHIEF)
    world.run()
    assert is_true(world.workload, "Finished")
    assert phase(world) == "Succeeded"


def test_the_worker_cluster_creates_no_workload() -> None:
    world = sent()
    world.children.clear()
    world.run()
    assert not world.workloads
    assert "which MultiKueue sends with the job, does not exist" in world.condition("Queued")["message"]


def test_an_evicted_workload_that_was_dispatched_is_never_deleted() -> None:
    world = sent()
    world.run()
    uid = world.workload["metadata"]["uid"]
    assert world.job is not None
    world.job["metadata"]["labels"][kueue.LABEL_MAX_SECONDS] = "60"
    world.evict()
    world.quota = 0
    world.run()
    assert (world.workload["metadata"]["uid"], phase(world)) == (uid, "Queued")
    assert not world.with_quota()


@pytest.mark.parametrize("change", [{"worker": {"replicas": 3}}, {"ps": {"resources": {"requests": {"cpu": "2"}}}}])
def test_a_job_that_differs_from_the_dispatched_one_is_dispatched_again(change: dict[str, Any]) -> None:
    world = sent()
    world.run()
    world.edit(change)
    world.run()
    assert not world.pods
    (finished,) = [c for c in world.workload["status"]["conditions"] if c["type"] == "Finished"]
    assert (finished["status"], finished["reason"]) == ("True", "OutOfSync")
    assert finished["message"] == "The prebuilt workload is out of sync with its PSTrainingJob"


def test_a_workload_that_arrives_before_its_job_is_kept_for_it() -> None:
    """A Workload that arrives before its job is kept for it; it has the uid of the job in the manager cluster."""
    world = sent()
    assert world.job is not None
    world.workload["metadata"]["labels"][kueue.LABEL_ORIGIN] = "first"
    state = WatchState()
    assert list(state.receive(world.workload, "ADDED")) == [("default", "digits")]
    state.receive(world.job, "ADDED")
    (found,) = state.snapshot(("default", "digits")).of_kind(Kind.WORKLOAD)
    assert found.name == world.workload["metadata"]["name"]
    del world.workload["metadata"]["labels"][kueue.LABEL_ORIGIN]
    world.touch(world.workload)
    state.receive(world.workload, "MODIFIED")
    assert not state.snapshot(("default", "digits")).of_kind(Kind.WORKLOAD), "any user may write the label of a job"
