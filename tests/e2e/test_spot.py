"""Primaries on a spot node and standbys on a reliable node: their placement, and the cost of the spot node's
reclaim.
"""

import time
from collections.abc import Callable
from copy import deepcopy
from pathlib import Path

import pytest
import yaml

from tests.e2e.test_nodes import HOME, cordoned
from tests.e2e.test_standby import evict
from tests.e2e.test_training_faults import SAFE
from tests.support.examples import ROOT, Example
from tests.support.hot_standby import ONE_SHARD, HotStandbyJob
from tests.support.kube import Kube, Object, wait_for
from tests.support.operator_process import OperatorProcess
from tests.support.scripted_program import Puppet, template
from tests.support.soak_marks import THOROUGH, in_all

pytestmark = [pytest.mark.cluster]

SPOT, RELIABLE = HOME, SAFE
PRIMARY = "digits-ps-0"
RECLAIM_MINUTES = 30
"""Minutes for which the soak reclaims the spot node, once a minute."""


def on(node: str) -> Object:
    return {"nodeSelector": {"kubernetes.io/hostname": node}}


def placed(found: Object, node: str) -> Object:
    """Return a pod template that selects this node."""
    pod = deepcopy(found)
    pod["spec"] |= on(node)
    return pod


def test_standbys_run_on_their_own_nodes(
    kube: Kube, own_operator: OperatorProcess, namespace: str, shared: Path
) -> None:
    own_operator.start()
    standby = {"mode": "Warm", "placement": on(RELIABLE)}
    ps = {"replicas": 2, "template": placed(template("spot"), SPOT), "standby": standby}
    puppet = Puppet.make(kube, namespace, "spot", shared, ps=ps, workers=1)

    def nodes() -> dict[str, str]:
        return {p["metadata"]["name"]: p["spec"].get("nodeName", "") for p in puppet.pods("ps")}

    members = (("ps", SPOT), ("standby", RELIABLE))
    expected = {f"spot-{kind}-{shard}": node for kind, node in members for shard in (0, 1)}
    wait_for(lambda: nodes() == expected, f"every member is on its node: {nodes()}", 60)


@pytest.mark.alone
@in_all("tests/e2e/test_hot_standby.py::test_no_single_loss_costs_a_step")  # a member is evicted there
def test_a_reclaimed_spot_node_costs_no_step(
    kube: Kube, own_operator: OperatorProcess, namespace: str, shared: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    own_operator.start()
    watched = HotStandbyJob(Example.start(kube, namespace, "digits", shared, on_spot_nodes(), paced=True), shards=1)
    watched.wait_prepared()
    wait_for(lambda: watched.is_whole() and watched.summary() == "1/1", "the standby is in sync", 180)
    before = pace(watched, lambda: time.sleep(30) if THOROUGH else None)

    def reclaims() -> None:
        until = time.time() + 60 * RECLAIM_MINUTES if THOROUGH else 0.0
        number = 0
        while number < 2 or time.time() < until:
            number += 1
            reclaim(watched)
            time.sleep(60 * THOROUGH)

    during = pace(watched, reclaims)
    watched.nothing_is_restored()
    with capsys.disabled():
        print(f"\nsteps a second while the spot node is reclaimed: {during:.1f}; undisturbed: {before:.1f}")
    if THOROUGH:
        assert during >= 0.8 * before


def on_spot_nodes() -> Object:
    """Return the spec of a job whose primary is on the spot node, and everything else on the reliable one."""
    found = yaml.safe_load((ROOT / "examples" / "digits" / "job.yaml").read_text())["spec"]["worker"]["template"]
    ps = {**ONE_SHARD["ps"], "template": placed(found, SPOT)}
    ps["standby"] = {**ps["standby"], "placement": on(RELIABLE)}
    reliable = {"template": placed(found, RELIABLE)}
    return {**ONE_SHARD, "ps": ps, "worker": reliable, "chief": reliable}


def reclaim(watched: HotStandbyJob) -> None:
    """Evict the spot node's pods with a notice, and return the node once the standby is the primary."""
    struck = time.time()
    with cordoned(watched.example.kube, SPOT):
        evict(watched.example, PRIMARY)
        wait_for(lambda: watched.switched_over(struck), "a switchover to the reliable node", 90)
        resumed = time.time()
        wait_for(lambda: watched.steps(0, resumed), "training continues without the spot node", 180)
        assert watched.views()[-1] == [["ps-1"]]
    wait_for(watched.is_whole, "the member on the spot node is in sync, and is the primary again", 300)
    wait_for(lambda: watched.summary() == "1/1", "the operator reports it", 60)


def pace(watched: HotStandbyJob, happens: Callable[[], None]) -> float:
    """Return a worker's steps per second while the block runs."""
    first = watched.steps()[-1]
    happens()
    last = wait_for(lambda: [s for s in watched.steps() if s["step"] > first["step"]], "a step", 60)[-1]
    return float((last["step"] - first["step"]) / (last["time"] - first["time"]))
