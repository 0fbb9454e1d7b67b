"""A job's life on real kubelets, with scripted programs: replacement, budgets, success, suspension, writes."""

import json
import time
from functools import partial
from pathlib import Path

import pytest

from tests.support.api_proxy import ThreadedProxy
from tests.support.kube import Kube, Object, job_condition, wait_for
from tests.support.operator_process import OperatorProcess
from tests.support.scripted_program import Puppet
from tests.support.soak_marks import in_all

pytestmark = pytest.mark.cluster

TASKS = ("chief-0", "worker-0", "worker-1", "ps-0")
IDLE_SECONDS = 5
"""Seconds for which a running job is observed; its last report has been written for three seconds."""


@pytest.fixture
def running(kube: Kube, own_operator: OperatorProcess, namespace: str, shared: Path) -> Puppet:
    own_operator.start()
    puppet = Puppet.make(kube, namespace, "job", shared)
    puppet.wait_phase("Running")
    # The pods run; their launchers still wait for the PS before they start the programs.
    wait_for(lambda: all(puppet.runs(t) for t in TASKS), "every program runs")
    return puppet


def records(puppet: Puppet) -> dict[tuple[str, int], Object]:
    status = (puppet.job() or {}).get("status") or {}
    return {(r["role"], r["index"]): r for r in status.get("replicaRecords", [])}


def failures(puppet: Puppet, role: str, index: int = 0) -> int:
    return int(records(puppet).get((role, index), {}).get("failures", 0))


@in_all(
    "tests/e2e/test_completion.py::test_a_chief_completes_beside_a_container_that_never_ends"
)  # the next term follows
def test_a_bug_counts_as_a_failure_of_the_program(running: Puppet) -> None:
    running.exit("chief-0", 1)
    wait_for(lambda: failures(running, "chief") == 1, f"the chief's failure is counted: {running.job()}")
    wait_for(lambda: running.runs("chief-0") == 2, "the next term runs")
    status = running.wait_phase("Running")["status"]
    assert status["term"] == 2
    assert status["chief"]["lastFailure"]["exitCode"] == 1
    assert status["chief"]["lastFailure"]["message"] == "chief-0 was ordered to exit with 1"


@in_all("tests/e2e/test_training.py::test_plain_tensorflow_survives_a_lost_ps")  # a scripted program
def test_a_program_that_fails_with_its_ps_is_restarted_at_no_cost(
    kube: Kube, own_operator: OperatorProcess, namespace: str, shared: Path
) -> None:
    own_operator.start()
    puppet = Puppet.make(kube, namespace, "job", shared, workers=1)
    puppet.wait_phase("Running")
    for task in ("ps-0", "chief-0"):
        wait_for(partial(_has_run, puppet, task, 1), f"{task} runs")
    puppet.exit("ps-0", 1)
    wait_for(partial(_has_run, puppet, "ps-0", 2), "the PS is started again in place")
    puppet.exit("chief-0", 1)
    wait_for(partial(_has_run, puppet, "chief-0", 2), "the chief's program is run again")
    assert failures(puppet, "chief") == 0
    status = puppet.wait_phase("Running")["status"]
    assert status["term"] == 1, "in the same pod"
    puppet.exit("chief-0", 0)
    puppet.wait_phase("Succeeded")


@in_all(
    "tests/e2e/test_failures.py::test_disruptions_by_kubernetes_cost_no_budget_even_under_never"
)  # under another policy
def test_a_deleted_worker_is_replaced_and_a_failing_one_restarted(running: Puppet) -> None:
    wait_for(lambda: running.runs("worker-1") == 1, "worker 1 runs")
    running.exit("worker-1", 3)
    wait_for(lambda: running.runs("worker-1") == 2, "worker 1 is started again")
    wait_for(lambda: failures(running, "worker", 1) == 1, "its failure is counted")
    (pod,) = [p for p in running.pods("worker") if "worker-0" in p["metadata"]["name"]]
    running.kube.delete("Pod", running.namespace, pod["metadata"]["name"])
    wait_for(lambda: running.runs("worker-0") == 2, "worker 0 is replaced")
    assert failures(running, "worker", 0) == 0, "a deletion is not a failure"


def test_a_finished_worker_never_runs_again_even_without_the_operator(
    running: Puppet, own_operator: OperatorProcess
) -> None:
    own_operator.stop()
    running.exit("worker-1", 0)

    def idles() -> bool:
        pods = [p for p in running.pods("worker") if "worker-1" in p["metadata"]["name"]]
        statuses = [s for p in pods for s in p["status"].get("containerStatuses", ())]
        return any(s["restartCount"] == 1 and "running" in s["state"] for s in statuses)

    wait_for(idles, "the container is started again and idles")
    own_operator.start()

    def retired() -> bool:
        deployment = running.kube.get("Deployment", running.namespace, "job-worker-1")
        return deployment is not None and deployment["spec"]["replicas"] == 0

    wait_for(retired, "the worker's Deployment is scaled to 0")
    assert running.runs("worker-1") == 1

    wait_for(lambda: running.status().get("completedIndexes") == "1", "status has the success")
    running.kube.delete("Deployment", running.namespace, "job-worker-1")
    running.kube.merge("PSTrainingJob", running.namespace, "job", {"spec": {"replicas": 3}}, "scale")
    wait_for(lambda: running.kube.get("Deployment", running.namespace, "job-worker-2"), "the worker that was added")
    assert running.kube.get("Deployment", running.namespace, "job-worker-1") is None
    running.exit("chief-0", 0)
    status = running.wait_phase("Succeeded")["status"]
    assert status["worker"]["succeeded"] == 1
    assert running.runs("chief-0") == 1


@in_all("tests/e2e/test_bad_input.py::test_a_ps_that_never_starts")  # of a parameter server
def test_the_budget_ends_the_job_with_its_reason(
    kube: Kube, own_operator: OperatorProcess, namespace: str, shared: Path
) -> None:
    own_operator.start()
    puppet = Puppet.make(kube, namespace, "job", shared, runPolicy={"backoffLimit": 1})
    puppet.wait_phase("Running")
    for run in (1, 2):
        wait_for(partial(_has_run, puppet, "chief-0", run), f"run {run} of the chief")
        puppet.exit("chief-0", 9)
    job = puppet.wait_phase("Failed")
    failed = job_condition(job, "Failed")
    assert failed["reason"] == "BackoffLimitExceeded"
    assert "chief 0 failed 2 times" in failed["message"]
    wait_for(lambda: not puppet.pods("ps") and not puppet.pods("worker"), "the servers and workers are freed")


def _has_run(puppet: Puppet, task: str, times: int) -> bool:
    return puppet.runs(task) == times


@in_all("tests/e2e/test_tfjob.py::test_converted_tfjobs_run_to_the_documented_end")  # a TFJob without a chief
def test_without_a_chief_worker_zero_ends_the_job(
    kube: Kube, own_operator: OperatorProcess, namespace: str, shared: Path
) -> None:
    own_operator.start()
    puppet = Puppet.make(kube, namespace, "job", shared, workers=1, chief={"enabled": False})
    puppet.wait_phase("Running")
    puppet.exit("worker-0", 0)
    puppet.wait_phase("Succeeded")
    assert puppet.runs("worker-0") == 1


@in_all("tests/e2e/test_docs.py::test_changes")  # by commands
def test_suspend_frees_all_pods_and_resume_continues_training(running: Puppet) -> None:
    kube, namespace = running.kube, running.namespace
    kube.merge("PSTrainingJob", namespace, "job", {"spec": {"runPolicy": {"suspend": True}}})
    running.wait_phase("Suspended")
    wait_for(lambda: not kube.list("Pod", namespace), "no pod is left")
    kube.merge("PSTrainingJob", namespace, "job", {"spec": {"runPolicy": {"suspend": False}}})
    status = running.wait_phase("Running")["status"]
    assert status["term"] == 2
    assert status["restarts"] == 0
    running.exit("chief-0", 0)
    running.wait_phase("Succeeded")


@in_all(
    "tests/e2e/test_checkpoint_claims.py::test_a_claim_outlives_a_job_that_expires_and_serves_the_next_one"
)  # with a claim
def test_time_to_live_deletes_the_job(kube: Kube, own_operator: OperatorProcess, namespace: str, shared: Path) -> None:
    own_operator.start()
    puppet = Puppet.make(kube, namespace, "job", shared, runPolicy={"ttlSecondsAfterFinished": 2})
    puppet.exit("chief-0", 0)
    wait_for(lambda: puppet.job() is None, "the job has deleted itself", 240)


def _check_what_tasks_are_given(running: Puppet) -> None:
    """Demand a task's TF_CONFIG, and that the task has neither a token nor service variables."""
    cluster = {
        "chief": ["job-chief.job-hs:2222"],
        "worker": ["job-worker-0.job-hs:2222", "job-worker-1.job-hs:2222"],
        "ps": ["job-ps-0:2222"],
    }
    for task in TASKS:
        _, _, text = (running.orders / f"{task}.runs").read_text().splitlines()[0].partition(" ")
        role, index = task.split("-")
        assert json.loads(text) == {
            "cluster": cluster,
            "task": {"type": role, "index": int(index)},
            "environment": "cloud",
        }
    for pod in running.pods():
        assert pod["spec"]["automountServiceAccountToken"] is False
        assert pod["spec"]["enableServiceLinks"] is False
        mounts = [m["mountPath"] for c in pod["spec"]["containers"] for m in c.get("volumeMounts", ())]
        assert not any("serviceaccount" in m for m in mounts)


@pytest.mark.minutes
def test_every_task_gets_its_environment_and_workers_scale_both_ways(running: Puppet) -> None:
    _check_what_tasks_are_given(running)
    kube, namespace = running.kube, running.namespace
    uids = {p["metadata"]["uid"] for p in running.pods()}
    kube.merge("PSTrainingJob", namespace, "job", {"spec": {"replicas": 3}}, "scale")
    wait_for(lambda: running.runs("worker-2") == 1, "the third worker runs")
    assert {p["metadata"]["uid"] for p in running.pods()} > uids, "no other pod was touched"
    kube.merge("PSTrainingJob", namespace, "job", {"spec": {"replicas": 1}}, "scale")
    wait_for(lambda: len(running.pods("worker")) == 1, "one worker is left")
    found = kube.get("ConfigMap", namespace, "job")
    assert found is not None
    assert len(json.loads(found["data"]["cluster.json"])["cluster"]["worker"]) == 1


def _writes_nothing(proxy: ThreadedProxy, seconds: float) -> bool:
    """Whether the operator writes nothing during this time."""
    before = len(proxy.writes)
    time.sleep(seconds)
    return len(proxy.writes) == before


def test_the_writes_of_a_whole_life(
    kube: Kube, namespace: str, crd: None, tmp_path: Path, shared: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The writes of a whole life: one per created child, one per child that is scaled or deleted, and status and events
    only for transitions; while the job runs, none.
    """
    with ThreadedProxy(kube, tmp_path) as proxy:
        operator = OperatorProcess(proxy.target, namespace, tmp_path)
        operator.start()
        puppet = Puppet.make(kube, namespace, "job", shared)
        puppet.wait_phase("Running")
        wait_for(lambda: (puppet.job() or {})["status"]["worker"]["ready"] == 2, "both workers are ready")
        wait_for(partial(_writes_nothing, proxy, 3), "the last report is written", 60)
        assert _writes_nothing(proxy, IDLE_SECONDS), f"a running job was written to: {proxy.writes}"
        puppet.exit("chief-0", 0)
        puppet.wait_phase("Succeeded")
        wait_for(lambda: len(puppet.pods()) == 1, "all but the chief's pod is freed")
        wait_for(lambda: not kube.list("NetworkPolicy", namespace), "the NetworkPolicies are deleted after the pods")
        operator.stop()
    with capsys.disabled():
        print("\n" + "\n".join(f"{n:3} {m:6} {p}" for n, (m, p) in enumerate(proxy.writes, 1)))
    status = [p for _, p in proxy.writes if p.endswith("/status")]
    events = [p for _, p in proxy.writes if "/events" in p]
    children = [(m, p) for m, p in proxy.writes if not p.endswith("/status") and "/events" not in p]
    assert sum(m == "POST" for m, _ in children) == 9
    assert sum(m == "DELETE" for m, _ in children) == 8
    assert len(children) == 17, children
    reported = [e for e in kube.list("Event", namespace) if e["regarding"]["kind"] == "PSTrainingJob"]
    assert len(events) == len(reported)
    # Writes of one pass have the same time, so their order is not defined.
    assert sorted(e["reason"] for e in reported) == ["CheckpointNotDurable", "Created", "Running", "Succeeded"]
    # Created, PS ready, chief and two workers running in any order, Succeeded.
    assert len(status) <= 7, status
