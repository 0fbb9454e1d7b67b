"""Shards with standbys: their members and tasks, the anti-affinity between members, and the disruption budget."""

import hashlib
import json
from collections.abc import Iterator
from typing import Any

from pstraining.api import names
from pstraining.api.models import PSTrainingJob
from pstraining.api.standby import StandbyMode
from pstraining.api.values import copied
from pstraining.resources.metadata import metadata, role_selector


def standbys(job: PSTrainingJob) -> int:
    """Return the number of standbys per shard."""
    standby = job.spec.ps.standby
    return 0 if standby.mode is StandbyMode.NONE else standby.replicas_per_shard


def members(job: PSTrainingJob) -> int:
    """Return the number of parameter servers per shard: the primary and its standbys."""
    return 1 + standbys(job)


def is_hot(job: PSTrainingJob) -> bool:
    """Whether standbys are hot: every member of a shard is a task, and the chief selects the primary."""
    return job.spec.ps.standby.mode is StandbyMode.HOT


def tasks(job: PSTrainingJob) -> Iterator[tuple[int, int]]:
    """Yield shard and member of every PS task, in the order of the task indices."""
    each = members(job) if is_hot(job) else 1
    return ((index, member) for member in range(each) for index in range(job.spec.ps.replicas))


def witnesses(job: PSTrainingJob) -> int:
    """Return the number of workers that vote on the members in sync: the number that the job always has."""
    worker = job.spec.worker
    return (worker.min_replicas or worker.replicas) if is_hot(job) else 0


def stateful_set(job: PSTrainingJob, member: int) -> str:
    """Return the name of the StatefulSet of all shards' members with this number."""
    name = job.metadata.name
    return names.standby_stateful_set(name, member) if member else names.ps_stateful_set(name)


def pod(job: PSTrainingJob, index: int, member: int) -> str:
    """Return the name of a member's pod; the Service of a PS task has the same name."""
    return f"{stateful_set(job, member)}-{index}"


def server_template(job: PSTrainingJob) -> str:
    """Return a hash of the fields of the servers' pods that may change while hot standbys run."""
    return _template_hash(job, job.spec.ps.resources)


def differs_in_size_only(job: PSTrainingJob, carried: str, size: dict[str, Any]) -> bool:
    """Whether a server was created from the current spec.ps except for its resources.

    Args:
        job: the job.
        carried: the hash on the server's pod.
        size: the resources of the pod's training container.
    """
    return carried in (server_template(job), _template_hash(job, None), _template_hash(job, size))


def _template_hash(job: PSTrainingJob, resources: dict[str, Any] | None) -> str:
    fields = json.dumps([job.spec.ps.template, resources], sort_keys=True)
    return hashlib.sha256(fields.encode()).hexdigest()[:10]


def place(job: PSTrainingJob, member: int, spec: dict[str, Any]) -> None:
    """Select the nodes of a standby, if the job places standbys differently from primaries.

    Args:
        job: the owner.
        member: the number of the member in its shard; member 0 is the first primary.
        spec: the pod's spec; it is changed.
    """
    placement = job.spec.ps.standby.placement
    if not member or placement is None:
        return
    own = {
        "nodeSelector": placement.node_selector,
        "tolerations": placement.tolerations,
        "affinity": placement.affinity,
    }
    spec.update(copied({field: value for field, value in own.items() if value is not None}))


def keep_apart(job: PSTrainingJob, spec: dict[str, Any]) -> None:
    """Forbid two members of one shard in one topology domain, in addition to the template's own affinity."""
    term = {
        "labelSelector": {"matchLabels": role_selector(job, names.PS)},
        "matchLabelKeys": [names.LABEL_POD_INDEX],
        "topologyKey": job.spec.network.topology_key,
    }
    affinity = spec.setdefault("affinity", {})
    anti_affinity = affinity.setdefault("podAntiAffinity", {})
    field = "requiredDuringSchedulingIgnoredDuringExecution"
    anti_affinity[field] = [*(anti_affinity.get(field) or ()), term]


def build_budget(job: PSTrainingJob, index: int) -> dict[str, Any]:
    """Return the PodDisruptionBudget of a shard, which keeps one ready member.

    With one standby, a drain evicts one member and waits until it is ready elsewhere. More standbys may lack nodes, so
    the budget does not wait for all of them.
    """
    selector = role_selector(job, names.PS) | {names.LABEL_POD_INDEX: str(index)}
    return {
        "apiVersion": "policy/v1",
        "kind": "PodDisruptionBudget",
        "metadata": metadata(job, names.shard_budget(job.metadata.name, index), names.PS),
        "spec": {"minAvailable": 1, "selector": {"matchLabels": selector}},
    }
