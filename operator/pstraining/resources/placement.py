"""Where a task's pod would rather stand, and how important it is, where its template is silent.

All of it is soft: a job never waits for a better place, and a template that says anything of its own is left alone.
"""

from typing import Any, Final

from pstraining.api import names
from pstraining.api.models import PSTrainingJob
from pstraining.resources.metadata import role_selector

_SPREAD = (names.PS, names.WORKER)
"""Roles of many: each of them is spread among its own kind."""

FAINT_SKEW: Final = 32
"""A spread with this skew counts less than being together does. The scheduler weighs both alike, and scores a node by
its pods plus the skew, as a part of the highest such score: the larger the skew, the less a pod more or less tells."""


def prefer(job: PSTrainingJob, role: str, spec: dict[str, Any]) -> None:
    """Fill in a pod spec's spread, its company and its priority.

    Args:
        job: the owner.
        role: whose pod it is.
        spec: is changed.
    """
    network = job.spec.network
    if role in _SPREAD:
        spread = {
            "maxSkew": FAINT_SKEW if network.pack_topology_key else 1,
            "topologyKey": network.topology_key,
            "whenUnsatisfiable": "ScheduleAnyway",
            "labelSelector": {"matchLabels": role_selector(job, role)},
        }
        # An empty list is an answer, too: no spread.
        spec.setdefault("topologySpreadConstraints", [spread])
    if network.pack_topology_key:
        _keep_together(job, network.pack_topology_key, spec)
    priority = job.spec.run_policy.scheduling_policy.priority_class
    if priority and not spec.get("priorityClassName"):
        spec["priorityClassName"] = priority


def _keep_together(job: PSTrainingJob, key: str, spec: dict[str, Any]) -> None:
    """Let the pod go where others of its job are; the first one goes anywhere."""
    term = {"labelSelector": {"matchLabels": {names.LABEL_JOB_UID: job.metadata.uid}}, "topologyKey": key}
    together = {"preferredDuringSchedulingIgnoredDuringExecution": [{"weight": 100, "podAffinityTerm": term}]}
    affinity = spec.get("affinity") or {}
    spec["affinity"] = {"podAffinity": together} | affinity
