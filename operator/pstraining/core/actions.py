"""A plan as data: what the executor is to write, in order, and why.

Actions are the only way from a decision to the API server. Every prefix of a plan leaves a legal state: the operator
may die between any two writes.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum
from typing import Any

from pstraining.api.conditions import Reason

Manifest = Mapping[str, Any]
"""A Kubernetes object as JSON."""


class Kind(StrEnum):
    """The kinds that the operator writes or watches."""

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
    """Of scheduler-plugins."""
    VOLCANO_POD_GROUP = "PodGroup.scheduling.volcano.sh"
    PS_TRAINING_JOB = "PSTrainingJob"

    @classmethod
    def of(cls, manifest: Manifest) -> "Kind":
        """The kind of an object; two schedulers call theirs by one name."""
        volcano = str(manifest.get("apiVersion", "")).startswith("scheduling.volcano.sh/")
        return cls.VOLCANO_POD_GROUP if volcano else cls(manifest["kind"])

    @classmethod
    def pod_groups(cls) -> tuple["Kind", ...]:
        """The kinds that may not be installed: they are never watched, only read where a job has one."""
        return cls.POD_GROUP, cls.VOLCANO_POD_GROUP


@dataclass(frozen=True)
class Create:
    """POST with strict field validation. If the name is taken: done if its controller is the job, else a conflict."""

    kind: Kind
    name: str
    body: Manifest
    reason: Reason


@dataclass(frozen=True)
class Apply:
    """Server-side apply; the body carries metadata.uid, so that it never creates and never adopts."""

    kind: Kind
    name: str
    uid: str
    body: Manifest
    reason: Reason
    since: datetime | None = None
    """When it came to be due, where that is measured."""


@dataclass(frozen=True)
class Replace:
    """Put whole parts of an object in the place of those that are there; a refusal leaves the object as it is."""

    kind: Kind
    name: str
    uid: str
    parts: Mapping[str, Any]
    """By their places (JSON pointers, RFC 6901), such as /spec/template."""
    reason: Reason


@dataclass(frozen=True)
class Delete:
    """Delete in the background with a uid precondition; an absent object is a success."""

    kind: Kind
    name: str
    uid: str
    reason: Reason
    grace_seconds: int | None = None
    """0: at once, whatever still runs on a node that does not answer; None: as the object says."""


Action = Create | Apply | Replace | Delete


@dataclass(frozen=True)
class Plan:
    """What to do now, and when to look again if nothing happens until then."""

    actions: tuple[Action, ...] = ()
    requeue_at: datetime | None = None


class Verdict(StrEnum):
    """How an action ended."""

    DONE = "Done"
    NAME_TAKEN = "NameTaken"
    INVALID = "Invalid"
    REFUSED = "Refused"
    NOT_SERVED = "NotServed"
    """The API server does not know the kind."""
    NOT_TRIED = "NotTried"


@dataclass(frozen=True)
class Outcome:
    """What became of one action. Errors worth a retry never get here: the executor raises them to the queue."""

    action: Action
    verdict: Verdict
    message: str = ""
    """The API server's words, for the condition."""


@dataclass(frozen=True)
class Event:
    """One event of the job, for people."""

    type: str
    """Normal or Warning."""
    reason: str
    message: str


@dataclass(frozen=True)
class Outcomes:
    """What became of a plan."""

    outcomes: tuple[Outcome, ...] = field(default_factory=tuple)

    def with_verdict(self, verdict: Verdict) -> tuple[Outcome, ...]:
        """The outcomes that ended so."""
        return tuple(o for o in self.outcomes if o.verdict is verdict)
