"""The expectations of a TFJob user: one case per feature, with a manifest, the programs' behavior, and the result.

A case is checked against the planner in a simulated world and against a real API server, which accepts or rejects its
manifest. If it is marked `real`, scripted programs play it on real kubelets. docs/reference/tfjob.md is generated from
the cases.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

MANIFESTS = Path(__file__).parent / "manifests"

API = "`common_types.go`"
"""TFJob's API, version 1: pkg/apis/kubeflow.org/v1 of kubeflow/trainer."""
TYPES = "`tensorflow_types.go`"
GUIDE = "TFJob guide"


@dataclass(frozen=True)
class Exit:
    """A task's program ends, with a message in its last line."""

    task: str
    code: int


@dataclass(frozen=True)
class DeletePod:
    """A user deletes a task's pod."""

    task: str


@dataclass(frozen=True)
class Suspend:
    """The user suspends the job, or resumes it."""

    suspend: bool = True


@dataclass(frozen=True)
class Scale:
    """The user requests other numbers of replicas."""

    workers: int | None = None
    ps: int | None = None


@dataclass(frozen=True)
class Later:
    """Time passes."""

    seconds: int


@dataclass(frozen=True)
class Sees:
    """The expected state; parts that are not given are not checked."""

    phase: str = ""
    reason: str = ""
    """The reason of the condition that has the phase's name."""
    says: tuple[str, ...] = ()
    """Parts of that condition's message."""
    conditions: Mapping[str, str] = field(default_factory=dict)
    failed: str = ""
    """The replica whose failure failed the job."""
    restarts: Mapping[str, int] = field(default_factory=dict)
    succeeded: Mapping[str, int] = field(default_factory=dict)
    ready: Mapping[str, int] = field(default_factory=dict)
    runs: Mapping[str, int] = field(default_factory=dict)
    """The number of starts of each task's program; only real pods report it."""
    term: int | None = None
    failures: Mapping[str, int] = field(default_factory=dict)
    """The failures of a replica, as role/index, that count against its budget."""
    pods: frozenset[str] | None = None
    """The tasks that have a pod."""
    gone: bool = False
    """Whether the job is deleted."""


Step = Exit | DeletePod | Suspend | Scale | Later | Sees


@dataclass(frozen=True)
class Case:
    """One feature of TFJob."""

    name: str
    """The name of the job, and of its manifest's file."""
    feature: str
    tfjob: str
    """The documented behavior of TFJob."""
    source: str
    """The source of that; #n is an issue or pull request of kubeflow/trainer."""
    ours: str
    """The behavior of PSTrainingJob."""
    asked: str = ""
    """If it is better than TFJob's: the request for it."""
    play: tuple[Step, ...] = ()
    refused: str = ""
    """The message with which the API server rejects the manifest."""
    cluster: Mapping[str, tuple[str, ...]] | None = None
    """The complete cluster of TF_CONFIG."""
    renders: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    """By role, parts of the pod template. A list has the named items among others; a tuple is a complete list."""
    lacks: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """By role, words that occur nowhere in the training container."""
    absent: tuple[str, ...] = ()
    """Roles without pods."""
    real: bool = False
    """Whether it is also played on real kubelets."""
    folder: Path = MANIFESTS

    @property
    def path(self) -> Path:
        """Return the path of the manifest's file."""
        return self.folder / f"{self.name}.yaml"

    def manifest(self) -> dict[str, Any]:
        """Return the manifest."""
        found: dict[str, Any] = yaml.safe_load(self.path.read_text(encoding="utf-8"))
        return found


def split(task: str) -> tuple[str, int]:
    """Return a task's role and index."""
    role, _, index = task.rpartition("-")
    return role, int(index)


def tasks(*names: str) -> frozenset[str]:
    """Return a set of tasks."""
    return frozenset(names)


def differences(sees: Sees, job: dict[str, Any] | None, pods: set[str]) -> list[str]:
    """Return descriptions of the differences from the expected state.

    Args:
        sees: the expected state.
        job: the job as stored; None if it is gone.
        pods: the tasks that have a pod.
    """
    if sees.gone or job is None:
        return [] if sees.gone is (job is None) else [f"the job is {'gone' if job is None else 'still there'}"]
    status = job.get("status") or {}
    conditions = {c["type"]: c for c in status.get("conditions") or ()}
    reported = conditions.get(sees.phase) or {}
    wanted: list[tuple[str, object, object]] = []
    if sees.phase:
        wanted.append(("phase", sees.phase, status.get("phase")))
    if sees.reason:
        wanted.append(("reason", sees.reason, reported.get("reason")))
    if sees.failed:
        wanted.append(("failedReplica", sees.failed, status.get("failedReplica")))
    if sees.term is not None:
        wanted.append(("term", sees.term, status.get("term")))
    if sees.pods is not None:
        wanted.append(("pods", sorted(sees.pods), sorted(pods)))
    wanted += [(f"condition {k}", v, (conditions.get(k) or {}).get("status")) for k, v in sees.conditions.items()]
    for name in ("restarts", "succeeded", "ready"):
        for role, number in getattr(sees, name).items():
            wanted.append((f"{role}.{name}", number, (status.get(role) or {}).get(name, 0)))
    records = {f"{r['role']}/{r['index']}": r for r in status.get("replicaRecords") or ()}
    for replica, number in sees.failures.items():
        wanted.append((f"failures of {replica}", number, (records.get(replica) or {}).get("failures", 0)))
    found = [f"{what} is {is_!r}, not {should!r}" for what, should, is_ in wanted if should != is_]
    return found + [
        f"{part!r} is not in {reported.get('message')!r}" for part in sees.says if part not in str(reported)
    ]
