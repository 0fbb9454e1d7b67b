"""The notice to parameter servers of the chief's next attempt, in a simulated world."""

from typing import Any

import pytest

from pstraining.api import names
from tests.support.builders import job
from tests.support.cluster_maps import cluster_map
from tests.support.simulation import World, phase, running


def applied(world: World, since: int) -> list[tuple[str, str]]:
    return [(kind, name) for verb, kind, name in world.writes[since:] if verb == "Apply"]


def test_the_first_attempt_costs_nothing() -> None:
    world = running(ps={"replicas": 2})
    assert (cluster_map(world)["term"], cluster_map(world).get("onChiefRestart")) == (1, None)
    assert applied(world, 0) == []


@pytest.mark.parametrize("policy", [None, "Restart"])
def test_only_parameter_servers_are_informed_of_the_next_attempt(policy: str | None) -> None:
    world = running(ps={"replicas": 2, **({"onChiefRestart": policy} if policy else {})})
    since = len(world.writes)
    world.delete_pod("chief")
    world.settle()
    assert (cluster_map(world)["term"], cluster_map(world).get("onChiefRestart")) == (2, policy)
    assert applied(world, since) == [("ConfigMap", "digits"), ("Pod", "digits-ps-0"), ("Pod", "digits-ps-1")]
    since = len(world.writes)
    world.settle()
    assert world.writes[since:] == []


@pytest.mark.parametrize("spec", [{"ps": {"replicas": 2, "onChiefRestart": "Keep"}}, {"chief": {"enabled": False}}])
def test_a_new_attempt_without_consequences_changes_no_child(spec: dict[str, Any]) -> None:
    world = running(**spec)
    since = len(world.writes)
    world.delete_pod("chief")
    world.settle()
    assert cluster_map(world)["term"] == 1
    assert applied(world, since) == []


def test_later_children_get_the_newest_term() -> None:
    world = running(ps={"replicas": 2})
    world.edit({"runPolicy": {"suspend": True}})
    world.settle()
    world.edit({"runPolicy": {"suspend": False}})
    since = len(world.writes)
    world.settle()
    assert phase(world) == "Running"
    assert world.writes[since] == ("Apply", "ConfigMap", "digits"), "before the pods come that are to read it"
    assert applied(world, since) == [("ConfigMap", "digits")], "no pod has to be notified"
    hashes = {p["metadata"]["annotations"][names.ANNOTATION_CLUSTER_HASH] for p in world.pods.values()}
    assert len(hashes) == 2, "the term is for the parameter servers alone"


def test_an_operator_crash_before_the_next_attempt_does_not_change_the_term() -> None:
    world = running()
    world.delete_pod("chief")
    world.reconcile(stop_after=1)
    assert cluster_map(world)["term"] == 2
    assert world.names_of("Job") == ["digits-chief-1"]
    world.settle()
    assert cluster_map(world)["term"] == 2
    assert world.names_of("Job") == ["digits-chief-2"]


def test_the_messages_of_a_job_without_a_chief_name_worker_0() -> None:
    world = World(job(spec={"chief": {"enabled": False}}))
    world.reconcile()
    world.reconcile()
    assert world.condition("Running")["message"] == "Waiting for the parameter servers and worker 0."
    world.settle()
    assert world.condition("Running")["message"] == "Every parameter server is ready and worker 0 runs."
    world.delete_pod("worker")
    world.reconcile()
    assert world.condition("Restarting")["message"] == "Worker 0 is being restarted."
