"""The PodGroup of a job whose pods are scheduled as a gang: all that its start needs, at once or none of it."""

from typing import Any, Final

from pstraining.api import names
from pstraining.api.models import PSTrainingJob
from pstraining.resources import pods, requests
from pstraining.resources.metadata import metadata
from pstraining.resources.schedulers import Members, Provider

KIND: Final = "PodGroup"


def build(job: PSTrainingJob, scheduler: Provider, gang: Members) -> dict[str, Any]:
    """The PodGroup of a gang.

    Args:
        job: the owner.
        scheduler: who places it.
        gang: who has to be placed together; fewer than at the start once some have ended.
    """
    policy = job.spec.run_policy.scheduling_policy
    roles = ((names.PS, gang.ps, None), (names.CHIEF, gang.chief, 1), (names.WORKER, gang.workers, None))
    asked = requests.total((n, requests.of_pod(_pod(job, role, term))) for role, n, term in roles if n)
    return {
        "apiVersion": scheduler.api_version,
        "kind": KIND,
        "metadata": metadata(job, names.pod_group(job.metadata.name), "gang"),
        "spec": {"minMember": gang.count, **scheduler.group(policy, asked)},
    }


def _pod(job: PSTrainingJob, role: str, term: int | None) -> dict[str, Any]:
    index = 0 if role == names.WORKER else None
    found: dict[str, Any] = pods.build(job, pods.Task(role, index, term), "")["spec"]
    return found
