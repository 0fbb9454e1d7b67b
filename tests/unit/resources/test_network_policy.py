"""The allowed connections between all pairs of pods of two jobs and of other pods, on every port that makes a
difference.
"""

from itertools import product
from typing import Any

import pytest

from pstraining.api import contract
from pstraining.core import desired_state
from pstraining.kube.write_order import stages
from pstraining.resources import network_policy, workloads
from pstraining.resources.launcher import LauncherMap
from tests.support.builders import LAUNCHER, job, typed
from tests.support.policies import Place, allowed
from tests.support.simulation import World, running

TRAINING_PORTS = range(2222, 2240)
PROTOCOLS = ("TCP", "UDP", "SCTP")


def two_jobs(isolation: str) -> tuple[list[dict[str, Any]], dict[str, list[Place]]]:
    """Return two jobs of one name in two namespaces: their policies, and the pods by job."""
    policies, pods = [], {}
    for namespace in ("team-a", "team-b"):
        manifest = job(ps=2, workers=2, spec={"network": {"isolation": isolation}})
        manifest["metadata"] |= {"namespace": namespace, "uid": f"uid-{namespace}"}
        made = typed(manifest)
        policy = network_policy.build(made)
        policies += [policy] if policy is not None else []
        children = [
            *desired_state.children(made, LauncherMap("l"), LAUNCHER),
            workloads.build_attempt(made, "chief", 1, LauncherMap("l")),
        ]
        templates = [c["spec"]["template"] for c in children if "template" in c.get("spec", {})]
        pods[namespace] = [Place(namespace, t["metadata"]["labels"]) for t in templates]
    # Other pods in the first job's namespace; one of them has the job's name as a label.
    pods["stranger"] = [
        Place("team-a", {"app": "notebook"}),
        Place("team-a", {"pstraining.dev/job-name": "digits", "pstraining.dev/role": "ps"}),
    ]
    # Pods with the second job's labels in the first one's namespace: a label alone allows nothing elsewhere.
    pods["thief"] = [Place("team-a", place.labels) for place in pods["team-b"]]
    return policies, pods


def expected(isolation: str, source: str, target: str, protocol: str, port: int) -> bool:
    if target not in ("team-a", "team-b") or isolation == "None" or source == target:
        return True
    return isolation == "Training" and not (protocol == "TCP" and port in TRAINING_PORTS)


@pytest.mark.parametrize("isolation", ["Training", "Full", "None"])
def test_every_pair_of_pods_on_every_port_near_the_edges(isolation: str) -> None:
    policies, pods = two_jobs(isolation)
    ports = (1, 22, 2221, *TRAINING_PORTS, 2240, 6006, 65535)
    seen = 0
    for (source, sources), (target, targets) in product(pods.items(), repeat=2):
        for a, b, protocol, port in product(sources, targets, PROTOCOLS, ports):
            seen += 1
            found = allowed(policies, a, b, protocol, port)
            assert found == expected(isolation, source, target, protocol, port), (a, b, protocol, port)
    assert seen > 10_000


@pytest.mark.parametrize("isolation", ["Training", "Full"])
def test_a_stranger_on_every_port_there_is(isolation: str) -> None:
    policies, pods = two_jobs(isolation)
    (stranger, _), own = pods["stranger"], pods["team-a"][0]
    closed = [p for p in range(1, 65536) if not allowed(policies, stranger, own, "TCP", p)]
    assert closed == list(TRAINING_PORTS if isolation == "Training" else range(1, 65536))


def test_the_ports_of_training_are_one_range() -> None:
    own = [contract.TF_PORT, contract.STATUS_PORT, *contract.RING_PORTS, contract.WITNESS_PORT]
    assert own == list(TRAINING_PORTS)


def policy(world: World) -> dict[str, Any]:
    return world.children["NetworkPolicy", "digits"]


def test_the_policy_follows_the_spec_while_the_job_runs() -> None:
    world = running()
    assert len(policy(world)["spec"]["ingress"]) == 2
    world.edit({"network": {"isolation": "Full"}})
    world.settle()
    assert len(policy(world)["spec"]["ingress"]) == 1
    world.edit({"network": {"isolation": "None"}})
    world.settle()
    assert world.names_of("NetworkPolicy") == []
    world.edit({"network": {"isolation": "Training"}})
    world.settle()
    assert len(policy(world)["spec"]["ingress"]) == 2
    assert [w for w in world.writes if w[1] == "Pod" or w[0] == "Delete"] == [("Delete", "NetworkPolicy", "digits")]


def test_a_deleted_or_changed_policy_is_restored() -> None:
    world = running()
    before = policy(world)["spec"]
    del world.children["NetworkPolicy", "digits"]
    world.settle()
    assert policy(world)["spec"] == before
    policy(world)["spec"]["podSelector"]["matchLabels"]["app"] = "none"
    policy(world)["spec"]["ingress"][0]["from"][0]["podSelector"]["matchLabels"]["more"] = "x"
    world.settle()
    assert policy(world)["spec"] == before


def test_the_policy_survives_a_suspension() -> None:
    world = running()
    uid = policy(world)["metadata"]["uid"]
    for suspend in (True, False):
        world.edit({"runPolicy": {"suspend": suspend}})
        world.settle()
        assert policy(world)["metadata"]["uid"] == uid


def test_at_the_end_the_policy_is_deleted_after_the_last_pod() -> None:
    world = running()
    world.lingering.add("ps")
    world.end("chief")
    world.settle()
    assert world.names_of("StatefulSet") == []
    assert world.names_of("NetworkPolicy") == ["digits"]
    world.gone("ps")
    world.settle()
    assert world.names_of("NetworkPolicy") == []


def test_the_policy_exists_before_any_container_can_start() -> None:
    """The policy precedes the cluster map, without which no container starts. Objects that are created together with
    the policy may overtake it.
    """
    actions = World(job()).plan().actions
    sent = [
        {actions[position].name for position in stage if actions[position].kind in ("NetworkPolicy", "ConfigMap")}
        for stage in stages(actions)
    ]
    assert [names for names in sent if names] == [{"digits"}, {"digits", "digits-launcher-v1"}]
