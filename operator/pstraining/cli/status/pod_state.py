"""The state of a pod in one word, and the reasons that it waits or has failed, from Kubernetes if it reports them."""

from collections.abc import Iterator, Mapping
from typing import Any, Final

from pstraining.api import names
from pstraining.cli.jobs import one_line
from pstraining.cli.tasks import TaskPod
from pstraining.core.policies.failure_counts import last_line
from pstraining.core.snapshot import PASSED_DEADLINE

READY: Final = "Ready"
TERMINATING: Final = "Terminating"
_NO_NEWS: Final = ("ContainerCreating", "PodInitializing")
"""Waiting reasons of normal starts. If a start is stuck, only an event of the pod has the reason."""


def state(task: TaskPod) -> str:
    """Return one word, such as Ready, Running (but not ready), Pending, Succeeded, OOMKilled or ImagePullBackOff."""
    pod = task.pod
    container = pod.blocked_init or pod.container
    if pod.deleting:
        return TERMINATING
    if pod.finished and pod.container.terminated is not None and pod.active_deadline == PASSED_DEADLINE:
        return pod.container.terminated.reason if pod.container.terminated.exit_code else "Succeeded"
    if pod.phase == "Succeeded":
        return pod.phase
    if pod.phase == "Failed":
        return pod.reason or (container.terminated.reason if container.terminated else "") or pod.phase
    if pod.unschedulable:
        return "Unschedulable"
    if pod.gates:
        return "SchedulingGated"
    if container.waiting_reason or container.terminated:
        return container.waiting_reason or (container.terminated.reason if container.terminated else "")
    return READY if pod.ready else pod.phase


def why(task: TaskPod) -> list[str]:
    """Return the reasons that a task is not ready or was restarted; empty without any."""
    status = task.manifest.get("status") or {}
    pod = task.pod
    # The operator ended containers beside the finished program: the pod's reason does not concern the program.
    of_pod = () if pod.finished and pod.active_deadline == PASSED_DEADLINE else _of_pod(status)
    found = [one_line(text) for text in (*of_pod, *_of_containers(status))]
    if not found and pod.container.running and not (pod.ready or pod.deleting or pod.terminal):
        serves = (
            "its server does not respond, or is not in sync"
            if pod.role == names.PS
            else "its launcher waits, or its probe fails"
        )
        found.append(f"running, but not ready: {serves}")
    return found


def is_unexplained(task: TaskPod) -> bool:
    """Return whether a task waits without a reason in its status. An event of the pod may have it."""
    pod = task.pod
    starts = not (pod.ready or pod.deleting or pod.terminal or pod.container.running)
    return starts and not why(task)


def _of_pod(status: Mapping[str, Any]) -> Iterator[str]:
    if status.get("reason"):
        yield _with_message(status["reason"], status.get("message"))
    for condition in status.get("conditions") or ():
        waits = condition.get("type") == "PodScheduled" and condition.get("status") == "False"
        disrupted = condition.get("type") == "DisruptionTarget" and condition.get("status") == "True"
        if (waits or disrupted) and condition.get("reason"):
            yield _with_message(condition["reason"], condition.get("message"))


def _of_containers(status: Mapping[str, Any]) -> Iterator[str]:
    for kind, what in (("initContainerStatuses", "init container"), ("containerStatuses", "container")):
        for container in status.get(kind) or ():
            yield from _of_container(f"{what} {container.get('name', '')}", container)


def _of_container(subject: str, container: Mapping[str, Any]) -> Iterator[str]:
    present = container.get("state") or {}
    waiting, ended = present.get("waiting") or {}, present.get("terminated")
    if waiting.get("reason") and (waiting["reason"] not in _NO_NEWS or waiting.get("message")):
        yield f"{subject} is waiting: {_with_message(waiting['reason'], waiting.get('message'))}"
    if ended and ended.get("exitCode"):
        yield f"{subject} ended with {_end(ended)}"
    restarts, last = int(container.get("restartCount") or 0), (container.get("lastState") or {}).get("terminated")
    if restarts and last and not ended:
        times = "once" if restarts == 1 else f"{restarts} times"
        yield f"{subject} was restarted {times}; its last run ended with {_end(last)}"


def _end(ended: Mapping[str, Any]) -> str:
    reason = f" ({ended['reason']})" if ended.get("reason") not in (None, "", "Error") else ""
    return _with_message(f"exit code {ended.get('exitCode', 0)}{reason}", last_line(ended.get("message") or ""))


def _with_message(reason: str, message: str | None) -> str:
    return f"{reason}: {message}" if message else reason
