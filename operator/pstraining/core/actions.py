"""A plan as data: the writes that the executor sends, in order, each with its reason.

Actions are the only way from a decision to the API server. Every prefix of a plan leaves a legal state, because the
operator may crash between any two writes.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum
from typing import Any, Final

from pstraining.api.conditions import Reason

Manifest = Mapping[str, Any]
"""A Kubernetes object as JSON."""


class Kind(StrEnum):
    """The kinds that the operator writes, watches or reads."""

    JOB = "Job"
    POD = "Pod"
    SERVICE = "Service"
    CONFIG_MAP = "ConfigMap"
    DEPLOYMENT = "Deployment"
    STATEFUL_SET = "StatefulSet"
    CLAIM = "PersistentVolumeClaim"
    POD_DISRUPTION_BUDGET = "PodDisruptionBudget"
    NETWORK_POLICY = "NetworkPolicy"
    POD_GROUP = "PodGroup"
    """The PodGroup of scheduler-plugins."""
    VOLCANO_POD_GROUP = "PodGroup.scheduling.volcano.sh"
    WORKLOAD = "Workload"
    """Kueue's request for quota."""
    RESOURCE_FLAVOR = "ResourceFlavor"
    WORKLOAD_PRIORITY_CLASS = "WorkloadPriorityClass"
    PRIORITY_CLASS = "PriorityClass"
    LOCAL_QUEUE = "LocalQueue"
    PS_TRAINING_JOB = "PSTrainingJob"

    @classmethod
    def of(cls, manifest: Manifest) -> "Kind":
        """Return the kind of an object. Two schedulers have a kind of the same name."""
        volcano = str(manifest.get("apiVersion", "")).startswith("scheduling.volcano.sh/")
        return cls.VOLCANO_POD_GROUP if volcano else cls(manifest["kind"])

    @classmethod
    def pod_groups(cls) -> tuple["Kind", ...]:
        """Return the kinds that need not be installed. They are never watched, and read only for jobs with a gang."""
        return cls.POD_GROUP, cls.VOLCANO_POD_GROUP

    @classmethod
    def of_queues(cls) -> tuple["Kind", ...]:
        """Return Kueue's kinds, whose objects belong only to jobs with a queue, or to no job."""
        return cls.WORKLOAD, cls.RESOURCE_FLAVOR, cls.WORKLOAD_PRIORITY_CLASS, cls.PRIORITY_CLASS, cls.LOCAL_QUEUE


WITH_PODS: Final = (Kind.STATEFUL_SET, Kind.DEPLOYMENT, Kind.JOB)
"""The kinds of children that have pods."""


@dataclass(frozen=True)
class Create:
    """POST with strict field validation.

    If the name is taken by the job's own object, or by a claim without a controller, the action succeeds. A name that
    is taken by any other object is a conflict.
    """

    kind: Kind
    name: str
    body: Manifest
    reason: Reason


@dataclass(frozen=True)
class Apply:
    """Server-side apply. The body has metadata.uid, so it never creates and never adopts an object."""

    kind: Kind
    name: str
    uid: str
    body: Manifest
    reason: Reason
    since: datetime | None = None
    """The time at which the action became due, for measurements; None if it is not measured."""


@dataclass(frozen=True)
class Replace:
    """Set whole parts of an object. A refusal leaves the object unchanged."""

    kind: Kind
    name: str
    uid: str
    parts: Mapping[str, Any]
    """New values by JSON pointer (RFC 6901), such as /spec/template; None removes a member."""
    reason: Reason


@dataclass(frozen=True)
class Resize:
    """Change the resources of one container of a running pod (subresource pods/resize). A refusal changes nothing."""

    name: str
    uid: str
    container: str
    resources: Mapping[str, Any]
    """Requests and limits; resources that are not named do not change."""
    reason: Reason
    kind: Kind = Kind.POD


@dataclass(frozen=True)
class Delete:
    """Delete in the background with a uid precondition; an absent object is a success."""

    kind: Kind
    name: str
    uid: str
    reason: Reason
    grace_seconds: int | None = None
    """0 removes the object at once, even if its node does not answer; None uses the object's own grace period."""


@dataclass(frozen=True)
class PatchStatus:
    """Change the status of an object (JSON merge patch: null removes a field), unless it has changed since."""

    kind: Kind
    name: str
    uid: str
    version: str
    """The resourceVersion from which the patch was computed."""
    status: Mapping[str, Any]
    reason: Reason


Action = Create | Apply | Replace | Resize | Delete | PatchStatus


@dataclass(frozen=True)
class Plan:
    """The actions of a pass, and the time of the next pass if no event causes an earlier one."""

    actions: tuple[Action, ...] = ()
    requeue_at: datetime | None = None


class Verdict(StrEnum):
    """The result of an action."""

    DONE = "Done"
    UNCHANGED = "Unchanged"
    """The API server has stored no change, because an admission policy sets the former values again."""
    EXISTS = "Exists"
    """A claim of this name exists and does not belong to the job; the job uses it unchanged."""
    NAME_TAKEN = "NameTaken"
    INVALID = "Invalid"
    REFUSED = "Refused"
    NOT_SERVED = "NotServed"
    """The API server does not know the kind."""
    NOT_TRIED = "NotTried"


@dataclass(frozen=True)
class Outcome:
    """The result of one action. Errors that are worth a retry are not results: the executor raises them, and the queue
    retries the pass."""

    action: Action
    verdict: Verdict
    message: str = ""
    """The API server's message, which the condition shows."""

    @property
    def succeeded(self) -> bool:
        """Whether the cluster is in the state that the action requests, or in one that its policies prefer."""
        return self.verdict in (Verdict.DONE, Verdict.UNCHANGED, Verdict.EXISTS)


@dataclass(frozen=True)
class Event:
    """One Kubernetes event of the job."""

    type: str
    """Normal or Warning."""
    reason: str
    message: str


@dataclass(frozen=True)
class Outcomes:
    """The results of a plan's actions."""

    outcomes: tuple[Outcome, ...] = field(default_factory=tuple)

    @property
    def have_writes(self) -> bool:
        """Whether there is an action, except those that an admission policy undoes in each pass."""
        return any(o.verdict is not Verdict.UNCHANGED for o in self.outcomes)

    def with_verdict(self, verdict: Verdict) -> tuple[Outcome, ...]:
        """Return the outcomes with a verdict."""
        return tuple(o for o in self.outcomes if o.verdict is verdict)
