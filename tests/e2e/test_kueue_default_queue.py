"""Jobs without a queue, beside the real Kueue: in a namespace with a default queue, and without one."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.e2e.conftest import cluster_command
from tests.support.kueue_queues import GROUP, NAME, QUEUE_LABEL, Queue, job_of, queued
from tests.support.soak_marks import in_all

pytestmark = [
    pytest.mark.cluster,
    in_all(
        "tests/unit/core/test_default_queue.py::test_a_job_without_a_queue_gets_the_default_queue_before_it_has_pods"
    ),
]


@pytest.fixture
def all_jobs(kueue: None) -> Iterator[None]:
    """Let Kueue manage jobs without a queue name (manageJobsWithoutQueueName)."""
    cluster_command("kueue", "up", "--all-jobs")
    yield
    cluster_command("kueue", "up")


def test_a_job_without_a_queue_waits_in_the_default_queue(queue: Queue, shared: Path) -> None:
    spec = {"clusterQueue": NAME}
    body = {"apiVersion": "kueue.x-k8s.io/v1beta2", "kind": "LocalQueue", "metadata": {"name": "default"}, "spec": spec}
    queue.kube.request("POST", f"{GROUP}/namespaces/{queue.namespace}/localqueues", body)
    job = queued(queue, "plain", shared, labels={})
    job.wait_phase("Queued")
    assert not job.pods()
    assert (job.job() or {})["metadata"]["labels"] == {QUEUE_LABEL: "default"}
    queue.room_for(3)
    job.wait_phase("Running")
    check_that_kueue_leaves_them_alone(queue, "plain")
    queue.kube.request("DELETE", f"{GROUP}/namespaces/{queue.namespace}/localqueues/default")


def check_that_kueue_leaves_them_alone(queue: Queue, *jobs: str) -> None:
    """Demand that Kueue has created no Workload for the objects of jobs, has not labelled them, and has gated no
    pod.
    """
    assert {job_of(w) for w in queue.all_workloads()} == set(jobs)
    for kind in ("StatefulSet", "Deployment", "Job", "Pod"):
        found = queue.kube.list(kind, queue.namespace)
        assert found
        assert not [o for o in found if QUEUE_LABEL in o["metadata"].get("labels", {})], kind
    assert not [pod for pod in queue.kube.list("Pod", queue.namespace) if pod["spec"].get("schedulingGates")]


def test_a_job_without_a_queue_runs_although_kueue_manages_such_jobs(
    queue: Queue, all_jobs: None, shared: Path
) -> None:
    waiting, plain = queued(queue, "waiting", shared), queued(queue, "plain", shared, labels={})
    plain.wait_phase("Running")
    waiting.wait_phase("Queued")
    assert not waiting.pods()
    queue.room_for(3)
    waiting.wait_phase("Running")
    check_that_kueue_leaves_them_alone(queue, "waiting")
    for job in (plain, waiting):
        job.exit("chief-0", 0)
        job.wait_phase("Succeeded")
