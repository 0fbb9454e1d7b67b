"""Kueue's CRDs are missing when the operator starts: jobs that run are kept as they are, and no other job starts."""

from typing import Any

import pytest

from pstraining.api.conditions import Reason
from pstraining.resources.installation import Installation, KueueSupport
from tests.support.queued_world import WITH_KUEUE, WithObjects, queued, with_flavor
from tests.support.simulation import phase

MISSING = Installation(kueue=KueueSupport.MISSING)


def running(quota: int = 100, **spec: Any) -> WithObjects:
    """Return a job that runs on nodes of a flavor."""
    world = with_flavor(queued(**spec), {"nodeLabels": {"pool": "a"}})
    world.quota = quota
    world.run()
    assert phase(world) == "Running"
    return world


def uninstall(world: WithObjects) -> dict[tuple[str, str], dict[str, Any]]:
    """Let another operator start without Kueue's CRDs, which takes the Workloads away; return them."""
    taken = {key: child for key, child in world.children.items() if key[0] == "Workload"}
    world.children = {key: child for key, child in world.children.items() if key not in taken}
    world.installation = MISSING
    return taken


def test_a_running_job_runs_on_and_reports_why_it_has_no_admission() -> None:
    world = running()
    uninstall(world)
    pods, writes = dict(world.pods), len(world.writes)
    world.run()
    assert (phase(world), world.pods, len(world.writes)) == ("Running", pods, writes)
    queued_condition = world.condition("Queued")
    assert (queued_condition["status"], queued_condition["reason"]) == ("False", Reason.KUEUE_NOT_INSTALLED)
    assert "install Kueue" in queued_condition["message"]
    assert [e.type for e in world.reported if e.reason == Reason.KUEUE_NOT_INSTALLED] == ["Warning"]


def test_the_job_continues_by_its_workload_if_that_is_served_again() -> None:
    world = running()
    taken, pods = uninstall(world), dict(world.pods)
    world.run()
    world.children |= taken
    world.installation = WITH_KUEUE
    world.run()
    assert (phase(world), world.pods) == ("Running", pods)
    assert world.condition("Queued")["reason"] == Reason.ADMITTED


def test_a_job_that_was_admitted_in_part_gets_no_further_workers() -> None:
    world = running(quota=6, worker={"replicas": 8, "minReplicas": 2})
    uninstall(world)
    world.run()
    assert world.existing()["worker"] == 4
    assert world.condition("Queued")["reason"] == Reason.KUEUE_NOT_INSTALLED


def test_the_job_that_runs_on_has_the_workers_that_were_created() -> None:
    world = running(quota=6, worker={"replicas": 8, "minReplicas": 2})
    uninstall(world)
    assert world.effective.spec.worker.replicas == 4
    world.children = {key: child for key, child in world.children.items() if key[0] != "Deployment"}
    assert world.effective.spec.worker.replicas == 8, "none was created yet"


def test_no_pod_is_created_that_would_lack_the_labels_of_its_flavor() -> None:
    world = running()
    uninstall(world)
    world.end("chief", code=1)
    del world.children["Deployment", "digits-worker-0"]
    world.run()
    assert world.names_of("Job") == ["digits-chief-1"]
    assert world.names_of("Deployment") == ["digits-worker-1"]


@pytest.mark.parametrize("by_user", [True, False])
def test_a_stop_is_completed_and_the_job_does_not_start_again(by_user: bool) -> None:
    world = running()
    world.lingering.add("chief")
    if by_user:
        world.edit({"runPolicy": {"suspend": True}})
    else:
        world.evict()
    world.reconcile()
    world.controllers()
    world.reconcile()
    assert phase(world) == "Stopping"
    uninstall(world)
    world.gone("chief")
    world.run()
    assert not world.pods
    world.edit({"runPolicy": {"suspend": False}})
    world.run()
    assert (phase(world), world.pods) == ("Queued", {})


def test_a_job_that_ends_meanwhile_is_cleaned_up() -> None:
    world = running()
    uninstall(world)
    world.end("chief")
    world.run()
    assert phase(world) == "Succeeded"
    assert not world.existing()


def test_more_parameter_servers_wait_and_training_goes_on() -> None:
    """They would have no quota. Without hot standbys, the chief would stop for them, and no other one would start."""
    world = running(ps={"replicas": 2}, worker={"replicas": 2})
    uninstall(world)
    pods = dict(world.pods)
    world.edit({"ps": {"replicas": 3}})
    world.run()
    assert (phase(world), world.pods) == ("Running", pods)
    assert "ps.replicas" in world.condition("Queued")["message"]
    assert world.job is not None
    assert not any(c["type"] == "Rescaling" for c in world.job["status"]["conditions"])


@pytest.mark.parametrize("role", ["ps", "worker"])
def test_no_pod_gets_more_resources(role: str) -> None:
    replicas: dict[str, Any] = {"ps": {"replicas": 1}, "worker": {"replicas": 1}}
    replicas[role]["resources"] = {"limits": {"cpu": "1"}, "requests": {"cpu": "1"}}
    world = running(**replicas)
    uninstall(world)
    world.installation = Installation(kueue=KueueSupport.MISSING, resizes_pods=True)
    pods = dict(world.pods)
    world.edit({role: {**replicas[role], "resources": {"limits": {"cpu": "2"}, "requests": {"cpu": "2"}}}})
    writes = len(world.writes)
    world.run()
    assert (phase(world), world.pods) == ("Running", pods)
    assert len(world.writes) == writes


def test_changes_that_waited_let_the_job_queue_again_once_kueue_is_back() -> None:
    world = running(ps={"replicas": 2}, worker={"replicas": 2})
    taken = uninstall(world)
    world.edit({"ps": {"replicas": 3}})
    world.run()
    world.children |= taken
    world.installation = WITH_KUEUE
    world.run()
    assert (phase(world), world.existing()["ps"], world.without_quota()) == ("Running", 3, {})


def test_another_template_of_hot_standbys_waits() -> None:
    world = running(ps={"replicas": 1, "standby": {"mode": "Hot"}}, training={"mode": "Sync"})
    uninstall(world)
    writes = len(world.writes)
    world.edit({"ps": {"template": {"spec": {"containers": [{"name": "tensorflow", "image": "img:2"}]}}}})
    world.run()
    assert len(world.writes) == writes
    assert world.job is not None
    assert not any(c["type"] == "Updating" for c in world.job["status"]["conditions"])
    assert "ps.template" in world.condition("Queued")["message"]
