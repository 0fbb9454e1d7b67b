"""Services: an address for every task that others dial, stable for the job's life.

All of them publish addresses that are not ready: who waits for whom is the launcher's business, and a chief must be
able to reach a PS that is just coming back.
"""

from collections.abc import Iterator
from typing import Any

from pstraining.api import contract, names
from pstraining.api.models import Addressing, PSTrainingJob
from pstraining.resources.metadata import metadata, role_selector


def build_all(job: PSTrainingJob) -> Iterator[dict[str, Any]]:
    """All of a job's Services."""
    yield build_headless(job)
    for index in range(job.spec.ps.replicas):
        yield build_ps(job, index)
    if job.spec.worker.addressing is Addressing.CLUSTER_IP:
        for index in range(job.spec.worker.replicas):
            yield build_worker(job, index)


def build_headless(job: PSTrainingJob) -> dict[str, Any]:
    """The governing Service, for the DNS names of chief and workers."""
    name = names.headless_service(job.metadata.name)
    return _service(job, name, "network", {names.LABEL_JOB_UID: job.metadata.uid}, clusterIP="None")


def build_ps(job: PSTrainingJob, index: int) -> dict[str, Any]:
    """One PS task's address. Its selector names one pod: it is the pointer to the shard's primary."""
    name = names.ps_service(job.metadata.name, index)
    pod = f"{names.ps_stateful_set(job.metadata.name)}-{index}"
    return _service(job, name, names.PS, role_selector(job, names.PS) | {names.LABEL_STS_POD: pod})


def build_worker(job: PSTrainingJob, index: int) -> dict[str, Any]:
    """One worker's address, where workers are addressed by ClusterIP."""
    name = names.worker_name(job.metadata.name, index)
    return _service(job, name, names.WORKER, role_selector(job, names.WORKER, index))


def _service(job: PSTrainingJob, name: str, component: str, selector: dict[str, str], **extra: str) -> dict[str, Any]:
    ports = [_port(contract.TF_PORT_NAME, contract.TF_PORT)]
    if component != names.WORKER:
        ports.append(_port(contract.STATUS_PORT_NAME, contract.STATUS_PORT))
    spec = {"selector": selector, "ports": ports, "publishNotReadyAddresses": True, **extra}
    return {"apiVersion": "v1", "kind": "Service", "metadata": metadata(job, name, component), "spec": spec}


def _port(name: str, number: int) -> dict[str, Any]:
    return {"name": name, "port": number, "targetPort": number, "protocol": "TCP"}
