"""Compares a disturbed run with undisturbed ones: end state, writes, pods, silence at the end.

What may differ, and why; everything else is a divergence:

- Status writes: a fault may let the operator see in two steps what it saw in one, or in one what it saw in two. So up
  to STATUS_SLACK more than in any undisturbed run, and any number fewer: the end state is compared in any case.
- Times, and how long the job was active: a fault takes its time.
- A plan for a status write that did not come, as two were one this time, is played again, and must strike at last.
- Events: posted once and never again, as the status says the same; a crash or a refused post may lose those of a pass.
  None may be told twice.
- An applied change whose answer is lost is applied again, and changes nothing.
- Old lists of pods: an operator that is told that there are none says so, and that they are back.
- Pods that go in the workload: one that has gone meanwhile is not told of the new cluster map.
- With a queue, Kueue's webhook refuses a pod whose Job it has not seen yet: one event reports it, and the pod comes.
- Tries: what was refused or lost is tried again, so up to TRIES_SLACK more requests than writes for each object.
- A request that arrives late, after the workload: the write that it stands for may happen a second time, once, and
  must be harmless or undone, by one more write: the end state is compared after it.
- A creation that arrives when its object has been deleted again: no API server can refuse it, so the object may come
  back, once, with one pod, and must be deleted once more.
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
    """What a run has left behind."""

    plan: Plan
    state: dict[str, Any] = field(default_factory=dict)
    """The end state, canonical, by kind and name."""
    attempts: list[Attempt] = field(default_factory=list)
    own_from: int = 0
    """The first write of the workload's own part."""
    born: Counter[Task] = field(default_factory=Counter)
    """Pods that ever were, by task."""
    problems: list[str] = field(default_factory=list)
    """What went wrong whatever the comparison says."""
    log: Path | None = None
    """What its operators said."""
    leaked: int = 0
    """Objects that were still there when the job was gone."""
    fired: bool = True
    operators: int = 1
    seconds: float = 0.0

    def done(self) -> Counter[Key]:
        """How often each object was written."""
        return Counter(_key(a) for a in self.attempts if a.done)

    def tried(self) -> Counter[Key]:
        """How often each write was tried."""
        return Counter(_key(a) for a in self.attempts)


def _key(attempt: Attempt) -> Key:
    return attempt.point.verb, attempt.point.kind, attempt.point.name


async def end_state(api: Api, namespace: str) -> dict[str, Any]:
    """Everything in a namespace that a job may have, canonical."""
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
    """A value without what differs from run to run: uids, times, generated names."""
    if isinstance(value, dict):
        return {k: "<hash>" if k in HASHES else canonical(v, namespace) for k, v in value.items() if k not in VARYING}
    if isinstance(value, list):
        return [canonical(v, namespace) for v in value]
    if isinstance(value, str):
        text = UUID.sub("<uid>", value.replace(namespace, "<namespace>"))
        return POD.sub(r"\1", WORKLOAD.sub(r"\1", TIME.sub("<time>", text)))
    return value


def tasks_of(pods: Sequence[Object]) -> Counter[Task]:
    """How many pods each task has had."""
    return Counter(identity(p) for p in pods)


def compare(run: Run, undisturbed: Sequence[Run]) -> list[str]:
    """The divergences of a run; none is good."""
    found = list(run.problems)
    if not run.fired:
        found.append("the write at which it should go wrong never came")
    found += differences(undisturbed[0].state, run.state)
    found += _writes(run, undisturbed)
    found += _tries(run, undisturbed)
    if not _is_born(run, undisturbed[0]):
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
        high += run.plan.is_queued and (kind, name) == ("events", "PodsRefused")
        if (verb, kind) == ("apply", "pods") and f"pods/{name}" not in run.state:
            low = 0
        if kind == "events" and run.plan.on_write is OnWrite.STALE and "pods" in run.plan.kinds:
            high += 1
        again = run.plan.on_write is OnWrite.LATE or (run.plan.on_write is OnWrite.LOST and verb == "apply")
        if again and run.plan.at is not None and (kind, name) == (run.plan.at.kind, run.plan.at.name):
            is_outdated = run.plan.on_write is OnWrite.LATE and verb == "apply" and run.plan.at.number < high
            high += 1 + is_outdated  # what a newer write had changed is changed back, and that is undone
        high += back is not None and _is_told(key, back)
        if not low <= done[key] <= high:
            wanted = str(low) if low == high else f"{low} to {high}"
            found.append(f"{verb} {kind}/{name}: {done[key]} times instead of {wanted}")
    return found


def _brought_back(run: Run, undisturbed: Run) -> Point | None:
    """The creation that came when its object had been deleted again."""
    at = run.plan.at if run.plan.on_write is OnWrite.LATE else None
    is_back = at is not None and at.verb == "create" and f"{at.kind}/{at.name}" not in undisturbed.state
    return at if is_back else None


def _is_told(key: Key, back: Point) -> bool:
    """Whether a write announces the cluster map to a pod of that object."""
    verb, kind, name = key
    return (verb, kind) == ("apply", "pods") and f"{name}-".startswith(f"{back.name}-")


def _is_born(run: Run, undisturbed: Run) -> bool:
    """Whether each task has had as many pods as it should; one more if its object was brought back."""
    back = _brought_back(run, undisturbed)
    more = run.born - undisturbed.born
    may_be = all(n == 1 and back is not None and back.name == _owner(task) for task, n in more.items())
    return may_be and not undisturbed.born - run.born


def _owner(task: Task) -> str:
    """The name of the object that makes a task's pods."""
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
    """After a 429 nothing is asked for until its time has come."""
    if run.plan.on_write is not OnWrite.TOO_MANY:
        return []
    struck = next((a for a in run.attempts if a.disturbed and a.point.kind != "events"), None)
    if struck is None:
        return []
    waits = [a.at - struck.at for a in run.attempts if a.at > struck.at and not _was_on_its_way(a, struck)]
    early = [w for w in waits if w < 0.95 * RETRY_AFTER]
    return [f"the next write came {early[0]:.2f} s after a 429"] if early else []


def _was_on_its_way(attempt: Attempt, struck: Attempt) -> bool:
    """Creations are sent together: others may arrive after the answer to one, late where the machine is busy."""
    both = attempt.point.verb == struck.point.verb == "create"
    return both and _key(attempt) != _key(struck)


def differences(wanted: Any, found: Any, path: str = "") -> list[str]:
    """Where two canonical values differ."""
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
