"""The schedulers that place a job's pods as a gang: what each wants to see, and who is in the gang.

The gang is what the job cannot do without: every parameter server, the chief, and worker.minReplicas workers (all where
that is not set), never the full number of an elastic job. Standbys and the evaluator are not in it: a job trains
without them, and one that waits for room should not wait for theirs. minAvailable can make the gang larger, by workers.

Both schedulers count pods, whichever they are. So that the first ones are the gang's, the others are created only once
the gang has its places (core/policies/gang.py); then they join the group and count, too, and whichever pod is replaced
later finds the group complete and is scheduled by itself.
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
    """How many pods of each role a gang has."""

    ps: int
    chief: int
    workers: int

    @property
    def count(self) -> int:
        """All of them; a PodGroup has one at least."""
        return max(1, self.ps + self.chief + self.workers)


class Provider(Protocol):
    """What one scheduler wants to see."""

    scheduler: str
    """The name under which its own instructions install it."""
    api_version: str
    """Of its PodGroups."""
    product: str
    """What to install where its PodGroups are not known."""

    def group(self, policy: SchedulingPolicy, asked: Mapping[str, str]) -> dict[str, Any]:
        """What its PodGroup's spec has besides minMember.

        Args:
            policy: the job's.
            asked: what all members ask for.
        """

    def mark(self, group: str, found: dict[str, Any]) -> None:
        """Make a pod the group's member: its metadata is changed."""


class SchedulerPlugins:
    """The plugin Coscheduling of kubernetes-sigs/scheduler-plugins."""

    scheduler = "scheduler-plugins-scheduler"
    api_version = "scheduling.x-k8s.io/v1alpha1"
    product = "scheduler-plugins"

    def group(self, policy: SchedulingPolicy, asked: Mapping[str, str]) -> dict[str, Any]:
        """The timeout.

        Not minResources: version 0.34.7 turns a group that exceeds what is free away before it looks at nodes, and then
        does not wake it when a pod ends, only when one is created, or after five minutes.
        """
        seconds = policy.timeout_seconds
        return {} if seconds is None else {"scheduleTimeoutSeconds": seconds}

    def mark(self, group: str, found: dict[str, Any]) -> None:
        """By a label."""
        found["labels"] = {**found.get("labels", {}), "scheduling.x-k8s.io/pod-group": group}


class Volcano:
    """The scheduler of volcano-sh/volcano."""

    scheduler = "volcano"
    api_version = "scheduling.volcano.sh/v1beta1"
    product = "Volcano"

    def group(self, policy: SchedulingPolicy, asked: Mapping[str, str]) -> dict[str, Any]:
        """Queue and priority, by which Volcano orders groups and not pods, and what its queue must have left."""
        found = {"minResources": dict(asked), "queue": policy.queue, "priorityClassName": policy.priority_class}
        return {field: value for field, value in found.items() if value}

    def mark(self, group: str, found: dict[str, Any]) -> None:
        """By an annotation."""
        found["annotations"] = {**found.get("annotations", {}), "scheduling.k8s.io/group-name": group}


PROVIDERS: Final[Mapping[Gang, Provider]] = {Gang.SCHEDULER_PLUGINS: SchedulerPlugins(), Gang.VOLCANO: Volcano()}


def provider(job: PSTrainingJob) -> Provider | None:
    """The scheduler that places the job as a gang; None if nobody does."""
    return PROVIDERS.get(job.spec.run_policy.scheduling_policy.gang)


def members(job: PSTrainingJob) -> GangMembers:
    """The gang at the job's start."""
    worker = job.spec.worker
    ps, chief = job.spec.ps.replicas, int(job.spec.chief.enabled)
    asked = job.spec.run_policy.scheduling_policy.min_available
    workers = (worker.min_replicas or worker.replicas) if asked is None else asked - ps - chief
    return GangMembers(ps, chief, workers)


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
    """Make a pod template one of the gang's, if there is one.

    All of a job's pods join, also those that are created after the gang: each of them counts when another is replaced,
    and a queue has them all. The template's own schedulerName wins.

    Args:
        job: the owner.
        found: the pod's metadata; is changed.
        spec: of the pod; is changed.
    """
    scheduler = provider(job)
    if scheduler is not None:
        scheduler.mark(names.pod_group(job.metadata.name), found)
        if not spec.get("schedulerName"):
            spec["schedulerName"] = scheduler.scheduler
