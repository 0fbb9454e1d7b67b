"""Kueue's Workload of a job, as typed data.

https://kueue.sigs.k8s.io/docs/reference/kueue.v1beta2/#kueue-x-k8s-io-v1beta2-Workload
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from functools import cached_property
from typing import Any, Final

from pstraining.api import names
from pstraining.core.actions import Manifest
from pstraining.core.snapshot import Child, QueueObjects
from pstraining.resources import kueue
from pstraining.resources.kueue import PodSetAssignment, WorkloadTerms


class QueueCondition(StrEnum):
    """The conditions of a Workload that the operator reads or sets."""

    QUOTA_RESERVED = "QuotaReserved"
    ADMITTED = "Admitted"
    EVICTED = "Evicted"
    REQUEUED = "Requeued"
    PODS_READY = "PodsReady"
    FINISHED = "Finished"


_REPLACED = "WorkloadSliceReplaced"
"""Kueue's reason for the end of a Workload that a larger one has replaced."""
PAST_SECONDS: Final = "accumulatedPastExecutionTimeSeconds"
"""The field of a Workload's status with the time for which its job ran by former admissions."""
TIME_LIMIT: Final = "MaximumExecutionTimeExceeded"
"""End of Kueue's reason for the eviction of a job whose time limit has passed."""
REQUEUED_REASONS = ("Preempted", "NodeFailures")
"""Reasons for an eviction after which the Workload queues again at once; Kueue decides after the others."""


@dataclass(frozen=True)
class QueueWorkload:
    """One Workload of a job."""

    child: Child

    @property
    def name(self) -> str:
        """The Workload's name."""
        return self.child.name

    @property
    def version(self) -> str:
        """The resourceVersion."""
        return str(self.child.manifest["metadata"].get("resourceVersion", ""))

    @property
    def created(self) -> str:
        """The time of creation, by which Workloads are ordered."""
        return str(self.child.manifest["metadata"].get("creationTimestamp", ""))

    @property
    def spec(self) -> Manifest:
        """Return spec."""
        return self.child.manifest.get("spec") or {}

    @property
    def status(self) -> Manifest:
        """Return status."""
        return self.child.manifest.get("status") or {}

    @property
    def pod_sets_digest(self) -> str:
        """The hash of the fields from which its pod sets were made."""
        return str(self.child.annotations.get(names.ANNOTATION_POD_SETS, ""))

    @cached_property
    def counts(self) -> Mapping[str, int]:
        """Return the number of pods of each pod set, in its order."""
        return {str(item["name"]): int(item.get("count", 0)) for item in self.spec.get("podSets") or ()}

    @property
    def terms(self) -> WorkloadTerms:
        """The terms of its request, besides the kinds of its pods."""
        sets = self.spec.get("podSets") or ()
        fewest = next((s.get("minCount") for s in sets if s["name"] == names.WORKER), None)
        limit = self.spec.get(kueue.MAX_SECONDS)
        return WorkloadTerms(self.counts.get(names.WORKER, 0), fewest, self.is_elastic, limit)

    @property
    def is_elastic(self) -> bool:
        """Whether the number of its workers changes by slices."""
        return self.child.annotations.get(kueue.ANNOTATION_ELASTIC) == "true"

    @property
    def priority_class(self) -> tuple[str, str]:
        """The API group and name of its priority class; empty without one."""
        found = self.spec.get("priorityClassRef") or {}
        return str(found.get("group", "")), str(found.get("name", ""))

    @cached_property
    def reclaimable(self) -> Mapping[str, int]:
        """Return the number of pods of each pod set that need no quota any more."""
        return {str(i["name"]): int(i.get("count", 0)) for i in self.status.get("reclaimablePods") or ()}

    @property
    def past_seconds(self) -> int:
        """The seconds for which the job ran before the present admission, which count against its time limit."""
        return int(self.status.get(PAST_SECONDS) or 0)

    def condition(self, kind: QueueCondition) -> Mapping[str, Any]:
        """Return a condition; empty without it."""
        return next((c for c in self.child.conditions if c.get("type") == kind), {})

    def is_true(self, kind: QueueCondition) -> bool:
        """Whether a condition is true."""
        return self.condition(kind).get("status") == "True"

    @property
    def is_active(self) -> bool:
        """Whether the Workload may be admitted; users stop it by spec.active."""
        return self.spec.get("active") is not False

    @property
    def replaces(self) -> str:
        """The name of the Workload that this slice replaces; empty for the first."""
        return self.child.annotations.get(kueue.ANNOTATION_REPLACES, "").partition("/")[2]

    @property
    def slice_name(self) -> str:
        """The name of the first Workload of its chain of slices."""
        return str(self.child.annotations.get(kueue.ANNOTATION_SLICE, self.name))

    @property
    def is_evicted(self) -> bool:
        """Whether Kueue has evicted it."""
        return self.is_true(QueueCondition.EVICTED)

    @property
    def has_quota(self) -> bool:
        """Whether quota is reserved for it."""
        return self.is_true(QueueCondition.QUOTA_RESERVED)

    @property
    def is_finished(self) -> bool:
        """Whether the job, or Kueue, has declared it finished."""
        return self.is_true(QueueCondition.FINISHED)

    @property
    def is_replaced(self) -> bool:
        """Whether a larger Workload has replaced it."""
        return self.is_finished and self.condition(QueueCondition.FINISHED).get("reason") == _REPLACED

    @property
    def may_run(self) -> bool:
        """Whether Kueue has admitted it, and has not evicted it since."""
        is_admitted = self.is_true(QueueCondition.ADMITTED) and bool(self.status.get("admission"))
        return is_admitted and not self.is_evicted

    @cached_property
    def flavors(self) -> frozenset[str]:
        """Return the names of the assigned ResourceFlavors."""
        return frozenset(flavor for item in self._assignments for flavor in (item.get("flavors") or {}).values())

    def count(self, pod_set: str) -> int | None:
        """Return the number of pods that a pod set was admitted with; None without an admission."""
        assigned = next((a for a in self._assignments if a["name"] == pod_set), None)
        # The admission of an elastic Workload keeps its count when the pod set shrinks.
        asked = self.counts.get(pod_set, 0)
        return None if assigned is None else min(asked, int(assigned.get("count", asked)))

    def assignments(self, objects: QueueObjects) -> dict[str, PodSetAssignment]:
        """Return the assignment of each pod set.

        Args:
            objects: Kueue's objects, with the flavors.
        """
        return {str(item["name"]): self._assignment(item, objects) for item in self._assignments}

    @property
    def _assignments(self) -> list[Mapping[str, Any]]:
        return list((self.status.get("admission") or {}).get("podSetAssignments") or ())

    def _assignment(self, item: Mapping[str, Any], objects: QueueObjects) -> PodSetAssignment:
        name = str(item["name"])
        flavors = [objects.flavors[f] for f in dict.fromkeys((item.get("flavors") or {}).values())]
        updates = list(self._updates(name))
        selector: dict[str, str] = {}
        tolerations: list[Mapping[str, Any]] = []
        for flavor in flavors:
            selector |= (flavor.get("spec") or {}).get("nodeLabels") or {}
        for source in (*((f.get("spec") or {}) for f in flavors), *(update for _, update in updates)):
            tolerations += [t for t in source.get("tolerations") or () if t not in tolerations]
        labels, annotations = {kueue.LABEL_POD_SET: name}, dict[str, str]()
        contradictions: list[str] = []
        for check, update in updates:
            for key, target in (("nodeSelector", selector), ("labels", labels), ("annotations", annotations)):
                values = update.get(key) or {}
                contradictions += (
                    f"admission check {check} sets {key} {k} of pod set {name} to {value}, but the flavor or another "
                    f"check sets it to {target[k]}"
                    for k, value in values.items()
                    if target.get(k, value) != value
                )
                target.update(values)
        gates: tuple[str, ...] = ()
        if item.get("topologyAssignment"):
            gates = (kueue.GATE_TOPOLOGY,)
            annotations |= {kueue.ANNOTATION_WORKLOAD: self.name, kueue.ANNOTATION_UNCONSTRAINED: "true"}
        return PodSetAssignment(selector, tuple(tolerations), labels, annotations, gates, "; ".join(contradictions))

    def _updates(self, pod_set: str) -> Iterator[tuple[str, Mapping[str, Any]]]:
        """Yield the names of admission checks, and their changes to a pod set."""
        for check in self.status.get("admissionChecks") or ():
            found = (u for u in check.get("podSetUpdates") or () if u.get("name") == pod_set)
            yield from ((str(check.get("name", "")), update) for update in found)

    def with_conditions(
        self, now: datetime, *changes: tuple[QueueCondition, bool, str, str]
    ) -> list[Mapping[str, Any]] | None:
        """Return the conditions after changes of (type, status, reason, message); None if nothing changes.

        A merge patch replaces the whole list, so the result includes unchanged conditions.

        Args:
            now: the time of a transition.
            changes: the new conditions.
        """
        changed: dict[str, Mapping[str, Any]] = {}
        since = now.strftime("%Y-%m-%dT%H:%M:%SZ")
        for kind, is_true, reason, message in changes:
            status, old = "True" if is_true else "False", self.condition(kind)
            if (old.get("status"), old.get("reason")) == (status, reason):
                continue
            changed[str(kind)] = {
                "type": str(kind),
                "status": status,
                "reason": reason,
                "message": message,
                "lastTransitionTime": old["lastTransitionTime"] if old.get("status") == status else since,
                "observedGeneration": int(self.child.manifest["metadata"].get("generation", 1)),
            }
        return [*({c["type"]: c for c in self.child.conditions} | changed).values()] if changed else None
