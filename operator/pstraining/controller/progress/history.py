"""Answers a chief's requests for its job's history: the job, and the logs of the job's own pods.

The chief writes them beside its checkpoints before the job, its pods and their logs are deleted. It needs no rights in
the cluster, and the operator writes nothing.
"""

import asyncio
from collections.abc import Iterator, Sequence
from typing import Any, Final, Protocol
from weakref import WeakValueDictionary

from pstraining.api import names
from pstraining.api.summary import LOG_BYTES, LOG_LINES, LogEnd
from pstraining.controller.informer_cache import InformerCache, Key, Object
from pstraining.controller.progress.authentication import Refusal
from pstraining.core.observe import observe
from pstraining.core.snapshot import Pod

READ_MAX: Final = 8 * LOG_BYTES
"""Maximum bytes of one answer of the API server. It counts them from the first requested line, so a log with longer
lines is requested once more, with fewer lines."""
PODS_MAX: Final = 1000
"""Maximum number of pods in one answer."""
CONTAINER_STATUSES: Final = frozenset(("containerStatuses", "initContainerStatuses"))
IN_FLIGHT: Final = 4
"""Logs of all jobs that are read at a time. Only one log of each job is read at a time. Otherwise a job with slow logs,
such as those of a node that does not answer, would delay the logs of all other jobs."""


class LogPort(Protocol):
    """Reads logs."""

    async def log(self, namespace: str, pod: str, container: str, *, previous: bool, lines: int, limit: int) -> bytes:
        """Return the last lines of a container's log, and of these lines the first `limit` bytes."""


class HistoryAnswers:
    """Answers a chief's requests about its job."""

    def __init__(self, port: LogPort, cache: InformerCache) -> None:
        """Create the answers.

        Args:
            port: reads logs.
            cache: the jobs and their pods.
        """
        self._port, self._cache = port, cache
        self._slots = asyncio.Semaphore(IN_FLIGHT)
        self._turns: WeakValueDictionary[Key, asyncio.Lock] = WeakValueDictionary()
        """The locks of the jobs whose logs are being read."""

    def job(self, key: Key) -> dict[str, Any]:
        """Return the cached job, its newest pods, and the runs of their containers that have logs."""
        view = self._cache.view(key)
        logs = [
            {"task": names.task_name(pod.role, pod.index, pod.member), "pod": pod.name, "previous": previous}
            for pod in _observed(view.job, view.pods)
            for previous in _runs(pod)
        ]
        newest = sorted(view.pods, key=lambda pod: str(pod["metadata"]["creationTimestamp"]))[-PODS_MAX:]
        return {"job": view.job, "pods": [_reduced(pod) for pod in newest], "logs": logs}

    async def log(self, key: Key, name: str, previous: bool) -> LogEnd | Refusal:
        """Return the end of a log of one of the job's pods.

        Args:
            key: the job.
            name: the pod's name.
            previous: whether to return the log of the container's previous run.

        Raises:
            ApiError: the API server does not return the log.
        """
        job, manifest = self._cache.job_and_pod(key, name)
        own = _observed(job, () if manifest is None else (manifest,))
        if not own:
            return Refusal(404, "the job has no such pod")
        (pod,) = own
        # Only one request of each job waits for a slot, so a job with many logs does not delay the others.
        async with self._turns.setdefault(key, asyncio.Lock()), self._slots:
            return await self._end(key[0], name, pod.main, previous)

    async def _end(self, namespace: str, pod: str, container: str, previous: bool) -> LogEnd:
        # One line more than is kept shows whether the log is longer.
        lines, kept = LOG_LINES + 1, LOG_LINES
        while True:
            found = await self._port.log(namespace, pod, container, previous=previous, lines=lines, limit=READ_MAX)
            if len(found) < READ_MAX or lines == 1:
                content = _last_lines(found, kept)[-LOG_BYTES:]
                return LogEnd(content, whole=lines > LOG_LINES and len(content) == len(found))
            lines = kept = kept // 10


def _last_lines(content: bytes, number: int) -> bytes:
    """Return the last `number` lines of content that has at most one line more."""
    lines = content.count(b"\n") + (not content.endswith(b"\n"))
    return content[content.find(b"\n") + 1 :] if lines > number else content


def _reduced(pod: Object) -> Object:
    """Return a pod without its owners and its containers' IDs: random text that has no meaning after the job's end."""
    metadata = {name: value for name, value in pod["metadata"].items() if name != "ownerReferences"}
    status = dict(pod["status"])
    for name in CONTAINER_STATUSES & status.keys():
        status[name] = [_without_ids(container) for container in status[name]]
    return {**pod, "metadata": metadata, "status": status}


def _without_ids(container: Object) -> Object:
    states = {
        field: {
            kind: {k: v for k, v in state.items() if k != "containerID"} for kind, state in container[field].items()
        }
        for field in ("state", "lastState")
        if container.get(field)
    }
    return {**container, **states}


def _observed(job: Object | None, pods: Sequence[Object]) -> Sequence[Pod]:
    """Return the pods that belong to the job."""
    return () if job is None else observe(job, (), pods).pods


def _runs(pod: Pod) -> Iterator[bool]:
    """Yield for each run of the pod's container that has a log whether it is the previous run."""
    container = pod.container
    if container.restarts:
        yield True
    if container.running or container.terminated is not None:
        yield False
