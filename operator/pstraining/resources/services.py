"""Services: a stable address for every task that other tasks connect to.

All of them publish addresses that are not ready: the launcher orders the start, and a chief must be able to reach a
PS that is restarting.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from pstraining.api import contract, names
from pstraining.api.models import Addressing, PSTrainingJob
from pstraining.resources import standbys
from pstraining.resources.metadata import metadata, role_selector


@dataclass(frozen=True)
class Pointer:
    """A shard's primary and its epoch, as recorded in the shard's Service."""

    pod: str
    epoch: int = 0
    cause: str = ""
    """The cause of the last failover or switchover."""
    demoted: str = ""
    """Uid of the former primary's pod if it was alive: clients may still have connections to it."""


def build_all(job: PSTrainingJob, pointers: Mapping[int, Pointer]) -> Iterator[dict[str, Any]]:
    """Yield all Services of a job. A shard without a pointer gets its first one."""
    yield build_headless(job)
    for index, member in standbys.tasks(job):
        yield build_member(job, index, member) if standbys.is_hot(job) else build_ps(job, index, pointers.get(index))
    if job.spec.worker.addressing is Addressing.CLUSTER_IP:
        for index in range(job.spec.worker.replicas):
            yield build_worker(job, index)


def build_starting(job: PSTrainingJob, indices: Iterable[int]) -> Iterator[dict[str, Any]]:
    """Yield the Services of the shards that only the next layout has; their servers are starting."""
    for index in indices:
        members = range(standbys.members(job)) if standbys.is_hot(job) else ()
        yield from (build_member(job, index, member) for member in members)
        if not members:
            yield build_ps(job, index)


def build_headless(job: PSTrainingJob) -> dict[str, Any]:
    """Return the governing Service, which gives chief and workers their DNS names."""
    name = names.headless_service(job.metadata.name)
    return _service(job, name, "network", {names.LABEL_JOB_UID: job.metadata.uid}, clusterIP="None")


def build_ps(job: PSTrainingJob, index: int, pointer: Pointer | None = None) -> dict[str, Any]:
    """Return one shard's Service, whose selector names the pod of the primary."""
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
    """Return the Service of one member of a shard with hot standbys."""
    name = standbys.pod(job, index, member)
    return _to_pod(job, name, name)


def build_worker(job: PSTrainingJob, index: int) -> dict[str, Any]:
    """Return one worker's Service, if workers are addressed by ClusterIP."""
    name = names.worker_name(job.metadata.name, index)
    found = _service(job, name, names.WORKER, role_selector(job, names.WORKER, index))
    if index < standbys.witnesses(job):
        found["spec"]["ports"].append(_port(contract.WITNESS_PORT_NAME, contract.WITNESS_PORT))
    return found


def _to_pod(job: PSTrainingJob, name: str, pod: str) -> dict[str, Any]:
    return _service(job, name, names.PS, role_selector(job, names.PS) | {names.LABEL_STS_POD: pod})


def _service(job: PSTrainingJob, name: str, component: str, selector: dict[str, str], **extra: str) -> dict[str, Any]:
    ports = [_port(contract.TF_PORT_NAME, contract.TF_PORT), _port(contract.STATUS_PORT_NAME, contract.STATUS_PORT)]
    spec = {"selector": selector, "ports": ports, "publishNotReadyAddresses": True, **extra}
    return {"apiVersion": "v1", "kind": "Service", "metadata": metadata(job, name, component), "spec": spec}


def _port(name: str, number: int) -> dict[str, Any]:
    return {"name": name, "port": number, "targetPort": number, "protocol": "TCP"}
