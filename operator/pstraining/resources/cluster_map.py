"""The cluster map in the job's ConfigMap: the addresses of all tasks, as TensorFlow's `cluster`, and settings.

Addresses are short names: the pods' DNS search path completes them in one look-up for any cluster domain.
"""

import hashlib
import json
from dataclasses import dataclass, field
from typing import Any

from pstraining.api import contract, names
from pstraining.api.autoscaling import AutoscalingMode
from pstraining.api.models import Addressing, OnChiefRestart, PSTrainingJob
from pstraining.resources import standbys
from pstraining.resources.layout import FIRST, ServerLayout, with_shards
from pstraining.resources.metadata import metadata


def addresses(job: PSTrainingJob) -> dict[str, list[str]]:
    """Return the addresses by task type, in the order of the task indices, as in TF_CONFIG."""
    name, spec = job.metadata.name, job.spec
    headless = names.headless_service(name)
    found = {}
    if spec.chief.enabled:
        found[names.CHIEF] = [_address(f"{names.chief_host(name)}.{headless}")]
    found[names.WORKER] = [_address(_worker(job, index)) for index in range(spec.worker.replicas)]
    found[names.PS] = _servers(job)
    if spec.evaluator.enabled and spec.evaluator.in_cluster:
        found[names.EVALUATOR] = [_address(f"{names.evaluator_host(name)}.{headless}")]
    return found


def _outside_cluster(job: PSTrainingJob) -> dict[str, list[str]]:
    """Return the addresses of the tasks that are measured but not part of the cluster, by task type."""
    spec, name = job.spec, job.metadata.name
    if not spec.evaluator.enabled or spec.evaluator.in_cluster:
        return {}
    return {names.EVALUATOR: [_address(f"{names.evaluator_host(name)}.{names.headless_service(name)}")]}


def _servers(job: PSTrainingJob) -> list[str]:
    return [_address(standbys.pod(job, *task)) for task in standbys.tasks(job)]


def _worker(job: PSTrainingJob, index: int) -> str:
    host = names.worker_name(job.metadata.name, index)
    if job.spec.worker.addressing is Addressing.CLUSTER_IP:
        return host
    return f"{host}.{names.headless_service(job.metadata.name)}"


def _address(host: str) -> str:
    return f"{host}:{contract.TF_PORT}"


def document(job: PSTrainingJob, term: int = 1, *, layout: ServerLayout = FIRST, ended: bool = False) -> str:
    """Return the file's text: equal specs, terms and layouts have equal texts.

    Args:
        job: the owner.
        term: the chief's newest term. If servers ignore terms, the text always has the first term.
        layout: the layout; the number of the first layout is left out.
        ended: whether the job has ended, so that restarted containers must idle.
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
    if layout.number != FIRST.number:
        content["layout"] = layout.number
    if standbys.is_hot(job) and layout.term != FIRST.term:
        content["layoutTerm"] = layout.term
    if layout.ending:
        content["nextLayout"] = layout.number + 1
    if layout.following:
        content["nextServers"] = _servers(with_shards(job, layout.following))
    if standbys.is_hot(job):
        content["members"] = standbys.members(job)
        witnesses = [f"{_worker(job, index)}:{contract.WITNESS_PORT}" for index in range(standbys.witnesses(job))]
        content.update(dict.fromkeys(contract.WITNESSES_KEYS, witnesses))
    if spec.ps.on_chief_restart is not None:
        content["onChiefRestart"] = spec.ps.on_chief_restart
    if spec.checkpoint is not None:
        kept = spec.checkpoint.model_dump(
            by_alias=True, include={"path", "keep", "interval_seconds", "full_every", "history"}, exclude_none=True
        )
        content["checkpoint"] = kept | {"path": spec.checkpoint.uri or spec.checkpoint.path}
    if spec.autoscaling.mode is not AutoscalingMode.OFF:
        content["measured"] = _outside_cluster(job)
    if ended:
        content["ended"] = True
    return json.dumps(content, indent=1)


@dataclass
class _Digests:
    """Digests of the last job by term and layout, because every pod of a job needs one. The job is immutable."""

    job: PSTrainingJob | None = None
    found: dict[tuple[int, int, int, bool, int], str] = field(default_factory=dict)


_digests = _Digests()


def digest(job: PSTrainingJob, role: str, term: int, layout: ServerLayout = FIRST) -> str:
    """Return a short hash of the fields that a role reads: only PSs read the term, and only the chief `ending`."""
    if _digests.job is not job:
        _digests.job, _digests.found = job, {}
    own_term, ending = (term if role == names.PS else 1), layout.ending and role == names.CHIEF
    version = own_term, layout.number, layout.term, ending, layout.following
    if version not in _digests.found:
        read = ServerLayout(layout.number, layout.term, ending=ending, following=layout.following)
        text = document(job, own_term, layout=read)
        _digests.found[version] = hashlib.sha256(text.encode()).hexdigest()[:10]
    return _digests.found[version]


def build(job: PSTrainingJob, term: int, *, layout: ServerLayout = FIRST, ended: bool = False) -> dict[str, Any]:
    """Return the cluster map's ConfigMap."""
    return {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": metadata(job, names.cluster_config_map(job.metadata.name), "cluster-map"),
        "data": {contract.CLUSTER_FILE: document(job, term, layout=layout, ended=ended)},
    }
