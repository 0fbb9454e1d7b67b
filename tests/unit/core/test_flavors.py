"""Pods of an admitted job follow the flavors of its admission; a flavor that cannot be read holds new pods back."""

from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest

from pstraining.core.actions import Kind
from pstraining.core.policies.queueing import LOOK_AGAIN
from pstraining.core.snapshot import QueueObjects
from pstraining.resources import kueue
from tests.support.queued_world import queued, with_flavor
from tests.support.simulation import phase


def test_pods_get_the_labels_and_tolerations_of_their_flavor() -> None:
    toleration = {"key": "spot", "operator": "Exists"}
    world = with_flavor(queued(), {"nodeLabels": {"pool": "a"}, "tolerations": [toleration]})
    world.run()
    for (kind, _), child in world.children.items():
        if kind in ("StatefulSet", "Deployment", "Job"):
            spec = child["spec"]["template"]["spec"]
            assert spec["nodeSelector"]["pool"] == "a"
            assert toleration in spec["tolerations"]
            assert child["spec"]["template"]["metadata"]["labels"][kueue.LABEL_POD_SET]
    assert "pool" not in str(world.job), "the user's templates stay"
    writes = len(world.writes)
    world.reconcile()
    assert len(world.writes) == writes


def test_an_unreadable_flavor_delays_a_start_and_stops_no_job() -> None:
    world = with_flavor(queued(), {})
    known, world.objects = world.objects, QueueObjects()
    world.run()
    assert phase(world) == "Queued"
    assert {kind for kind, _ in world.children} == {"Workload"}
    assert "ResourceFlavor gpu" in world.condition("Queued")["message"]
    assert world.plan().requeue_at == world.now + LOOK_AGAIN
    world.objects = known
    world.run()
    assert phase(world) == "Running"
    world.objects = QueueObjects()
    del world.children["Deployment", "digits-worker-1"]
    world.run()
    assert "digits-worker-1" not in world.names_of("Deployment"), "it would miss the labels of its flavor"
    assert world.plan().requeue_at == world.now + LOOK_AGAIN
    assert world.existing()["ps"] == 1
    world.objects = known
    world.run()
    assert "digits-worker-1" in world.names_of("Deployment")


def test_without_its_flavor_a_running_job_only_creates_no_pods() -> None:
    world = with_flavor(queued(worker={"replicas": 3}), {})
    assert world.job is not None
    world.job["metadata"]["labels"][kueue.LABEL_PRIORITY_CLASS] = "high"
    world.objects = replace(world.objects, priorities={(Kind.WORKLOAD_PRIORITY_CLASS, "high"): 1})
    world.run()
    world.objects = replace(world.objects, flavors={})
    world.edit({"worker": {"replicas": 2}})
    world.end("chief", code=1)
    world.run()
    assert world.names_of("Deployment") == ["digits-worker-0", "digits-worker-1"]
    assert world.names_of("Job") == ["digits-chief-1"]
    assert "ResourceFlavor gpu" in world.condition("Queued")["message"]
    assert world.workload["spec"]["podSets"][1]["count"] == 2


def test_an_admission_that_contradicts_a_template_is_reported() -> None:
    template = {
        "spec": {"nodeSelector": {"pool": "b"}, "containers": [{"name": "tensorflow", "image": "i", "command": ["x"]}]}
    }
    world = with_flavor(queued(worker={"template": template}), {"nodeLabels": {"pool": "a"}})
    world.run()
    assert not world.pods
    assert "nodeSelector pool of pod set ps to a" in world.condition("Queued")["message"]


@pytest.mark.parametrize(
    ("updates", "words"),
    [
        ([{"nodeSelector": {"pool": "b"}}], "check-0 sets nodeSelector pool"),
        ([{"labels": {"a": "1"}}, {"labels": {"a": "2"}}], "check-1 sets labels a"),
        ([{"annotations": {"a": "1"}}, {"annotations": {"a": "2"}}], "check-1 sets annotations a"),
        ([{"nodeSelector": {"pool": "a"}}, {"labels": {"pool": "b"}}], ""),
    ],
)
def test_an_admission_that_contradicts_itself_is_reported(updates: list[dict[str, Any]], words: str) -> None:
    world = with_flavor(queued(), {"nodeLabels": {"pool": "a"}})
    world.checks = True
    world.reconcile()
    world.admit()
    world.workload["status"]["admissionChecks"] = [
        {"name": f"check-{i}", "state": "Pending", "podSetUpdates": [{"name": "worker", **update}]}
        for i, update in enumerate(updates)
    ]
    world.pass_checks()
    world.run()
    assert phase(world) == ("Queued" if words else "Running")
    assert bool(world.pods) == (not words)
    assert words in world.condition("Queued")["message"]


def test_pods_that_start_while_a_slice_is_checked_follow_the_admission_by_which_the_job_runs() -> None:
    world = with_flavor(queued(), {"nodeLabels": {"pool": "a"}})
    world.checks = True
    world.reconcile()
    world.admit()
    (check,) = world.workload["status"]["admissionChecks"]
    check["podSetUpdates"] = [{"name": "chief", "nodeSelector": {"provisioned": "yes"}}]
    world.pass_checks()
    world.run()
    world.edit({"worker": {"replicas": 4}})
    world.run()
    assert len(world.workloads) == 2, "the check of the slice is not ready"
    world.end("chief", code=1)
    world.run()
    world.now += timedelta(minutes=10)
    world.run()
    spec = world.children["Job", "digits-chief-2"]["spec"]["template"]["spec"]
    assert spec["nodeSelector"] == {"pool": "a", "provisioned": "yes"}
