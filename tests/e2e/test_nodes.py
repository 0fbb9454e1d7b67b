"""Nodes without a network whose pods keep running: the job's behavior during the partition and afterwards.

The operator runs on neither node. Its bounds begin when Kubernetes itself gives a node up.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from localcluster import faults
from tests.e2e.test_standby import pointer, progress, resumed, start
from tests.support.examples import Example
from tests.support.kube import Kube, Object, job_condition, wait_for
from tests.support.nodes import cut, moment, ready
from tests.support.operator_process import OperatorProcess
from tests.support.scripted_program import Puppet, template
from tests.support.soak_marks import in_all, in_soak

pytestmark = [pytest.mark.cluster, pytest.mark.alone]

HOME = "node-1"
"""The preferred node of pods."""
PREFERS_HOME = {
    "nodeAffinity": {
        "preferredDuringSchedulingIgnoredDuringExecution": [
            {
                "weight": 100,
                "preference": {
                    "matchExpressions": [{"key": "kubernetes.io/hostname", "operator": "In", "values": [HOME]}]
                },
            }
        ]
    }
}
OUT_OF_SERVICE = {"key": "node.kubernetes.io/out-of-service", "value": "nodeshutdown", "effect": "NoExecute"}
NODE_LOSS_SECONDS = 2
POD_GRACE, OVERDUE = 2, 5
"""The grace period of a scripted program's pod, and the time after it at which an operator without access to nodes
considers the pod lost.
"""
SLACK = 30
"""Seconds for two busy cores; the operator itself takes a tenth of a second, and the test prints the times."""


def at_home(name: str, *, volume: bool = False, **spec: Any) -> Object:
    """Return a job whose pods all prefer one node; with `volume` the parameter server's template has its own claim."""
    made = template(name)
    made["spec"]["affinity"] = PREFERS_HOME
    ps = {"replicas": 1} | ({"template": made} if volume else {})
    return {"worker": {"replicas": 1, "template": made}, "ps": ps, **spec}


def begun(kube: Kube, namespace: str, name: str, folder: Path, **spec: Any) -> Puppet:
    puppet = Puppet.make(kube, namespace, name, folder, **spec)
    puppet.wait_phase("Running")
    # A running pod may still be waiting for its parameter server's name, which cannot be resolved on an unreachable
    # node.
    wait_for(lambda: all(puppet.runs(f"{role}-0") for role in ("ps", "chief", "worker")), "all programs run")
    assert all(p["spec"]["nodeName"] == HOME for p in puppet.pods())
    return puppet


def test_chief_and_parameter_server_are_lost_together(
    kube: Kube,
    own_operator: OperatorProcess,
    namespace: str,
    shared: Path,
    healed: None,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Chief and parameter server are lost together.

    A second job, whose parameter server has a volume, waits until an administrator confirms the node's end.
    """
    own_operator.start()
    puppet = begun(kube, namespace, "moves", shared, **at_home("moves"))
    held = begun(kube, namespace, "waits", shared, **at_home("waits", volume=True))
    (old_chief,) = (p["metadata"]["name"] for p in puppet.pods("chief"))
    lost = cut(kube, HOME)

    def elsewhere(role: str) -> Object | None:
        found = [p for p in puppet.pods(role) if p["spec"].get("nodeName") not in (None, HOME)]
        return found[0] if found else None

    for role in ("ps", "chief", "worker"):
        made = wait_for(partial(elsewhere, role), f"another {role}", 60)
        took = (moment(made["metadata"]["creationTimestamp"]) - lost).total_seconds()
        with capsys.disabled():
            print(f"\nnode given up: the next {role} {took:.0f} s later")
        assert took <= NODE_LOSS_SECONDS + SLACK
    status = puppet.wait_phase("Running")["status"]
    assert (status["term"], status["ps"]["restarts"], status["chief"]["restarts"]) == (2, 1, 1)
    assert all(r["failures"] == 0 for r in status["replicaRecords"]), "no fault of the program's"

    events = [e for e in kube.list("Event", namespace) if e["regarding"]["name"] == "moves"]
    assert any(e["reason"] == "NodeLost" and f"Node {HOME} does not answer" in e["note"] for e in events)

    def reported() -> Object | None:
        found = job_condition(held.job(), "Running")
        return found if found["reason"] == "NodeLost" else None

    waits = wait_for(reported, f"why the other job waits: {held.job()}", 60)
    assert f"kubectl taint node {HOME} node.kubernetes.io/out-of-service" in waits["message"]
    assert kube.get("Pod", namespace, "waits-ps-0") is not None
    taints = (kube.get("Node", "", HOME) or {})["spec"]["taints"]
    kube.merge("Node", "", HOME, {"spec": {"taints": [*taints, OUT_OF_SERVICE]}})
    held.wait_phase("Running")

    # The former chief continues on the unreachable node, and succeeds there.
    puppet.exit(old_chief, 0)
    wait_for((puppet.orders / f"{old_chief}.done").exists, "it has ended")
    faults.restore(HOME)
    wait_for(lambda: ready(kube, HOME)["status"] == "True", f"{HOME} is back", 120)
    wait_for(lambda: not terminating(kube, namespace), "the lost pods are deleted", 90)
    assert puppet.phase() == "Running", "an old term's success counts no more"
    assert puppet.runs("chief-0") == 2
    puppet.exit("chief-0", 0)
    ended = puppet.wait_phase("Succeeded")["status"]
    assert (ended["term"], ended["ps"]["restarts"]) == (2, 1), "the healing has cost nothing"


def terminating(kube: Kube, namespace: str) -> list[Object]:
    return [p for p in kube.list("Pod", namespace) if p["metadata"].get("deletionTimestamp")]


@in_all("tests/e2e/test_nodes.py::test_chief_and_parameter_server_are_lost_together")  # with a standby
def test_a_standby_takes_over_when_its_primarys_node_is_lost(
    kube: Kube,
    own_operator: OperatorProcess,
    namespace: str,
    shared: Path,
    healed: None,
    capsys: pytest.CaptureFixture[str],
) -> None:
    own_operator.start()
    example = start(kube, namespace, shared, "Warm")
    service = f"{example.name}-ps-0"

    def primary() -> Object:
        found = kube.get("Pod", namespace, pointer(kube.get("Service", namespace, service)))
        assert found is not None
        return found

    chief = kube.get("Pod", namespace, example.pod("chief"))
    assert chief is not None
    if primary()["spec"]["nodeName"] == chief["spec"]["nodeName"]:
        move_primary(kube, example)
    node, first = primary()["spec"]["nodeName"], primary()["metadata"]["name"]
    assert node != chief["spec"]["nodeName"]
    epoch = int(example.job()["status"]["takeovers"])
    before = progress(example)
    lost = cut(kube, node)
    wait_for(lambda: pointer(kube.get("Service", namespace, service)) != first, "the pointer is flipped", 90)
    reported = wait_for(lambda: took_over(kube, namespace, epoch + 1), "a failover is reported", 90)
    took = (moment(reported["eventTime"]) - lost).total_seconds()
    again = wait_for(lambda: resumed(example, before), "training continues", 300, every=0.5)
    with capsys.disabled():
        print(f"\nnode given up: pointer {took:.1f} s later; {again}, of which 12 s are the node's grace")
    assert took <= NODE_LOSS_SECONDS + SLACK
    faults.restore(node)
    status = example.job()["status"]
    assert (status["takeovers"], status["term"]) == (epoch + 1, 1)
    assert example.failures("chief") == 0


@in_all("tests/e2e/test_nodes.py::test_chief_and_parameter_server_are_lost_together")  # without TensorFlow
def test_without_a_standby_the_parameter_server_of_a_lost_node_is_recreated_elsewhere(
    kube: Kube,
    own_operator: OperatorProcess,
    namespace: str,
    shared: Path,
    healed: None,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Without a standby, the parameter server of a lost node is recreated elsewhere: the baseline of the failover's
    measurement.
    """
    own_operator.start()
    example = start(kube, namespace, shared, "None")
    home = node_of(kube, example, "ps")
    if home == node_of(kube, example, "chief"):
        with cordoned(kube, home):
            kube.delete("Pod", namespace, example.pod("ps"))
            wait_for(lambda: node_of(kube, example, "ps") not in ("", home), "the parameter server is elsewhere", 60)
        wait_for(lambda: any(e.get("event") == "restored" for e in example.events("chief")), "training continues", 300)
    before = progress(example)
    lost = cut(kube, node_of(kube, example, "ps"))
    again = wait_for(lambda: resumed(example, before), "training continues", 300, every=0.5)
    made = kube.get("Pod", namespace, example.pod("ps"))
    assert made is not None
    took = (moment(made["metadata"]["creationTimestamp"]) - lost).total_seconds()
    with capsys.disabled():
        print(
            f"\nmode None, node given up: the next ps {took:.0f} s later; {again}, of which 12 s are the node's grace"
        )
    assert 0 <= took <= NODE_LOSS_SECONDS + SLACK
    assert example.job()["status"]["term"] == 1


def node_of(kube: Kube, example: Example, role: str) -> str:
    pod = kube.get("Pod", example.namespace, example.pod(role))
    return str((pod or {}).get("spec", {}).get("nodeName", ""))


@contextmanager
def cordoned(kube: Kube, node: str) -> Iterator[None]:
    kube.merge("Node", "", node, {"spec": {"unschedulable": True}})
    try:
        yield
    finally:
        kube.merge("Node", "", node, {"spec": {"unschedulable": None}})


@in_soak
def test_two_halves_heal_with_one_term_and_one_primary(
    kube: Kube,
    own_operator: OperatorProcess,
    namespace: str,
    shared: Path,
    healed: None,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """After a partition into halves, there is one term and one primary. The half without the API server has a running
    chief and primary; the operator has no right to read nodes.
    """
    own_operator.start(settings={"PSTRAINING_WATCH_NODES": "false"})
    warm = {"replicas": 2, "standby": {"mode": "Warm"}}
    puppet = Puppet.make(kube, namespace, "halves", shared, **{"ps": warm, "workers": 2})
    puppet.wait_phase("Running")
    wait_whole(puppet)

    def primaries() -> list[str]:
        return [pointer(kube.get("Service", namespace, f"halves-ps-{shard}")) for shard in range(2)]

    def place(pod: str) -> str:
        return str((kube.get("Pod", namespace, pod) or {})["spec"]["nodeName"])

    (chief,) = (p["metadata"]["name"] for p in puppet.pods("chief"))
    island = place(chief)
    if place(primaries()[0]) != island:
        ask_to_take_over(kube, namespace, "halves")
        wait_for(lambda: puppet.status()["takeovers"] == 1, "the planned take-over", 180)
        wait_whole(puppet)
    before, epochs = primaries(), puppet.status()["takeovers"]
    cut_off = [shard for shard in range(2) if place(before[shard]) == island]
    assert 0 in cut_off
    lost = cut(kube, island)
    made = wait_for(lambda: next((p for p in puppet.pods("chief") if p["metadata"]["name"] != chief), None), "term 2")
    took = (moment(made["metadata"]["creationTimestamp"]) - lost).total_seconds()
    with capsys.disabled():
        print(f"\nnode given up: without a view of nodes the next chief {took:.0f} s later")
    assert took <= NODE_LOSS_SECONDS + POD_GRACE + OVERDUE + SLACK
    puppet.wait_phase("Running")
    after = primaries()
    assert [shard for shard in range(2) if after[shard] != before[shard]] == cut_off
    assert all(place(name) != island for name in after)

    faults.restore(island)
    wait_for(lambda: ready(kube, island)["status"] == "True", f"{island} is back", 120)
    wait_for(lambda: not terminating(kube, namespace), "the lost pods are deleted", 90)
    wait_whole(puppet)
    assert primaries() == after
    assert [p["metadata"]["name"] for p in puppet.pods("chief")] == [made["metadata"]["name"]]
    wait_for(lambda: puppet.runs("chief-0") == 2, "the new chief's program runs", 60)
    puppet.exit("chief-0", 0)
    ended = puppet.wait_phase("Succeeded")["status"]
    assert (ended["term"], ended["takeovers"]) == (2, epochs + len(cut_off))
    assert all(r["failures"] == 0 for r in ended["replicaRecords"]), "no fault of the program's"


def wait_whole(puppet: Puppet) -> None:
    wait_for(lambda: puppet.status().get("standbySummary") == "2/2", f"all standbys are ready: {puppet.job()}", 90)


def ask_to_take_over(kube: Kube, namespace: str, name: str) -> None:
    """Request a switchover of shard 0 in its first epoch."""
    kube.merge("PSTrainingJob", namespace, name, {"metadata": {"annotations": {"pstraining.dev/takeover": "0@0"}}})


def move_primary(kube: Kube, example: Example) -> None:
    """Switch over, and wait until both members are ready again."""
    ask_to_take_over(kube, example.namespace, example.name)
    wait_for(lambda: example.job()["status"]["takeovers"] == 1, "the planned take-over", 180)
    wait_for(lambda: example.job()["status"].get("standbySummary") == "1/1", f"a standby again: {example.job()}", 300)
    wait_for(lambda: any(e.get("event") == "restored" for e in example.events("chief")), "training continues", 300)


def took_over(kube: Kube, namespace: str, count: int) -> Object | None:
    found = [e for e in kube.list("Event", namespace) if e["reason"] == "TookOver"]
    return max(found, key=lambda e: str(e["eventTime"])) if len(found) >= count else None
