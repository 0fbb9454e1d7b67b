"""Hot standbys on real kubelets, lost at random moments: the parameters are bit-equal to those of an undisturbed run.

The job has one shard, whose primary is the arbiter, and in the soak also two. PSTRAINING_KUBELET_LOSSES sets, for one
shard, the numbers of killed processes, killed containers and deleted pods.
"""

import os
import random
import time
from pathlib import Path

import numpy as np
import pytest
import yaml

from tests.e2e.test_hot_standby import delete, kill_container, kill_server
from tests.support.examples import ROOT, Example
from tests.support.hot_standby import SPEC, HotStandbyJob
from tests.support.kube import Kube, Object, wait_for
from tests.support.operator_process import OperatorProcess
from tests.support.soak_marks import THOROUGH, in_all, in_soak

pytestmark = [pytest.mark.alone, pytest.mark.cluster, pytest.mark.timeout(4 * 3600)]

NUMBERS = [
    int(number) for number in os.environ.get("PSTRAINING_KUBELET_LOSSES", "14,4,2" if THOROUGH else "2,1,1").split(",")
]
WAYS = (kill_server, kill_container, delete)
LONGEST, MEDIAN = 5.0, 1.5
"""Limits in seconds until the first step without a lost member; docs/users/standby.md has measured times."""

SEEDED = "import keras, runpy; keras.utils.set_random_seed(0); runpy.run_module('examples.digits', run_name='__main__')"
"""Seeds the example, which otherwise has other initial parameters in every run."""


def in_order(shards: int, **more: int) -> Object:
    """Return settings that make the parameters bit-equal in any order of gradients."""
    template = yaml.safe_load((ROOT / "examples" / "digits" / "job.yaml").read_text())["spec"]["worker"]["template"]
    template["spec"]["containers"][0]["command"] = ["python", "-c", SEEDED]
    return {
        **SPEC,
        "training": {**SPEC["training"], "orderedSums": True, **more},
        "ps": {**SPEC["ps"], "replicas": shards},
        "runPolicy": {"backoffLimit": 1000},
        "worker": {"template": template},
    }


def newest(example: Example) -> Path:
    return max(example.checkpoints.glob("ckpt-*/state.npz"))


def step_of(state: Path) -> int:
    return int(state.parent.name.split("-")[1])


@in_all("tests/e2e/test_hot_standby.py::test_no_single_loss_costs_a_step")  # four losses; `make soak` has 20
@pytest.mark.parametrize(("shards", "numbers"), [(1, NUMBERS), pytest.param(2, (14, 4, 2), marks=in_soak)])
def test_random_losses_do_not_change_the_result(
    kube: Kube,
    own_operator: OperatorProcess,
    namespace: str,
    shared: Path,
    shards: int,
    numbers: list[int],
    capsys: pytest.CaptureFixture[str],
) -> None:
    own_operator.start()
    seed = random.randrange(10**6)
    dice = random.Random(seed)
    losses = [way for way, number in zip(WAYS, numbers, strict=True) for _ in range(number)]
    dice.shuffle(losses)
    members = [f"digits-{role}-{index}" for role in ("ps", "standby") for index in range(shards)]
    watched = HotStandbyJob(Example.start(kube, namespace, "digits", shared, in_order(shards)), shards)
    stood: list[float] = []
    for number, lose in enumerate(losses):
        watched.wait_prepared()
        time.sleep(dice.random())  # a random moment
        struck, before = time.time(), len(watched.views())
        lose(watched.example, dice.choice(members))
        wait_for(lambda: watched.is_whole() and len(watched.views()) >= before + 2, "both are in sync", 120)  # noqa: B023
        stood.append(watched.standstills(struck)[0])
        with capsys.disabled():
            print(f"\n{number + 1}: {lose.__name__}: {stood[-1]:.2f} s", end="")
    watched.nothing_is_restored()
    kube.merge("PSTrainingJob", namespace, "digits", {"spec": {"runPolicy": {"suspend": True}}})
    wait_for(lambda: watched.condition("Suspended")["status"] == "True", "it is suspended", 120)
    killed = newest(watched.example)
    said = f"{np.median(stood):.2f} s (median), {max(stood):.2f} s (longest), {step_of(killed)} steps"
    with capsys.disabled():
        print(f"\n{len(losses)} losses, seed {seed}: workers continued after {said}")
    kube.delete("PSTrainingJob", namespace, "digits")
    wait_for(lambda: not kube.list("Pod", namespace), "it is gone", 120)

    with np.load(killed) as found, np.load(undisturbed(kube, own_operator, shared, shards, step_of(killed))) as wanted:
        assert sorted(found.files) == sorted(wanted.files)
        different = [name for name in wanted.files if found[name].tobytes() != wanted[name].tobytes()]
    assert not different, f"seed {seed}: not the same bit for bit: {different}"
    assert max(stood) <= LONGEST
    assert np.median(stood) <= MEDIAN


def undisturbed(kube: Kube, operator: OperatorProcess, shared: Path, shards: int, steps: int) -> Path:
    """Return the result of the same training with this number of steps, without standbys and losses."""
    operator.stop()
    with kube.namespace("e2e") as other:
        calm = OperatorProcess(operator.target, other, shared)
        calm.start()
        try:
            spec = {**in_order(shards, steps=steps), "ps": {"replicas": shards}}
            example = Example.start(kube, other, "digits", shared, spec)
            example.wait_succeeded(max(300, steps))
            found = newest(example)
        finally:
            calm.stop()
    assert step_of(found) == steps
    return found
