"""Gangs: the pods that must be placed together, and the PodGroup and marks that each gang scheduler requires.

A gang has the pods that the job cannot train without: every parameter server, the chief, and worker.minReplicas workers
(all workers if it is not set). Standbys and the evaluator are not members, because a job trains without them and must
not wait for their nodes. minAvailable can add workers to the gang.

Both schedulers count pods of any role. The pods outside the gang are therefore created only once the gang is placed
(core/policies/gang.py). They then join the PodGroup, so a pod that is replaced later finds the group complete and is
scheduled by itself.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, Protocol

from pstraining.api import names
from pstraining.api.models import PSTrainingJob
from pstraining.api.run_policy import Gang, SchedulingPolicy
from pstraining.resources.metadata import metadata

KIND: Final = "PodGroup"


@dataclass(frozen=True)
class GangMembers:
    """The number of a gang's pods by role."""

    ps: int
    chief: int
    workers: int

    @property
    def count(self) -> int:
        """Return the number of all members; a PodGroup has at least one."""
        return max(1, self.ps + self.chief + self.workers)


class Provider(Protocol):
    """The requirements of one gang scheduler."""

    scheduler: str
    """The schedulerName of the scheduler's default installation."""
    api_version: str
    """The apiVersion of the scheduler's PodGroups."""
    product: str
    """The product to install if the API server does not know these PodGroups."""

    def group(self, policy: SchedulingPolicy, asked: Mapping[str, str]) -> dict[str, Any]:
        """Return the fields of a PodGroup's spec except minMember.

        Args:
            policy: the job's scheduling policy.
            asked: the sum of the members' resource requests.
        """

    def mark(self, group: str, found: dict[str, Any]) -> None:
        """Change a pod's metadata so that the pod is a member of the PodGroup."""


class SchedulerPlugins:
    """The plugin Coscheduling of kubernetes-sigs/scheduler-plugins."""

    scheduler = "scheduler-plugins-scheduler"
    api_version = "scheduling.x-k8s.io/v1alpha1"
    product = "scheduler-plugins"

    def group(self, policy: SchedulingPolicy, asked: Mapping[str, str]) -> dict[str, Any]:
        """Return the timeout.

        minResources is not set: version 0.34.7 rejects a group that exceeds the free resources before it looks at
        nodes. It then retries the group when a pod is created or after five minutes, but not when a pod ends.
        """
        seconds = policy.timeout_seconds
        return {} if seconds is None else {"scheduleTimeoutSeconds": seconds}

    def mark(self, group: str, found: dict[str, Any]) -> None:
        """Set the label of the PodGroup."""
        found["labels"] = {**found.get("labels", {}), "scheduling.x-k8s.io/pod-group": group}


class Volcano:
    """The scheduler of volcano-sh/volcano."""

    scheduler = "volcano"
    api_version = "scheduling.volcano.sh/v1beta1"
    product = "Volcano"

    def group(self, policy: SchedulingPolicy, asked: Mapping[str, str]) -> dict[str, Any]:
        """Return the group's queue, its priority and the resources that the queue must have free."""
        fields = {"minResources": dict(asked), "queue": policy.queue, "priorityClassName": policy.priority_class}
        return {field: value for field, value in fields.items() if value}

    def mark(self, group: str, found: dict[str, Any]) -> None:
        """Set the annotation of the PodGroup."""
        found["annotations"] = {**found.get("annotations", {}), "scheduling.k8s.io/group-name": group}


PROVIDERS: Final[Mapping[Gang, Provider]] = {Gang.SCHEDULER_PLUGINS: SchedulerPlugins(), Gang.VOLCANO: Volcano()}


def provider(job: PSTrainingJob) -> Provider | None:
    """Return the scheduler that places the job as a gang; None without a gang."""
    return PROVIDERS.get(job.spec.run_policy.scheduling_policy.gang)


def members(job: PSTrainingJob) -> GangMembers:
    """Return the gang at the job's start."""
    worker = job.spec.worker
    ps, chief = job.spec.ps.replicas, int(job.spec.chief.enabled)
    asked = job.spec.run_policy.scheduling_policy.min_available
    needed = worker.min_replicas or worker.replicas
    # The job may run with another number of servers than its spec has: with the former one, or with added servers.
    left = needed if asked is None else min(asked - ps - chief, worker.replicas)
    return GangMembers(ps, chief, max(needed, left))


def build(job: PSTrainingJob, scheduler: Provider, gang: GangMembers, requests: Mapping[str, str]) -> dict[str, Any]:
    """Return the PodGroup of a gang.

    Args:
        job: the owner.
        scheduler: the scheduler that places the gang.
        gang: the members that still need a node; fewer than at the start once some have ended.
        requests: the sum of the members' resource requests (`pods.gang_requests`).
    """
    return {
        "apiVersion": scheduler.api_version,
        "kind": KIND,
        "metadata": metadata(job, names.pod_group(job.metadata.name), "gang"),
        "spec": {"minMember": gang.count, **scheduler.group(job.spec.run_policy.scheduling_policy, requests)},
    }


def join(job: PSTrainingJob, found: dict[str, Any], spec: dict[str, Any]) -> None:
    """Add a pod to the job's PodGroup, if the job has a gang.

    All pods of a job join, including those outside the gang: each of them counts when another one is replaced, and a
    queue accounts for all of them. The template's own schedulerName wins.

    Args:
        job: the owner.
        found: the pod's metadata; it is changed.
        spec: the pod's spec; it is changed.
    """
    scheduler = provider(job)
    if scheduler is not None:
        scheduler.mark(names.pod_group(job.metadata.name), found)
        if not spec.get("schedulerName"):
            spec["schedulerName"] = scheduler.scheduler
