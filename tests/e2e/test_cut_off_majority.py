"""A majority of a shard's voters on a node that cannot reach the API server continues by itself, and acknowledged steps
are kept.
"""

import json
import os
from collections.abc import Callable, Iterator
from copy import deepcopy
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
import yaml

from localcluster import faults
from localcluster.layout import read_layout
from tests.e2e.test_nodes import HOME, OVERDUE
from tests.e2e.test_training_faults import SAFE
from tests.support.examples import ROOT, Example
from tests.support.hot_standby import ONE_SHARD, HotStandbyJob
from tests.support.kube import DeadlineError, Kube, Object, job_condition, wait_for
from tests.support.nodes import cut, moment
from tests.support.operator_process import OperatorProcess
from tests.support.soak_marks import THOROUGH, in_all

pytestmark = [pytest.mark.cluster, pytest.mark.trains, pytest.mark.alone]


MAY_TRAIN = "tests.pstraining.dev/may-train"
"""A label of the nodes for chief and workers; at first one node has it, so that all of them start there."""


@pytest.fixture
def one_node_trains(kube: Kube) -> Iterator[Callable[[str], None]]:
    """Label the node HOME; return the function that labels another node."""

    def label(node: str, value: str | None = "yes") -> None:
        kube.merge("Node", "", node, {"metadata": {"labels": {MAY_TRAIN: value}}})

    label(HOME)
    yield label
    for node in (HOME, SAFE):
        label(node, None)


def majority_at_home() -> Object:
    """Place the chief, the workers (the first is a witness) and the primary on one node, and only the standby on the
    other.

    Their successors may run there as well.
    """
    template = yaml.safe_load((ROOT / "examples" / "digits" / "job.yaml").read_text())["spec"]["worker"]["template"]
    at_home = deepcopy(template)
    at_home["spec"]["nodeSelector"] = {MAY_TRAIN: "yes"}
    return {**ONE_SHARD, "ps": {**ONE_SHARD["ps"], "template": template}, "worker": {"template": at_home}}


def island_log(namespace: str, pod: Object) -> list[dict[str, Any]]:
    """Return the events that a pod on the cut node has logged, read from the kubelet's file because the kubelet is
    unreachable.
    """
    metadata = pod["metadata"]
    folder = f"{namespace}_{metadata['name']}_{metadata['uid']}"
    path = read_layout(os.environ).node(HOME) / "pod-logs" / folder / "tensorflow" / "0.log"
    lines = (line.split(" ", 3)[3] for line in path.read_text().splitlines())
    return [json.loads(line) for line in lines if line.startswith('{"event"') and line.endswith("}")]


@in_all("tests/unit/core/test_node_loss.py::test_a_partition_that_may_continue_is_not_replaced")
@pytest.mark.parametrize("number", range(20 if THOROUGH else 1))
def test_a_partitioned_majority_is_neither_replaced_nor_forgotten(
    kube: Kube,
    own_operator: OperatorProcess,
    namespace: str,
    shared: Path,
    healed: None,
    one_node_trains: Callable[[str], None],
    capsys: pytest.CaptureFixture[str],
    number: int,
) -> None:
    """A partitioned majority is neither replaced nor forgotten while Kubernetes evicts its pods. A forced deletion
    would let a second chief start on the other side.
    """
    own_operator.start()
    watched = HotStandbyJob(Example.start(kube, namespace, "digits", shared, majority_at_home(), paced=True), shards=1)
    example = watched.example
    watched.wait_prepared()
    of_job = f"pstraining.dev/job-name={example.name}"
    pods = {pod["metadata"]["name"]: pod for pod in kube.list("Pod", namespace, of_job)}
    island = {name: pod for name, pod in pods.items() if pod["spec"]["nodeName"] == HOME}
    roles = sorted(pod["metadata"]["labels"]["pstraining.dev/role"] for pod in island.values())
    assert roles == ["chief", "ps", "worker", "worker"], "a majority: one of two members, and the witness"
    worker = next(p for n, p in island.items() if n.startswith(f"{example.name}-worker-0"))

    def newest_step() -> int:
        return max(int(e["step"]) for e in island_log(namespace, worker) if e["event"] == "worker")

    one_node_trains(SAFE)
    cut(kube, HOME)
    at_cut = newest_step()
    held = wait_for(
        lambda: running_message(example, "may continue training there"), "the operator holds the lost pods", 120
    )

    def overdue() -> bool:
        """Whether an operator without this rule would have replaced all of these pods."""
        now = [kube.get("Pod", namespace, name) for name in island]
        ends = [moment((pod or {})["metadata"]["deletionTimestamp"]) for pod in now if pod]
        return datetime.now(UTC) > max(ends) + timedelta(seconds=OVERDUE + 10)

    wait_for(overdue, "the evicted pods are overdue", 120)
    now = {pod["metadata"]["name"]: pod["metadata"]["uid"] for pod in kube.list("Pod", namespace, of_job)}
    assert {name: pod["metadata"]["uid"] for name, pod in pods.items()}.items() <= now.items(), held
    assert {name for name in now if "-ps-" in name or "-standby-" in name} <= pods.keys(), "no member's place is taken"
    chief = next(p for n, p in island.items() if "-chief-" in n)
    try:
        wait_for(lambda: newest_step() > at_cut + 20, "the majority acknowledges steps alone", 60)
    except DeadlineError as error:
        raise DeadlineError(f"{error}; its chief: {island_log(namespace, chief)[-20:]}") from None
    if [name for name in now if "-chief-" in name and name not in pods]:  # its Job ended with the eviction
        views = [e for e in example.events("chief", term=2) if e["event"] == "view"]
        assert not views, "the next chief has no quorum"

    faults.restore(HOME)
    acknowledged = newest_step()
    wait_for(lambda: example.pod("chief", term=2), "the next chief", 120)
    first = example.wait_event("worker", "worker", seconds=480)
    with capsys.disabled():
        print(f"\ncut off at step {at_cut}, acknowledged {acknowledged} alone, then {first['step']}")
    chiefs = example.events("chief", term=2)
    assert first["step"] > acknowledged, (example.pod("worker"), sorted(pods), example.events("worker")[:9], chiefs)
    assert not [e for e in chiefs if e["event"] == "initialized"]


def running_message(example: Example, words: str) -> str:
    """Return the message of the condition Running, once it contains these words."""
    found = job_condition(example.job(), "Running")
    return str(found["message"]) if words in found["message"] else ""
