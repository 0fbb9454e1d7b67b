"""The identity of this task and the addresses of the others: TF_CONFIG, the pod's identity and the cluster file.

Invariant: a worker's map contains itself and the parameter servers only, so no worker waits for another or stops it.
"""

import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final

from pstraining.api import contract
from pstraining.runtime.errors import FinalError

ENV_CLUSTER_FILE: Final = "PSTRAINING_CLUSTER_FILE"
"""Environment variable with the path of the cluster file, for runs outside a cluster; default: the path in a pod."""


class ClusterError(ValueError):
    """The environment does not describe a task of a job."""


class EvaluatorError(ClusterError, FinalError):
    """This program is the job's evaluator, which no further run changes."""


@dataclass(frozen=True)
class Task:
    """A task in TensorFlow's terms: chief, worker or ps, and its index."""

    type: str
    index: int

    @property
    def label(self) -> str:
        """The task's name: chief, worker-0, ps-0 and so on. A job has one chief."""
        return self.type if self.type == "chief" else f"{self.type}-{self.index}"


@dataclass(frozen=True)
class Cluster:
    """One task's view of its job."""

    job: str
    task: Task
    addresses: Mapping[str, tuple[str, ...]]
    """host:port of every task, by task type."""
    own_host: str = "127.0.0.1"
    """This task's address. Parameter servers connect to it to fetch every tensor that this task sends."""
    term: int = 1
    """The chief's attempt, from 1."""
    members: int = 1
    """Servers of each shard. Of n shards, parameter server i + m n is member m of shard i."""
    witnesses: tuple[str, ...] = ()
    """host:port of every witness, see `replication.witness`: the job's first workers. Empty if workers do not vote."""
    layout: int = 1
    """The number of the layout, which counts how the parameters were partitioned."""
    first_term: int = 1
    """The first term of a chief that trains this layout; a promise to an earlier term belongs to another layout."""
    job_uid: str = ""
    """The job's uid, which no earlier or later job of its name has; empty if unknown."""
    namespace: str = ""
    """The job's namespace; empty if unknown."""
    gpus: int = 0
    """Number of GPUs in the container's limits."""
    grace_seconds: int = contract.GRACE_SECONDS
    """Seconds after SIGTERM after which the pod is killed."""
    in_pod: bool = False
    """Whether the task runs in a pod, where a launcher runs beside each parameter server."""
    training: Mapping[str, object] = field(default_factory=dict)
    """The job's `spec.training`."""
    checkpoint: Mapping[str, object] = field(default_factory=dict)
    """The job's `spec.checkpoint`. The pod's environment overrides its path."""

    @property
    def ps(self) -> tuple[str, ...]:
        """Addresses of the parameter servers."""
        return self.addresses.get("ps", ())

    @property
    def shards(self) -> int:
        """Number of shards."""
        return len(self.ps) // self.members

    @property
    def workers(self) -> int:
        """Number of workers."""
        return len(self.addresses.get("worker", ()))

    @property
    def is_chief(self) -> bool:
        """Whether this task does the chief's work: the chief, or worker 0 of a job without one."""
        if self.addresses.get("chief"):
            return self.task.type == "chief"
        return self.task == Task("worker", 0)

    @property
    def own_address(self) -> str:
        """host:port on which this task's own TensorFlow server listens."""
        mine = self.addresses[self.task.type][self.task.index]
        host = f"[{self.own_host}]" if ":" in self.own_host else self.own_host
        return f"{host}:{mine.rpartition(':')[2]}"


def read(environ: Mapping[str, str] | None = None) -> Cluster:
    """Return this process's task and its job, from the environment and the cluster file.

    Raises:
        ClusterError: the environment or the cluster file is incomplete or inconsistent; the message names the variable
            or the field.
    """
    env = os.environ if environ is None else environ
    if not env.get("TF_CONFIG"):
        raise ClusterError(
            "TF_CONFIG is not set: this program is a task of a job. "
            "To run it on this machine: python -m pstraining.runtime.local --ps 1 --workers 2 -m <module>"
        )
    try:
        config = json.loads(env["TF_CONFIG"])
        addresses = {role: tuple(_in_order(tasks)) for role, tasks in config["cluster"].items()}
        task = Task(str(config["task"]["type"]), int(config["task"]["index"]))
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise ClusterError(f"TF_CONFIG is not what TensorFlow documents: {error!r}") from None
    if task.type == "evaluator":
        raise EvaluatorError(
            "spec.evaluator: a Trainer is no evaluator, because its chief evaluates (evaluate, validation): "
            "leave the field out, or give it a template with another program"
        )
    if task.index >= len(addresses.get(task.type, ())) or task.index < 0:
        raise ClusterError(f"TF_CONFIG's cluster has no address for its own task {task.type} {task.index}")
    if task.type not in ("chief", "worker", "ps"):
        raise ClusterError(f"tasks of type {task.type} are not supported")
    if not addresses.get("ps"):
        raise ClusterError("the job has no parameter server")
    shared = _cluster_file(_path(env))
    checkpoint = dict(shared.get("checkpoint") or {})
    checkpoint.pop("volume", None)  # the operator mounts the volume; the runtime needs its path only
    if env.get(contract.ENV_CHECKPOINT_DIR):
        checkpoint["path"] = env[contract.ENV_CHECKPOINT_DIR]
    return Cluster(
        job=env.get(contract.ENV_JOB) or str(shared.get("job") or "local"),
        task=task,
        addresses=addresses,
        own_host=env.get(contract.ENV_POD_IP) or "127.0.0.1",
        term=_term(env.get(contract.ENV_TERM) or "1"),
        witnesses=_witnesses(shared),
        members=_members(shared.get("members", 1), len(addresses["ps"])),
        layout=int(shared.get("layout") or 1),
        first_term=int(shared.get("layoutTerm") or 1),
        job_uid=env.get(contract.ENV_JOB_UID) or "",
        namespace=env.get(contract.ENV_NAMESPACE) or str(shared.get("namespace") or ""),
        gpus=int(env.get(contract.ENV_GPUS) or 0),
        grace_seconds=int(env.get(contract.ENV_GRACE) or contract.GRACE_SECONDS),
        in_pod=bool(env.get(contract.ENV_POD_NAME)),
        training=dict(shared.get("training") or {}),
        checkpoint=checkpoint,
    )


def number_of_workers(cluster: Cluster, environ: Mapping[str, str] | None = None) -> int:
    """Return the job's current number of workers, from a pod's cluster file, which changes when the job is scaled.

    Without a readable file that lists workers, it is the number at the process's start, from TF_CONFIG.
    """
    return known_workers(environ) or cluster.workers


def known_workers(environ: Mapping[str, str] | None = None) -> int:
    """Return the number of workers in a pod's cluster file; 0 without a readable file that lists workers."""
    try:
        return len(_cluster_file(_path(os.environ if environ is None else environ))["cluster"]["worker"])
    except (ClusterError, KeyError, TypeError):
        return 0


def is_layout_ending(cluster: Cluster, environ: Mapping[str, str] | None = None) -> bool:
    """Return whether the job waits for this task to save the state for another layout, from a pod's cluster file.

    The result is False if the file cannot be read.
    """
    try:
        return int(_cluster_file(_path(os.environ if environ is None else environ))["nextLayout"]) > cluster.layout
    except (ClusterError, KeyError, TypeError, ValueError):
        return False


def next_layout(cluster: Cluster, environ: Mapping[str, str] | None = None) -> Cluster | None:
    """Return the job with its next layout, from a pod's cluster file; None if training is to keep its layout.

    The new servers run, and training is to continue on them without a restart.
    """
    found = _found(environ)
    return _with_layout(cluster, found.get("nextLayout"), found.get("nextServers"))


def later_layout(cluster: Cluster, environ: Mapping[str, str] | None = None) -> Cluster | None:
    """Return the job with its next layout, or with the one that replaced the given one meanwhile; else None.

    A process that starts during a change knows the former layout, and may find the change completed.
    """
    if following := next_layout(cluster, environ):
        return following
    found = _found(environ)
    servers = found.get("cluster")
    return _with_layout(cluster, found.get("layout"), servers.get("ps") if isinstance(servers, dict) else None)


def _found(environ: Mapping[str, str] | None) -> Mapping[str, object]:
    """Return the contents of the cluster file; empty if it cannot be read."""
    try:
        return _cluster_file(_path(os.environ if environ is None else environ))
    except ClusterError:
        return {}


def _with_layout(cluster: Cluster, number: object, servers: object) -> Cluster | None:
    """Return the job with a later layout; None if the arguments do not describe one."""
    if not isinstance(number, int) or number <= cluster.layout or not isinstance(servers, list):
        return None
    if not servers or len(servers) % cluster.members:
        return None
    return replace(cluster, layout=number, addresses={**cluster.addresses, "ps": tuple(map(str, servers))})


def note_layout(cluster: Cluster) -> None:
    """Let this task's launcher know the layout in use; in a pod.

    Raises:
        OSError: the file cannot be written.
    """
    if cluster.in_pod:
        file = Path(contract.RUN_DIR, contract.LAYOUT_FILE)
        new = file.with_suffix(".new")
        new.write_text(str(cluster.layout), encoding="utf-8")
        new.replace(file)  # the launcher would end a program whose file is empty for a moment


def _path(env: Mapping[str, str]) -> Path:
    return Path(env.get(ENV_CLUSTER_FILE) or f"{contract.MOUNT_DIR}/{contract.CLUSTER_FILE}")


def _in_order(tasks: Mapping[str, object] | Sequence[object]) -> list[str]:
    """Return addresses in the order of their indices; TF_CONFIG allows a list and a map from index to address."""
    if isinstance(tasks, Mapping):
        return [str(tasks[key]) for key in sorted(tasks, key=int)]
    return [str(address) for address in tasks]


def _cluster_file(path: Path) -> dict[str, Any]:
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return {}
    except (OSError, ValueError) as error:
        raise ClusterError(f"the cluster file {path} cannot be read: {error}") from None
    if not isinstance(found, dict):
        raise ClusterError(f"the cluster file {path} is not a JSON object")
    return found


def _members(number: object, servers: int) -> int:
    if not isinstance(number, int) or number < 1 or servers % number:
        raise ClusterError(
            f"the cluster file's members do not divide the job's {servers} parameter servers: {number!r}"
        )
    return number


def _witnesses(shared: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the addresses of the witnesses, also from the map of an operator of another version."""
    found = next((shared[key] for key in contract.WITNESSES_KEYS if key in shared), ())
    return tuple(str(address) for address in found)


def _term(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise ClusterError(f"{contract.ENV_TERM} is not a positive number: {text!r}")
    return int(text)
