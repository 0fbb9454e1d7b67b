"""Jobs that the real MultiKueue sends from one local cluster to another: two control planes, two Kueues, two operators.

The pods run in the cluster of all other tests. The manager cluster has an API server, Kueue and a node without images.
"""

import base64
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlsplit

import pytest
import yaml

from localcluster.layout import plan_cluster, read_layout
from tests.e2e.conftest import ROOT, apply_crd
from tests.support.forwarding import forwarded
from tests.support.kube import Kube, Object, Target, wait_for
from tests.support.kueue_queues import GROUP, NAME, Queue, queued
from tests.support.operator_process import OperatorProcess
from tests.support.scripted_program import Puppet
from tests.support.soak_marks import in_all

pytestmark = [
    pytest.mark.cluster,
    in_all("tests/unit/core/test_multikueue.py::test_the_worker_cluster_uses_the_dispatched_workload"),
]

INSTANCES = 64
WITH_KUEUE = {"PSTRAINING_KUEUE": "true"}
MULTIKUEUE = "kueue.x-k8s.io/multikueue"


@pytest.fixture(scope="module")
def other() -> Iterator[int]:
    """Return the instance of a second local cluster with Kueue."""
    number = (read_layout(os.environ).instance + INSTANCES // 2) % INSTANCES
    environment = {**os.environ, "PSTRAINING_INSTANCE": str(number)}
    for variable in ("KUBECONFIG", "PSTRAINING_CONTEXT"):
        environment.pop(variable, None)

    def command(*arguments: str) -> None:
        subprocess.run([sys.executable, "-m", "localcluster", *arguments], cwd=ROOT, env=environment, check=True)

    command("up", "--nodes", "1")
    command("kueue", "up")
    yield number
    command("down")


@pytest.fixture
def manager(kube: Kube, kueue: None, crd: None, other: int) -> Iterator[Kube]:
    """Return the manager cluster, whose worker cluster is the one of all other tests."""
    layout = read_layout({**os.environ, "PSTRAINING_INSTANCE": str(other)})
    found = Kube(Target(str(layout.kubeconfig), layout.context))
    apply_crd(found)
    api = urlsplit(kube.host)
    with forwarded(plan_cluster(other, 1).host_address, (str(api.hostname), api.port or 443)) as port:
        configuration = yaml.safe_load(Path(kube.target.kubeconfig).read_text())
        for cluster in configuration["clusters"]:
            server = f"https://{plan_cluster(other, 1).host_address}:{port}"
            cluster["cluster"] |= {"server": server, "tls-server-name": "kubernetes"}
        connect(found, yaml.safe_dump(configuration))
        yield found


def connect(manager: Kube, kubeconfig: str) -> None:
    """Register the worker cluster with Kueue, and wait until Kueue reaches it."""
    encoded = base64.b64encode(kubeconfig.encode()).decode()
    manager.request("POST", "/api/v1/namespaces", {"metadata": {"name": "kueue-system"}})
    secret = {"metadata": {"name": NAME}, "data": {"kubeconfig": encoded}}
    manager.request("POST", "/api/v1/namespaces/kueue-system/secrets", secret)
    source = {"kubeConfig": {"location": NAME, "locationType": "Secret"}}
    parameters = {"apiGroup": "kueue.x-k8s.io", "kind": "MultiKueueConfig", "name": NAME}
    for kind, spec in (
        ("MultiKueueCluster", {"clusterSource": source}),
        ("MultiKueueConfig", {"clusters": [NAME]}),
        ("AdmissionCheck", {"controllerName": MULTIKUEUE, "parameters": parameters}),
    ):
        body = {"apiVersion": "kueue.x-k8s.io/v1beta2", "kind": kind, "metadata": {"name": NAME}, "spec": spec}
        manager.request("POST", f"{GROUP}/{kind.lower()}s", body)

    def is_active() -> bool:
        found = manager.request("GET", f"{GROUP}/admissionchecks/{NAME}").get("status") or {}
        return any(c["type"] == "Active" and c["status"] == "True" for c in found.get("conditions") or ())

    wait_for(is_active, "the worker cluster is connected", 90)


@pytest.fixture
def far(manager: Kube, queue: Queue, tmp_path: Path) -> Iterator[Queue]:
    """Return the queue of the manager cluster, in the same namespace, with its operator."""
    manager.request("POST", "/api/v1/namespaces", {"metadata": {"name": queue.namespace}})
    made = Queue(manager, queue.namespace, pods=100)
    made.use_check()
    (tmp_path / "manager").mkdir()
    operator = OperatorProcess(manager.target, queue.namespace, tmp_path / "manager")
    operator.start(settings=WITH_KUEUE)
    yield made
    operator.stop()


def sent(kube: Kube, namespace: str) -> Object | None:
    return kube.get("PSTrainingJob", namespace, "sent")


def test_a_job_runs_in_the_worker_cluster_and_its_status_is_copied_back(far: Queue, queue: Queue, shared: Path) -> None:
    queue.room_for(3)
    job = queued(far, "sent", shared, at=queue.kube, managedBy=MULTIKUEUE)
    there = Puppet(queue.kube, queue.namespace, "sent", job.orders)
    job.wait_phase("Running", 120)
    assert not far.kube.list("Pod", far.namespace)
    assert len(there.pods()) == 3
    (workload,) = queue.workloads("sent")
    assert workload["metadata"]["ownerReferences"][0]["uid"] == (there.job() or {})["metadata"]["uid"]

    far.stop("HoldAndDrain")
    wait_for(lambda: sent(queue.kube, queue.namespace) is None, "it has left the worker cluster", 120)
    wait_for(lambda: (far.used(), queue.used()) == ("0", "0"), "all quota is back", 60)
    assert not queue.kube.list("Pod", queue.namespace)

    far.stop("None")
    wait_for(lambda: there.phase() == "Running", "it runs again", 120)
    there.exit("chief-0", 0)
    job.wait_phase("Succeeded", 120)
    far.kube.delete("PSTrainingJob", far.namespace, "sent")
    wait_for(lambda: sent(queue.kube, queue.namespace) is None, "it is deleted in both clusters", 60)
    wait_for(lambda: (far.used(), queue.used()) == ("0", "0"), "no quota is left behind", 60)
