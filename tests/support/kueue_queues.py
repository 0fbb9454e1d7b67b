"""Queues of the real Kueue for end-to-end tests: their quota, their history, and queued jobs of scripted programs."""

import json
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from tests.support.builders import stamp
from tests.support.kube import Kube, Object, wait_for
from tests.support.scripted_program import Puppet, manifest, share, template
from tests.support.watching import Watch

QUEUE_LABEL, PRIORITY_LABEL = "kueue.x-k8s.io/queue-name", "kueue.x-k8s.io/priority-class"
GROUP = "/apis/kueue.x-k8s.io/v1beta2"
NAME = "pstraining-test"
MILLICORES = 10
"""The cpu request of a pod, in millicores; the quota is counted in pods of this size."""


class Queue:
    """A queue of one namespace, with quota for a number of pods."""

    def __init__(self, kube: Kube, namespace: str, pods: int) -> None:
        self.kube, self.namespace = kube, namespace
        self._of_cluster = ["clusterqueues", "resourceflavors"]
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

    def require_check(self) -> None:
        """Let each admission wait for a check, whose controller is this test; see `pass_check`."""
        self._make("AdmissionCheck", "admissionchecks", {"controllerName": f"{NAME}.example/checks"})
        self._of_cluster.append("admissionchecks")
        active = {
            "type": "Active",
            "status": "True",
            "reason": "Tested",
            "message": "",
            "lastTransitionTime": stamp(datetime.now(UTC)),
        }
        path, status = f"{GROUP}/admissionchecks/{NAME}/status", {"status": {"conditions": [active]}}
        self.kube.request("PATCH", path, status, "application/merge-patch+json")
        self.use_check()

    def use_check(self) -> None:
        """Let each admission wait for the AdmissionCheck of the tests' name."""
        checks = {"admissionChecks": [{"name": NAME}]}
        self.change([{"op": "add", "path": "/spec/admissionChecksStrategy", "value": checks}])

    def pass_check(self, job: str, *updates: Object) -> None:
        """Let the check of a job's Workloads be ready, with updates of their pod sets, once Kueue has added it."""

        def waiting() -> list[Object]:
            found = [(w, check) for w in self.workloads(job) for check in w["status"].get("admissionChecks") or ()]
            return [workload for workload, check in found if check["state"] == "Pending"]

        for workload in wait_for(waiting, f"Kueue waits for the check of {job}", 60):
            ready = {"name": NAME, "state": "Ready", "message": "", "lastTransitionTime": stamp(datetime.now(UTC))}
            status = {"status": {"admissionChecks": [ready | {"podSetUpdates": list(updates)}]}}
            self.kube.merge("Workload", self.namespace, workload["metadata"]["name"], status, "status")

    def remove(self) -> None:
        """Delete the objects of the cluster, for the next test."""
        self.kube.request("DELETE", f"{GROUP}/namespaces/{self.namespace}/localqueues/{NAME}")
        for plural in self._of_cluster:
            self.kube.request("DELETE", f"{GROUP}/{plural}/{NAME}")
        self.kube.request("DELETE", f"{GROUP}/workloadpriorityclasses/{NAME}-high")
        gone = lambda: NAME not in json.dumps(self.kube.request("GET", f"{GROUP}/clusterqueues")["items"])  # noqa: E731
        wait_for(gone, "the ClusterQueue is gone", 60)

    def change(self, patch: list[Object]) -> None:
        """Apply a JSON patch to the ClusterQueue."""
        self.kube.request("PATCH", f"{GROUP}/clusterqueues/{NAME}", patch, "application/json-patch+json")

    def room_for(self, pods: int) -> None:
        """Set the quota to this number of pods."""
        path = "/spec/resourceGroups/0/flavors/0/resources/0/nominalQuota"
        self.change([{"op": "replace", "path": path, "value": f"{MILLICORES * pods}m"}])

    def stop(self, policy: str) -> None:
        """Set the stop policy of the ClusterQueue."""
        self.change([{"op": "add", "path": "/spec/stopPolicy", "value": policy}])

    def used(self) -> str:
        """Return the reserved amount of cpu, as a quantity."""
        status = self.kube.request("GET", f"{GROUP}/clusterqueues/{NAME}").get("status") or {}
        usage = (status.get("flavorsReservation") or [{}])[0].get("resources") or ()
        return str(next((item.get("total", "0") for item in usage if item["name"] == "cpu"), "0"))

    def all_workloads(self) -> list[Object]:
        """Return the Workloads of all jobs."""
        return self.kube.list("Workload", self.namespace)

    def workloads(self, job: str) -> list[Object]:
        """Return the Workloads of a job."""
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


def queued(
    queue: Queue, name: str, folder: Path, labels: dict[str, str] | None = None, *, at: Kube | None = None, **spec: Any
) -> Puppet:
    """Create a job of scripted programs in the queue; `at` is the cluster of its pods, if it is another one."""
    orders = folder / f"{queue.namespace}-{name}"
    orders.mkdir(parents=True, exist_ok=True)
    orders.chmod(0o777)
    share(at or queue.kube, queue.namespace, f"{name}-orders", orders)
    worker = spec.pop("worker", {"replicas": 1})
    pod = template(name)
    pod["spec"]["containers"][0]["resources"] = {"requests": {"cpu": f"{MILLICORES}m"}}
    made = manifest(queue.namespace, name, **spec)
    made["spec"]["worker"] = {"template": pod, **worker}
    made["metadata"]["labels"] = {QUEUE_LABEL: NAME} if labels is None else labels
    queue.kube.create(made)
    return Puppet(queue.kube, queue.namespace, name, orders)


def condition_of(found: Object, kind: str) -> Object:
    conditions = (found.get("status") or {}).get("conditions") or ()
    return next((c for c in conditions if c["type"] == kind), {})
