"""The cluster map: who is where, as TensorFlow's `cluster`, in the job's ConfigMap.

Addresses are short names: the pods' own search path completes them in one look-up, whatever the cluster's domain is.
"""

import hashlib
import json
from dataclasses import dataclass, field
from typing import Any

from pstraining.api import contract, names
from pstraining.api.models import Addressing, OnChiefRestart, PSTrainingJob
from pstraining.resources import standbys
from pstraining.resources.metadata import metadata


def addresses(job: PSTrainingJob) -> dict[str, list[str]]:
    """Every task type's addresses in the order of their indices, as TF_CONFIG wants them."""
    name, spec = job.metadata.name, job.spec
    headless = names.headless_service(name)
    found = {}
    if spec.chief.enabled:
        found[names.CHIEF] = [_address(f"{names.chief_host(name)}.{headless}")]
    found[names.WORKER] = [_address(_worker(job, index)) for index in range(spec.worker.replicas)]
    found[names.PS] = [_address(standbys.pod(job, *task)) for task in standbys.tasks(job)]
    if spec.evaluator.enabled and spec.evaluator.in_cluster:
        found[names.EVALUATOR] = [_address(f"{names.evaluator_host(name)}.{headless}")]
    return found


def _worker(job: PSTrainingJob, index: int) -> str:
    host = names.worker_name(job.metadata.name, index)
    if job.spec.worker.addressing is Addressing.CLUSTER_IP:
        return host
    return f"{host}.{names.headless_service(job.metadata.name)}"


def _address(host: str) -> str:
    return f"{host}:{contract.TF_PORT}"


def document(job: PSTrainingJob, term: int = 1, *, ended: bool = False) -> str:
    """The file as it is mounted: the same bytes for the same spec and term.

    Args:
        job: the owner.
        term: the chief's newest. Where nothing follows from it, the first is told for ever.
        ended: the job has ended, and what is started again must idle.
    """
    spec = job.spec
    followed = spec.chief.enabled and spec.ps.on_chief_restart is not OnChiefRestart.KEEP
    content: dict[str, Any] = {
        "job": job.metadata.name,
        "namespace": job.metadata.namespace,
        "cluster": addresses(job),
        "term": term if followed else 1,
        "training": spec.training.model_dump(by_alias=True, exclude_none=True, mode="json"),
    }
    if standbys.is_hot(job):
        content["members"] = standbys.members(job)
        witnesses = [f"{_worker(job, index)}:{contract.WITNESS_PORT}" for index in range(standbys.witnesses(job))]
        content.update(dict.fromkeys(contract.WITNESSES_KEYS, witnesses))
    if spec.ps.on_chief_restart is not None:
        content["onChiefRestart"] = spec.ps.on_chief_restart
    if spec.checkpoint is not None:
        kept = spec.checkpoint.model_dump(
            by_alias=True, include={"path", "keep", "interval_seconds"}, exclude_none=True
        )
        content["checkpoint"] = kept
    if ended:
        content["ended"] = True
    return json.dumps(content, indent=1)


@dataclass
class _Digests:
    """Those of the job that was asked for last, which does not change: every one of its pods carries one."""

    job: PSTrainingJob | None = None
    found: dict[int, str] = field(default_factory=dict)


_digests = _Digests()


def digest(job: PSTrainingJob, role: str, term: int) -> str:
    """A short hash of what that role reads in the map: the term is for the PSs alone."""
    if _digests.job is not job:
        _digests.job, _digests.found = job, {}
    term = term if role == names.PS else 1
    if term not in _digests.found:
        _digests.found[term] = hashlib.sha256(document(job, term).encode()).hexdigest()[:10]
    return _digests.found[term]


def build(job: PSTrainingJob, term: int, *, ended: bool = False) -> dict[str, Any]:
    """The ConfigMap."""
    return {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": metadata(job, names.cluster_config_map(job.metadata.name), "cluster-map"),
        "data": {contract.CLUSTER_FILE: document(job, term, ended=ended)},
    }
