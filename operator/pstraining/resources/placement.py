"""Sets a pod's preferred placement and its priority, unless its template sets its own.

All preferences are soft: a job never waits for a better node.
"""

from typing import Any, Final

from pstraining.api import names
from pstraining.api.models import PSTrainingJob
from pstraining.resources.metadata import role_selector

_SPREAD = (names.PS, names.WORKER)
"""Roles whose pods are spread, separately for each role."""

FAINT_SKEW: Final = 32
"""A spread with this skew counts less than the affinity. The scheduler gives both the same weight, and scores a node by
its pods plus the skew, relative to the highest such score. The larger the skew, the less one pod changes the score."""


def prefer(job: PSTrainingJob, role: str, spec: dict[str, Any]) -> None:
    """Set a pod's topology spread, its affinity and its priority.

    Args:
        job: the owner.
        role: the pod's role.
        spec: the pod's spec; it is changed.
    """
    network = job.spec.network
    if role in _SPREAD:
        spread = {
            "maxSkew": FAINT_SKEW if network.pack_topology_key else 1,
            "topologyKey": network.topology_key,
            "whenUnsatisfiable": "ScheduleAnyway",
            "labelSelector": {"matchLabels": role_selector(job, role)},
        }
        # An empty list in the template means no spread.
        spec.setdefault("topologySpreadConstraints", [spread])
    if network.pack_topology_key:
        _keep_together(job, network.pack_topology_key, spec)
    priority = job.spec.run_policy.scheduling_policy.priority_class
    if priority and not spec.get("priorityClassName"):
        spec["priorityClassName"] = priority


def _keep_together(job: PSTrainingJob, key: str, spec: dict[str, Any]) -> None:
    """Prefer the topology domain of the job's other pods; the first pod has no preference."""
    term = {"labelSelector": {"matchLabels": {names.LABEL_JOB_UID: job.metadata.uid}}, "topologyKey": key}
    together = {"preferredDuringSchedulingIgnoredDuringExecution": [{"weight": 100, "podAffinityTerm": term}]}
    affinity = spec.get("affinity") or {}
    spec["affinity"] = {"podAffinity": together} | affinity
