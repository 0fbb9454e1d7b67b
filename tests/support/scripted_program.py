"""A job whose programs obey a test: real pods, real launcher, no TensorFlow.

Every task looks for orders in a folder that test and pods share, notes every start of its program there, and a PS
listens on its port. So a test can end any task with any exit code at any time, and sees how often each one ran.
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
            print(f"{name} was told to exit with {code}", file=sys.stderr)
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
"""Ahead of a program: it serves the runtime's own metrics of training that it only pretends to do.

Worker 1 is ten times as slow as worker 0, and worker 2 serves nothing.
"""


@dataclass
class Puppet:
    """One such job."""

    kube: Kube
    namespace: str
    name: str
    orders: Path

    @classmethod
    def make(cls, kube: Kube, namespace: str, name: str, folder: Path, **spec: Any) -> "Puppet":
        """Create the shared folder, its volume and claim, and the job."""
        orders = folder / f"{namespace}-{name}"
        orders.mkdir(parents=True, exist_ok=True)
        orders.chmod(0o777)
        share(kube, namespace, f"{name}-orders", orders)
        kube.create(manifest(namespace, name, **spec))
        return cls(kube, namespace, name, orders)

    def exit(self, task: str, code: int) -> None:
        """Make a task such as chief-0, or a task's pod, exit with a code."""
        draft = self.orders / f".{task}"
        draft.write_text(str(code))
        draft.rename(self.orders / f"{task}.exit")

    def runs(self, task: str) -> int:
        """How often a task's program was started."""
        noted = self.orders / f"{task}.runs"
        return len(noted.read_text().splitlines()) if noted.exists() else 0

    def job(self) -> Object | None:
        """The job as stored."""
        return self.kube.get("PSTrainingJob", self.namespace, self.name)

    def status(self) -> Object:
        """The job's status; empty before the first."""
        found: Object = (self.job() or {}).get("status") or {}
        return found

    def worker_record(self) -> Object:
        """The counts of the job's first worker; empty if there are none."""
        return next((r for r in self.status().get("replicaRecords", []) if r["role"] == "worker"), {})

    def phase(self) -> str:
        """The job's phase."""
        return str(self.status().get("phase", ""))

    def wait_phase(self, phase: str, seconds: float = 240) -> Object:
        """Wait until the job's phase is this one."""
        wait_for(lambda: self.phase() == phase, f"{self.name} is {phase}; it is {self.job()}", seconds)
        found = self.job()
        assert found is not None
        return found

    def pods(self, role: str = "") -> list[Object]:
        """The job's pods that are not going."""
        selector = f"pstraining.dev/job-name={self.name}" + (f",pstraining.dev/role={role}" if role else "")
        found = self.kube.list("Pod", self.namespace, selector)
        return [p for p in found if not p["metadata"].get("deletionTimestamp")]


def share(kube: Kube, namespace: str, claim: str, folder: Path) -> None:
    """A claim for a folder of this machine, which all nodes of the local cluster share."""
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
    """The puppet's pod template."""
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
    """A pod template for KWOK's nodes, where nothing really runs: so many cores, and what else is to be in its spec."""
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
    """The job's manifest."""
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
