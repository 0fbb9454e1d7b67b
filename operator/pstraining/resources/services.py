"""Services: an address for every task that others dial, stable for the job's life.

All of them publish addresses that are not ready: who waits for whom is the launcher's business, and a chief must be
able to reach a PS that is just coming back.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from pstraining.api import contract, names
from pstraining.api.models import Addressing, PSTrainingJob
from pstraining.resources import standbys
from pstraining.resources.metadata import metadata, role_selector


@dataclass(frozen=True)
class Pointer:
    """Who is a shard's primary, and since which take-over: what the shard's Service says."""

    pod: str
    epoch: int = 0
    cause: str = ""
    """Why the last take-over happened, in words."""
    demoted: str = ""
    """The uid of the pod that the last take-over left alive: clients may still hold connections to it."""


def build_all(job: PSTrainingJob, pointers: Mapping[int, Pointer]) -> Iterator[dict[str, Any]]:
    """All of a job's Services; a shard without a pointer gets its first."""
    yield build_headless(job)
    for index, member in standbys.tasks(job):
        yield build_member(job, index, member) if standbys.is_hot(job) else build_ps(job, index, pointers.get(index))
    if job.spec.worker.addressing is Addressing.CLUSTER_IP:
        for index in range(job.spec.worker.replicas):
            yield build_worker(job, index)


def build_headless(job: PSTrainingJob) -> dict[str, Any]:
    """The governing Service, for the DNS names of chief and workers."""
    name = names.headless_service(job.metadata.name)
    return _service(job, name, "network", {names.LABEL_JOB_UID: job.metadata.uid}, clusterIP="None")


def build_ps(job: PSTrainingJob, index: int, pointer: Pointer | None = None) -> dict[str, Any]:
    """One PS task's address. Its selector names one pod: it is the pointer to the shard's primary."""
    name = names.ps_service(job.metadata.name, index)
    pointer = pointer or Pointer(standbys.pod(job, index, 0))
    found = _to_pod(job, name, pointer.pod)
    if standbys.standbys(job) or pointer.epoch:
        found["metadata"]["annotations"] = {
            names.ANNOTATION_EPOCH: str(pointer.epoch),
            names.ANNOTATION_CAUSE: pointer.cause,
            names.ANNOTATION_DEMOTED: pointer.demoted,
        }
    return found


def build_member(job: PSTrainingJob, index: int, member: int) -> dict[str, Any]:
    """The address of one member of a shard, where each is a task of its own."""
    name = standbys.pod(job, index, member)
    return _to_pod(job, name, name)


def build_worker(job: PSTrainingJob, index: int) -> dict[str, Any]:
    """One worker's address, where workers are addressed by ClusterIP."""
    name = names.worker_name(job.metadata.name, index)
    found = _service(job, name, names.WORKER, role_selector(job, names.WORKER, index))
    if index < standbys.witnesses(job):
        found["spec"]["ports"].append(_port(contract.WITNESS_PORT_NAME, contract.WITNESS_PORT))
    return found


def _to_pod(job: PSTrainingJob, name: str, pod: str) -> dict[str, Any]:
    return _service(job, name, names.PS, role_selector(job, names.PS) | {names.LABEL_STS_POD: pod})


def _service(job: PSTrainingJob, name: str, component: str, selector: dict[str, str], **extra: str) -> dict[str, Any]:
    ports = [_port(contract.TF_PORT_NAME, contract.TF_PORT)]
    if component != names.WORKER:
        ports.append(_port(contract.STATUS_PORT_NAME, contract.STATUS_PORT))
    spec = {"selector": selector, "ports": ports, "publishNotReadyAddresses": True, **extra}
    return {"apiVersion": "v1", "kind": "Service", "metadata": metadata(job, name, component), "spec": spec}


def _port(name: str, number: int) -> dict[str, Any]:
    return {"name": name, "port": number, "targetPort": number, "protocol": "TCP"}
