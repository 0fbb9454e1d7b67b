"""What parameter servers with standbys have besides their pods: apart from each other, and a budget for drains."""

from typing import Any

from pstraining.api import names
from pstraining.api.models import PSTrainingJob, StandbyMode
from pstraining.resources.metadata import metadata, role_selector


def standbys(job: PSTrainingJob) -> int:
    """How many standbys each shard has."""
    standby = job.spec.ps.standby
    return 0 if standby.mode is StandbyMode.NONE else standby.replicas_per_shard


def stateful_set(job: PSTrainingJob, member: int) -> str:
    """The StatefulSet of every shard's member of that number."""
    name = job.metadata.name
    return names.standby_stateful_set(name, member) if member else names.ps_stateful_set(name)


def pod(job: PSTrainingJob, index: int, member: int) -> str:
    """The pod that is a shard's member of that number."""
    return f"{stateful_set(job, member)}-{index}"


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
