"""The data of the page. A part that the user may not read is replaced by the reason."""

import re
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Final, cast

from pstraining.cli.client import ClusterClient, Object
from pstraining.cli.dashboard.sampling import Sampler
from pstraining.cli.errors import CommandError, DeniedError, RequestError
from pstraining.cli.jobs import job_named
from pstraining.cli.logs.following import stamped
from pstraining.cli.logs.log_lines import LogSelection
from pstraining.cli.overview import look, summary
from pstraining.cli.status.pod_state import state, why
from pstraining.cli.tasks import TaskPod, tasks_of

LINES: Final = 500
"""Maximum number of lines of a log in one response."""
WIDTH: Final = 4000
"""Maximum number of characters of a line."""
_COLOURS: Final = re.compile(r"\x1b\[[0-9;]*m")


class LenientClient:
    """A client that returns no pods or events if the user may not read them. `denied` has the reasons.

    It reads no metrics, because the sampler does.
    """

    def __init__(self, cluster: ClusterClient) -> None:
        self._cluster = cluster
        self.denied: dict[str, str] = {}
        """The reason for each of `pods` and `events` that may not be read."""

    def job(self, namespace: str, name: str) -> Object | None:
        """Return a PSTrainingJob, or None if it does not exist."""
        return self._cluster.job(namespace, name)

    def jobs(self, namespace: str | None) -> list[Object]:
        """Return the PSTrainingJobs of a namespace, or of all namespaces if it is None."""
        return self._cluster.jobs(namespace)

    def pods(self, namespace: str, job: str) -> list[Object]:
        """Return the pods whose label names the job."""
        return self._allowed("pods", lambda: self._cluster.pods(namespace, job))

    def events(self, namespace: str, uid: str) -> list[Object]:
        """Return the events of one object."""
        return self._allowed("events", lambda: self._cluster.events(namespace, uid))

    def metrics(self, namespace: str, pod: str, port: int, seconds: float = 0) -> str:
        """Raise a RequestError, because the sampler reads metrics."""
        raise RequestError("The sampler reads metrics.")

    def _allowed(self, what: str, read: Callable[[], list[Object]]) -> list[Object]:
        try:
            return read()
        except DeniedError as error:
            self.denied[what] = str(error)
            return []


@dataclass(frozen=True)
class Content:
    """Handles the page's requests. Every method only reads.

    Args:
        cluster: the jobs' cluster.
        namespace: the jobs' namespace; None for all namespaces.
        sampler: samples the jobs' metrics.
    """

    cluster: ClusterClient
    namespace: str | None
    sampler: Sampler

    def jobs(self) -> dict[str, Any]:
        """Return all jobs, by namespace and name.

        Raises:
            CommandError: the jobs may not be listed, or the API server does not respond.
        """
        found = self.cluster.jobs(self.namespace)
        found.sort(key=lambda job: (job["metadata"]["namespace"], job["metadata"]["name"]))
        return {"namespace": self.namespace, "jobs": [summary(job) | _training(job) for job in found]}

    def job(self, namespace: str, name: str) -> dict[str, Any]:
        """Return one job as `status` prints it, with its training progress and the reasons for missing parts.

        Raises:
            CommandError: the job does not exist, or cannot be read.
        """
        lenient = LenientClient(self.cluster)
        job = job_named(self.cluster, namespace, name)
        # `look` uses only LenientClient's methods.
        found = look(cast(ClusterClient, lenient), namespace, name) | _training(job)
        if "pods" in lenient.denied:
            # Unreadable pods are not missing pods.
            found["roles"] = [role | {"withoutPod": []} for role in found["roles"]]
        return found | {"uid": job["metadata"]["uid"], "denied": lenient.denied}

    def curves(self, namespace: str, name: str) -> dict[str, Any]:
        """Return the curves and rates of one job, after a sample if one is due.

        Raises:
            CommandError: the job does not exist, or cannot be read.
        """
        job = job_named(self.cluster, namespace, name)
        pods = LenientClient(self.cluster).pods(namespace, name)
        return self.sampler.look(job, tasks_of(job, pods)) | {"uid": job["metadata"]["uid"]}

    def log(self, namespace: str, name: str, pod: str, after: str, previous: str) -> dict[str, Any]:
        """Return the newest lines of a pod's log.

        Args:
            namespace: the job's namespace.
            name: the job's name.
            pod: the pod's name.
            after: the time `last` of the previous response, from which the log continues; empty at first.
            previous: not empty for the container's previous run.

        Raises:
            CommandError: the job has no such pod, or its log may not be read.
            ValueError: `after` is not a time.
        """
        task = self._task(namespace, name, pod)
        known = datetime.fromisoformat(after).astimezone(UTC) if after else None
        query = LogSelection(previous=bool(previous), tail=LINES).query(task.container) | {"timestamps": "true"}
        if known is not None:
            query["sinceTime"] = known.strftime("%Y-%m-%dT%H:%M:%SZ")
        try:
            return self._lines(task, query, known)
        except RequestError as error:
            if isinstance(error, DeniedError) or not error.status:
                raise
            waits = ": ".join((state(task), *why(task)))
            return {"lines": [], "last": after, "skipped": False, "problem": f"no log ({waits}): {error}"}

    def _task(self, namespace: str, name: str, pod: str) -> TaskPod:
        job = job_named(self.cluster, namespace, name)
        for task in tasks_of(job, self.cluster.pods(namespace, name)):
            if task.pod.name == pod:
                return task
        raise CommandError(f"{name} no longer has the pod {pod}.")

    def _lines(self, task: TaskPod, query: Mapping[str, str], known: datetime | None) -> dict[str, Any]:
        kept: deque[str] = deque(maxlen=LINES)
        count, oldest, last = 0, None, known
        for line in self.cluster.log(task.manifest["metadata"]["namespace"], task.pod.name, query):
            moment, text = stamped(line)
            count += 1
            oldest = oldest or moment
            if known is not None and (moment is None or moment <= known):
                continue  # sinceTime has whole seconds, so some lines repeat
            last = moment or last
            kept.append(_COLOURS.sub("", text)[:WIDTH])
        skipped = known is not None and count >= LINES and oldest is not None and oldest > known
        return {"lines": list(kept), "last": last.isoformat() if last else "", "skipped": skipped, "problem": ""}


def _training(job: Object) -> dict[str, Any]:
    return {"training": (job.get("status") or {}).get("training")}
