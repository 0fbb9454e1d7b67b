"""Jobs in a queue of Kueue, as docs/users/queues.md has it: the real Kueue, real kubelets, scripted programs.

The invariant over the audit log is checked after each scenario: at no moment did pods of admitted jobs request more
than the quota.
"""

import json
import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.conftest import cluster_command
from tests.support.examples import Example
from tests.support.kube import ApiError, Kube, Object, job_condition, wait_for
from tests.support.operator_process import OperatorProcess
from tests.support.scripted_program import Puppet, fake_template, manifest, share, template
from tests.support.soak_marks import THOROUGH, in_all
from tests.support.watching import Watch

pytestmark = [
    pytest.mark.cluster,
    in_all("tests/unit/core/test_admission.py::test_no_pod_exists_before_the_admission"),
]

QUEUE_LABEL, PRIORITY_LABEL = "kueue.x-k8s.io/queue-name", "kueue.x-k8s.io/priority-class"
GROUP = "/apis/kueue.x-k8s.io/v1beta2"
NAME = "pstraining-test"
ROUNDS = 20 if THOROUGH else 3
"""How often a queue is drained and released."""
JOBS = 200 if THOROUGH else 12
"""The jobs of one queue that compete by priority."""
PRIORITIES = 4
MILLICORES = 10
"""What a pod requests: the quota is counted in pods of this size."""


class Queue:
    """A queue of one namespace, with quota for some pods."""

    def __init__(self, kube: Kube, namespace: str, pods: int) -> None:
        self.kube, self.namespace = kube, namespace
        self._make("ResourceFlavor", "resourceflavors", {"nodeLabels": {"kubernetes.io/os": "linux"}})
        resources = [
            {"name": "cpu", "nominalQuota": f"{MILLICORES * pods}m"},
            {"name": "memory", "nominalQuota": "100Gi"},
        ]
        group = {"coveredResources": ["cpu", "memory"], "flavors": [{"name": NAME, "resources": resources}]}
        preemption = {"withinClusterQueue": "LowerPriority"}
        self._make(
            "ClusterQueue",
            "clusterqueues",
            {"namespaceSelector": {}, "resourceGroups": [group], "preemption": preemption},
        )
        self._make("LocalQueue", f"namespaces/{namespace}/localqueues", {"clusterQueue": NAME})
        self.kube.request(
            "POST",
            f"{GROUP}/workloadpriorityclasses",
            {
                "apiVersion": "kueue.x-k8s.io/v1beta2",
                "kind": "WorkloadPriorityClass",
                "metadata": {"name": f"{NAME}-high"},
                "value": 1000,
            },
        )

    def _make(self, kind: str, where: str, spec: Object) -> None:
        body = {"apiVersion": "kueue.x-k8s.io/v1beta2", "kind": kind, "metadata": {"name": NAME}, "spec": spec}
        self.kube.request("POST", f"{GROUP}/{where}", body)

    def remove(self) -> None:
        """Delete the objects of the cluster, for the next test."""
        self.kube.request("DELETE", f"{GROUP}/namespaces/{self.namespace}/localqueues/{NAME}")
        for plural in ("clusterqueues", "resourceflavors"):
            self.kube.request("DELETE", f"{GROUP}/{plural}/{NAME}")
        self.kube.request("DELETE", f"{GROUP}/workloadpriorityclasses/{NAME}-high")
        gone = lambda: NAME not in json.dumps(self.kube.request("GET", f"{GROUP}/clusterqueues")["items"])  # noqa: E731
        wait_for(gone, "the ClusterQueue is gone", 60)

    def change(self, patch: list[Object]) -> None:
        """Apply a JSON patch to the ClusterQueue."""
        self.kube.request("PATCH", f"{GROUP}/clusterqueues/{NAME}", patch, "application/json-patch+json")

    def room_for(self, pods: int) -> None:
        """Set another quota."""
        path = "/spec/resourceGroups/0/flavors/0/resources/0/nominalQuota"
        self.change([{"op": "replace", "path": path, "value": f"{MILLICORES * pods}m"}])

    def stop(self, policy: str) -> None:
        """Set the policy that stops the queue."""
        self.change([{"op": "add", "path": "/spec/stopPolicy", "value": policy}])

    def used(self) -> str:
        """The reserved amount of cpu, as a quantity."""
        status = self.kube.request("GET", f"{GROUP}/clusterqueues/{NAME}").get("status") or {}
        usage = (status.get("flavorsReservation") or [{}])[0].get("resources") or ()
        return str(next((item.get("total", "0") for item in usage if item["name"] == "cpu"), "0"))

    def all_workloads(self) -> list[Object]:
        """The Workloads of all jobs."""
        return self.kube.list("Workload", self.namespace)

    def workloads(self, job: str) -> list[Object]:
        """The Workloads of a job."""
        return [w for w in self.all_workloads() if w["metadata"]["labels"].get("pstraining.dev/job-name") == job]


class History:
    """Every version of the pods, Workloads and ClusterQueues, in the order in which the API server stored them."""

    def __init__(self, kube: Kube, namespace: str) -> None:
        kinds = (("Pod", namespace), ("Workload", namespace), ("ClusterQueue", ""))
        self.watches = [Watch(kube, kind, where) for kind, where in kinds]

    def events(self) -> list[tuple[str, Object]]:
        """Return all versions, in order."""
        found = [(kind, version) for watch in self.watches for _, kind, version in list(watch.seen)]
        return sorted(found, key=lambda event: int(event[1]["metadata"]["resourceVersion"]))

    def admitted(self) -> list[tuple[str, int]]:
        """Return the Workloads with their priorities, in the order of their first admission."""
        found: dict[str, int] = {}
        for _, version in self.events():
            if version["kind"] == "Workload" and condition_of(version, "QuotaReserved").get("status") == "True":
                found.setdefault(version["metadata"]["name"], version["spec"]["priority"])
        return list(found.items())

    def check(self) -> int:
        """Replay the history: pods of jobs with a queue never request more than the quota.

        Returns:
            The number of versions that were checked.
        """
        events = self.events()
        with_queue = {job_of(version) for _, version in events if version["kind"] == "Workload"}
        pods: dict[str, str] = {}
        quota = 0
        for kind, found in events:
            uid, job = found["metadata"]["uid"], job_of(found)
            if found["kind"] == "Pod" and job in with_queue:
                over = kind == "DELETED" or found["status"].get("phase") in ("Succeeded", "Failed")
                pods.pop(uid, None) if over else pods.update({uid: job})
            elif found["kind"] == "ClusterQueue":
                (group,) = found["spec"]["resourceGroups"]
                quota = max(quota, millicores(group["flavors"][0]["resources"][0]["nominalQuota"]))
            assert len(pods) * MILLICORES <= quota, f"{len(pods)} pods with a quota of {quota}m: {pods}"
        return len(events)


def job_of(found: Object) -> str:
    return str(found["metadata"].get("labels", {}).get("pstraining.dev/job-name", ""))


def millicores(quantity: str) -> int:
    return int(quantity[:-1]) if quantity.endswith("m") else int(quantity) * 1000


@pytest.fixture
def queue(kube: Kube, namespace: str, kueue: None, own_operator: OperatorProcess) -> Iterator[Queue]:
    """A queue without quota, and an operator that asks Kueue."""
    own_operator.start(settings={"PSTRAINING_KUEUE": "true"})
    made = Queue(kube, namespace, pods=0)
    history = History(kube, namespace)
    yield made
    assert history.check() > 0
    for job in kube.list("PSTrainingJob", namespace):
        kube.delete("PSTrainingJob", namespace, job["metadata"]["name"])
    wait_for(lambda: not kube.list("Pod", namespace), "the pods are gone", 90)
    made.remove()


def queued(queue: Queue, name: str, folder: Path, labels: dict[str, str] | None = None, **spec: Any) -> Puppet:
    """A job of scripted programs, in the queue."""
    orders = folder / f"{queue.namespace}-{name}"
    orders.mkdir(parents=True, exist_ok=True)
    orders.chmod(0o777)
    share(queue.kube, queue.namespace, f"{name}-orders", orders)
    worker = spec.pop("worker", {"replicas": 1})
    pod = template(name)
    pod["spec"]["containers"][0]["resources"] = {"requests": {"cpu": f"{MILLICORES}m"}}
    made = manifest(queue.namespace, name, **spec)
    made["spec"]["worker"] = {"template": pod, **worker}
    made["metadata"]["labels"] = {QUEUE_LABEL: NAME} if labels is None else labels
    queue.kube.create(made)
    return Puppet(queue.kube, queue.namespace, name, orders)


def condition(job: Puppet, kind: str) -> Object:
    return job_condition(job.job(), kind)


def holding(job: Puppet) -> list[Object]:
    """The pods of a job that hold resources."""
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
    assert wait_for(second.pods, "the second job starts", 5)
    second.wait_phase("Running")
    (workload,) = queue.workloads("first")
    assert condition_of(workload, "Finished")["reason"] == "Succeeded"
    assert second.pods()[0]["spec"]["nodeSelector"]["kubernetes.io/os"] == "linux", "the flavor's label"


def condition_of(found: Object, kind: str) -> Object:
    conditions = (found.get("status") or {}).get("conditions") or ()
    return next((c for c in conditions if c["type"] == kind), {})


def test_fewer_workers_are_admitted_where_a_minimum_is_set(queue: Queue, shared: Path) -> None:
    queue.room_for(6)
    job = queued(queue, "partial", shared, worker={"replicas": 8, "minReplicas": 2})
    job.wait_phase("Running")
    wait_for(lambda: len(job.pods("worker")) == 4, "four of eight workers")
    assert "4 of 8 workers" in condition(job, "Queued")["message"]


def test_more_workers_come_by_a_slice_and_no_pod_is_touched(queue: Queue, shared: Path) -> None:
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
    wait_for(lambda: len(queue.workloads("elastic")) == 1, "the former slice is gone")
    queue.kube.merge("PSTrainingJob", queue.namespace, "elastic", {"spec": {"worker": {"replicas": 2}}})
    wait_for(lambda: queue.used() == f"{MILLICORES * 4}m", "the quota of six workers is back", 90)
    assert job.phase() == "Running"


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


def test_hold_and_drain_and_release(queue: Queue, shared: Path) -> None:
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


def test_suspension_and_deletion_give_the_quota_back(queue: Queue, shared: Path) -> None:
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
    """The steps that a worker's log has so far; none once the pod is gone."""
    try:
        lines = example.kube.log(example.namespace, pod).splitlines()
    except ApiError:
        return []
    found = [json.loads(line) for line in lines if line.startswith('{"event"') and line.endswith("}")]
    return [int(event["step"]) for event in found if event["event"] == "worker"]


def test_a_job_that_ends_while_kueue_is_away_gives_its_quota_back_later(queue: Queue, shared: Path) -> None:
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
        assert not waiting.pods()
    finally:
        os.kill(manager, signal.SIGCONT)
    waiting.wait_phase("Running", 180)


@pytest.mark.parametrize("takes_all", [False, True], ids=["", "manageJobsWithoutQueueName"])
def test_a_job_without_a_queue_runs_outside_of_all_queues(queue: Queue, shared: Path, takes_all: bool) -> None:
    """Kueue puts the label of a LocalQueue named `default` on objects without one, but not on what a job owns."""
    cluster_command("kueue", "up", *(["--all-jobs"] if takes_all else []))
    spec = {"clusterQueue": NAME}
    body = {"apiVersion": "kueue.x-k8s.io/v1beta2", "kind": "LocalQueue", "metadata": {"name": "default"}, "spec": spec}
    queue.kube.request("POST", f"{GROUP}/namespaces/{queue.namespace}/localqueues", body)
    waiting, plain = queued(queue, "waiting", shared), queued(queue, "plain", shared, labels={})
    plain.wait_phase("Running")
    waiting.wait_phase("Queued")
    assert not waiting.pods()
    queue.room_for(3)
    waiting.wait_phase("Running")
    assert {job_of(w) for w in queue.all_workloads()} == {"waiting"}, "Kueue made none for what jobs own"
    for kind in ("StatefulSet", "Deployment", "Job", "Pod"):
        labels = [found["metadata"].get("labels", {}) for found in queue.kube.list(kind, queue.namespace)]
        assert labels
        assert not [found for found in labels if QUEUE_LABEL in found], kind
    for job in (plain, waiting):
        job.exit("chief-0", 0)
        job.wait_phase("Succeeded")
    queue.kube.request("DELETE", f"{GROUP}/namespaces/{queue.namespace}/localqueues/default")


def test_jobs_are_admitted_in_order_of_their_priority(queue: Queue, fake_nodes: int) -> None:
    """Fake nodes, on which the pod of a chief ends at once, so that one job follows the other."""
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
    ended = lambda: all(j["status"].get("phase") == "Succeeded" for j in jobs(queue))  # noqa: E731
    wait_for(ended, "all jobs have ended", 30 * JOBS)
    admitted = history.admitted()
    assert len(admitted) == JOBS
    assert [priority for _, priority in admitted] == sorted((p for _, p in admitted), reverse=True)
    for value in range(PRIORITIES):
        queue.kube.request("DELETE", f"{GROUP}/workloadpriorityclasses/{NAME}-{value}")


def jobs(queue: Queue) -> list[Object]:
    return queue.kube.list("PSTrainingJob", queue.namespace)
