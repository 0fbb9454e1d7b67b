"""The end of jobs on real kubelets: the roles whose success counts, time limits, and the pods that are kept."""

from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path

import pytest

from tests.support.kube import Kube, Object, job_condition, wait_for
from tests.support.operator_process import OperatorProcess
from tests.support.scripted_program import IMAGE, Puppet, template
from tests.support.soak_marks import in_all, in_soak

pytestmark = pytest.mark.cluster

KEPT_SECONDS = 90
"""Seconds for which a failed pod is kept; its container is started again and read within them, on busy cores too."""


@pytest.fixture
def begun(own_operator: OperatorProcess) -> OperatorProcess:
    own_operator.start()
    return own_operator


def has_run(puppet: Puppet, task: str, times: int = 1) -> bool:
    return puppet.runs(task) >= times


def test_all_workers_have_to_succeed(kube: Kube, begun: OperatorProcess, namespace: str, shared: Path) -> None:
    puppet = Puppet.make(kube, namespace, "all", shared, successPolicy="AllWorkers")
    puppet.wait_phase("Running")
    wait_for(partial(has_run, puppet, "worker-1"), "worker 1 runs")
    for task in ("chief-0", "worker-0"):
        puppet.exit(task, 0)
    wait_for(lambda: puppet.status()["worker"]["succeeded"] == 1, "worker 0's success is reported")
    wait_for(lambda: puppet.status()["chief"]["succeeded"] == 1, "the chief's success is reported")
    puppet.wait_phase("Running")
    assert puppet.runs("chief-0") == 1
    puppet.exit("worker-1", 0)
    puppet.wait_phase("Succeeded")
    assert job_condition(puppet.job(), "Succeeded")["reason"] == "AllWorkersSucceeded"
    assert [puppet.runs(t) for t in ("chief-0", "worker-0", "worker-1")] == [1, 1, 1]


@in_all("tests/e2e/test_checkpoint_claims.py::test_a_claim_is_kept_after_all_once_its_job_has_ended")  # by its deadline
def test_a_job_fails_at_its_deadline(kube: Kube, begun: OperatorProcess, namespace: str, shared: Path) -> None:
    """A job fails at its deadline and not earlier, and its pods are deleted."""
    puppet = Puppet.make(kube, namespace, "late", shared, workers=1, runPolicy={"activeDeadlineSeconds": 8})
    found = puppet.wait_phase("Failed")["status"]
    assert job_condition(puppet.job(), "Failed")["reason"] == "DeadlineExceeded"
    active = datetime.fromisoformat(found["completionTime"]) - datetime.fromisoformat(found["startTime"])
    assert timedelta(seconds=8) <= active <= timedelta(seconds=38), "half a minute for busy cores"
    wait_for(lambda: not kube.list("Pod", namespace), "its pods are deleted", 90)


@in_all("tests/e2e/test_completion.py::test_all_workers_have_to_succeed")  # with parameter servers
def test_only_the_failed_one_of_three_parameter_servers_is_kept(
    kube: Kube, begun: OperatorProcess, namespace: str, shared: Path
) -> None:
    keep = {"onFailure": "Failed", "keepFailedSeconds": KEPT_SECONDS}
    ps = {"replicas": 3, "restartPolicy": "Never"}
    puppet = Puppet.make(kube, namespace, "keeps", shared, ps=ps, runPolicy={"cleanPodPolicy": keep})
    puppet.wait_phase("Running")
    (failing,) = (p for p in puppet.pods("ps") if p["metadata"]["name"] == "keeps-ps-1")
    puppet.exit("ps-1", 7)
    found = puppet.wait_phase("Failed")["status"]
    assert found["failedReplica"] == "ps/1"
    assert "exit code 7" in job_condition(puppet.job(), "Failed")["message"]
    wait_for(lambda: len(kube.list("Pod", namespace)) == 1, f"one pod is left: {names(kube, namespace)}", 60)
    (left,) = kube.list("Pod", namespace)
    assert left["metadata"]["uid"] == failing["metadata"]["uid"], "it, and no successor of it"
    # The launcher idles in its restarted container.
    states = wait_for(lambda: idles(kube, namespace, "keeps-ps-1"), "it idles", KEPT_SECONDS)
    assert "was ordered to exit with 7" in kube.log(namespace, "keeps-ps-1", previous=True), states
    wait_for(lambda: not kube.list("Pod", namespace), "it is deleted after its retention")
    assert datetime.now(UTC) - datetime.fromisoformat(found["completionTime"]) >= timedelta(seconds=KEPT_SECONDS)
    assert not kube.list("StatefulSet", namespace)


def idles(kube: Kube, namespace: str, pod: str) -> list[Object]:
    said = kube.log(namespace, pod)
    states: list[Object] = (kube.get("Pod", namespace, pod) or {})["status"]["containerStatuses"]
    assert "Traceback" not in said, (said, states)
    return states if "idles until it is removed" in said else []


def names(kube: Kube, namespace: str) -> list[str]:
    return [p["metadata"]["name"] for p in kube.list("Pod", namespace)]


@in_all("tests/e2e/test_tfjob.py::test_converted_tfjobs_run_to_the_documented_end")  # one has an evaluator
def test_an_evaluator_beside_the_job(kube: Kube, begun: OperatorProcess, namespace: str, shared: Path) -> None:
    puppet = Puppet.make(kube, namespace, "judged", shared, workers=1, evaluator={"enabled": True})
    puppet.wait_phase("Running")
    wait_for(partial(has_run, puppet, "evaluator-0"), "the evaluator runs")
    config = (puppet.orders / "evaluator-0.runs").read_text()
    assert '"task": {"type": "evaluator", "index": 0}' in config
    wait_for(partial(has_run, puppet, "chief-0"), "the chief runs")
    chiefs = (puppet.orders / "chief-0.runs").read_text()
    assert "judged-evaluator" not in chiefs, "it is no part of the cluster that trains"
    puppet.exit("evaluator-0", 3)
    wait_for(partial(has_run, puppet, "evaluator-0", 2), "it is started again")
    puppet.exit("evaluator-0", 0)
    wait_for(lambda: puppet.status()["evaluator"]["succeeded"] == 1, "its success is reported")
    puppet.wait_phase("Running")
    assert puppet.status()["evaluatorAttempt"] == 2
    puppet.exit("chief-0", 0)
    puppet.wait_phase("Succeeded")
    wait_for(lambda: len(kube.list("Pod", namespace)) == 2, f"both logs are left: {names(kube, namespace)}", 60)
    assert sorted(p["metadata"]["labels"]["pstraining.dev/role"] for p in kube.list("Pod", namespace)) == [
        *("chief", "evaluator"),
    ]


@in_soak
def test_only_the_failures_of_the_window_count(
    kube: Kube, begun: OperatorProcess, namespace: str, shared: Path
) -> None:
    window = timedelta(seconds=40)  # the kubelet waits for 10 s before the third run
    backoff = {"limit": 1, "windowSeconds": int(window.total_seconds())}
    worker = {"replicas": 1, "template": template("window"), "backoff": backoff}
    puppet = Puppet.make(kube, namespace, "window", shared, worker=worker)
    wait_for(partial(has_run, puppet, "worker-0"), "worker 0 runs", 90)
    puppet.exit("worker-0", 1)
    wait_for(partial(has_run, puppet, "worker-0", 2), "it runs again")
    over = datetime.now(UTC) + window
    wait_for(lambda: datetime.now(UTC) > over, "its first failure is no more of the window's")
    puppet.exit("worker-0", 1)
    wait_for(partial(has_run, puppet, "worker-0", 3), "once in the window is allowed", 60)
    puppet.exit("worker-0", 1)
    puppet.wait_phase("Failed")
    assert job_condition(puppet.job(), "Failed")["reason"] == "BackoffLimitExceeded"


@in_all("tests/unit/core/test_budgets.py::test_a_worker_is_given_up_while_enough_remain")  # on kubelets
def test_a_worker_is_given_up(kube: Kube, begun: OperatorProcess, namespace: str, shared: Path) -> None:
    worker = {"replicas": 2, "template": template("fewer"), "restartPolicy": "Never", "minReplicas": 1}
    puppet = Puppet.make(kube, namespace, "fewer", shared, worker=worker)
    puppet.wait_phase("Running")
    wait_for(partial(has_run, puppet, "worker-1"), "worker 1 runs")
    puppet.exit("worker-1", 3)
    wait_for(lambda: any(r.get("givenUp") for r in puppet.status()["replicaRecords"]), "worker 1 is given up")
    wait_for(lambda: len(puppet.pods("worker")) == 1, "its pod is freed")
    puppet.wait_phase("Running")
    assert puppet.runs("worker-1") == 1
    puppet.exit("chief-0", 0)
    puppet.wait_phase("Succeeded")


def beside(name: str) -> Object:
    """Return the scripted program's template with a preceding container that never ends, as a proxy that admission
    injects.
    """
    found = template(name)
    shipper = {"name": "shipper", "image": IMAGE, "command": ["sleep", "infinity"]}
    found["spec"]["containers"] = [shipper, *found["spec"]["containers"]]
    return found


def has_stopped(kube: Kube, namespace: str, pod: Object) -> bool:
    found = kube.get("Pod", namespace, pod["metadata"]["name"])
    return found is None or found["metadata"]["uid"] != pod["metadata"]["uid"] or found["status"]["phase"] == "Failed"


def test_a_chief_completes_beside_a_container_that_never_ends(
    kube: Kube, begun: OperatorProcess, namespace: str, shared: Path
) -> None:
    """A chief completes beside a container that never ends. A failure leads to the next attempt, success ends the job,
    and the failed pod keeps its logs.
    """
    puppet = Puppet.make(kube, namespace, "beside", shared, workers=1, chief={"template": beside("beside")})
    puppet.wait_phase("Running")
    wait_for(partial(has_run, puppet, "chief-0"), "the chief's program runs")
    (first,) = puppet.pods("chief")
    puppet.exit("chief-0", 3)
    wait_for(partial(has_run, puppet, "chief-0", 2), "the next attempt runs", 60)
    assert puppet.status()["chief"]["restarts"] == 1
    wait_for(partial(has_stopped, kube, namespace, first), "the kubelet stops the other container", 60)
    puppet.wait_phase("Running")
    puppet.exit("chief-0", 0)
    puppet.wait_phase("Succeeded")
    assert puppet.runs("chief-0") == 2
