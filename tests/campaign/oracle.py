"""Compares a disturbed run with undisturbed ones: end state, writes, pods, silence at the end.

A run may differ in these ways, and any other difference is a divergence:

- Status writes: a fault may split or merge the operator's observations. There may be up to STATUS_SLACK more of them
  than in any undisturbed run, and any number fewer. The end state is compared in any case.
- Times, and the job's active time: a fault takes time.
- A plan for a status write that did not occur, because two were merged, is repeated until it strikes.
- Events: each is posted once, because the status has the same content. A crash or a rejected post may lose those of a
  pass. No event may be posted twice.
- An applied change whose response is lost is applied again, and changes nothing.
- Outdated lists of pods: an operator that gets an empty list reports that the pods are missing, and later that they are
  back.
- Pods that are deleted in the workload: a pod that is deleted meanwhile is not annotated with the new cluster map.
- With a queue, Kueue's webhook rejects a pod whose Job it has not seen yet. One event reports it, and the pod is
  created later.
- Attempts: a rejected or lost write is repeated, so there may be up to TRIES_SLACK more requests than writes per
  object.
- A request that arrives late, after the workload: its write may happen a second time. It must be harmless or be undone
  by one more write, and the end state is compared afterwards.
- A creation that arrives after the deletion of its object: no API server can reject it. The object may reappear once,
  with one pod, and must be deleted once more.
"""

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pstraining.api import names
from tests.campaign.api import Api, Object
from tests.campaign.faults import CRASHES, OnWatch, OnWrite, Plan, Point
from tests.campaign.proxy import RETRY_AFTER, Attempt, stable_name
from tests.campaign.stage import JOB, identity

STATUS_SLACK = 2
TRIES_SLACK = 3
UUID = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")
TIME = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d+)?Z")
POD = re.compile(r"\b(job(?:-[a-z]+)+-\d+)(?:-[a-z0-9]{6,10})?(?:-[bcdfghjklmnpqrstvwxz2456789]{5})?\b")
VARYING = ("uid", "resourceVersion", "creationTimestamp", "managedFields", "generateName", "activeSeconds")
WORKLOAD = re.compile(r"\b(pstrainingjob-job)-[0-9a-f]{5}\b")
HASHES = ("pod-template-hash", "controller-revision-hash", names.ANNOTATION_CLUSTER_HASH)

Key = tuple[str, str, str]
"""Verb, kind and name."""
Task = tuple[str, str, str, str]
"""Role, index, term and member."""


@dataclass
class Run:
    """The recorded results of a run."""

    plan: Plan
    state: dict[str, Any] = field(default_factory=dict)
    """The end state, canonical, by kind and name."""
    attempts: list[Attempt] = field(default_factory=list)
    own_from: int = 0
    """The first write of the workload's own part."""
    born: Counter[Task] = field(default_factory=Counter)
    """The number of pods since the beginning, by task."""
    problems: list[str] = field(default_factory=list)
    """Failures that count regardless of the comparison."""
    log: Path | None = None
    """The log of the run's operators."""
    leaked: int = 0
    """Objects that remained after the job's deletion."""
    fired: bool = True
    operators: int = 1
    seconds: float = 0.0

    def done(self) -> Counter[Key]:
        """Return how often each object was written."""
        return Counter(_key(a) for a in self.attempts if a.done)

    def tried(self) -> Counter[Key]:
        """Return how often each write was attempted."""
        return Counter(_key(a) for a in self.attempts)


def _key(attempt: Attempt) -> Key:
    return attempt.point.verb, attempt.point.kind, attempt.point.name


async def end_state(api: Api, namespace: str) -> dict[str, Any]:
    """Return the canonical form of everything in a namespace that a job may own."""
    found: dict[str, Any] = {}
    for plural, base in api.bases.items():
        listed = await api.ask("GET", f"{base}/namespaces/{namespace}/{plural}")
        for item in listed["items"]:
            name = item["metadata"]["name"]
            if name != "kube-root-ca.crt":
                key = stable_name(plural, name)
                found.setdefault(f"{plural}/{key}", []).append(_object(plural, item, namespace))
    return found


def _object(plural: str, raw: Object, namespace: str) -> Any:
    kept = {k: v for k, v in raw.items() if k != "status"}
    if plural == names.PLURAL:
        kept["status"] = raw.get("status")
    if plural == "pods":
        kept["status"] = {"phase": raw["status"].get("phase")}
        kept.pop("spec")
    if plural == "services":
        kept["spec"] = {k: v for k, v in raw["spec"].items() if k not in ("clusterIP", "clusterIPs")}
    return canonical(kept, namespace)


def canonical(value: Any, namespace: str) -> Any:
    """Return a value without parts that differ from run to run: uids, times, generated names."""
    if isinstance(value, dict):
        return {k: "<hash>" if k in HASHES else canonical(v, namespace) for k, v in value.items() if k not in VARYING}
    if isinstance(value, list):
        return [canonical(v, namespace) for v in value]
    if isinstance(value, str):
        text = UUID.sub("<uid>", value.replace(namespace, "<namespace>"))
        return POD.sub(r"\1", WORKLOAD.sub(r"\1", TIME.sub("<time>", text)))
    return value


def tasks_of(pods: Sequence[Object]) -> Counter[Task]:
    """Return the number of pods that each task has had."""
    return Counter(identity(p) for p in pods)


def compare(run: Run, undisturbed: Sequence[Run]) -> list[str]:
    """Return the divergences of a run; an empty list is a pass."""
    found = list(run.problems)
    if not run.fired:
        found.append("the write at which it should go wrong never came")
    found += differences(undisturbed[0].state, run.state)
    found += _writes(run, undisturbed)
    found += _tries(run, undisturbed)
    if not _has_expected_pods(run, undisturbed[0]):
        found.append(f"pods: {dict(run.born)} instead of {dict(undisturbed[0].born)}")
    crashes = int(run.plan.on_write in CRASHES or run.plan.on_watch is OnWatch.SILENT)
    # The operator after a crash may have nothing to write.
    more = 1 if run.plan.on_write is OnWrite.CRASH_TWICE else 0
    if not 1 + crashes <= run.operators <= 1 + crashes + more:
        found.append(f"{run.operators} operators were started instead of {1 + crashes}")
    return found + _left_alone(run)


def _writes(run: Run, undisturbed: Sequence[Run]) -> list[str]:
    done, before = run.done(), [u.done() for u in undisturbed]
    back = _brought_back(run, undisturbed[0])
    found = []
    for key in sorted(set(done).union(*before)):
        verb, kind, name = key
        low, high = min(b[key] for b in before), max(b[key] for b in before)
        if verb == "status":
            low, high = 0, high + STATUS_SLACK
        if kind == "events":
            low = 0 if run.plan.on_write is not None or run.plan.on_watch is OnWatch.SILENT else low
        # Kueue's webhook may refuse a pod whose ReplicaSet it does not know yet; the next pod is reported as running.
        if run.plan.is_queued and kind == "events":
            high += {"PodsRefused": 1, "Running": done["create", kind, "PodsRefused"]}.get(name, 0)
        if (verb, kind) == ("apply", "pods") and f"pods/{name}" not in run.state:
            low = 0
        if kind == "events" and run.plan.on_write is OnWrite.STALE and "pods" in run.plan.kinds:
            high += 1
        again = run.plan.on_write is OnWrite.LATE or (run.plan.on_write is OnWrite.LOST and verb == "apply")
        if again and run.plan.at is not None and (kind, name) == (run.plan.at.kind, run.plan.at.name):
            is_outdated = run.plan.on_write is OnWrite.LATE and verb == "apply" and run.plan.at.number < high
            high += 1 + is_outdated  # a late write reverts a newer one, and is then undone
        high += back is not None and _announces(key, back)
        if not low <= done[key] <= high:
            wanted = str(low) if low == high else f"{low} to {high}"
            found.append(f"{verb} {kind}/{name}: {done[key]} times instead of {wanted}")
    return found


def _brought_back(run: Run, undisturbed: Run) -> Point | None:
    """Return the creation that arrived after its object's deletion."""
    at = run.plan.at if run.plan.on_write is OnWrite.LATE else None
    is_back = at is not None and at.verb == "create" and f"{at.kind}/{at.name}" not in undisturbed.state
    return at if is_back else None


def _announces(key: Key, back: Point) -> bool:
    """Whether a write announces the cluster map to a pod of that object."""
    verb, kind, name = key
    return (verb, kind) == ("apply", "pods") and f"{name}-".startswith(f"{back.name}-")


def _has_expected_pods(run: Run, undisturbed: Run) -> bool:
    """Whether each task has had the expected number of pods; one more if its object reappeared."""
    back = _brought_back(run, undisturbed)
    more = run.born - undisturbed.born
    may_be = all(n == 1 and back is not None and back.name == _owner(task) for task, n in more.items())
    return may_be and not undisturbed.born - run.born


def _owner(task: Task) -> str:
    """Return the name of the object that creates a task's pods."""
    role, index, term, member = task
    if role == names.PS:
        return names.standby_stateful_set(JOB, int(member)) if int(member) else names.ps_stateful_set(JOB)
    if role == names.CHIEF:
        return names.chief_job(JOB, int(term))
    return names.worker_name(JOB, int(index))


def _tries(run: Run, undisturbed: Sequence[Run]) -> list[str]:
    tried, before = run.tried(), [u.tried() for u in undisturbed]
    return [
        f"{verb} {kind}/{name}: tried {tried[verb, kind, name]} times"
        for verb, kind, name in sorted(tried)
        if tried[verb, kind, name] > max(b[verb, kind, name] for b in before) + TRIES_SLACK
    ]


def _left_alone(run: Run) -> list[str]:
    """Demand that no request follows a 429 before its time has passed."""
    if run.plan.on_write is not OnWrite.TOO_MANY:
        return []
    struck = next((a for a in run.attempts if a.disturbed and a.point.kind != "events"), None)
    if struck is None:
        return []
    waits = [a.at - struck.at for a in run.attempts if a.at > struck.at and not _was_on_its_way(a, struck)]
    early = [w for w in waits if w < 0.95 * RETRY_AFTER]
    return [f"the next write came {early[0]:.2f} s after a 429"] if early else []


def _was_on_its_way(attempt: Attempt, struck: Attempt) -> bool:
    """Whether a creation was sent together with others; on a busy machine it may arrive after the response to another
    one.
    """
    both = attempt.point.verb == struck.point.verb == "create"
    return both and _key(attempt) != _key(struck)


def differences(wanted: Any, found: Any, path: str = "") -> list[str]:
    """Yield the differences between two canonical values."""
    if isinstance(wanted, dict) and isinstance(found, dict):
        return [
            line
            for key in sorted({*wanted, *found}, key=str)
            for line in differences(wanted.get(key), found.get(key), f"{path}.{key}" if path else str(key))
        ]
    if isinstance(wanted, list) and isinstance(found, list) and len(wanted) == len(found):
        pairs = enumerate(zip(wanted, found, strict=True))
        return [line for n, (w, f) in pairs for line in differences(w, f, f"{path}[{n}]")]
    return [] if wanted == found else [f"{path}: {_short(found)} instead of {_short(wanted)}"]


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 160 else text[:157] + "..."
