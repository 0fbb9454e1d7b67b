"""The state on the parameter servers for a new attempt of the chief, on real kubelets."""

from functools import partial
from pathlib import Path

import pytest

from tests.support.examples import Example
from tests.support.kube import Kube, wait_for
from tests.support.operator_process import OperatorProcess
from tests.support.scripted_program import Puppet
from tests.support.soak_marks import in_all, some

pytestmark = pytest.mark.cluster


def has_run(puppet: Puppet, task: str, times: int) -> bool:
    return puppet.runs(task) == times


@pytest.mark.parametrize(
    "policy",
    some(
        [None, "Keep"],
        lambda policy: policy is None,
        in_all("tests/e2e/test_chief_restart.py::test_a_plain_programs_variables_do_not_pile_up"),  # the default
    ),
)
def test_a_plain_programs_variables_do_not_pile_up(
    kube: Kube, own_operator: OperatorProcess, namespace: str, shared: Path, policy: str | None
) -> None:
    own_operator.start()
    servers = {"replicas": 2, **({"onChiefRestart": policy} if policy else {})}
    puppet = Puppet.make(kube, namespace, "job", shared, ps=servers, workers=1)
    for attempt in (1, 2, 3):
        wait_for(partial(has_run, puppet, "chief-0", attempt), f"attempt {attempt} of the chief runs")
        starts = 1 if policy == "Keep" else attempt
        assert puppet.runs("ps-0") == starts, "the servers were ready before the program began"
        assert puppet.runs("ps-1") == starts
        (chief,) = puppet.pods("chief")
        if attempt < 3:
            kube.delete("Pod", namespace, chief["metadata"]["name"])
    restarts = [s["restartCount"] for p in puppet.pods("ps") for s in p["status"]["containerStatuses"]]
    assert restarts == [0, 0], "in place, without a cost to other tasks"
    assert not [r for r in (puppet.job() or {})["status"]["replicaRecords"] if r["role"] == "ps"]


@in_all("tests/e2e/test_hot_standby.py::test_no_single_loss_costs_a_step")  # also loses a chief
@pytest.mark.trains
def test_the_runtimes_state_stays_where_it_is(
    kube: Kube, own_operator: OperatorProcess, namespace: str, shared: Path
) -> None:
    own_operator.start()
    example = Example.start(kube, namespace, "digits", shared, paced=True)
    example.wait_event("worker", "worker")
    kube.delete("Pod", namespace, example.pod("chief"))
    wait_for(lambda: example.job()["status"]["term"] == 2, "the next attempt")
    example.wait_event("checkpoint", term=2)
    reported = {e.get("event") for e in example.events("chief", term=2)}
    assert not reported & {"restored", "initialized"}, "the servers kept the state"
    assert "the server is started again" not in example.log("ps")
