"""Hot standbys on real kubelets: whichever member of a shard is lost, the other one continues, and no step is lost.

The tests print the workers' standstills, and the time until the shard has both members again.
"""

import time
from collections.abc import Callable
from copy import deepcopy
from pathlib import Path

import pytest
import yaml

from localcluster import faults
from tests.e2e.test_nodes import HOME
from tests.e2e.test_resize import resize_servers
from tests.e2e.test_standby import evict, is_evicted
from tests.e2e.test_training_faults import SAFE
from tests.support.examples import ROOT, Example
from tests.support.hot_standby import ONE_SHARD, RESUME_SECONDS, SPEC, HotStandbyJob
from tests.support.kube import Kube, Object, wait_for
from tests.support.operator_process import OperatorProcess
from tests.support.soak_marks import ALL, THOROUGH, in_all, in_soak

pytestmark = [pytest.mark.cluster, pytest.mark.trains]

SERVER = r"launch\.py serve|examples\.digits"
WORKERS = 2 if ALL else 1
"""The tracing of functions for each possible loss takes most of the time. tests/e2e/test_training_faults.py has two
workers in Sync, and tests/training/test_runtime_pairs.py loses members of their servers.
"""


@pytest.fixture(
    params=[
        ("Sync", 1),
        pytest.param(
            ("Sync", 2),
            marks=in_soak,
        ),
        pytest.param(("Async", 2), marks=in_soak),
        pytest.param(
            ("Hybrid", 1),
            marks=in_all(
                "tests/training/test_runtime_hybrid_pairs.py::test_no_step_is_lost_torn_or_applied_twice_after_any_loss"
            ),
        ),
    ],
    ids=["Sync", "Sync-two-shards", "Async", "Hybrid"],
)
def watched(
    kube: Kube, own_operator: OperatorProcess, namespace: str, shared: Path, request: pytest.FixtureRequest
) -> HotStandbyJob:
    own_operator.start()
    mode, shards = request.param
    spec: Object = {**SPEC, "training": {**SPEC["training"], "mode": mode}, "worker": {"replicas": WORKERS}}
    spec["ps"] = {**SPEC["ps"], "replicas": shards}
    example = Example.start(kube, namespace, "digits", shared, spec, paced=True)
    found = HotStandbyJob(example, shards, WORKERS)
    found.wait_prepared()
    wait_for(lambda: found.summary() == found.all_in_sync, f"all standbys are in sync: {found.example.job()}", 180)
    return found


def kill_server(example: Example, pod: str) -> None:
    faults.kill_process(f"{example.namespace}/{pod}", SERVER)


def kill_container(example: Example, pod: str) -> None:
    faults.kill_container(f"{example.namespace}/{pod}")


def delete(example: Example, pod: str) -> None:
    example.kube.delete("Pod", example.namespace, pod)


def drain(example: Example, pod: str) -> None:
    evict(example, pod)
    assert not is_evicted(example, pod.replace("ps", "standby")), "the other member has to be in sync again first"


PLANNED = (delete, drain)
Loss = tuple[Callable[[Example, str], None], str, set[str]]
LOSSES: dict[int, list[Loss]] = {
    # Planned switchovers are covered where servers are resized, which happens earlier.
    1: [(kill_server, "digits-ps-0", {"not ready"}), *([(drain, "digits-ps-0", {"pod deleted"})] if ALL else [])],
    2: [(kill_server, "digits-ps-0", {"not ready"}), (drain, "digits-ps-1", {"pod deleted"})],
}
"""The losses by number of shards: the kind, the member, and the operator's report, which is empty for a standby."""
MORE: list[Loss] = [
    (delete, "digits-standby-1", set()),
    (kill_server, "digits-standby-0", set()),
    (kill_container, "digits-ps-1", {"not ready", "container ended with code 137"}),  # with any report of the kubelet
    (delete, "digits-ps-0", {"pod deleted"}),
]


@pytest.mark.timeout(1200)
@pytest.mark.minutes
def test_no_single_loss_costs_a_step(
    watched: HotStandbyJob, own_operator: OperatorProcess, capsys: pytest.CaptureFixture[str]
) -> None:
    """No single loss costs a step.

    The servers of the only shard are resized; then a member is lost, and the chief. `make test-all` loses both members,
    and one of them without an operator.
    """

    def say(what: str) -> None:
        with capsys.disabled():
            print(f"\n{what}")

    if watched.shard_count == 1:
        say(resize_servers(watched))
        watched.wait_prepared()
    for loss in [*LOSSES[watched.shard_count], *(MORE if THOROUGH else ())]:
        say(_a_member_is_lost(watched, *loss))
        watched.wait_prepared()
    if ALL:  # tests/training/test_runtime_hot.py has no operator at all
        say(_a_member_is_lost_while_no_operator_runs(watched, own_operator))
    _the_chief_is_lost(watched)


def _a_member_is_lost(watched: HotStandbyJob, lose: Callable[[Example, str], None], pod: str, causes: set[str]) -> str:
    example, shard, struck = watched.example, int(pod[-1]), time.time()
    before, taken = len(watched.views()), {s["index"]: s["takeovers"] for s in watched.shards()}
    lose(example, pod)
    degraded = wait_for(watched.degraded, "the loss is reported", 90, every=0.05)  # it passes soon
    assert pod in degraded, degraded
    wait_for(lambda: watched.is_whole() and len(watched.views()) >= before + 2, "both are in sync", 180)
    back = time.time() - struck
    wait_for(
        lambda: watched.summary() == watched.all_in_sync, f"the recovery is reported: {example.job()['status']}", 90
    )
    planned = watched.switched_over(struck)
    assert len(planned) == (lose in PLANNED), "a pod that is asked to end stays until a view excludes it"
    lost, returned = watched.standstills(struck)
    assert lost <= RESUME_SECONDS
    taken[shard] += bool(causes)
    assert {s["index"]: s["takeovers"] for s in watched.shards()} == taken
    assert not causes or watched.shards()[shard]["lastCause"] in causes
    assert watched.condition("Degraded")["status"] == "False"
    watched.nothing_is_restored()
    said = f"{lose.__name__} {pod}: workers continued after {lost:.2f} s; both members in sync after {back:.1f} s, "
    return said + f"for which training stood still for {returned:.2f} s"


def _a_member_is_lost_while_no_operator_runs(watched: HotStandbyJob, operator: OperatorProcess) -> str:
    operator.kill()
    struck, taken = time.time(), watched.shards()[0]["takeovers"]
    kill_server(watched.example, "digits-ps-0")
    lost = watched.standstill("lost", struck)
    operator.start()
    wait_for(watched.is_whole, "both are in sync", 180)
    wait_for(lambda: watched.summary() == watched.all_in_sync, "the state is reported afterwards", 90)
    assert watched.shards()[0]["takeovers"] in (taken, taken + 1), "the member may return between two observations"
    watched.nothing_is_restored()
    return f"no operator: workers continued after {lost:.2f} s"


@in_soak
def test_every_switchover_is_reported(kube: Kube, own_operator: OperatorProcess, namespace: str, shared: Path) -> None:
    """Every switchover is reported. A server that ends may do so before it has answered the chief that excludes it, as
    one of ten did.
    """
    own_operator.start()
    watched = HotStandbyJob(Example.start(kube, namespace, "digits", shared, ONE_SHARD, paced=True), shards=1)
    for number in range(24):
        watched.wait_prepared()
        wait_for(lambda: watched.is_whole() and watched.summary() == "1/1", "both are in sync", 60)
        _a_member_goes(watched, ("digits-ps-0", "digits-standby-0")[number % 2])
    watched.nothing_is_restored()


def _a_member_goes(watched: HotStandbyJob, pod: str) -> None:
    struck, before = time.time(), len(watched.views())
    delete(watched.example, pod)
    wait_for(lambda: len(watched.views()) > before, "the other one continues alone", 90)
    wait_for(lambda: watched.switched_over(struck), f"the switchover from {pod} is reported", 90)


def _the_chief_is_lost(watched: HotStandbyJob) -> None:
    example = watched.example
    example.kube.delete("Pod", example.namespace, example.pod("chief"))
    example.wait_event("view", "chief", term=2)
    step = watched.steps()[-1]["step"]
    wait_for(lambda: watched.steps()[-1]["step"] > step, "training continues", 180)
    reported = example.events("chief", term=2)
    assert not [e for e in reported if e["event"] in ("initialized", "restored")], "it finds the state"


def spec_of_two_nodes() -> Object:
    """Return a spec with the chief and the workers on one node, and a member of each shard on both nodes."""
    template = yaml.safe_load((ROOT / "examples" / "digits" / "job.yaml").read_text())["spec"]["worker"]["template"]
    pinned = deepcopy(template)
    pinned["spec"]["nodeSelector"] = {"kubernetes.io/hostname": SAFE}
    servers = {**SPEC["ps"], "template": template}
    return {**SPEC, "ps": servers, "worker": {"template": pinned}}


@in_soak
def test_the_majority_drops_an_unreachable_node_which_rejoins_later(
    kube: Kube,
    own_operator: OperatorProcess,
    namespace: str,
    shared: Path,
    healed: None,
    capsys: pytest.CaptureFixture[str],
) -> None:
    own_operator.start()
    watched = HotStandbyJob(Example.start(kube, namespace, "digits", shared, spec_of_two_nodes(), paced=True))
    watched.wait_prepared()
    before, struck = watched.pod_uids(), time.time()
    assert faults.cut(HOME)
    lost = watched.standstill("lost", struck)
    with capsys.disabled():
        print(f"\na node is cut: workers continued after {lost:.1f} s")
    faults.restore(HOME)
    wait_for(watched.is_whole, "its members follow again", 60)
    assert watched.pod_uids() == before, "they are the same processes"
    watched.nothing_is_restored()
    assert lost <= RESUME_SECONDS + 3
