"""Checkpoints in an object store: a job on kubelets saves them there, and continues from them after a loss."""

from copy import deepcopy
from pathlib import Path

import pytest
import yaml

from tests.support import fake_s3, paced_table
from tests.support.examples import PACED, ROOT, Example
from tests.support.kube import Kube, Object, wait_for
from tests.support.pod_security import CONTAINER_SECURITY
from tests.support.soak_marks import in_all

pytestmark = [pytest.mark.cluster, pytest.mark.usefixtures("installed")]
PORT = 9000
SERVE = f"""
import threading
from fake_s3 import serving
with serving("0.0.0.0", {PORT}):
    threading.Event().wait()
"""


def start_store(kube: Kube, namespace: str, image: str) -> str:
    """Start an S3 server in a pod, and return its address."""
    metadata = {"name": "s3", "namespace": namespace}
    source = Path(fake_s3.__file__).read_text()
    kube.create({"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata, "data": {"fake_s3.py": source}})
    container = {
        "name": "s3",
        "image": image,
        "imagePullPolicy": "IfNotPresent",
        "command": ["python", "-c", SERVE],
        "env": [{"name": "PYTHONPATH", "value": "/srv/s3"}],
        "securityContext": CONTAINER_SECURITY | {"runAsUser": 1000},
        "readinessProbe": {"tcpSocket": {"port": PORT}, "periodSeconds": 1},
        "volumeMounts": [{"name": "program", "mountPath": "/srv/s3"}],
    }
    volume = {"name": "program", "configMap": {"name": "s3"}}
    spec = {"containers": [container], "volumes": [volume], "terminationGracePeriodSeconds": 0}
    kube.create({"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec})

    def address() -> str:
        status = (kube.get("Pod", namespace, "s3") or {}).get("status") or {}
        ready = any(c["type"] == "Ready" and c["status"] == "True" for c in status.get("conditions") or ())
        return str(status["podIP"]) if ready else ""

    return f"http://{wait_for(address, 'the object store is ready')}:{PORT}"


def with_store(job: Object, namespace: str, url: str) -> Object:
    """The job with its checkpoints in the store, and the store's address and credentials in its tasks' environment."""
    job["metadata"]["namespace"] = namespace
    job["spec"]["checkpoint"] = {"uri": "s3://models/digits", "intervalSeconds": 2}
    (container,) = job["spec"]["worker"]["template"]["spec"]["containers"]
    container["command"] = ["python", "-c", PACED["digits"]]
    container["env"] = [{"name": name, "value": value} for name, value in fake_s3.environment(url).items()]
    return job


@in_all(
    "tests/training/test_runtime_object_checkpoints.py::test_without_launchers_the_chief_stores_and_reads_tables"
)  # on kubelets
def test_a_job_without_a_volume_continues_from_its_object_store(kube: Kube, namespace: str, tmp_path: Path) -> None:
    job = yaml.safe_load((ROOT / "examples" / "digits" / "job.yaml").read_text())
    image = job["spec"]["worker"]["template"]["spec"]["containers"][0]["image"]
    created = kube.create(with_store(job, namespace, start_store(kube, namespace, image)))
    example = Example(kube, namespace, created["metadata"]["name"], tmp_path)
    saved = int(example.wait_event("checkpoint")["step"])
    assert example.wait_trained() > 0
    kube.delete("Pod", namespace, example.pod("ps"), grace=0)
    assert int(example.wait_event("restored")["step"]) >= saved > 0
    assert kube.list("PersistentVolumeClaim", namespace) == []


@in_all("tests/training/test_runtime_object_checkpoints.py::test_servers_store_and_read_tables_with_signed_urls")
def test_servers_without_credentials_store_their_tables(kube: Kube, namespace: str, tmp_path: Path) -> None:
    job = yaml.safe_load((ROOT / "examples" / "digits" / "job.yaml").read_text())
    servers = deepcopy(job["spec"]["worker"]["template"])
    image = servers["spec"]["containers"][0]["image"]
    job = with_store(job, namespace, start_store(kube, namespace, image))
    program = ["python", "-c", Path(paced_table.__file__).read_text()]
    for template in (servers, job["spec"]["worker"]["template"]):
        template["spec"]["containers"][0]["command"] = program
    job["spec"] |= {"ps": {"replicas": 2, "template": servers}, "training": {"mode": "Sync", "steps": 10_000_000}}
    job["spec"]["worker"]["replicas"] = 1
    created = kube.create(job)
    example = Example(kube, namespace, created["metadata"]["name"], tmp_path)
    saved = int(example.wait_event("checkpoint")["step"])
    way = example.wait_event("checkpoint_way")
    assert (way["what"], way["by"]) == ("save", "servers"), way
    kube.delete("Pod", namespace, example.pod("ps", 1), grace=0)
    assert int(example.wait_event("restored")["step"]) >= saved > 0
    ways = [event for event in example.events("chief") if event["event"] == "checkpoint_way"]
    assert [(event["what"], event["by"]) for event in ways] == [("save", "servers"), ("restore", "servers")]
