"""A simulated cluster for planner tests: actions change it, and short functions act as controllers and kubelet.

It knows enough of Kubernetes to run a job's life with a clock of its own; the contract suite holds the API server's.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from typing import Any

from pstraining.api import names
from pstraining.core.actions import (
    Action,
    Apply,
    Create,
    Delete,
    Event,
    Kind,
    Outcome,
    Outcomes,
    Plan,
    Replace,
    Resize,
    Verdict,
)
from pstraining.core.facts import gather
from pstraining.core.observe import observe
from pstraining.core.planner import plan
from pstraining.core.snapshot import Snapshot
from pstraining.core.status import events, next_status
from pstraining.resources.installation import STANDARD, Installation
from pstraining.resources.launcher import LauncherFiles
from tests.support.builders import LAUNCHER, NOW, applied, deep_merge, job, pod, terminated
from tests.support.copying import copied, made_once
from tests.support.pod_sizes import write_size
from tests.support.reasons import documented

_SELECTED = {"Deployment": names.WORKER, "StatefulSet": names.PS, "Job": names.CHIEF}


class StaleError(Exception):
    """The object was written after the plan was computed (409)."""


@dataclass
class World:
    """One job, its children and pods."""

    job: dict[str, Any] | None
    launcher: LauncherFiles = LAUNCHER
    now: datetime = NOW
    children: dict[tuple[str, str], dict[str, Any]] = field(default_factory=dict)
    pods: dict[str, dict[str, Any]] = field(default_factory=dict)
    writes: list[tuple[str, str, str]] = field(default_factory=list)
    status_writes: int = 0
    reported: list[Event] = field(default_factory=list)
    foreign: set[tuple[str, str]] = field(default_factory=set)
    """Names of objects that another controller owns."""
    refuse: Callable[[Action], str] | None = None
    """Acts as a strict API server: a message rejects the write."""
    verdict: Verdict = Verdict.INVALID
    """The kind of rejection: by the object's content, or by the caller and the existing objects."""
    serial: int = 0
    versions: int = 0
    nodes: dict[str, str] | None = None
    """The status of each node's condition Ready, or None where the operator may not read nodes."""
    installation: Installation = STANDARD
    stall: str | None = None
    """Why training makes no steps, as the program reports it."""
    usage: dict[str, Any] = field(default_factory=dict)
    beside: bool = False
    """Whether each pod has a second container, which ends only when it is stopped."""
    lingering: set[str] = field(default_factory=set)
    """Roles whose pods end only when `gone` is called."""

    def snapshot(self) -> Snapshot:
        """Return what an up-to-date cache would hold."""
        assert self.job is not None
        children, pods = copied(list(self.children.values())), copied(list(self.pods.values()))
        nodes = None if self.nodes is None else [node(name, ready) for name, ready in self.nodes.items()]
        made = observe(self.job, children, pods, nodes, stall=self.stall, installation=self.installation)
        return replace(made, usage=self.usage)

    def plan(self) -> Plan:
        """Return the plan for this moment."""
        return plan(gather(self.snapshot(), self.now), self.launcher)

    def reconcile(self, *, stop_after: int | None = None) -> Plan:
        """Run one pass; with `stop_after` the operator crashes after this number of writes."""
        snapshot = self.snapshot()
        facts = gather(snapshot, self.now)
        made = plan(facts, self.launcher)
        outcomes = self._execute(made.actions[:stop_after])
        if self.job is None or (stop_after is not None and stop_after <= len(made.actions)):
            return made
        status = next_status(facts, outcomes)
        documented(status, made)
        if status != self.job.get("status"):
            self._store(status, events(snapshot, status))
        return made

    def _store(self, status: dict[str, Any], found: Iterable[Event]) -> None:
        """Store the job's status, and then its events."""
        assert self.job is not None
        self.job["status"] = status
        self.status_writes += 1
        self.reported.extend(found)

    def settle(self, passes: int = 20) -> int:
        """Reconcile and let controllers act until nothing changes; return the number of passes."""
        for number in range(passes):
            before = (len(self.writes), self.status_writes, copied(self.pods))
            self.reconcile()
            if self.job is None:
                return number
            self.controllers()
            if before == (len(self.writes), self.status_writes, self.pods):
                return number
        raise AssertionError(f"does not settle: {self.writes[-10:]}, {self.plan()}")

    def controllers(self) -> None:
        """Act as Kubernetes' controllers: create a pod for every wanted replica, and delete the other pods."""
        self._pass_deadlines()
        wanted = {}
        for (kind, _), child in self.children.items():
            if kind in _SELECTED:
                for key in _replicas(kind, child):
                    wanted[key] = child
        for name, found in list(self.pods.items()):
            key = _key(found)
            if key not in wanted or (found["metadata"].get("deletionTimestamp")):
                released = key not in wanted and found["metadata"].get("deletionGracePeriodSeconds") == 0
                if self._is_cut(found) and not released:
                    self._delete_on_cut_node(found)
                elif key[0] in self.lingering and found["status"]["phase"] == "Running":
                    found["metadata"]["deletionTimestamp"] = "2030-01-01T12:00:00Z"
                    found["status"]["containerStatuses"][0]["lastState"] = {}  # the kubelet removes ended containers
                else:
                    del self.pods[name]
        # A Deployment does not wait for a terminating pod; this one waits for a pod that ends soon.
        present = {_key(p) for p in self.pods.values() if not (self._is_cut(p) and _going(p) and _is_worker(p))}
        for key in sorted(wanted.keys() - present):
            self._start(*key, wanted[key])

    def end(
        self,
        role: str,
        index: int = 0,
        code: int = 0,
        message: str = "",
        *,
        term: int | None = None,
        member: int = 0,
        reason: str = "",
    ) -> None:
        """End a task's program."""
        for found in self.pods.values():
            key = _key(found)
            if key[:2] == (role, index) and (term is None or key[2] == term) and key[3] == member:
                state = found["status"]["containerStatuses"][0]
                if role in (names.CHIEF, names.EVALUATOR):
                    if not self.beside:
                        found["status"]["phase"] = "Failed" if code else "Succeeded"
                    state["state"] = terminated(code, message, reason)
                else:
                    state |= {"restartCount": state["restartCount"] + 1, "lastState": terminated(code, message)}
                    state["state"] = {"running": {}}

    def _pass_deadlines(self) -> None:
        """Act as a kubelet whose pods have exceeded their active deadline."""
        for found in self.pods.values():
            over = found["spec"].get("activeDeadlineSeconds") and found["status"]["phase"] == "Running"
            if over and not self._is_cut(found):
                found["status"] |= {"phase": "Failed", "reason": "DeadlineExceeded"}
                for state in found["status"]["containerStatuses"]:
                    state["state"] = state["state"] if "terminated" in state["state"] else terminated(143)

    def gone(self, role: str) -> None:
        """End the lingering pods of a role."""
        self.lingering.discard(role)
        self.controllers()

    def delete_pod(self, role: str, index: int = 0, member: int = 0) -> None:
        """Delete a task's pod as a user does; it terminates visibly. Ended pods stay: their Job creates no other."""
        for found in self.pods.values():
            ended = found["status"]["phase"] in ("Succeeded", "Failed")
            if _key(found)[:2] == (role, index) and _key(found)[3] == member and not ended:
                found["metadata"]["deletionTimestamp"] = "2030-01-01T12:00:00Z"
                if role in (names.CHIEF, names.EVALUATOR):
                    found["status"]["phase"] = "Failed"

    def cut(self, node: str) -> None:
        """Make a node unreachable for long enough that its pods are deleted."""
        assert self.nodes is not None
        self.nodes[node] = "Unknown"
        for found in self.pods.values():
            if self._is_cut(found) and found["status"]["phase"] not in ("Succeeded", "Failed"):
                taint = {"type": "DisruptionTarget", "status": "True", "reason": "DeletionByTaintManager"}
                found["status"]["conditions"] = [{"type": "Ready", "status": "False"}, taint]
                self._delete_on_cut_node(found)

    def heal(self, node: str) -> None:
        """Reconnect a node, which ends the pods that were deleted meanwhile."""
        assert self.nodes is not None
        self.nodes[node] = "True"
        self.pods = {n: p for n, p in self.pods.items() if p["spec"].get("nodeName") != node or not _going(p)}

    def _is_cut(self, found: dict[str, Any]) -> bool:
        return (self.nodes or {}).get(found["spec"].get("nodeName", "")) == "Unknown"

    def _delete_on_cut_node(self, found: dict[str, Any]) -> None:
        end = (self.now + timedelta(seconds=30)).strftime("%Y-%m-%dT%H:%M:%SZ")
        found["metadata"].setdefault("deletionTimestamp", end)
        found["metadata"].setdefault("deletionGracePeriodSeconds", 30)

    def edit(self, spec: dict[str, Any]) -> None:
        """Edit the spec as a user does."""
        assert self.job is not None
        self.job["spec"] = deep_merge(self.job["spec"], spec)
        self.job["metadata"]["generation"] += 1

    def condition(self, kind: str) -> dict[str, Any]:
        """Return a condition of the stored status."""
        assert self.job is not None
        return next(c for c in self.job["status"]["conditions"] if c["type"] == kind)

    def names_of(self, kind: str) -> list[str]:
        """Return the names of all children of a kind."""
        return sorted(n for k, n in self.children if k == kind)

    def _start(self, role: str, index: int, term: int, member: int, child: dict[str, Any]) -> None:
        self.serial += 1
        self.now += timedelta(seconds=1)
        made = pod(role, index, term=term, uid=f"pod-{self.serial}", created=self.now - NOW, member=member)
        annotations = child["spec"]["template"]["metadata"].get("annotations") or {}
        round_ = child["spec"]["template"]["metadata"]["labels"].get(names.LABEL_RESTART_ATTEMPT)
        made["metadata"]["labels"] |= {names.LABEL_RESTART_ATTEMPT: round_} if round_ else {}
        made["metadata"]["annotations"] = dict(annotations)
        if self.beside:
            made["spec"]["containers"].append({"name": "shipper"})
            made["status"]["containerStatuses"].append({"name": "shipper", "state": {"running": {}}})
        if role != names.PS:
            made["metadata"]["name"] = f"digits-{role}-{term or index}-{term}-{self.serial}"
        if self.nodes:
            # Place the pod on the ready node with the fewest pods.
            used = [p["spec"].get("nodeName") for p in self.pods.values()]
            well = [n for n, ready in self.nodes.items() if ready == "True"]
            made["spec"]["nodeName"] = min(well or self.nodes, key=used.count)
        self.pods[made["metadata"]["name"]] = made
        for template in child["spec"].get("volumeClaimTemplates") or ():
            self._claim(template, f"{template['metadata']['name']}-{child['metadata']['name']}-{index}")

    def _claim(self, template: dict[str, Any], name: str) -> None:
        """Claim a volume as a StatefulSet does: an existing claim is used, regardless of its owner."""
        if (str(Kind.CLAIM), name) not in self.children:
            self.serial += 1
            metadata = {**copied(template["metadata"]), "name": name, "uid": f"uid-{self.serial}"}
            self.children[str(Kind.CLAIM), name] = {"kind": str(Kind.CLAIM), "metadata": metadata}
            self.touch(self.children[str(Kind.CLAIM), name])

    def _execute(self, actions: Iterable[Action]) -> Outcomes:
        found: list[Outcome] = []
        stopped = False
        for action in actions:
            if stopped:
                found.append(Outcome(action, Verdict.NOT_TRIED))
                continue
            outcome = self._write(action)
            found.append(outcome)
            stopped = not outcome.succeeded and action.kind is not Kind.WORKLOAD
        return Outcomes(tuple(found))

    def _write(self, action: Action) -> Outcome:
        self.writes.append((type(action).__name__, action.kind, action.name))
        key = (str(action.kind), action.name)
        if isinstance(action, Create) and key in self.foreign:
            return Outcome(action, Verdict.EXISTS if action.kind is Kind.CLAIM else Verdict.NAME_TAKEN)
        if self.refuse is not None and (message := self.refuse(action)):
            return Outcome(action, self.verdict, message)
        if isinstance(action, Create):
            assert key not in self.children, f"{key} created twice"
            self.serial += 1
            self.children[key] = deep_merge(dict(action.body), {"metadata": {"uid": f"uid-{self.serial}"}})
            self.touch(self.children[key])
        elif isinstance(action, Apply):
            target = self.pods[action.name] if action.kind is Kind.POD else self.children[key]
            assert target["metadata"]["uid"] == action.uid
            wanted = action.body["metadata"].get("resourceVersion")
            if wanted not in (None, target["metadata"].get("resourceVersion")):
                raise StaleError
            for atomic in ("selector", "podSelector"):
                if atomic in action.body.get("spec", {}):
                    target["spec"].pop(atomic, None)
            # An apply without a field that the operator owns removes it.
            target["metadata"].get("annotations", {}).pop(names.ANNOTATION_NEXT_SHARDS, None)
            target |= applied(target, dict(action.body))
            self.touch(target)
        elif isinstance(action, Replace | Resize):
            target = self.pods[action.name] if action.kind is Kind.POD else self.children[key]
            assert target["metadata"]["uid"] == action.uid
            if isinstance(action, Resize) or action.kind is Kind.POD:
                write_size(action, target)
            else:
                self._replace(action, target)
        elif isinstance(action, Delete):
            self._delete(action, key)
        return Outcome(action, Verdict.DONE)

    def _replace(self, action: Replace, target: dict[str, Any]) -> None:
        parts = copied(dict(action.parts))
        if "/metadata/resourceVersion" not in parts:
            assert list(parts) == ["/spec/template"]
            target["spec"]["template"] = parts["/spec/template"]
            if action.kind is Kind.DEPLOYMENT:  # only with strategy Recreate
                index = int(target["metadata"]["labels"][names.LABEL_INDEX])
                self.pods = {n: p for n, p in self.pods.items() if _key(p)[:2] != (names.WORKER, index)}
            return
        if parts.pop("/metadata/resourceVersion") != target["metadata"].get("resourceVersion"):
            raise StaleError
        assert parts.keys() <= {"/metadata/ownerReferences", "/metadata/labels"}
        target["metadata"] |= {pointer.rpartition("/")[2]: value for pointer, value in parts.items()}
        self.touch(target)

    def touch(self, target: dict[str, Any]) -> None:
        """Give a changed object another resource version."""
        self.versions += 1
        target["metadata"]["resourceVersion"] = str(self.versions)

    def collect_garbage(self, job_uid: str) -> None:
        """Delete the job together with the objects that it owns."""
        self.children = {
            key: child
            for key, child in self.children.items()
            if all(o["uid"] != job_uid for o in child["metadata"].get("ownerReferences") or ())
        }

    def _delete(self, action: Delete, key: tuple[str, str]) -> None:
        if action.kind is Kind.PS_TRAINING_JOB:
            self.job = None
            self.collect_garbage(action.uid)
        elif action.kind is Kind.POD:
            found = self.pods[action.name]
            if self._is_cut(found) and action.grace_seconds != 0:
                self._delete_on_cut_node(found)
            elif _key(found)[0] == names.CHIEF and self._is_cut(found):
                # The Job controller's finalizer holds the pod until its Job is deleted.
                found["metadata"]["deletionGracePeriodSeconds"] = 0
            else:
                del self.pods[action.name]
        else:
            assert self.children.pop(key)["metadata"]["uid"] == action.uid


@made_once
def running(**spec: Any) -> World:
    """Return a world with a running job."""
    world = World(job(spec=spec))
    world.settle()
    assert world.job is not None
    assert world.job["status"]["phase"] == "Running"
    return world


def phase(world: World) -> str:
    """Return the job's phase as stored."""
    assert world.job is not None
    return str(world.job["status"]["phase"])


def _going(found: dict[str, Any]) -> bool:
    return bool(found["metadata"].get("deletionTimestamp"))


def _is_worker(found: dict[str, Any]) -> bool:
    return _key(found)[0] == names.WORKER


def node(name: str, ready: str = "True", *taints: str) -> dict[str, Any]:
    """Return a node."""
    spec = {"taints": [{"key": t} for t in taints]}
    conditions = [{"type": "Ready", "status": ready}]
    return {"kind": "Node", "metadata": {"name": name, "uid": name}, "spec": spec, "status": {"conditions": conditions}}


def _replicas(kind: str, child: dict[str, Any]) -> list[tuple[str, int, int, int]]:
    labels = child["metadata"]["labels"]
    if kind == "Job":
        return [(labels[names.LABEL_ROLE], 0, int(labels.get(names.LABEL_TERM) or labels[names.LABEL_ATTEMPT]), 0)]
    count = child["spec"].get("replicas", 1)
    if kind == "StatefulSet":
        first = (child["spec"].get("ordinals") or {}).get("start", 0)
        return [(names.PS, first + i, 0, int(labels[names.LABEL_MEMBER])) for i in range(count)]
    return [(names.WORKER, int(labels[names.LABEL_INDEX]), 0, 0)] if count else []


def _key(found: dict[str, Any]) -> tuple[str, int, int, int]:
    labels = found["metadata"]["labels"]
    index = labels.get(names.LABEL_INDEX) or labels.get(names.LABEL_POD_INDEX) or "0"
    term, member = labels.get(names.LABEL_TERM) or labels.get(names.LABEL_ATTEMPT, 0), labels.get(names.LABEL_MEMBER, 0)
    return labels[names.LABEL_ROLE], int(index), int(term), int(member)
