"""Jobs in a queue of Kueue, as docs/users/queues.md describes them: the real Kueue, real kubelets, scripted programs.

The invariant over the audit log is checked after each scenario: at no moment did pods of admitted jobs request more
than the quota.
"""

import json
import os
import signal
import time
from pathlib import Path

import pytest

from tests.e2e.conftest import cluster_command
from tests.support.examples import Example
from tests.support.kube import ApiError, Object, job_condition, wait_for
from tests.support.kueue_queues import (
    GROUP,
    MILLICORES,
    NAME,
    PRIORITY_LABEL,
    QUEUE_LABEL,
    History,
    Queue,
    condition_of,
    queued,
)
from tests.support.scripted_program import Puppet, fake_template, manifest
from tests.support.soak_marks import THOROUGH, in_all

pytestmark = [
    pytest.mark.cluster,
    pytest.mark.timeout(7200 if THOROUGH else 600),
    in_all("tests/unit/core/test_admission.py::test_no_pod_exists_before_the_admission"),
]

ROUNDS = 20 if THOROUGH else 3
"""How often a queue is drained and released."""
AWAY_SECONDS = 300 if THOROUGH else 5
"""Seconds without Kueue."""
JOBS = 200 if THOROUGH else 12
"""The jobs of one queue that compete by priority."""
PRIORITIES = 4


def condition(job: Puppet, kind: str) -> Object:
    return job_condition(job.job(), kind)


def holding(job: Puppet) -> list[Object]:
    """Return the pods of a job that hold resources."""
    return [pod for pod in job.pods() if pod["status"]["phase"] not in ("Succeeded", "Failed")]


def uids(job: Puppet, role: str = "") -> dict[str, str]:
    return {p["metadata"]["name"]: p["metadata"]["uid"] for p in job.pods(role)}


def test_the_second_job_has_no_pod_until_the_first_has_ended(queue: Queue, shared: Path) -> None:
    queue.room_for(3)
    first = queued(queue, "first", shared)
    first.wait_phase("Running")
    second = queued(queue, "second", shared)
    second.wait_phase("Queued")
    wait_for(lambda: "insufficient" in condition(second, "Queued")["message"], f"Kueue's words: {second.status()}")
    assert not second.pods()
    first.exit("chief-0", 0)
    first.wait_phase("Succeeded")
    wait_for(second.pods, "the second job starts")
    second.wait_phase("Running")
    (workload,) = queue.workloads("first")
    assert condition_of(workload, "Finished")["reason"] == "Succeeded"
    assert second.pods()[0]["spec"]["nodeSelector"]["kubernetes.io/os"] == "linux", "the flavor's label"


def test_fewer_workers_are_admitted_where_a_minimum_is_set(queue: Queue, shared: Path) -> None:
    queue.room_for(6)
    job = queued(queue, "partial", shared, worker={"replicas": 8, "minReplicas": 2})
    job.wait_phase("Running")
    wait_for(lambda: len(job.pods("worker")) == 4, "four of eight workers")
    assert "4 of 8 workers" in condition(job, "Queued")["message"]


def test_added_workers_come_with_a_slice_and_no_pod_is_changed(queue: Queue, shared: Path) -> None:
    queue.room_for(6)
    job = queued(queue, "elastic", shared, worker={"replicas": 4})
    job.wait_phase("Running")
    before = wait_for(lambda: uids(job) if len(job.pods()) == 6 else None, "six pods")
    queue.kube.merge("PSTrainingJob", queue.namespace, "elastic", {"spec": {"worker": {"replicas": 8}}})
    wait_for(lambda: len(queue.workloads("elastic")) == 2, "a slice waits")
    wait_for(lambda: "4 of 8 workers" in condition(job, "Queued")["message"], "the job reports it")
    assert len(job.pods("worker")) == 4
    queue.room_for(10)
    wait_for(lambda: len(job.pods("worker")) == 8, "eight workers")
    assert before.items() <= uids(job).items()
    wait_for(lambda: len(queue.workloads("elastic")) == 1, "the former slice is deleted")
    queue.kube.merge("PSTrainingJob", queue.namespace, "elastic", {"spec": {"worker": {"replicas": 2}}})
    wait_for(lambda: queue.used() == f"{MILLICORES * 4}m", "the quota of six workers is back", 90)
    assert job.phase() == "Running"


def test_a_slice_waits_for_its_admission_check_while_the_job_runs(queue: Queue, shared: Path) -> None:
    """The workers of a scale-up start once the check of their slice is ready; until then the job runs unchanged."""
    queue.require_check()
    queue.room_for(10)
    job = queued(queue, "checked", shared, worker={"replicas": 4})
    job.wait_phase("Queued")
    wait_for(lambda: f"Admission check {NAME} is Pending" in condition(job, "Queued")["message"], "the reason")
    assert not job.pods()
    queue.pass_check("checked", {"name": "worker", "annotations": {"checked": "once"}})
    job.wait_phase("Running")
    before = wait_for(lambda: uids(job) if len(job.pods()) == 6 else None, "six pods")
    queue.kube.merge("PSTrainingJob", queue.namespace, "checked", {"spec": {"worker": {"replicas": 8}}})
    wait_for(lambda: queue.used() == f"{MILLICORES * 10}m", "the slice has its quota")
    wait_for(lambda: "4 of 8 workers" in condition(job, "Queued")["message"], "the job reports that the slice waits")
    assert (uids(job), job.phase()) == (before, "Running")
    queue.pass_check("checked", {"name": "worker", "annotations": {"checked": "once"}})
    wait_for(lambda: len(job.pods("worker")) == 8, "eight workers")
    assert before.items() <= uids(job).items()
    assert {pod["metadata"]["annotations"]["checked"] for pod in job.pods("worker")} == {"once"}


def test_a_higher_priority_preempts_and_quota_is_free_when_the_last_pod_is_gone(queue: Queue, shared: Path) -> None:
    queue.room_for(3)
    low = queued(queue, "low", shared)
    low.wait_phase("Running")
    high = queued(queue, "high", shared, labels={QUEUE_LABEL: NAME, PRIORITY_LABEL: f"{NAME}-high"})
    high.wait_phase("Running", 120)
    low.wait_phase("Queued")
    assert sum(r["failures"] for r in low.status().get("replicaRecords", [])) == 0
    high.exit("chief-0", 0)
    low.wait_phase("Running")


def test_hold_drain_and_release(queue: Queue, shared: Path) -> None:
    queue.room_for(3)
    job = queued(queue, "held", shared)
    for _ in range(ROUNDS):
        job.wait_phase("Running")
        queue.stop("HoldAndDrain")
        job.wait_phase("Queued")
        wait_for(lambda: queue.used() == "0", "all quota is back")
        assert not job.pods()
        queue.stop("None")
    job.wait_phase("Running")
    assert sum(r["failures"] for r in job.status().get("replicaRecords", [])) == 0


def test_suspension_and_deletion_return_the_quota(queue: Queue, shared: Path) -> None:
    queue.room_for(3)
    job = queued(queue, "job", shared)
    job.wait_phase("Running")
    queue.kube.merge("PSTrainingJob", queue.namespace, "job", {"spec": {"runPolicy": {"suspend": True}}})
    job.wait_phase("Suspended")
    wait_for(lambda: queue.used() == "0" and not queue.workloads("job"), "suspension gives it back")
    queue.kube.merge("PSTrainingJob", queue.namespace, "job", {"spec": {"runPolicy": {"suspend": False}}})
    job.wait_phase("Running")
    queue.kube.delete("PSTrainingJob", queue.namespace, "job")
    wait_for(lambda: queue.used() == "0", "deletion gives it back", 90)


def test_training_resumes_at_the_step_at_which_it_was_evicted(queue: Queue, shared: Path) -> None:
    queue.room_for(400)
    spec = {"training": {"mode": "Sync"}}
    example = Example.start(queue.kube, queue.namespace, "digits", shared, spec, paced=True)
    queue.kube.merge("PSTrainingJob", queue.namespace, example.name, {"spec": {"runPolicy": {"suspend": True}}})
    stop = lambda: (example.job().get("status") or {}).get("phase") == "Suspended"  # noqa: E731
    wait_for(stop, "it is suspended, so that its label may change", 120)
    labels = {"metadata": {"labels": {QUEUE_LABEL: NAME}}, "spec": {"runPolicy": {"suspend": False}}}
    queue.kube.merge("PSTrainingJob", queue.namespace, example.name, labels)
    seen, worker = example.wait_trained(), example.pod("worker")
    queue.stop("HoldAndDrain")

    def is_queued() -> bool:
        nonlocal seen
        seen = max([seen, *steps(example, worker)])
        return str(example.job()["status"]["phase"]) == "Queued"

    wait_for(is_queued, "it is evicted", 120, every=0.2)
    queue.stop("None")
    restored = example.wait_event("restored")
    assert restored["step"] >= seen > 0, "no step is trained again"
    assert sum(example.failures(role) for role in ("ps", "worker", "chief")) == 0


def steps(example: Example, pod: str) -> list[int]:
    """Return the steps in a worker's log so far; none after the pod is deleted."""
    try:
        lines = example.kube.log(example.namespace, pod).splitlines()
    except ApiError:
        return []
    found = [json.loads(line) for line in lines if line.startswith('{"event"') and line.endswith("}")]
    return [int(event["step"]) for event in found if event["event"] == "worker"]


def test_a_job_that_ends_during_a_kueue_outage_returns_its_quota_later(queue: Queue, shared: Path) -> None:
    queue.room_for(3)
    first, second = queued(queue, "first", shared), queued(queue, "second", shared)
    wait_for(lambda: "Running" in (first.phase(), second.phase()), "one of them runs", 120)
    running, waiting = (first, second) if first.phase() == "Running" else (second, first)
    line = next(row.split() for row in cluster_command("status").splitlines() if row.startswith("kueue "))
    manager = int(line[1])
    os.kill(manager, signal.SIGSTOP)
    try:
        running.exit("chief-0", 0)
        running.wait_phase("Succeeded")
        wait_for(lambda: not holding(running), "its pods have ended")
        end = time.monotonic() + AWAY_SECONDS
        while time.monotonic() < end:
            assert not waiting.pods()
            time.sleep(1)
    finally:
        os.kill(manager, signal.SIGCONT)
    waiting.wait_phase("Running", 180)


def test_jobs_are_admitted_in_order_of_their_priority(queue: Queue, fake_nodes: int) -> None:
    """Jobs are admitted in the order of their priority. On fake nodes a chief's pod ends at once, so the jobs run in
    sequence.

    With Kueue's default BestEffortFIFO, a job may be admitted between the rejection of a job before it and its retry.
    """
    queue.change([{"op": "add", "path": "/spec/queueingStrategy", "value": "StrictFIFO"}])
    queue.stop("Hold")
    queue.room_for(3)
    history = History(queue.kube, queue.namespace)
    for value in range(PRIORITIES):
        body = {"apiVersion": "kueue.x-k8s.io/v1beta2", "kind": "WorkloadPriorityClass", "value": value}
        body["metadata"] = {"name": f"{NAME}-{value}"}
        queue.kube.request("POST", f"{GROUP}/workloadpriorityclasses", body)
    pod = fake_template()
    pod["spec"]["containers"][0]["resources"] = {"requests": {"cpu": f"{MILLICORES}m"}}
    for index in range(JOBS):
        made = manifest(queue.namespace, f"job-{index}")
        made["spec"]["worker"] = {"replicas": 1, "template": pod}
        made["metadata"]["labels"] = {QUEUE_LABEL: NAME, PRIORITY_LABEL: f"{NAME}-{index % PRIORITIES}"}
        queue.kube.create(made)
    wait_for(lambda: len(queue.all_workloads()) == JOBS, "all jobs wait", 120)
    queue.stop("None")
    ended = lambda: all((j.get("status") or {}).get("phase") == "Succeeded" for j in jobs(queue))  # noqa: E731
    wait_for(ended, "all jobs have ended", 30 * JOBS)
    admitted = history.admitted()
    assert len(admitted) == JOBS
    assert [priority for _, priority in admitted] == sorted((p for _, p in admitted), reverse=True)
    for value in range(PRIORITIES):
        queue.kube.request("DELETE", f"{GROUP}/workloadpriorityclasses/{NAME}-{value}")


def jobs(queue: Queue) -> list[Object]:
    return queue.kube.list("PSTrainingJob", queue.namespace)
