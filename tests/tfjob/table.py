"""What a TFJob user expects: one case a feature, with a manifest, what the programs do, and what follows.

The same case is held up to the planner in a simulated world, to a real API server (its manifest is taken, or refused
in words), and, where it says `real`, played by puppet programs on real kubelets. docs/reference/tfjob.md is made of it.
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
    """A task's program ends, and says so in its last line."""

    task: str
    code: int


@dataclass(frozen=True)
class DeletePod:
    """Somebody deletes a task's pod."""

    task: str


@dataclass(frozen=True)
class Suspend:
    """The user suspends the job, or resumes it."""

    suspend: bool = True


@dataclass(frozen=True)
class Scale:
    """The user asks for other numbers of replicas."""

    workers: int | None = None
    ps: int | None = None


@dataclass(frozen=True)
class Later:
    """Time goes by."""

    seconds: int


@dataclass(frozen=True)
class Sees:
    """What shows then; what is not named is not looked at."""

    phase: str = ""
    reason: str = ""
    """Of the condition that has the phase's name."""
    says: tuple[str, ...] = ()
    """Parts of that condition's message."""
    conditions: Mapping[str, str] = field(default_factory=dict)
    failed: str = ""
    """The replica that failed the job."""
    restarts: Mapping[str, int] = field(default_factory=dict)
    succeeded: Mapping[str, int] = field(default_factory=dict)
    ready: Mapping[str, int] = field(default_factory=dict)
    runs: Mapping[str, int] = field(default_factory=dict)
    """How often a task's program was started; only puppets tell."""
    term: int | None = None
    failures: Mapping[str, int] = field(default_factory=dict)
    """Of a replica, as role/index: what counts against its budget."""
    pods: frozenset[str] | None = None
    """The tasks that have a pod."""
    gone: bool = False
    """The job is deleted."""


Step = Exit | DeletePod | Suspend | Scale | Later | Sees


@dataclass(frozen=True)
class Case:
    """One feature of TFJob."""

    name: str
    """Of the job, and of its manifest's file."""
    feature: str
    tfjob: str
    """What TFJob documents."""
    source: str
    """Where; #n is an issue or pull request of kubeflow/trainer."""
    ours: str
    """What happens here."""
    asked: str = ""
    """Where it is better than TFJob: who asked for it."""
    play: tuple[Step, ...] = ()
    refused: str = ""
    """The API server refuses the manifest in these words."""
    cluster: Mapping[str, tuple[str, ...]] | None = None
    """TF_CONFIG's cluster, in full."""
    renders: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    """By role, what a pod template holds beside other things; of lists the named items, a tuple is a list in full."""
    lacks: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """By role, words that are nowhere in the training container."""
    absent: tuple[str, ...] = ()
    """Roles of which there are no pods."""
    real: bool = False
    """Played on real kubelets, too."""
    folder: Path = MANIFESTS

    @property
    def path(self) -> Path:
        """The manifest's file."""
        return self.folder / f"{self.name}.yaml"

    def manifest(self) -> dict[str, Any]:
        """The manifest."""
        found: dict[str, Any] = yaml.safe_load(self.path.read_text(encoding="utf-8"))
        return found


def split(task: str) -> tuple[str, int]:
    """A task's role and index."""
    role, _, index = task.rpartition("-")
    return role, int(index)


def tasks(*names: str) -> frozenset[str]:
    """A set of tasks."""
    return frozenset(names)


def differences(sees: Sees, job: dict[str, Any] | None, pods: set[str]) -> list[str]:
    """What is not as it should be, in words.

    Args:
        sees: what should show.
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
