"""A simulated job with a queue, in which short functions act as Kueue and count the pods that have quota."""

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import Any

from pstraining.api import names
from pstraining.api.conditions import Reason
from pstraining.api.models import PSTrainingJob
from pstraining.controller.transform import transform
from pstraining.core.actions import Action, Create, Kind, Outcome, PatchStatus, Replace, Verdict
from pstraining.core.facts import Facts, gather
from pstraining.core.snapshot import Child, QueueObjects, Snapshot
from pstraining.resources import kueue
from pstraining.resources.installation import Installation, KueueSupport
from tests.support.builders import NOW, job, stamp
from tests.support.copying import copied, made_once
from tests.support.kueue_webhook import check_create, check_update, is_true
from tests.support.simulation import StaleError, World, phase

QUEUE = "team-a"
REQUEUED = ("Deactivated", "PodsReadyTimeout", "AdmissionCheck", "ClusterQueueStopped", "LocalQueueStopped")
"""The reasons of evictions after which Kueue lets a Workload queue again."""
WITH_KUEUE = Installation(kueue=KueueSupport.ON)


@dataclass
class QueuedWorld(World):
    """One job with a queue, and a quota of pods."""

    installation: Installation = WITH_KUEUE
    quota: int = 100
    """Pods for which the ClusterQueue has quota."""
    default_queue: bool = False
    """Whether the namespace has a LocalQueue named `default`."""
    checks: bool = False
    """Whether the ClusterQueue has an admission check, which `pass_checks` passes."""
    flavors: tuple[str, ...] = ()
    """ResourceFlavors that are assigned to every pod set."""
    forgets: bool = False
    """Whether Kueue stops between the admission of a slice and the end of the Workload that the slice replaces."""

    def _write(self, action: Action) -> Outcome:
        key = str(action.kind), action.name
        if action.kind is Kind.WORKLOAD and self.refuse is not None and (message := self.refuse(action)):
            return Outcome(action, self.verdict, message)
        if isinstance(action, Replace) and action.kind is Kind.PS_TRAINING_JOB:
            assert self.job is not None
            metadata = self.job["metadata"]
            assert (action.name, action.uid) == (metadata["name"], metadata["uid"])
            if action.parts["/metadata/resourceVersion"] != metadata["resourceVersion"]:
                raise StaleError
            metadata["labels"] = copied(dict(action.parts["/metadata/labels"]))
        elif isinstance(action, PatchStatus):
            self._patch(action, self.children[key])
        elif isinstance(action, Replace) and action.kind is Kind.WORKLOAD and action.reason != Reason.DRIFTED:
            self._correct(action, self.children[key])
        else:
            if isinstance(action, Create) and action.kind is Kind.WORKLOAD:
                check_create(action.body)
            return super()._write(action)
        self.writes.append((type(action).__name__, action.kind, action.name))
        return Outcome(action, Verdict.DONE)

    def _patch(self, action: PatchStatus, target: dict[str, Any]) -> None:
        """Apply a JSON merge patch (RFC 7386)."""
        if action.version != target["metadata"].get("resourceVersion"):
            raise StaleError
        assert action.uid == target["metadata"]["uid"]
        before = copied(target)
        changed = {**target.get("status", {}), **copied(dict(action.status))}
        target["status"] = {k: v for k, v in changed.items() if v is not None}
        check_update(before, target)
        self.touch(target)

    def _correct(self, action: Replace, target: dict[str, Any]) -> None:
        """Apply a JSON patch (RFC 6902) whose operations add, or remove what is None."""
        assert action.uid == target["metadata"]["uid"]
        version = target["metadata"]["resourceVersion"]
        if action.parts.get("/metadata/resourceVersion", version) != version:
            raise StaleError
        before = copied(target)
        for pointer, value in copied(dict(action.parts)).items():
            *path, last = (step.replace("~1", "/") for step in pointer.split("/")[1:])
            place: Any = target
            for step in path:
                place = place[int(step) if isinstance(place, list) else step]
            place[last] = value
            if value is None:
                del place[last]
        check_update(before, target)
        self.touch(target)

    def touch(self, target: dict[str, Any]) -> None:
        super().touch(target)
        if target["kind"] == Kind.WORKLOAD:  # several of one moment have an order
            target["metadata"].setdefault("creationTimestamp", stamp(NOW + timedelta(seconds=self.serial)))

    def snapshot(self) -> Snapshot:
        found = super().snapshot()
        workloads = {key: replace(w, manifest=transform(w.manifest)) for key, w in found.children.items() if _is(w)}
        found = replace(found, children={**found.children, **workloads})
        if not self.default_queue:
            return found
        objects = replace(found.queue_objects, default_queues=frozenset({found.namespace}))
        return replace(found, queue_objects=objects)

    @property
    def effective(self) -> PSTrainingJob:
        """Return the job as it runs, with the workers that it may have now."""
        facts = gather(self.snapshot(), self.now)
        assert isinstance(facts, Facts)
        return facts.job

    @property
    def workloads(self) -> list[dict[str, Any]]:
        """Return all Workloads, oldest first."""
        found = [child for (kind, _), child in self.children.items() if kind == Kind.WORKLOAD]
        return sorted(found, key=lambda w: int(w["metadata"]["uid"].removeprefix("uid-")))

    @property
    def workload(self) -> dict[str, Any]:
        """Return the only Workload."""
        (found,) = self.workloads
        return found

    def admit(self) -> None:
        """Admit what fits, as Kueue does: partially where a pod set has a minimum; a slice replaces its predecessor."""
        for workload in self.workloads:
            waits = not is_true(workload, "QuotaReserved") and not is_true(workload, "Finished")
            if waits and workload["spec"].get("active", True) and self._is_requeued(workload):
                self._admit(workload)

    def _is_requeued(self, workload: dict[str, Any]) -> bool:
        """Whether a Workload queues, perhaps again: only after evictions for a known reason, as in Kueue 0.19."""
        conditions = workload.get("status", {}).get("conditions", ())
        found = next((c for c in conditions if c["type"] == "Requeued" and c["status"] == "False"), None)
        if found is not None and found["reason"] in REQUEUED:
            self._set(workload, "Requeued", True, "Reactivated", "The workload was reactivated")
        return found is None or found["reason"] in REQUEUED

    def _admit(self, workload: dict[str, Any]) -> None:
        former = workload["metadata"]["annotations"].get(kueue.ANNOTATION_REPLACES, "").partition("/")[2]
        old = next((w for w in self.workloads if w["metadata"]["name"] == former and self._holds(w)), None)
        room = self.quota - sum(sum(self._quota(w).values()) for w in self.workloads if w is not old)
        sets, least = workload["spec"]["podSets"], 0
        counts = {s["name"]: s["count"] for s in sets}
        elastic = next((s for s in sets if "minCount" in s), None)
        if elastic is not None:
            least = elastic["minCount"]
            spare = room - (sum(counts.values()) - counts[elastic["name"]])
            counts[elastic["name"]] = max(least, min(counts[elastic["name"]], spare))
        if sum(counts.values()) > room:
            self._set(workload, "QuotaReserved", False, "WaitingForQuota", "insufficient unused quota for pods")
            return
        flavors = {f"resource-{i}": flavor for i, flavor in enumerate(self.flavors)}
        assignments = [{"name": name, "count": count, "flavors": flavors} for name, count in counts.items()]
        workload.setdefault("status", {})["admission"] = {"clusterQueue": "cq", "podSetAssignments": assignments}
        self._set(workload, "QuotaReserved", True, "QuotaReserved", "")
        self._set(workload, "Evicted", False, "QuotaReserved", "")
        if self.checks:
            check = {"name": "capacity", "state": "Pending", "message": "waits for nodes"}
            workload["status"]["admissionChecks"] = [check]
            self._set(workload, "Admitted", False, "NoReservation", "")
        else:
            self._set(workload, "Admitted", True, "Admitted", "")
        if old is not None and not self.forgets:
            self._set(old, "Finished", True, "WorkloadSliceReplaced", "Replaced by a larger slice")

    def pass_checks(self) -> None:
        """Set all admission checks to ready."""
        for workload in self.workloads:
            if self._holds(workload) and not is_true(workload, "Evicted"):
                for check in workload["status"].get("admissionChecks") or ():
                    check |= {"state": "Ready", "message": ""}
                self._set(workload, "Admitted", True, "Admitted", "")

    def evict(self, reason: str = "Preempted", message: str = "Preempted to accommodate a higher priority") -> None:
        """Evict the admitted workload, as Kueue does; its quota stays reserved."""
        for workload in self.workloads:
            if self._holds(workload):
                self._set(workload, "Evicted", True, reason, message)

    def stop_queue(self, cause: str = "") -> None:
        """Stop the Workload, as `kueuectl stop workload` does, or as Kueue does for a cause."""
        for workload in self.workloads:
            workload["spec"]["active"] = False
        self.evict(f"DeactivatedDueTo{cause}" if cause else "Deactivated", "The workload is deactivated")

    def _holds(self, workload: dict[str, Any]) -> bool:
        return is_true(workload, "QuotaReserved") and not is_true(workload, "Finished")

    def _quota(self, workload: dict[str, Any]) -> Counter[str]:
        if not self._holds(workload):
            return Counter()
        assigned = {a["name"]: a["count"] for a in workload["status"]["admission"]["podSetAssignments"]}
        asked = {s["name"]: s["count"] for s in workload["spec"]["podSets"]}
        elastic = workload["metadata"]["annotations"].get(kueue.ANNOTATION_ELASTIC) == "true"
        held = Counter({n: min(c, asked[n]) if elastic else c for n, c in assigned.items()})
        held.subtract({r["name"]: r["count"] for r in workload["status"].get("reclaimablePods") or ()})
        return held

    def with_quota(self) -> Counter[str]:
        """Return the number of pods of each pod set that have quota."""
        return sum((self._quota(w) for w in self.workloads), Counter())

    def existing(self) -> Counter[str]:
        """Return the number of pods of each pod set that hold resources."""
        return Counter(_pod_set(p) for p in self.pods.values() if p["status"]["phase"] not in ("Succeeded", "Failed"))

    def without_quota(self) -> dict[str, int]:
        """Return the pods of each pod set that exist without quota; empty if all have quota."""
        held = self.with_quota()
        return {name: count - held[name] for name, count in self.existing().items() if count > held[name]}

    def steps(self) -> Iterator[None]:
        """Let Kueue, the operator and Kubernetes act, one step each, until nothing changes."""
        for _ in range(40):
            before = (len(self.writes), self.status_writes, len(self.pods), self.versions)
            self.admit()
            yield
            self.reconcile()
            yield
            if self.job is None:
                return
            self.controllers()
            yield
            if before == (len(self.writes), self.status_writes, len(self.pods), self.versions):
                return
        raise AssertionError(f"does not settle: {self.writes[-10:]}")

    def run(self) -> None:
        """Run all of `steps`."""
        for _ in self.steps():
            pass

    def _set(self, workload: dict[str, Any], kind: str, is_true: bool, reason: str, message: str) -> None:
        conditions = workload.setdefault("status", {}).setdefault("conditions", [])
        status = "True" if is_true else "False"
        new = {
            "type": kind,
            "status": status,
            "reason": reason,
            "message": message,
            "lastTransitionTime": stamp(self.now),
        }
        if not any({**c, "lastTransitionTime": ""} == {**new, "lastTransitionTime": ""} for c in conditions):
            conditions[:] = [*(c for c in conditions if c["type"] != kind), new]
            self.touch(workload)


def _is(child: Child) -> bool:
    return child.kind is Kind.WORKLOAD


def queued(quota: int = 100, **spec: Any) -> QueuedWorld:
    """Return a job with a queue that no pass has handled yet."""
    manifest = job(spec=spec)
    manifest["metadata"] |= {"labels": {kueue.LABEL_QUEUE: QUEUE}, "resourceVersion": "7"}
    return QueuedWorld(manifest, quota=quota)


@made_once
def running(quota: int = 100, **spec: Any) -> QueuedWorld:
    """Return a job with a queue that has been admitted and runs."""
    world = queued(quota, **spec)
    world.run()
    assert phase(world) == "Running"
    return world


class WithObjects(QueuedWorld):
    """A world in which the operator has read some of Kueue's cluster-wide objects."""

    objects: QueueObjects = QueueObjects()

    def snapshot(self) -> Snapshot:
        return replace(super().snapshot(), queue_objects=self.objects)


def with_flavor(world: QueuedWorld, spec: dict[str, Any]) -> WithObjects:
    found = WithObjects(world.job, installation=world.installation, flavors=("gpu",))
    found.objects = QueueObjects(flavors={"gpu": {"spec": spec}})
    return found


def _pod_set(pod: dict[str, Any]) -> str:
    labels = pod["metadata"]["labels"]
    role = labels[names.LABEL_ROLE]
    return kueue.STANDBY if role == names.PS and labels.get(names.LABEL_MEMBER, "0") != "0" else str(role)
