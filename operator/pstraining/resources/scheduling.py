"""Where a task's pod would rather stand, and how important it is, where its template is silent.

Both are soft: a job never waits for a better place, and a template that says anything of its own is left alone.
"""

from typing import Any

from pstraining.api import names
from pstraining.api.models import PSTrainingJob
from pstraining.resources.metadata import role_selector

_SPREAD = (names.PS, names.WORKER)
"""Roles of many: each of them is spread among its own kind."""


def prefer(job: PSTrainingJob, role: str, spec: dict[str, Any]) -> None:
    """Fill in a pod spec's spread and priority.

    Args:
        job: the owner.
        role: whose pod it is.
        spec: is changed.
    """
    if role in _SPREAD:
        spread = {
            "maxSkew": 1,
            "topologyKey": job.spec.network.topology_key,
            "whenUnsatisfiable": "ScheduleAnyway",
            "labelSelector": {"matchLabels": role_selector(job, role)},
        }
        # An empty list is an answer, too: no spread.
        spec.setdefault("topologySpreadConstraints", [spread])
    priority = job.spec.run_policy.scheduling_policy.priority_class
    if priority and not spec.get("priorityClassName"):
        spec["priorityClassName"] = priority
