"""What Kueue does for jobs, as docs/users/gang-scheduling.md has it: the real one, beside the cluster's control plane.

The nodes are KWOK's: what is shown is who is admitted.
"""

import subprocess
import sys
from collections.abc import Iterator

import pytest

from tests.e2e.conftest import ROOT
from tests.support.kube import Kube, Object, job_condition, wait_for
from tests.support.operator_process import OperatorProcess
from tests.support.scripted_program import fake_template, manifest
from tests.support.soak_marks import in_soak

pytestmark = [pytest.mark.alone, pytest.mark.cluster, in_soak]

QUEUE_LABEL, GATE = "kueue.x-k8s.io/queue-name", "kueue.x-k8s.io/admission"
GROUP = "/apis/kueue.x-k8s.io/v1beta2"
NAME = "pstraining-test"
CPU = 30
"""What a pod asks for: a node has room for two."""


@pytest.fixture
def kueue(fake_nodes: int) -> Iterator[None]:
    subprocess.run([sys.executable, "-m", "localcluster", "kueue", "up"], cwd=ROOT, check=True)
    yield
    subprocess.run([sys.executable, "-m", "localcluster", "kueue", "down"], cwd=ROOT, check=True)


class Queue:
    """A queue in a namespace, for so many pods at a time."""

    def __init__(self, kube: Kube, namespace: str, pods: int) -> None:
        self.kube, self.namespace = kube, namespace
        self._make("ResourceFlavor", "resourceflavors", {})
        resources = [{"name": "cpu", "nominalQuota": str(CPU * pods)}]
        self._make(
            "ClusterQueue",
            "clusterqueues",
            {
                "namespaceSelector": {},
                "resourceGroups": [{"coveredResources": ["cpu"], "flavors": [{"name": NAME, "resources": resources}]}],
            },
        )
        self._make("LocalQueue", f"namespaces/{namespace}/localqueues", {"clusterQueue": NAME})

    def _make(self, kind: str, where: str, spec: Object) -> None:
        body = {"apiVersion": "kueue.x-k8s.io/v1beta2", "kind": kind, "metadata": {"name": NAME}, "spec": spec}
        self.kube.request("POST", f"{GROUP}/{where}", body)

    def change(self, patch: list[Object]) -> None:
        """A JSON patch of what all share."""
        self.kube.request("PATCH", f"{GROUP}/clusterqueues/{NAME}", patch, "application/json-patch+json")

    def room_for(self, pods: int) -> None:
        """Another quota."""
        path = "/spec/resourceGroups/0/flavors/0/resources/0/nominalQuota"
        self.change([{"op": "replace", "path": path, "value": str(CPU * pods)}])

    def workloads(self) -> list[Object]:
        """What Kueue has noted of the namespace's pods."""
        found: list[Object] = self.kube.request("GET", f"{GROUP}/namespaces/{self.namespace}/workloads")["items"]
        return found


def fake_job(namespace: str, name: str, *, pods_ask: bool, chief: bool = False) -> Object:
    """A parameter server and two workers; all pods of the template ask the queue, or the job itself has its label."""
    job = manifest(namespace, name, chief={"enabled": chief})
    template = fake_template(cpu=CPU)
    template["metadata"] = {"labels": {QUEUE_LABEL: NAME} if pods_ask else {}}
    job["spec"]["worker"]["template"] = template
    if not pods_ask:
        job["metadata"]["labels"] = {QUEUE_LABEL: NAME}
    return job


def pods(kube: Kube, namespace: str, job: str) -> list[Object]:
    found = kube.list("Pod", namespace, f"pstraining.dev/job-name={job}")
    return [p for p in found if not p["metadata"].get("deletionTimestamp")]


def gated(found: list[Object]) -> int:
    return sum(any(g["name"] == GATE for g in p["spec"].get("schedulingGates", ())) for p in found)


def running(kube: Kube, namespace: str, name: str) -> Object:
    return job_condition(kube.get("PSTrainingJob", namespace, name), "Running")


def test_single_pods_get_their_quota_and_the_job_says_what_it_waits_for(
    kube: Kube, namespace: str, own_operator: OperatorProcess, kueue: None
) -> None:
    own_operator.start()
    queue = Queue(kube, namespace, pods=0)

    # A label on the job itself is nothing to Kueue.
    kube.create(fake_job(namespace, "labelled", pods_ask=False))
    wait_for(lambda: running(kube, namespace, "labelled")["status"] == "True", "it runs at once", 60)
    assert gated(pods(kube, namespace, "labelled")) == 0
    assert queue.workloads() == []
    kube.delete("PSTrainingJob", namespace, "labelled")
    wait_for(lambda: not kube.list("Pod", namespace), "it is gone", 60)

    # A label in the template is a quota for single pods, which is no gang.
    kube.create(fake_job(namespace, "queued", pods_ask=True))
    wait_for(lambda: len(pods(kube, namespace, "queued")) == 3 and len(queue.workloads()) == 3, "three pods ask", 60)
    wait_for(
        lambda: running(kube, namespace, "queued")["reason"] == "SchedulingGated",
        f"the job says so: {running(kube, namespace, 'queued')}",
        60,
    )
    assert gated(pods(kube, namespace, "queued")) == 3
    queue.room_for(2)
    wait_for(lambda: gated(pods(kube, namespace, "queued")) == 1, "two are admitted")
    queue.room_for(3)
    wait_for(lambda: running(kube, namespace, "queued")["status"] == "True", "the third is admitted, too", 60)

    # A lost pod is replaced within its quota: Kueue lets go of the old one.
    (lost, *_) = pods(kube, namespace, "queued")
    kube.delete("Pod", namespace, lost["metadata"]["name"], grace=0)

    def is_replaced() -> bool:
        uids = {p["metadata"]["uid"] for p in kube.list("Pod", namespace)}
        return lost["metadata"]["uid"] not in uids and len(uids) == 3 and gated(pods(kube, namespace, "queued")) == 0

    wait_for(is_replaced, "it is replaced", 60)

    # Whoever is preempted is deleted, and waits for its turn again; nothing is held against the job.
    queue.change([{"op": "add", "path": "/spec/stopPolicy", "value": "HoldAndDrain"}])
    wait_for(lambda: gated(pods(kube, namespace, "queued")) == 3, "all are evicted, and wait", 60)
    queue.change([{"op": "replace", "path": "/spec/stopPolicy", "value": "None"}])
    wait_for(lambda: gated(pods(kube, namespace, "queued")) == 0, "all are admitted again", 60)
    wait_for(lambda: running(kube, namespace, "queued")["status"] == "True", "it runs again", 60)
    stored = kube.get("PSTrainingJob", namespace, "queued") or {}
    assert sum(r["failures"] for r in stored["status"]["replicaRecords"]) == 0, "nobody has failed"

    # A suspended job gives its quota back.
    kube.merge("PSTrainingJob", namespace, "queued", {"spec": {"runPolicy": {"suspend": True}}})
    wait_for(lambda: not kube.list("Pod", namespace) and not queue.workloads(), "nothing is left", 60)


def test_a_chief_queues_as_the_others_do(
    kube: Kube, namespace: str, own_operator: OperatorProcess, kueue: None
) -> None:
    """Its pod belongs to one of Kubernetes' Jobs, whose pods Kueue's documentation says it leaves out."""
    own_operator.start()
    queue = Queue(kube, namespace, pods=0)
    kube.create(fake_job(namespace, "queued", pods_ask=True, chief=True))
    roles = "pstraining.dev/role"

    def waits() -> dict[str, bool]:
        return {p["metadata"]["labels"][roles]: gated([p]) == 1 for p in kube.list("Pod", namespace)}

    wait_for(lambda: waits() == {"ps": True, "worker": True, "chief": True}, "all wait", 60)
    wait_for(lambda: len(queue.workloads()) == 4, "each by itself")
    queue.room_for(4)
    wait_for(
        lambda: job_condition(kube.get("PSTrainingJob", namespace, "queued"), "Succeeded")["status"] == "True",
        "all run",
        60,
    )
