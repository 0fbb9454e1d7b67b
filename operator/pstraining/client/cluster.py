"""Jobs on a cluster, through the kubectl plugin's library."""

import math
import secrets
import threading
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from queue import Full, Queue
from typing import Final

from pstraining.api import names
from pstraining.cli.client import ClusterClient, KubeconfigClient, Object
from pstraining.cli.connection.overrides import Overrides
from pstraining.cli.errors import AbsentError, CommandError, ConflictError, RequestError
from pstraining.cli.exit_codes import ExitCode
from pstraining.cli.jobs import end_of, job_named, phase, why
from pstraining.cli.logs.following import Follower
from pstraining.cli.logs.log_lines import LogSelection, LogWriter
from pstraining.cli.logs.reading import program_log, read
from pstraining.cli.tasks import TaskPod, TaskRole, tasks_of
from pstraining.cli.validation.documents import wrong_with
from pstraining.cli.validation.scaling import check_workers
from pstraining.cli.validation.schema import Severity
from pstraining.cli.waiting import Patience, ended, follow, unchanged
from pstraining.client.client import Job, JobKey, LogLine
from pstraining.client.errors import ClientError, JobFailedError
from pstraining.client.manifest import JobOptions, build_config_map, build_job, config_map_name
from pstraining.client.program import JobProgram
from pstraining.progress import Progress

TAIL: Final = 60
"""Maximum number of lines of a failed task's log in an error."""
ROOM: Final = 1000
"""Maximum number of queued lines that the reader has not read."""
TRIES: Final = 5
"""Maximum number of requests for a change of a job that others change as well."""
_SHARED: Final = tuple(f"spec.{role}.resources" for role in names.ROLES)
"""Fields that `validate` misses, and `Client.train` need not set: its resources are those of each task."""
CHECK_SECONDS: Final = 1.0
"""Seconds between two checks whether the reader has stopped, while the queue is full."""


class ClusterBackend:
    """The jobs of a namespace.

    Args:
        cluster: the client of the API server.
        namespace: the jobs' namespace.
        sleep: waits for a number of seconds.
    """

    def __init__(self, cluster: ClusterClient, namespace: str, sleep: Callable[[float], None] = time.sleep) -> None:
        self._cluster, self.namespace, self._sleep = cluster, namespace, sleep

    @classmethod
    def connected(cls, namespace: str | None, *, context: str, kubeconfig: str) -> "ClusterBackend":
        """Return the backend for the cluster that kubectl would use.

        Raises:
            ClientError: the kubeconfig is missing or cannot be used.
        """
        with _translated():
            cluster = KubeconfigClient(Overrides(context=context, kubeconfig=kubeconfig))
        return cls(cluster, namespace or cluster.namespace)

    def create(self, name: str, program: JobProgram, options: JobOptions) -> Job:
        """Create a job, and then its program's ConfigMap, which Kubernetes deletes with the job."""
        job = build_job(name, self.namespace, program, options)
        found = list(wrong_with(job))
        if wrong := [str(finding) for finding in found if finding.severity is Severity.ERROR]:
            raise ClientError(f"The job {name} is invalid: {'; '.join(wrong)}")
        for finding in found:
            if finding.field not in _SHARED:
                warnings.warn(f"The job {name}: {finding}", stacklevel=3)  # at the call of `Client.train`
        with _translated():
            stored = self._created(job)
            try:
                self._cluster.create("/api/v1", "configmaps", build_config_map(stored, program))
            except BaseException as error:  # also Ctrl-C: the job would wait for its program forever
                left = self._cleaned_up(stored)
                if isinstance(error, ConflictError):
                    raise ClientError(
                        f"The ConfigMap {config_map_name(name)} exists. Kubernetes deletes that of a deleted job a "
                        f"moment later: try again, or choose another name.{left}"
                    ) from error
                if left and isinstance(error, CommandError):
                    raise ClientError(f"{error}{left}") from error
                raise
        return _job(stored)

    def _created(self, job: Object) -> Object:
        """Create a job, and return it as it is stored, also if the response to the request was lost."""
        name, request = job["metadata"]["name"], secrets.token_hex(8)
        job["metadata"]["annotations"] = {names.ANNOTATION_REQUEST: request}
        try:
            return self._cluster.create(f"/apis/{names.API_VERSION}", names.PLURAL, job)
        except RequestError as error:
            if not (error.passing or isinstance(error, ConflictError)):
                raise
            try:
                found = self._cluster.job(self.namespace, name)
            except CommandError as unknown:
                hint = f"If the job {name} exists now, delete it: it has no program."
                raise ClientError(f"{error} {hint} It could not be read: {unknown}") from error
            if found and (found["metadata"].get("annotations") or {}).get(names.ANNOTATION_REQUEST) == request:
                return found
            if isinstance(error, ConflictError):
                raise ClientError(
                    f"The job {name} in {self.namespace} already exists: delete it, or choose another name."
                ) from error
            raise

    def _cleaned_up(self, job: Object) -> str:
        """Delete a job whose program could not be stored, and return a sentence about it if it is left."""
        name = job["metadata"]["name"]
        try:
            self._cluster.delete(self.namespace, name, str(job["metadata"]["uid"]))
        except (AbsentError, ConflictError):  # it was deleted in the meantime
            return ""
        except CommandError as error:
            return f" The job {name} is left without its program: delete it. It could not be deleted: {error}"
        return ""

    def get(self, key: JobKey) -> Job:
        """Return a job's current state."""
        return _job(self._stored(key))

    def jobs(self) -> list[Job]:
        """Return all jobs of the namespace."""
        with _translated():
            return [_job(job) for job in self._cluster.jobs(self.namespace)]

    def wait(self, key: JobKey, seconds: float | None) -> Job:
        """Wait until a job has succeeded, and return it."""
        newest = self._stored(key)

        def reached(now: Object) -> str:
            nonlocal newest
            newest = now  # the job may be deleted at its end
            return ended(now)

        patience = Patience(math.inf if seconds is None else seconds, sleep=self._sleep, report=lambda line: None)
        try:
            follow(self._cluster, unchanged(newest), reached, patience)
        except CommandError as error:
            match error.code:
                case ExitCode.JOB_FAILED:
                    raise JobFailedError(str(error), self._log_of_the_failure(newest)) from error
                case ExitCode.TIMED_OUT:
                    now = _job(newest)
                    message = f"{key.name} has not ended after {seconds:.10g} s: {now.phase}. {now.reason}".rstrip()
                    raise TimeoutError(message) from error
            raise ClientError(str(error)) from error
        return _job(newest)

    def logs(self, key: JobKey, *, follow: bool, role: str | None, index: int | None) -> Iterator[LogLine]:
        """Yield lines of logs."""
        if role is not None and role not in list(TaskRole):
            raise ClientError(f"role: {role!r} is not one of {', '.join(TaskRole)}.")
        if role is None and index is not None:
            raise ClientError("index requires role, because each role counts its tasks from 0.")
        uid = str(self._stored(key)["metadata"]["uid"])
        selection = LogSelection(None if role is None else TaskRole(role), index)
        return self._followed(key.name, uid, selection) if follow else iter(self._present(key.name, selection))

    def progress(self, key: JobKey) -> Progress | None:
        """Return the newest progress."""
        training = (self._stored(key).get("status") or {}).get("training")
        return None if training is None else Progress.of(training)

    def scale(self, key: JobKey, workers: int) -> None:
        """Change the number of workers."""
        job = self._stored(key)
        with self._changing(job):
            for _ in range(TRIES - 1):
                with suppress(ConflictError):  # often of a new status only
                    self._scale(job, workers)
                    return
                job = self._newest(job)
            self._scale(job, workers)

    def suspend(self, key: JobKey, suspended: bool) -> None:
        """Suspend a job, or resume it."""
        job = self._stored(key)
        if (end := end_of(job)) is not None:
            raise ClientError(f"{key.name} has ended ({end}).")
        change: Object = {"metadata": {"uid": job["metadata"]["uid"]}, "spec": {"runPolicy": {"suspend": suspended}}}
        with self._changing(job):
            self._cluster.patch(self.namespace, key.name, change)

    def delete(self, key: JobKey) -> None:
        """Delete a job."""
        job = self._stored(key)
        with self._changing(job):
            self._cluster.delete(self.namespace, key.name, job["metadata"]["uid"])

    def _stored(self, key: JobKey) -> Object:
        with _translated():
            found = job_named(self._cluster, self.namespace, key.name)
        key.check(found["metadata"]["uid"])
        return found

    def _scale(self, job: Object, workers: int) -> None:
        """Change the number of workers of a job as it was read.

        Raises:
            ConflictError: the job has changed since.
        """
        metadata = job["metadata"]
        if (end := end_of(job)) is not None:
            raise ClientError(f"{metadata['name']} has ended ({end}) and has no workers.")
        check_workers(job, workers)
        self._cluster.scale(self.namespace, metadata["name"], workers, metadata["resourceVersion"])

    @contextmanager
    def _changing(self, job: Object) -> Iterator[None]:
        """Report the deletion of the job that a request was for, instead of the refusal by another one of its name."""
        with _translated():
            try:
                yield
            except RequestError as error:
                if not error.passing:
                    self._newest(job)
                raise

    def _newest(self, job: Object) -> Object:
        """Return a job as it is stored now.

        Raises:
            ClientError: it was deleted; another one may have its name.
        """
        name, uid = job["metadata"]["name"], job["metadata"]["uid"]
        now = self._cluster.job(self.namespace, name)
        if now is None or now["metadata"]["uid"] != uid:
            raise ClientError(f"{name} was deleted in the meantime.")
        return now

    def _present(self, name: str, selection: LogSelection) -> list[LogLine]:
        found: list[LogLine] = []
        with _translated():
            read(
                self._cluster,
                self.namespace,
                name,
                selection,
                lambda task, text: found.append(LogLine(task, text)),
                lambda remark: None,
            )
        return found

    def _followed(self, name: str, uid: str, selection: LogSelection) -> Iterator[LogLine]:
        writer = _QueueWriter()
        follower = Follower(self._cluster, self.namespace, name, selection, writer, uid=uid)
        thread = threading.Thread(target=writer.filled_by(follower), daemon=True)
        thread.start()
        try:
            yield from writer.lines()
        finally:
            writer.closed.set()

    def _log_of_the_failure(self, job: Object) -> str:
        """Return the end of the log, with the stack trace, of the task whose failure failed the job."""
        status = job.get("status") or {}
        role = str(status.get("failedReplica") or "").partition("/")[0]
        roles = [role] if role else [r for r in TaskRole if (status.get(r) or {}).get("lastFailure")]
        pods = {((status.get(r) or {}).get("lastFailure") or {}).get("pod") for r in roles}
        with suppress(CommandError):
            for task in tasks_of(job, self._cluster.pods(self.namespace, job["metadata"]["name"])):
                if task.pod.name in pods:
                    return self._tail(task)
        return ""

    def _tail(self, task: TaskPod) -> str:
        """Return the end of the program's log, as `kubectl pstraining logs` selects it; empty if it cannot be read."""
        selection = LogSelection(tail=TAIL)
        with suppress(RequestError):
            for query in program_log(self._cluster, self.namespace, task, selection, is_over=True):
                with suppress(RequestError):
                    if lines := list(self._cluster.log(self.namespace, task.pod.name, query)):
                        return "\n".join(f"{task.name}: {line}" for line in lines)
        return ""


class _Closed(Exception):  # noqa: N818 - not an error
    """The reader has stopped."""


class _QueueWriter(LogWriter):
    """Passes the lines of a follower to a generator."""

    def __init__(self) -> None:
        super().__init__(coloured=False)
        self.closed = threading.Event()
        self._queue: Queue[LogLine | BaseException | None] = Queue(ROOM)

    def filled_by(self, follower: Follower) -> Callable[[], None]:
        """Return a function that runs a follower until the job's end, or until the reader stops."""

        def run() -> None:
            with suppress(_Closed):
                try:
                    follower.run()
                except CommandError as error:
                    self._put(ClientError(str(error)))
                except Exception as error:  # noqa: BLE001 - the reader would wait forever
                    self._put(error)
                self._put(None)

        return run

    def lines(self) -> Iterator[LogLine]:
        """Yield lines until the follower's end."""
        while (found := self._queue.get()) is not None:
            if isinstance(found, BaseException):
                raise found
            yield found

    def line(self, task: str, text: str) -> None:
        """Queue a line of a task's log."""
        self._put(LogLine(task, text))

    def flush(self) -> None:
        """End the follower if the reader has stopped."""
        self._raise_if_closed()

    def remark(self, text: str) -> None:
        """Drop a remark: the reader only receives lines of logs."""
        self._raise_if_closed()

    def _put(self, found: LogLine | BaseException | None) -> None:
        while True:
            self._raise_if_closed()
            with suppress(Full):
                self._queue.put(found, timeout=CHECK_SECONDS)
                return

    def _raise_if_closed(self) -> None:
        if self.closed.is_set():
            raise _Closed


@contextmanager
def _translated() -> Iterator[None]:
    """Raise ClientError instead of the plugin's errors."""
    try:
        yield
    except CommandError as error:
        raise ClientError(str(error)) from error


def _job(stored: Object) -> Job:
    metadata = stored["metadata"]
    return Job(metadata["name"], metadata["namespace"], metadata["uid"], phase(stored), why(stored))
