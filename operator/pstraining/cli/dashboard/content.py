"""What the page asks for. What the user may not read is a sentence in its place, and the rest is there."""

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
"""Lines of a log in one answer, its newest ones."""
WIDTH: Final = 4000
"""Characters of a line that are shown."""
_COLOURS: Final = re.compile(r"\x1b\[[0-9;]*m")


class LenientClient:
    """A cluster in which pods and events that may not be read are missing; `denied` has the reason.

    No metrics are read through it: the sampler has read them.
    """

    def __init__(self, cluster: ClusterClient) -> None:
        self._cluster = cluster
        self.denied: dict[str, str] = {}
        """A sentence for each of `pods` and `events` that may not be read."""

    def job(self, namespace: str, name: str) -> Object | None:
        """A PSTrainingJob; None if there is none."""
        return self._cluster.job(namespace, name)

    def jobs(self, namespace: str | None) -> list[Object]:
        """All PSTrainingJobs of a namespace."""
        return self._cluster.jobs(namespace)

    def pods(self, namespace: str, job: str) -> list[Object]:
        """The pods that carry the job's name as a label."""
        return self._allowed("pods", lambda: self._cluster.pods(namespace, job))

    def events(self, namespace: str, uid: str) -> list[Object]:
        """The events of one object."""
        return self._allowed("events", lambda: self._cluster.events(namespace, uid))

    def metrics(self, namespace: str, pod: str, port: int, seconds: float = 0) -> str:
        """Nothing."""
        raise RequestError("The sampler reads metrics.")

    def _allowed(self, what: str, read: Callable[[], list[Object]]) -> list[Object]:
        try:
            return read()
        except DeniedError as error:
            self.denied[what] = str(error)
            return []


@dataclass(frozen=True)
class Content:
    """Answers the page's questions; every method reads, and none writes.

    Args:
        cluster: where the jobs are.
        namespace: theirs; None for all namespaces.
        sampler: samples their metrics.
    """

    cluster: ClusterClient
    namespace: str | None
    sampler: Sampler

    def jobs(self) -> dict[str, Any]:
        """All jobs, by namespace and name.

        Raises:
            CommandError: they may not be listed, or the API server does not answer.
        """
        found = self.cluster.jobs(self.namespace)
        found.sort(key=lambda job: (job["metadata"]["namespace"], job["metadata"]["name"]))
        return {"namespace": self.namespace, "jobs": [summary(job) | _training(job) for job in found]}

    def job(self, namespace: str, name: str) -> dict[str, Any]:
        """One job as `status` prints it, with the progress of training and what may not be read.

        Raises:
            CommandError: there is no such job, or it cannot be read.
        """
        lenient = LenientClient(self.cluster)
        job = job_named(self.cluster, namespace, name)
        # `look` asks for what LenientClient has, and for nothing else.
        found = look(cast(ClusterClient, lenient), namespace, name) | _training(job)
        if "pods" in lenient.denied:
            # Without pods, every task looks like one that has none.
            found["roles"] = [role | {"withoutPod": []} for role in found["roles"]]
        return found | {"uid": job["metadata"]["uid"], "denied": lenient.denied}

    def curves(self, namespace: str, name: str) -> dict[str, Any]:
        """The curves and rates of one job, after a sample if one is due.

        Raises:
            CommandError: there is no such job, or it cannot be read.
        """
        job = job_named(self.cluster, namespace, name)
        pods = LenientClient(self.cluster).pods(namespace, name)
        return self.sampler.look(job, tasks_of(job, pods)) | {"uid": job["metadata"]["uid"]}

    def log(self, namespace: str, name: str, pod: str, after: str, previous: str) -> dict[str, Any]:
        """The newest lines of a pod's log.

        Args:
            namespace: the job's.
            name: the job.
            pod: a pod of it.
            after: the time `last` of the answer before this one, to read on from there; empty at first.
            previous: not empty for the run before the container was restarted.

        Raises:
            CommandError: the job has no such pod, or its log may not be read.
            ValueError: `after` is no time.
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
                continue  # to the second, so that some lines come once more
            last = moment or last
            kept.append(_COLOURS.sub("", text)[:WIDTH])
        skipped = known is not None and count >= LINES and oldest is not None and oldest > known
        return {"lines": list(kept), "last": last.isoformat() if last else "", "skipped": skipped, "problem": ""}


def _training(job: Object) -> dict[str, Any]:
    return {"training": (job.get("status") or {}).get("training")}
