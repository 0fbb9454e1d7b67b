"""Pods on unreachable nodes: those that count as lost, those that are deleted by force, and the training without
them.
"""

from datetime import datetime, timedelta
from typing import Any

import pytest

from pstraining.api import names
from pstraining.core.actions import Action, Delete
from pstraining.core.observe import observe
from pstraining.core.policies import node_loss
from pstraining.core.snapshot import Pod
from tests.support.builders import NOW, TEMPLATE, deep_merge, job, pod, stamp, typed
from tests.support.simulation import World, node, phase

GRACE = timedelta(seconds=30)
OVERDUE = GRACE + node_loss.OVERDUE
OUT = "node.kubernetes.io/out-of-service"
BY_TAINT, BY_USER = "DeletionByTaintManager", ""


def going(disruption: str, role: str = "ps", phase: str = "Running") -> dict[str, Any]:
    """Return a pod that has been terminating since NOW."""
    made = pod(role, phase=phase)
    made["metadata"] |= {"deletionTimestamp": stamp(NOW + GRACE), "deletionGracePeriodSeconds": 30}
    if disruption:
        made["status"]["conditions"].append({"type": "DisruptionTarget", "status": "True", "reason": disruption})
    return made


def seen(found: dict[str, Any], now: datetime, nodes: list[dict[str, Any]] | None) -> Pod:
    return node_loss.marked(observe(job(), (), [found], nodes), now).pods[0]


LOST = [
    # whether the pod is on node-1, the reason for its deletion, seconds since then, lost
    pytest.param([node("node-1")], BY_TAINT, OVERDUE, False, id="a node that is well ends it in its own time"),
    pytest.param([node("node-1", "Unknown")], BY_TAINT, timedelta(0), True, id="a node that does not answer"),
    pytest.param([node("node-1", "Unknown")], BY_USER, timedelta(0), True, id="whoever deleted it"),
    pytest.param([node("node-1", "False")], BY_TAINT, GRACE, False, id="a kubelet that answers has its time"),
    pytest.param([node("node-1", "False")], BY_USER, OVERDUE, True, id="but no more"),
    pytest.param([node("node-1", "True", OUT)], BY_USER, timedelta(0), True, id="somebody vouches for it"),
    pytest.param([], BY_USER, GRACE, False, id="its node may not have been seen yet"),
    pytest.param([], BY_USER, OVERDUE, True, id="its node is gone"),
    pytest.param(None, BY_TAINT, GRACE, False, id="nodes are not watched: in its time"),
    pytest.param(None, BY_TAINT, OVERDUE, True, id="nodes are not watched: overdue"),
    pytest.param(None, BY_USER, OVERDUE, False, id="nodes are not watched: nothing says that its node is lost"),
]


@pytest.mark.parametrize(("nodes", "disruption", "after", "lost"), LOST)
def test_which_pods_are_lost(nodes: list[dict[str, Any]] | None, disruption: str, after: timedelta, lost: bool) -> None:
    found = seen(going(disruption), NOW + after, nodes)
    assert (found.lost, found.over) == (lost, lost)


def test_an_ended_or_expected_pod_is_not_lost() -> None:
    nodes = [node("node-1", "Unknown")]
    assert not seen(going(BY_TAINT, phase="Failed"), NOW, nodes).lost
    assert not seen(pod("ps"), NOW, nodes).lost


def test_the_time_when_a_pod_is_overdue_is_known_in_advance() -> None:
    snapshot = observe(job(), (), [going(BY_TAINT)], None)
    assert node_loss.requeue_at(typed(job()), snapshot, NOW) == NOW + OVERDUE
    assert node_loss.requeue_at(typed(job()), snapshot, NOW + OVERDUE) is None


CLAIM = {"metadata": {"name": "data"}, "spec": {"accessModes": ["ReadWriteOnce"], "resources": {}}}
VOLUME = {"ps": {"volumeClaimTemplates": [CLAIM]}}
CHECKPOINT = {"checkpoint": {"volumeClaimTemplate": CLAIM["spec"]}}
ALLOWED = {"runPolicy": {"forceDeleteVolumes": True}}
UNKNOWN, VOUCHED = [node("node-1", "Unknown")], [node("node-1", "Unknown", OUT)]
SHARED = {"volumes": [{"name": "data", "persistentVolumeClaim": {"claimName": "data"}}]}
EPHEMERAL = {"volumes": [{"name": "data", "ephemeral": {"volumeClaimTemplate": {"spec": {}}}}]}


def in_template(role: str, volumes: dict[str, Any]) -> dict[str, Any]:
    return {role: {"template": deep_merge(TEMPLATE, {"spec": volumes})}}


HELD: list[tuple[str, dict[str, Any], list[dict[str, Any]] | None, bool]] = [
    ("ps", {}, UNKNOWN, False),
    ("ps", CHECKPOINT, UNKNOWN, False),
    ("ps", VOLUME, UNKNOWN, True),
    ("ps", VOLUME, None, True),
    ("ps", VOLUME, VOUCHED, False),
    ("ps", VOLUME, [], False),
    ("ps", VOLUME | ALLOWED, UNKNOWN, False),
    ("ps", VOLUME | ALLOWED, None, False),
    ("ps", in_template("worker", SHARED), UNKNOWN, False),
    ("ps", in_template("ps", SHARED), UNKNOWN, True),
    ("ps", in_template("worker", EPHEMERAL), UNKNOWN, True),
    ("chief", in_template("chief", SHARED), UNKNOWN, True),
    ("chief", {"checkpoint": {"volume": SHARED["volumes"][0]}}, UNKNOWN, True),
    ("chief", {"checkpoint": {"volume": {"nfs": {"server": "s", "path": "/"}}}}, UNKNOWN, False),
    ("chief", VOLUME, UNKNOWN, False),
    ("chief", CHECKPOINT, UNKNOWN, True),
    ("chief", {"checkpoint": {"uri": "s3://bucket/a"}}, UNKNOWN, False),  # the keys' terms fence its predecessor
    ("chief", CHECKPOINT | ALLOWED, UNKNOWN, False),
]


@pytest.mark.parametrize(("role", "spec", "nodes", "held"), HELD)
def test_pods_that_a_volume_holds(
    role: str, spec: dict[str, Any], nodes: list[dict[str, Any]] | None, held: bool
) -> None:
    made = job(spec=spec)
    snapshot = observe(made, (), [going(BY_TAINT, role)], nodes)
    assert node_loss.is_held(typed(made), snapshot, snapshot.pods[0]) is held


def two_nodes(**spec: Any) -> World:
    world = World(job(spec=spec), nodes={"node-0": "True", "node-1": "True"})
    world.settle()
    return world


def node_of(world: World, role: str) -> str:
    found = [p for p in world.pods.values() if p["metadata"]["labels"][names.LABEL_ROLE] == role]
    return str(max(found, key=lambda p: p["metadata"]["creationTimestamp"])["spec"]["nodeName"])


def forced(actions: tuple[Action, ...]) -> list[str]:
    return [a.name for a in actions if isinstance(a, Delete) and a.grace_seconds == 0]


def test_a_parameter_server_is_recreated_on_another_node() -> None:
    world = two_nodes()
    lost = node_of(world, "ps")
    world.cut(lost)
    world.settle()
    assert node_of(world, "ps") != lost
    assert phase(world) == "Running"
    assert world.job is not None
    assert world.job["status"]["ps"]["restarts"] == 1


def test_a_node_loss_is_reported_before_the_pods_deletion() -> None:
    world = two_nodes()
    world.cut(node_of(world, "ps"))
    assert forced(world.plan().actions) == []
    world.reconcile()
    assert "digits-ps-0" in forced(world.plan().actions)


def test_a_pod_with_a_volume_waits_for_its_node() -> None:
    world = two_nodes(**VOLUME)
    lost = node_of(world, "ps")
    world.cut(lost)
    world.settle()
    assert "digits-ps-0" in world.pods
    assert phase(world) == "Restarting"
    reported = world.condition("Running")
    assert reported["reason"] == "NodeLost"
    assert f"kubectl taint node {lost} {OUT}" in reported["message"]
    world.heal(lost)
    world.settle()
    assert phase(world) == "Running"


@pytest.mark.parametrize("checkpoint", [{}, CHECKPOINT], ids=["", "with a claim"])
def test_a_lost_chief_does_not_delay_the_next_term(checkpoint: dict[str, Any]) -> None:
    world = two_nodes(**checkpoint)
    lost = node_of(world, "chief")
    world.cut(lost)
    world.settle()
    assert world.job is not None
    assert (world.job["status"]["term"], node_of(world, "chief") != lost) == (2, True)
    assert world.names_of("Job") == ["digits-chief-2"]


def test_an_old_attempt_that_succeeds_on_its_lost_node_does_not_count() -> None:
    world = two_nodes(**CHECKPOINT)
    world.cut(node_of(world, "chief"))
    world.settle()
    world.end("chief", code=0, term=1)
    world.settle()
    assert phase(world) == "Running"
    world.end("chief", code=0, term=2)
    world.settle()
    assert phase(world) == "Succeeded"


def test_suspending_does_not_wait_for_a_lost_node() -> None:
    world = two_nodes(chief={"enabled": False})
    world.cut("node-0")
    world.edit({"runPolicy": {"suspend": True}})
    world.settle()
    assert phase(world) == "Suspended"
    world.edit({"runPolicy": {"suspend": False}})
    world.settle()
    assert phase(world) == "Running"


def test_a_force_deleted_pod_is_not_deleted_again() -> None:
    """A pod that was deleted by force is not deleted again: a chief's pod stays until the Job controller removes its
    finalizer.
    """
    world = two_nodes()
    world.cut(node_of(world, "chief"))
    world.reconcile()
    for _ in range(10):
        world.reconcile()
    names_of_writes = [n for kind, what, n in world.writes if kind == "Delete" and what == "Pod"]
    assert len(names_of_writes) == len(set(names_of_writes))


def test_a_standby_takes_over_from_a_lost_node() -> None:
    world = two_nodes(ps={"standby": {"mode": "Warm"}})
    primary = world.pods["digits-ps-0"]["spec"]["nodeName"]
    world.pods["digits-standby-0"]["spec"]["nodeName"] = next(n for n in ("node-0", "node-1") if n != primary)
    world.cut(primary)
    world.settle()
    assert world.job is not None
    shard = world.job["status"]["shards"][0]
    assert (shard["primary"], shard["lastCause"]) == ("digits-standby-0", "node lost")
    assert node_of(world, "ps") != primary, "the new standby is on a node that is well"


def test_an_unready_primary_on_an_unreachable_node_is_lost() -> None:
    """An unready primary on an unreachable node is lost: Kubernetes marks it not ready at once, and deletes it
    later.
    """
    world = two_nodes(ps={"standby": {"mode": "Warm"}})
    found = world.pods["digits-ps-0"]
    changed = stamp(world.now)
    found["status"]["conditions"] = [{"type": "Ready", "status": "False", "lastTransitionTime": changed}]
    found["status"]["containerStatuses"][0]["state"] = {"running": {"startedAt": stamp(NOW)}}
    assert world.nodes is not None
    world.nodes[found["spec"]["nodeName"]] = "Unknown"
    world.reconcile()
    world.reconcile()
    assert world.job is not None
    shard = world.job["status"]["shards"][0]
    assert (shard["primary"], shard["lastCause"]) == ("digits-standby-0", "node lost")


@pytest.mark.parametrize(("role", "runs"), [("ps", "False"), ("chief", "False"), ("worker", "True")])
def test_an_unreachable_node_is_reported_before_its_pods_are_deleted(role: str, runs: str) -> None:
    world = World(job(workers=2), nodes={"node-0": "True", "node-1": "True"})
    world.settle()
    for found in world.pods.values():
        mine = found["metadata"]["labels"][names.LABEL_ROLE] == role
        last = role != "worker" or found["metadata"]["labels"].get(names.LABEL_INDEX) == "1"
        found["spec"]["nodeName"] = "node-1" if mine and last else "node-0"
        if mine and last:
            found["status"]["conditions"] = [{"type": "Ready", "status": "False"}]
            name = found["metadata"]["name"]
    assert world.nodes is not None
    world.nodes["node-1"] = "Unknown"
    world.reconcile()
    reported = world.condition("Running")
    assert (reported["status"], reported["reason"]) == (runs, "NodeLost")
    assert f"Node node-1 does not answer: pod {name} " in reported["message"]
    assert ("training continues" in reported["message"]) == (runs == "True")
    world.nodes["node-1"] = "True"
    for found in world.pods.values():
        found["status"]["conditions"] = [{"type": "Ready", "status": "True"}]
    world.reconcile()
    assert world.condition("Running")["reason"] == "Training"


def test_a_replaced_pod_is_no_longer_reported() -> None:
    world = two_nodes()
    world.cut("node-1")
    world.settle()
    assert world.condition("Running")["reason"] == "Training"
    assert any(p["spec"]["nodeName"] == "node-1" for p in world.pods.values()), "a worker's pod hangs there"


@pytest.mark.parametrize("end", ["scaled away", "succeeded"])
def test_a_lost_surplus_worker_is_not_waited_for(end: str) -> None:
    world = World(job(workers=2), nodes={"node-0": "True", "node-1": "True"})
    world.settle()
    for found in world.pods.values():
        second = found["metadata"]["labels"].get(names.LABEL_INDEX) == "1"
        found["spec"]["nodeName"] = "node-1" if second else "node-0"
    if end == "succeeded":
        world.end("worker", 1)
        world.reconcile()
    else:
        world.edit({"worker": {"replicas": 1}})
    world.cut("node-1")
    world.settle()
    assert any(p["spec"]["nodeName"] == "node-1" for p in world.pods.values())
    assert world.condition("Running")["reason"] == "Training"


# With hot standbys, pods on unreachable nodes that may continue by themselves are not replaced.

HOT = {
    "ps": {"standby": {"mode": "Hot", "replicasPerShard": 1}},
    "training": {"mode": "Sync"},
    "worker": {"replicas": 3},
}


def spread(on_lost: set[str], **spec: Any) -> World:
    """Return a job with hot standbys; the named tasks are on node-1, which is then lost, the others on node-0."""
    world = World(job(workers=3, spec=deep_merge(HOT, spec)), nodes={"node-0": "True", "node-1": "True"})
    world.settle()
    for name, found in world.pods.items():
        mine = any(name.startswith(f"digits-{task}") for task in on_lost)
        found["spec"]["nodeName"] = "node-1" if mine else "node-0"
    world.cut("node-1")
    world.settle()
    return world


def later(world: World, nodes: list[dict[str, Any]] | None = None) -> list[str]:
    """Return the pods that are deleted by force once all nodes are known that were lost together."""
    world.now += timedelta(minutes=10)
    if nodes is None:
        return forced(world.plan().actions)
    assert world.job is not None
    snapshot = observe(world.job, list(world.children.values()), list(world.pods.values()), nodes)
    marked = node_loss.marked(snapshot, world.now)
    return [d.name for d in node_loss.force_deletions(typed(world.job), marked, world.now)]


@pytest.mark.parametrize(
    ("on_lost", "held"),
    [
        pytest.param({"chief", "ps-0", "worker-0", "worker-1"}, True, id="most voters"),
        pytest.param({"ps-0", "worker-0"}, False, id="few voters"),
        pytest.param({"ps-0", "standby-0"}, True, id="all members"),
        pytest.param({"ps-0"}, False, id="one member"),
        pytest.param({"chief", "ps-0"}, False, id="a chief votes not"),
    ],
)
def test_a_partition_that_may_continue_is_not_replaced(on_lost: set[str], held: bool) -> None:
    world = spread(on_lost)
    deleted = later(world)
    assert ("digits-ps-0" in deleted) is not held
    if held:
        assert deleted == []
        reported = world.condition("Running")
        assert (reported["reason"], "may continue training there" in reported["message"]) == ("NodeLost", True)
        assert f"kubectl taint node node-1 {OUT}" in reported["message"]
        for nodes in ([node("node-0")], [node("node-0"), node("node-1", "Unknown", OUT)]):
            assert "digits-ps-0" in later(world, nodes), "no process runs on a deleted or confirmed node"


def test_without_the_right_to_watch_nodes_such_a_pod_is_held() -> None:
    world = spread({"ps-0", "worker-0", "worker-1"})
    world.nodes = None
    assert later(world) == []


def test_nodes_that_are_lost_together_are_waited_for() -> None:
    """Nodes that are lost together are waited for: the node controller marks them in sequence, and the first one alone
    has few voters.
    """
    world = World(job(workers=3, spec=HOT), nodes={"node-0": "True", "node-1": "True", "node-2": "True"})
    world.settle()
    for name, found in world.pods.items():
        found["spec"]["nodeName"] = {"digits-ps-0": "node-1"}.get(name, "node-0")
    assert world.job is not None
    workers = [p for n, p in world.pods.items() if n.startswith(("digits-worker-0", "digits-worker-1"))]
    for found in workers:
        found["spec"]["nodeName"] = "node-2"
    world.cut("node-1")
    world.reconcile()
    since = world.now
    assert forced(world.plan().actions) == []
    due = world.plan().requeue_at
    assert due is not None
    assert due > since
    world.cut("node-2")
    world.reconcile()
    assert later(world) == []
