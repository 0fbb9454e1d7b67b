"""A job whose programs follow a test's orders: real pods and launchers, without TensorFlow.

Every task reads orders from a folder that the test and the pods share, records every start there, and a PS listens on
its port. So a test can end any task with any exit code at any time, and sees how often each one has run.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pstraining import __version__
from tests.support.kube import Kube, Object, wait_for

IMAGE = f"pstraining/runtime:{__version__}"
PROGRAM = """
import os, pathlib, socket, sys, threading, time
role, index = os.environ["PSTRAINING_TASK_TYPE"], os.environ["PSTRAINING_TASK_INDEX"]
me, orders = f"{role}-{index}", pathlib.Path("/orders")
with (orders / f"{me}.runs").open("a") as runs:
    runs.write(os.environ["PSTRAINING_POD_NAME"] + " " + os.environ.get("TF_CONFIG", "") + chr(10))
if role == "ps":
    server = socket.create_server(("", 2222))
    def serve():
        held = []
        while True:
            held.append(server.accept())
    threading.Thread(target=serve, daemon=True).start()
while True:
    for name in (me, os.environ["PSTRAINING_POD_NAME"]):
        order = orders / f"{name}.exit"
        if order.exists():
            code = int(order.read_text())
            order.rename(orders / f"{name}.done")
            print(f"{name} was ordered to exit with {code}", file=sys.stderr)
            sys.exit(code)
    time.sleep(0.05)
"""

METRICS = """
import os, threading, time
from pstraining.runtime.telemetry import prometheus
from pstraining.runtime.telemetry.counters import ChiefCounters, Traffic, WorkerCounters
role, index = os.environ["PSTRAINING_TASK_TYPE"], os.environ["PSTRAINING_TASK_INDEX"]
print(f"{role}-{index} begins in", os.environ["PSTRAINING_POD_NAME"], flush=True)
worker, chief, made = WorkerCounters(), ChiefCounters(), [0]
def train():
    while True:
        time.sleep(0.2 if index == "1" else 0.02)
        made[0] += 1
        chief.step, chief.loss = made[0], 0.5
        worker.record_step(made[0], 0.5, samples=32, applied=True, staleness=1)
if role == "chief" or (role == "worker" and index != "2"):
    threading.Thread(target=train, daemon=True).start()
    mine = {"worker": worker, "chief": None} if role == "worker" else {"worker": None, "chief": chief}
    links = lambda: {"ps-0": Traffic(1000 * made[0], 2000 * made[0])}
    prometheus.serve(prometheus.TaskMetrics(**mine, links=links, reconnects=lambda: 0), in_pod=True)
"""
"""Precedes a program: serves the runtime's metrics of training, with made-up values.

Worker 1 is ten times as slow as worker 0, and worker 2 serves no metrics.
"""


@dataclass
class Puppet:
    """A job of scripted programs."""

    kube: Kube
    namespace: str
    name: str
    orders: Path

    @classmethod
    def make(cls, kube: Kube, namespace: str, name: str, folder: Path, **spec: Any) -> "Puppet":
        """Create the shared folder with its volume and claim, and the job."""
        orders = folder / f"{namespace}-{name}"
        orders.mkdir(parents=True, exist_ok=True)
        orders.chmod(0o777)
        share(kube, namespace, f"{name}-orders", orders)
        kube.create(manifest(namespace, name, **spec))
        return cls(kube, namespace, name, orders)

    def exit(self, task: str, code: int) -> None:
        """End a task such as chief-0, or a task's pod, with an exit code."""
        draft = self.orders / f".{task}"
        draft.write_text(str(code))
        draft.rename(self.orders / f"{task}.exit")

    def runs(self, task: str) -> int:
        """Return the number of starts of a task's program."""
        noted = self.orders / f"{task}.runs"
        return len(noted.read_text().splitlines()) if noted.exists() else 0

    def job(self) -> Object | None:
        """Return the job as stored."""
        return self.kube.get("PSTrainingJob", self.namespace, self.name)

    def status(self) -> Object:
        """Return the job's status; empty before the first write."""
        found: Object = (self.job() or {}).get("status") or {}
        return found

    def worker_record(self) -> Object:
        """Return the counts of the job's first worker; empty if there are none."""
        return next((r for r in self.status().get("replicaRecords", []) if r["role"] == "worker"), {})

    def phase(self) -> str:
        """Return the job's phase."""
        return str(self.status().get("phase", ""))

    def wait_phase(self, phase: str, seconds: float = 240) -> Object:
        """Wait for this phase of the job."""
        wait_for(lambda: self.phase() == phase, f"{self.name} is {phase}; it is {self.job()}", seconds)
        found = self.job()
        assert found is not None
        return found

    def pods(self, role: str = "") -> list[Object]:
        """Return the job's pods that are not terminating."""
        selector = f"pstraining.dev/job-name={self.name}" + (f",pstraining.dev/role={role}" if role else "")
        found = self.kube.list("Pod", self.namespace, selector)
        return [p for p in found if not p["metadata"].get("deletionTimestamp")]


def share(kube: Kube, namespace: str, claim: str, folder: Path) -> None:
    """Create a claim for a folder of this machine, which all nodes of the local cluster share."""
    volume = f"{namespace}-{claim}"
    size = {"storage": "1Gi"}
    kube.create(
        {
            "apiVersion": "v1",
            "kind": "PersistentVolume",
            "metadata": {"name": volume, "labels": {"pstraining-test": "true"}},
            "spec": {
                "capacity": size,
                "accessModes": ["ReadWriteMany"],
                "hostPath": {"path": str(folder)},
                "claimRef": {"namespace": namespace, "name": claim},
                "persistentVolumeReclaimPolicy": "Retain",
                "storageClassName": "",
            },
        }
    )
    kube.create(
        {
            "apiVersion": "v1",
            "kind": "PersistentVolumeClaim",
            "metadata": {"name": claim, "namespace": namespace},
            "spec": {
                "accessModes": ["ReadWriteMany"],
                "resources": {"requests": size},
                "volumeName": volume,
                "storageClassName": "",
            },
        }
    )


def template(name: str, program: str = PROGRAM) -> Object:
    """Return the pod template of the scripted programs."""
    return {
        "spec": {
            "terminationGracePeriodSeconds": 2,
            "containers": [
                {
                    "name": "tensorflow",
                    "image": IMAGE,
                    "imagePullPolicy": "IfNotPresent",
                    "command": ["python3", "-c", program],
                    "volumeMounts": [{"name": "orders", "mountPath": "/orders"}],
                }
            ],
            "volumes": [{"name": "orders", "persistentVolumeClaim": {"claimName": f"{name}-orders"}}],
        }
    }


def fake_template(*, cpu: int = 0, **spec: Any) -> Object:
    """Return a pod template for KWOK's simulated nodes, with these cores and further fields of its spec."""
    asks = {"resources": {"requests": {"cpu": str(cpu)}}} if cpu else {}
    return {
        "spec": {
            "nodeSelector": {"type": "kwok"},
            "tolerations": [{"key": "kwok.x-k8s.io/node", "operator": "Exists"}],
            "containers": [{"name": "tensorflow", "image": "fake", "command": ["fake"], **asks}],
            **spec,
        }
    }


def manifest(namespace: str, name: str, *, ps: int | Object = 1, workers: int = 2, **spec: Any) -> Object:
    """Return the job's manifest."""
    return {
        "apiVersion": "pstraining.dev/v1alpha1",
        "kind": "PSTrainingJob",
        "metadata": {"name": name, "namespace": namespace},
        "spec": {
            "ps": {"replicas": ps} if isinstance(ps, int) else ps,
            "worker": {"replicas": workers, "template": template(name)},
            **spec,
        },
    }
