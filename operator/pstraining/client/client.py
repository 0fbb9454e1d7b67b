"""`Client`: trains a function or a script on a cluster, or as processes of this machine."""

import math
import re
import secrets
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, NamedTuple, Protocol

from pstraining.client.errors import ClientError
from pstraining.client.manifest import JobOptions
from pstraining.client.program import JobProgram, program_of
from pstraining.progress import Progress

STEM_MAX: Final = 35
"""Maximum characters of a default name before its random suffix. The name of a job has at most 40."""


@dataclass(frozen=True)
class Job:
    """A snapshot of a job."""

    name: str
    namespace: str
    uid: str
    phase: str = ""
    """The phase, such as Pending, Running, Succeeded, Failed or Invalid."""
    reason: str = ""
    """The job's most important problem or pending condition; empty without one."""

    def __str__(self) -> str:
        return self.name


class JobKey(NamedTuple):
    """What a method got as its job."""

    name: str
    uid: str = ""
    """The uid of the job; empty for the job that has the name now."""

    def check(self, uid: str) -> None:
        """Check that the job with the name has the uid.

        Raises:
            ClientError: it is another job.
        """
        if self.uid not in ("", uid):
            raise ClientError(
                f"{self.name} was deleted in the meantime, and another job has its name now: pass the name, or what "
                "`get` returns for it."
            )


class LogLine(NamedTuple):
    """A line of a task's log; its text is `task: text`."""

    task: str
    """The task's name, such as worker-0."""
    text: str

    def __str__(self) -> str:
        return f"{self.task}: {self.text}"


class Backend(Protocol):
    """The platform that jobs run on. All methods raise ClientError."""

    @property
    def namespace(self) -> str:
        """The namespace of all jobs."""

    def create(self, name: str, program: JobProgram, options: JobOptions) -> Job:
        """Start a job."""

    def get(self, key: JobKey) -> Job:
        """Return a job's current state."""

    def jobs(self) -> list[Job]:
        """Return all jobs."""

    def wait(self, key: JobKey, seconds: float | None) -> Job:
        """Wait until a job has succeeded and return it. Raises JobFailedError or, after `seconds`, TimeoutError."""

    def logs(self, key: JobKey, *, follow: bool, role: str | None, index: int | None) -> Iterator[LogLine]:
        """Yield lines of logs."""

    def progress(self, key: JobKey) -> Progress | None:
        """Return the newest progress; None before the first report."""

    def scale(self, key: JobKey, workers: int) -> None:
        """Change the number of workers."""

    def suspend(self, key: JobKey, suspended: bool) -> None:
        """Suspend a job, or resume it."""

    def delete(self, key: JobKey) -> None:
        """Delete a job."""


class Client:
    """Trains on the cluster that kubectl would use, or on this machine.

    Args:
        namespace: the jobs' namespace; by default the context's.
        context: a context of the kubeconfig; by default the current one.
        kubeconfig: the only kubeconfig to read; by default KUBECONFIG, or ~/.kube/config.
        local: run jobs as processes of this machine, without the other arguments. They end with this process.

    Raises:
        ClientError: the kubeconfig is missing or cannot be used, or a local client gets an argument of a cluster.
    """

    def __init__(
        self, namespace: str | None = None, *, context: str = "", kubeconfig: str = "", local: bool = False
    ) -> None:
        # The imports need different extras: a cluster needs `cli`, and a local client `runtime-cpu`.
        if local:
            given = {"namespace": namespace, "context": context, "kubeconfig": kubeconfig}
            if named := [name for name, value in given.items() if value]:
                raise ClientError(
                    f"{', '.join(named)}: a local client has no cluster: leave the argument out, or local=True."
                )
            from pstraining.client.local import LocalBackend

            self._backend: Backend = LocalBackend()
        else:
            from pstraining.client.cluster import ClusterBackend

            self._backend = ClusterBackend.connected(namespace, context=context, kubeconfig=kubeconfig)

    def train(
        self,
        program: Callable[..., object] | str | Path,
        *,
        name: str = "",
        arguments: Mapping[str, Any] | Sequence[str] | None = None,
        files: Iterable[str | Path] = (),
        **options: Any,
    ) -> Job:
        """Start a job.

        Args:
            program: a function, which is sent as source and may not use names from outside itself; or the path of a
                script.
            name: the job's name; by default the program's with a random suffix.
            arguments: keyword arguments of the function, or the words of the script's command line.
            files: paths of modules that the program imports, and of other text files.
            options: ps and workers, the numbers of parameter servers and workers (1); image (required on a cluster);
                packages, requirements that pip installs before the program starts; training, as spec.training;
                resources of each task, as {"cpu": 2, "memory": "4Gi", "nvidia.com/gpu": 1}, or with requests and
                    limits; checkpoint, the size of a claim as "10Gi", the URI of an object store, or a dict as
                    spec.checkpoint; env, environment variables; spec, other fields, merged into the job's spec.

        Raises:
            ClientError: the program cannot be sent, an option is wrong, or the cluster rejected the job.
        """
        unknown = set(options) - set(JobOptions.__dataclass_fields__)
        if unknown:
            known = ", ".join(JobOptions.__dataclass_fields__)
            raise ClientError(f"train has no option {', '.join(sorted(unknown))}; its options are {known}.")
        empty: Mapping[str, Any] | Sequence[str] = {} if callable(program) else ()
        found = program_of(program, empty if arguments is None else arguments, files)
        given = {option: value for option, value in options.items() if value is not None}
        return self._backend.create(name or default_name(found.name), found, JobOptions(**given))

    def wait(self, job: Job | str, timeout: float | None = None) -> Job:
        """Wait until a job has succeeded, and return it.

        Args:
            job: the job, or its name.
            timeout: seconds to wait; None, or infinity, for no limit.

        Raises:
            JobFailedError: the job has failed. The error has the last lines of the failed task's log.
            TimeoutError: the job has not ended in time.
            ClientError: the job was deleted, or the timeout is not a number.
        """
        try:
            is_number = timeout is None or not math.isnan(timeout)
        except TypeError:  # such as "10m"
            is_number = False
        if not is_number:
            raise ClientError(f"timeout: it must be a number of seconds, is {timeout!r}.")
        return self._backend.wait(self._key(job), None if timeout == math.inf else timeout)

    def logs(
        self, job: Job | str, *, follow: bool = True, role: str | None = None, index: int | None = None
    ) -> Iterator[LogLine]:
        """Yield the lines of the tasks' logs; with `follow`, wait for pods and lines until the job has ended.

        Args:
            job: the job, or its name.
            follow: whether to wait for further lines.
            role: chief, worker, ps or evaluator; by default all.
            index: the task's index; by default all tasks of the role.

        Raises:
            ClientError: the job does not exist, or the role or the index is none.
        """
        if index is not None and (not isinstance(index, int) or isinstance(index, bool) or index < 0):
            raise ClientError(f"index: it must be a whole number from 0, is {index!r}.")
        return self._backend.logs(self._key(job), follow=follow, role=role, index=index)

    def progress(self, job: Job | str) -> Progress | None:
        """Return a job's newest progress; None before its program's first report."""
        return self._backend.progress(self._key(job))

    def get(self, job: Job | str) -> Job:
        """Return a job's current state."""
        return self._backend.get(self._key(job))

    def list(self) -> list[Job]:
        """Return all jobs of the namespace. A local client returns the jobs that it has started."""
        return self._backend.jobs()

    def scale(self, job: Job | str, workers: int) -> None:
        """Change the number of workers. Workers that stay continue to train."""
        self._backend.scale(self._key(job), workers)

    def suspend(self, job: Job | str) -> None:
        """Stop a job; `resume` continues from its newest checkpoint."""
        self._backend.suspend(self._key(job), True)

    def resume(self, job: Job | str) -> None:
        """Resume a suspended job."""
        self._backend.suspend(self._key(job), False)

    def delete(self, job: Job | str) -> None:
        """Delete a job and its pods. `spec.checkpoint.retainPolicy` decides about its claim for checkpoints."""
        self._backend.delete(self._key(job))

    def _key(self, job: Job | str) -> JobKey:
        """Return the key of a job. Its name may also be that of a job in another namespace, or of a later one.

        Raises:
            ClientError: the job is in another namespace.
        """
        if not isinstance(job, Job):
            return JobKey(str(job))
        if job.namespace != (own := self._backend.namespace):
            raise ClientError(
                f"{job} is in the namespace {job.namespace}, and this client's namespace is {own}: use the client that "
                "has returned the job."
            )
        return JobKey(job.name, job.uid)


def default_name(program: str) -> str:
    """Return a name for a job: the program's, adapted to Kubernetes' rules, with a random suffix."""
    stem = re.sub(r"[^a-z0-9]+", "-", program.lower()).strip("-")
    stem = stem if stem[:1].isalpha() else f"job-{stem}"
    return f"{stem[:STEM_MAX].strip('-')}-{secrets.token_hex(2)}"
