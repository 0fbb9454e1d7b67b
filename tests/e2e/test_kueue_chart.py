"""The chart with kueue.enabled, beside the real Kueue: its rights suffice, and its policy is enforced."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.e2e.conftest import install, uninstall
from tests.support.kube import ApiError, Kube, wait_for
from tests.support.kueue_queues import GROUP, NAME, QUEUE_LABEL, Queue, queued
from tests.support.soak_marks import in_all

pytestmark = [
    pytest.mark.cluster,
    in_all("tests/chart/test_kueue.py::test_the_rights_of_jobs_in_queues_are_exactly_these"),
]


@pytest.fixture
def release(kube: Kube, helm: str, kueue: None) -> Iterator[None]:
    """Install the operator as the chart does, with queues."""
    install(kube, helm, "--set", "kueue.enabled=true")
    yield
    uninstall(kube, helm)


@pytest.fixture
def queue(kube: Kube, namespace: str, release: None) -> Iterator[Queue]:
    """Return a queue with quota for one job, which is also the default queue."""
    made = Queue(kube, namespace, pods=3)
    body = {"apiVersion": "kueue.x-k8s.io/v1beta2", "kind": "LocalQueue", "metadata": {"name": "default"}}
    kube.request("POST", f"{GROUP}/namespaces/{namespace}/localqueues", {**body, "spec": {"clusterQueue": NAME}})
    yield made
    for job in kube.list("PSTrainingJob", namespace):
        kube.delete("PSTrainingJob", namespace, job["metadata"]["name"])
    wait_for(lambda: not kube.list("Pod", namespace), "the pods are gone", 90)
    kube.request("DELETE", f"{GROUP}/namespaces/{namespace}/localqueues/default")
    made.remove()


def test_jobs_wait_run_and_keep_their_queue_label(queue: Queue, shared: Path) -> None:
    first = queued(queue, "first", shared)
    first.wait_phase("Running")
    second = queued(queue, "second", shared, labels={})
    second.wait_phase("Queued")
    assert (second.job() or {})["metadata"]["labels"] == {QUEUE_LABEL: "default"}, "the operator may add it"
    for job, label in (("first", None), ("first", "default"), ("second", None)):
        with pytest.raises(ApiError, match="cannot be added, changed or"):
            queue.kube.merge("PSTrainingJob", queue.namespace, job, {"metadata": {"labels": {QUEUE_LABEL: label}}})
    first.exit("chief-0", 0)
    second.wait_phase("Running")
    second.exit("chief-0", 0)
    second.wait_phase("Succeeded")
