"""The tasks of a job, and their selection by role and index, as TensorFlow counts them."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from pstraining.api import names
from pstraining.cli.client import Object
from pstraining.cli.errors import ArgumentError, CommandError
from pstraining.core.observe import observe
from pstraining.core.snapshot import Pod


class TaskRole(StrEnum):
    """Roles of tasks, in the order in which they are shown."""

    CHIEF = names.CHIEF
    PS = names.PS
    WORKER = names.WORKER
    EVALUATOR = names.EVALUATOR


@dataclass(frozen=True)
class TaskPod:
    """A task and one of its pods."""

    name: str
    """Such as worker-0, or standby-0 for a PS that is not its shard's first member."""
    pod: Pod
    manifest: Object

    @property
    def container(self) -> str:
        """The name of the launcher's container."""
        return self.pod.main


def tasks_of(job: Object, pods: Iterable[Object]) -> list[TaskPod]:
    """Return the tasks of the pods that the job owns, by role, index and age."""
    by_uid = {pod["metadata"]["uid"]: pod for pod in pods}
    order = list(TaskRole)
    found = [p for p in observe(job, (), by_uid.values()).pods if p.role in order]
    found.sort(key=lambda p: (order.index(TaskRole(p.role)), p.member, p.index, p.created, p.name))
    return [TaskPod(names.task_name(p.role, p.index, p.member), p, by_uid[p.uid]) for p in found]


def chosen(tasks: Sequence[TaskPod], role: TaskRole | None, index: int | None) -> list[TaskPod]:
    """Return the tasks of a role and an index; None matches all."""
    return [t for t in tasks if role in (None, t.pod.role) and index in (None, t.pod.index)]


def desired(job: Object, role: str) -> int:
    """Return the number of tasks of a role with which the job runs, or the spec's before its status has one.

    They differ if servers were added automatically, while ps.replicas changes, and if Kueue admits fewer workers.
    """
    reported = ((job.get("status") or {}).get(role) or {}).get("desired")
    return _wanted(job, role) if reported is None else int(reported)


def possible(job: Object, role: str) -> int:
    """Return the number of tasks of a role that the job runs with, or will run with by its spec: the larger one."""
    return max(_wanted(job, role), desired(job, role))


def _wanted(job: Object, role: str) -> int:
    """Return the spec's number of tasks of a role."""
    spec: dict[str, Any] = job["spec"]
    if role in (names.PS, names.WORKER):
        return int(spec[role]["replicas"])
    return int((spec.get(role) or {}).get("enabled", role == names.CHIEF))


def check_choice(job: Object, tasks: Sequence[TaskPod], role: TaskRole | None, index: int | None) -> None:
    """Check that the job can have tasks of a role and an index.

    Raises:
        CommandError: an index without a role, or a role or an index that the job does not have.
    """
    name = job["metadata"]["name"]
    if role is None:
        if index is not None:
            raise ArgumentError("--index requires --role, because each role counts its tasks from 0.")
        return
    count = possible(job, role)
    if count == 0:
        raise CommandError(f"{name} has no {role}: spec.{role}.enabled is false.")
    if index is None or 0 <= index < count or chosen(tasks, role, index):
        return
    there = "its only index is 0" if count == 1 else f"its indices are 0 to {count - 1}"
    raise CommandError(f"{name} has no {role} with index {index}: {there}.")
