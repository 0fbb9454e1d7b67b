"""Reports and actions for pods on unreachable nodes."""

from dataclasses import replace
from datetime import timedelta

from pstraining.api import names
from pstraining.api.conditions import Reason
from pstraining.core.actions import Delete, Kind
from pstraining.core.observe import observe
from pstraining.core.policies import node_loss
from pstraining.core.policies.cut_off import TOGETHER
from pstraining.core.policies.diagnosis import Diagnosis
from pstraining.core.snapshot import Container, Node, Pod, Snapshot
from tests.support.builders import NOW, job, stamp, typed
from tests.support.simulation import node
from tests.support.snapshots import NODES, a_node, a_pod

HOT = typed(job(spec={"ps": {"replicas": 1, "standby": {"mode": "Hot"}}, "worker": {"replicas": 3}}))
PLAIN = typed(job(spec={"ps": {"replicas": 1}, "worker": {"replicas": 3}}))
CLAIM = {"metadata": {"name": "v"}, "spec": {"accessModes": ["ReadWriteOnce"]}}
CLAIMED = typed(job(spec={"ps": {"replicas": 1, "volumeClaimTemplates": [CLAIM]}}))
LOST = a_pod(names.PS, 0, "cut", lost=True, deleting=True, deleted_at=NOW)
STANDBY = a_pod(names.PS, 0, "other", member=1)
WORKERS = [a_pod(names.WORKER, index, "cut") for index in range(3)]
WAITS = "Node cut does not answer: pod ps-0 is replaced elsewhere unless the node is back in time."
IF_NOTHING_RUNS = (
    "If nothing runs on the node: `kubectl taint node cut node.kubernetes.io/out-of-service=nodeshutdown:NoExecute`"
)
HELD = (
    "Pod ps-0 is lost with its node cut and has a volume that no other node can mount before the node is back. "
    f"{IF_NOTHING_RUNS}, or set spec.runPolicy.forceDeleteVolumes for volumes that two nodes may mount."
)
GOES_ON = (
    "Pod ps-0 is lost with its node cut and may continue training there: nodes that do not answer hold most of the "
    "job's voters, or all of its state. It is replaced when they answer again, or are deleted. "
    f"{IF_NOTHING_RUNS}."
)


def test_the_time_in_a_nodes_condition_does_not_count() -> None:
    """It is that of the node controller's clock. In the operator's future it would hold the node's pods for longer."""
    found = node("node-0", "Unknown")
    found["status"]["conditions"][0]["lastTransitionTime"] = stamp(NOW)
    nodes = observe(job(), (), (), [found]).nodes
    assert nodes is not None
    assert nodes["node-0"].silent_since is None


def seen(*pods: Pod, nodes: dict[str, Node] | None = NODES) -> Snapshot:
    return Snapshot(job(), pods=pods, nodes=nodes)


def test_a_lost_pod_is_deleted_by_force_with_its_uid_once_it_can_do_no_damage() -> None:
    expected = [Delete(Kind.POD, "ps-0", "u", Reason.NODE_LOST, grace_seconds=0)]
    assert list(node_loss.force_deletions(PLAIN, seen(LOST), NOW)) == expected
    few, most = seen(LOST, STANDBY), seen(LOST, STANDBY, *WORKERS)
    assert list(node_loss.force_deletions(HOT, few, NOW)) == []
    assert list(node_loss.force_deletions(HOT, few, NOW + TOGETHER)) == expected
    assert list(node_loss.force_deletions(HOT, most, NOW + TOGETHER)) == []
    assert list(node_loss.force_deletions(CLAIMED, seen(LOST), NOW)) == []
    for other in (replace(LOST, lost=False), replace(LOST, forced=True), replace(LOST, role=names.WORKER)):
        assert list(node_loss.force_deletions(PLAIN, seen(other), NOW)) == []


def test_why_a_lost_pod_is_held() -> None:
    assert node_loss.why_held(CLAIMED, seen(LOST), LOST) == HELD
    assert node_loss.why_held(HOT, seen(LOST, STANDBY, *WORKERS), LOST) == GOES_ON
    assert node_loss.why_held(HOT, seen(LOST, STANDBY), LOST) == ""
    here = replace(LOST, lost=False)
    assert node_loss.why_held(CLAIMED, seen(here), here) == ""
    worker = replace(LOST, role=names.WORKER)
    assert node_loss.why_held(HOT, seen(worker), worker) == ""
    elsewhere = replace(LOST, node="other", silent=False)
    assert node_loss.why_held(HOT, seen(elsewhere, a_pod(names.PS, 0, "cut", member=1), *WORKERS), elsewhere) == ""


def test_the_first_held_pod_is_named_or_else_the_first_unreachable_one() -> None:
    silent = a_pod(names.PS, 0, "cut")
    assert node_loss.diagnose(CLAIMED, seen(LOST)) == Diagnosis(Reason.NODE_LOST, HELD, LOST)
    assert node_loss.diagnose(PLAIN, seen(silent)) == Diagnosis(Reason.NODE_LOST, WAITS, silent)
    assert node_loss.diagnose(CLAIMED, seen(LOST), [silent]) == Diagnosis(Reason.NODE_LOST, WAITS, silent)
    assert node_loss.diagnose(CLAIMED, seen(LOST), []) is None
    assert node_loss.diagnose(PLAIN, seen(STANDBY)) is None


def test_a_replaced_pod_is_not_named() -> None:
    successor = a_pod(names.PS, 0, "other")
    assert node_loss.diagnose(CLAIMED, seen(LOST, successor)) is None
    for none in (replace(successor, deleting=True), replace(successor, phase="Failed")):
        assert node_loss.diagnose(CLAIMED, seen(LOST, none)) == Diagnosis(Reason.NODE_LOST, HELD, LOST)
    waiting = replace(successor, container=Container())
    assert node_loss.diagnose(CLAIMED, seen(LOST, waiting)) == Diagnosis(Reason.NODE_LOST, HELD, LOST)
    silent = a_pod(names.PS, 0, "cut")
    assert node_loss.diagnose(PLAIN, seen(silent, waiting)) is None
    for none in (replace(waiting, deleting=True), replace(waiting, phase="Failed")):
        assert node_loss.diagnose(PLAIN, seen(silent, none)) == Diagnosis(Reason.NODE_LOST, WAITS, silent)
    assert node_loss.diagnose(CLAIMED, seen(replace(LOST, phase="Succeeded", silent=False))) is None


def test_training_pauses_while_a_lost_member_may_continue_elsewhere() -> None:
    assert node_loss.stands_still(HOT, seen(LOST, STANDBY, *WORKERS)) == Diagnosis(Reason.NODE_LOST, GOES_ON, LOST)
    assert node_loss.stands_still(HOT, seen(LOST, STANDBY)) is None
    assert node_loss.stands_still(HOT, seen(replace(LOST, lost=False), STANDBY, *WORKERS)) is None
    assert node_loss.stands_still(HOT, seen(STANDBY)) is None


def test_the_time_of_the_next_pass() -> None:
    ends, second = NOW + timedelta(seconds=30), timedelta(seconds=1)
    ending = replace(LOST, ends_at=ends, node="gone")
    overdue = ends + node_loss.OVERDUE
    assert node_loss.requeue_at(PLAIN, seen(ending), NOW) == overdue
    assert node_loss.requeue_at(PLAIN, seen(ending), overdue - second) == overdue
    assert node_loss.requeue_at(PLAIN, seen(ending), overdue) is None
    assert node_loss.requeue_at(PLAIN, seen(replace(ending, ends_at=None)), NOW) is None
    for never in (replace(ending, deleting=False), replace(ending, phase="Failed"), replace(ending, node="")):
        assert node_loss.requeue_at(PLAIN, seen(never), NOW) is None
    well = replace(ending, node="other")
    assert node_loss.requeue_at(PLAIN, seen(well), NOW) is None
    assert node_loss.requeue_at(HOT, seen(LOST), NOW) == NOW + TOGETHER
    tired = {"tired": a_node("tired", ready=False)}
    assert node_loss.requeue_at(PLAIN, seen(replace(ending, node="tired"), nodes=tired), NOW) == overdue
