"""Hot standbys under larger losses: of the API server, of each node in turn, and of the chief's side of a partition.

The tests print what they measure.
"""

import json
import os
import signal
import subprocess
import time
from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest
import yaml

from localcluster import faults
from localcluster.layout import read_layout
from tests.e2e.conftest import cluster_command
from tests.e2e.test_hot_standby import SERVER
from tests.e2e.test_nodes import HOME, PREFERS_HOME
from tests.e2e.test_training_faults import ONE_ON_EACH_NODE, SAFE
from tests.support.examples import ROOT, Example
from tests.support.hot_standby import SPEC, HotStandbyJob
from tests.support.kube import Kube, Object, wait_for
from tests.support.nodes import cut, ready
from tests.support.operator_process import OperatorProcess
from tests.support.soak_marks import in_soak

pytestmark = [pytest.mark.alone, pytest.mark.cluster, in_soak, pytest.mark.timeout(1800)]

API_AWAY = float(os.environ.get("PSTRAINING_API_AWAY", "300"))
"""Seconds without an API server."""
NODE_LOSS_SECONDS = 2
NEXT_CHIEF = NODE_LOSS_SECONDS + 5.0
"""Seconds from Kubernetes' eviction of a node's pods to the next chief's pod; TensorFlow's start is added."""
STARTS = 25.0
"""Seconds in which a chief's program starts on two busy cores."""


def lease_seconds() -> float:
    """Return the servers' lease time; its module imports TensorFlow, which no other test of this folder needs."""
    from pstraining.runtime.ps.member import LEASE_SECONDS

    return LEASE_SECONDS


@pytest.fixture
def watched(kube: Kube, own_operator: OperatorProcess, namespace: str, shared: Path, healed: None) -> HotStandbyJob:
    own_operator.start()
    found = HotStandbyJob(Example.start(kube, namespace, "digits", shared, SPEC))
    found.wait_prepared()
    return found


def assert_in_sync(watched: HotStandbyJob, what: str) -> None:
    """Demand that both members are in sync, and that the status reports it."""
    wait_for(watched.is_whole, f"{what}: both members are in sync", 180)
    wait_for(lambda: watched.summary() == "2/2", f"{what}: it is reported: {watched.example.job()['status']}", 60)
    assert watched.condition("Degraded")["status"] != "True"


def test_a_standby_takes_over_during_an_api_server_outage_and_the_status_reports_it_later(
    watched: HotStandbyJob, capsys: pytest.CaptureFixture[str]
) -> None:
    taken = watched.shards()[0]["takeovers"]
    (server,) = faults.find_processes(f"{watched.example.namespace}/digits-ps-0", SERVER)
    with faults.without_api():
        struck = time.time()
        os.kill(server, signal.SIGKILL)
        time.sleep(API_AWAY)  # the fault
        over = time.time()
    lost = watched.standstill("lost", struck)
    assert watched.steps(0, over - 10), "training continued all the time"
    assert_in_sync(watched, "the API server is back")
    assert watched.shards()[0]["takeovers"] in (taken, taken + 1), "the member returned between two observations"
    watched.nothing_is_restored()
    assert watched.condition("Running")["status"] == "True"
    with capsys.disabled():
        print(f"\nno API server for {over - struck:.0f} s: workers continued after {lost:.2f} s")
    assert lost <= 5.0


def test_draining_every_node_in_turn(kube: Kube, watched: HotStandbyJob, capsys: pytest.CaptureFixture[str]) -> None:
    """kubectl drains every node in turn, with all of its pods, including the chief's, and no disruption budget is
    violated.
    """
    example, kubectl = watched.example, cluster_command("tool", "kubectl")
    assert_in_sync(watched, "at first")
    for node in (SAFE, HOME):
        pods_before, began, term = watched.pod_uids(), time.time(), int(example.job()["status"]["term"])
        last = watched.steps()[-1]["step"]
        drain = [kubectl, "--context", kube.target.context, "drain", node, "--timeout=240s", "--delete-emptydir-data"]
        environment = {**os.environ, "KUBECONFIG": kube.target.kubeconfig}
        reported = subprocess.run(
            [*drain, "--ignore-daemonsets"], check=False, env=environment, capture_output=True, text=True
        )
        assert reported.returncode == 0, reported.stdout + reported.stderr
        took = time.time() - began
        kube.merge("Node", "", node, {"spec": {"unschedulable": None}})
        assert_in_sync(watched, f"after {node}")
        assert len(set(pods_before.values()) & set(watched.pod_uids().values())) == 2, (
            "one member of each shard was moved"
        )
        newest = int(example.job()["status"]["term"])
        chief = example.events("chief", term=newest)
        assert newest == term or not [e for e in chief if e["event"] == "initialized"], "it finds the state"
        assert not [e for e in chief if e["event"] == "restored"], "not one step was lost"
        well = time.time()
        (went_on, *_) = wait_for(lambda: watched.steps(0, well), "training continues", 60)  # noqa: B023 - waited for here
        assert went_on["step"] >= last, "it continues where it was"
        with capsys.disabled():
            print(f"\n{node} drained in {took:.0f} s, terms {term} to {newest}")


def spec_of_sides(*, workers_apart: bool) -> Object:
    """Return a spec with the chief at home, a member of each shard on both nodes, and the workers elsewhere or one on
    each node.
    """
    template = yaml.safe_load((ROOT / "examples" / "digits" / "job.yaml").read_text())["spec"]["worker"]["template"]
    home, away, apart = deepcopy(template), deepcopy(template), deepcopy(template)
    home["spec"]["affinity"] = PREFERS_HOME
    away["spec"]["nodeSelector"] = {"kubernetes.io/hostname": SAFE}
    apart["spec"]["topologySpreadConstraints"] = ONE_ON_EACH_NODE
    return {
        **SPEC,
        "ps": {**SPEC["ps"], "template": template},
        "chief": {"template": home},
        "worker": {"template": apart if workers_apart else away},
        "runPolicy": {"nodeLossSeconds": NODE_LOSS_SECONDS},
    }


def begun(kube: Kube, namespace: str, shared: Path, spec: Object) -> HotStandbyJob:
    found = HotStandbyJob(Example.start(kube, namespace, "digits", shared, spec))
    found.wait_prepared()
    chief = kube.get("Pod", namespace, found.example.pod("chief"))
    assert chief is not None
    assert chief["spec"]["nodeName"] == HOME
    return found


def test_a_chief_on_the_minority_side_stops_and_its_successor_continues(
    kube: Kube,
    own_operator: OperatorProcess,
    namespace: str,
    shared: Path,
    healed: None,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """A chief on the minority side stops, and its successor continues. The chief and a member of each shard are cut
    off; the workers and the other members are the majority.
    """
    own_operator.start()
    watched = begun(kube, namespace, shared, spec_of_sides(workers_apart=False))
    example, struck = watched.example, time.time()
    lost = cut(kube, HOME).timestamp()
    went_on = example.wait_event("view", "chief", term=2)
    with capsys.disabled():
        after = went_on["time"] - lost
        print(f"\nits node given up {lost - struck:.0f} s after the cut: the next chief's view {after:.1f} s later")
    assert after <= NEXT_CHIEF + STARTS
    assert [len(own) for own in went_on["members"]] == [1, 1]
    gone = watched.steps(0, struck + lease_seconds() + 1)
    assert gone == [] or gone[0]["time"] >= went_on["time"], "nothing is acknowledged without a chief"
    wait_for(lambda: watched.steps(0, went_on["time"]), "training continues", 60)
    faults.restore(HOME)
    wait_for(lambda: ready(kube, HOME)["status"] == "True", f"{HOME} is back", 120)
    assert_in_sync(watched, "the node is back")
    reported = example.events("chief", term=2)
    assert not [e for e in reported if e["event"] in ("initialized", "restored")], "not one step is lost"
    assert example.job()["status"]["term"] == 2


def on_disk(node: str, namespace: str, pod: str) -> list[Any]:
    """Return the events in the log of a pod on an unreachable node, read from the kubelet's files."""
    folders = (read_layout(os.environ).node(node) / "pod-logs").glob(f"{namespace}_{pod}_*/*/*.log")
    lines = [line.split(" ", 3)[-1] for path in folders for line in path.read_text().splitlines()]
    return [json.loads(line) for line in lines if line.startswith('{"event"')]


def test_two_halves_never_both_continue(
    kube: Kube, own_operator: OperatorProcess, namespace: str, shared: Path, healed: None
) -> None:
    """Two halves never both continue: each side has a worker and a member of each shard, which are three of six votes
    and no majority.
    """
    own_operator.start()
    watched = begun(kube, namespace, shared, spec_of_sides(workers_apart=True))
    example, struck = watched.example, time.time()
    pods = [example.pod("worker", index) for index in (0, 1)]
    at_home = [(kube.get("Pod", namespace, pod) or {})["spec"]["nodeName"] == HOME for pod in pods]
    assert sorted(at_home) == [False, True]
    island, mainland = at_home.index(True), at_home.index(False)
    cut(kube, HOME)
    example.wait_event("waiting", "chief", term=2)
    late = struck + lease_seconds() + 1
    assert not [e for e in on_disk(HOME, namespace, pods[island]) if e["event"] == "worker" and e["time"] >= late]
    assert not watched.steps(mainland, late)
    assert not [e for e in example.events("chief", term=2) if e["event"] == "view"]
    last = max(e["step"] for e in on_disk(HOME, namespace, pods[island]) if e["event"] == "worker")
    faults.restore(HOME)
    wait_for(lambda: ready(kube, HOME)["status"] == "True", f"{HOME} is back", 120)
    assert_in_sync(watched, "the node is back")
    reported = example.events("chief", term=2)
    assert not [e for e in reported if e["event"] in ("initialized", "restored")], "not one step is lost"
    first = wait_for(lambda: watched.steps(mainland, late), "training continues", 60)[0]
    assert first["step"] >= last, "it continues where it was"
