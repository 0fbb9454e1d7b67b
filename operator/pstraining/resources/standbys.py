"""What parameter servers with standbys have besides their pods: apart from each other, and a budget for drains."""

import hashlib
import json
from collections.abc import Iterator
from typing import Any

from pstraining.api import names
from pstraining.api.models import PSTrainingJob, StandbyMode
from pstraining.resources.metadata import metadata, role_selector


def standbys(job: PSTrainingJob) -> int:
    """How many standbys each shard has."""
    standby = job.spec.ps.standby
    return 0 if standby.mode is StandbyMode.NONE else standby.replicas_per_shard


def members(job: PSTrainingJob) -> int:
    """How many parameter servers each shard has, the primary and its standbys."""
    return 1 + standbys(job)


def is_hot(job: PSTrainingJob) -> bool:
    """Whether every member of a shard is a task of its own, and the chief says which of them is primary."""
    return job.spec.ps.standby.mode is StandbyMode.HOT


def tasks(job: PSTrainingJob) -> Iterator[tuple[int, int]]:
    """Shard and member of every PS task, in the order of the tasks' indices."""
    each = members(job) if is_hot(job) else 1
    return ((index, member) for member in range(each) for index in range(job.spec.ps.replicas))


def witnesses(job: PSTrainingJob) -> int:
    """Return the number of workers that vote on the members in sync: those that the job always has."""
    worker = job.spec.worker
    return (worker.min_replicas or worker.replicas) if is_hot(job) else 0


def stateful_set(job: PSTrainingJob, member: int) -> str:
    """The StatefulSet of every shard's member of that number."""
    name = job.metadata.name
    return names.standby_stateful_set(name, member) if member else names.ps_stateful_set(name)


def pod(job: PSTrainingJob, index: int, member: int) -> str:
    """The pod that is a shard's member of that number; a PS task's Service has the same name."""
    return f"{stateful_set(job, member)}-{index}"


def server_template(job: PSTrainingJob) -> str:
    """A short hash of what may change while hot standbys run, as each member can be made anew beside the others."""
    made_from = json.dumps([job.spec.ps.template, job.spec.ps.resources], sort_keys=True)
    return hashlib.sha256(made_from.encode()).hexdigest()[:10]


def keep_apart(job: PSTrainingJob, spec: dict[str, Any]) -> None:
    """Never two members of one shard in one place, whatever else the template asks for."""
    term = {
        "labelSelector": {"matchLabels": role_selector(job, names.PS)},
        "matchLabelKeys": [names.LABEL_POD_INDEX],
        "topologyKey": job.spec.network.topology_key,
    }
    affinity = spec.setdefault("affinity", {})
    apart = affinity.setdefault("podAntiAffinity", {})
    field = "requiredDuringSchedulingIgnoredDuringExecution"
    apart[field] = [*(apart.get(field) or ()), term]


def build_budget(job: PSTrainingJob, index: int) -> dict[str, Any]:
    """The PodDisruptionBudget across a shard's members: a drain takes one and waits until it is back elsewhere."""
    selector = role_selector(job, names.PS) | {names.LABEL_POD_INDEX: str(index)}
    return {
        "apiVersion": "policy/v1",
        "kind": "PodDisruptionBudget",
        "metadata": metadata(job, names.shard_budget(job.metadata.name, index), names.PS),
        "spec": {"minAvailable": 1, "selector": {"matchLabels": selector}},
    }
