"""Scrapes tasks' metrics through the API server, and reports the reasons for failures."""

import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Final

from pstraining.api import contract
from pstraining.api.numbers import number
from pstraining.cli.client import CONNECT_SECONDS, ClusterClient, Object
from pstraining.cli.errors import DeniedError, RequestError
from pstraining.cli.metrics.rates import Scrape, compute_devices
from pstraining.cli.metrics.samples import read
from pstraining.cli.status.pod_state import state
from pstraining.cli.tasks import TaskPod, TaskRole

AT_ONCE: Final = 16
"""Maximum number of concurrent scrapes."""
PATIENCE_SECONDS: Final = 2.0
"""Timeout of a task's metrics in commands that only show its devices."""
LOOK_SECONDS: Final = 5.0
"""Seconds after which such a command asks no further task: a job may have thousands."""


def trains(task: TaskPod) -> bool:
    """Return whether a task has a role that serves metrics, and its pod has not ended."""
    return task.pod.role in (TaskRole.CHIEF, TaskRole.WORKER) and not task.pod.terminal


def devices_of(
    cluster: ClusterClient, tasks: Sequence[TaskPod], clock: Callable[[], float] = time.monotonic
) -> dict[str, dict[str, int]]:
    """Return the number of devices that each task computes on, by the pod's uid and by type: {"GPU": 2}.

    Tasks that do not report it are left out. The first denied or timed-out request ends the scrapes, because the other
    ones would also fail. So does the end of LOOK_SECONDS.

    Args:
        cluster: the cluster.
        tasks: the tasks.
        clock: monotonic seconds.
    """
    unreachable, until = threading.Event(), clock() + LOOK_SECONDS

    def look(task: TaskPod) -> dict[str, int]:
        port = _port(task)
        if isinstance(port, str) or unreachable.is_set() or clock() >= until:
            return {}
        try:
            return compute_devices(read(_text(cluster, task, port, PATIENCE_SECONDS))) or {}
        except RequestError as error:
            if isinstance(error, DeniedError) or error.status == 0:
                unreachable.set()
        except ValueError:
            pass  # another program's port
        return {}

    asked = [task for task in tasks if trains(task)]
    with ThreadPoolExecutor(AT_ONCE) as pool:
        found = zip(asked, pool.map(look, asked), strict=True)
        return {task.pod.uid: devices for task, devices in found if devices}


def scraped(cluster: ClusterClient, job: Object, task: TaskPod, clock: Callable[[], float]) -> Scrape | str:
    """Return a task's metrics, or the reason that there are none.

    Raises:
        DeniedError: metrics may not be read.
    """
    port = _port(task)
    if isinstance(port, str):
        return port
    try:
        text = _text(cluster, task, port)
        return Scrape(clock(), read(text))
    except DeniedError:
        raise
    except RequestError as error:
        return _unserved(error, port, isolated=_isolation(job) == "Full")
    except ValueError as error:
        return f"port {port} does not serve metrics: {error}"


def _port(task: TaskPod) -> int | str:
    """Return the port of a running task's metrics, or the reason that there is none."""
    return metrics_port(task) if task.pod.container.running else f"is not running: {state(task)}"


def metrics_port(task: TaskPod) -> int | str:
    """Return the port of a task's metrics, or the reason that it is unknown."""
    containers: list[Object] = (task.manifest.get("spec") or {}).get("containers") or []
    named = [c for c in containers if c.get("name") == task.container]
    variables = [v for c in named for v in c.get("env") or () if v["name"] == contract.ENV_METRICS_PORT]
    if not variables:
        return contract.METRICS_PORT
    variable = variables[-1]
    text = str(variable.get("value", ""))
    if not text and "valueFrom" not in variable:
        return contract.METRICS_PORT
    if 0 < (given := number(text) or 0) < 65536:
        return given
    return f"its port is unknown: its template sets {contract.ENV_METRICS_PORT} to {text or 'a value from elsewhere'}"


def _text(cluster: ClusterClient, task: TaskPod, port: int, seconds: float = CONNECT_SECONDS) -> str:
    return cluster.metrics(task.manifest["metadata"]["namespace"], task.pod.name, port, seconds)


def _unserved(error: RequestError, port: int, *, isolated: bool) -> str:
    if "connection refused" in str(error):
        return f"port {port} refuses connections: the task is not training yet, or does not use pstraining.runtime"
    if isolated:
        return f"port {port} does not respond: with spec.network.isolation Full, only the job's own pods can reach it"
    return f"port {port}: {error}"


def _isolation(job: Object) -> str:
    return str((job["spec"].get("network") or {}).get("isolation", ""))
