"""`Client`: trains a function or a script on a cluster, or as processes of this machine."""

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
"""Characters of a default name before its random end: the name of a job has at most 40."""


@dataclass(frozen=True)
class Job:
    """A job as it was when the client asked."""

    name: str
    namespace: str
    uid: str
    phase: str = ""
    """Such as Pending, Running, Succeeded or Failed."""
    reason: str = ""
    """What is wrong with the job, or what it waits for; empty if all is well."""

    def __str__(self) -> str:
        return self.name


class LogLine(NamedTuple):
    """A line of a task's log; its text is `task: text`."""

    task: str
    """Such as worker-0."""
    text: str

    def __str__(self) -> str:
        return f"{self.task}: {self.text}"


class Backend(Protocol):
    """Where jobs run. All methods raise ClientError."""

    def create(self, name: str, program: JobProgram, options: JobOptions) -> Job:
        """Start a job."""

    def get(self, name: str) -> Job:
        """Return a job as it is now."""

    def jobs(self) -> list[Job]:
        """Return all jobs."""

    def wait(self, name: str, seconds: float | None) -> Job:
        """Return a job that has succeeded; JobFailedError if it fails, TimeoutError after some seconds."""

    def logs(self, name: str, *, follow: bool, role: str | None, index: int | None) -> Iterator[LogLine]:
        """Yield lines of logs."""

    def progress(self, name: str) -> Progress | None:
        """Return the newest progress; None if there is none yet."""

    def scale(self, name: str, workers: int) -> None:
        """Change the number of workers."""

    def suspend(self, name: str, suspended: bool) -> None:
        """Suspend a job, or resume it."""

    def delete(self, name: str) -> None:
        """Delete a job."""


class Client:
    """Trains on the cluster that kubectl would use, or on this machine.

    Args:
        namespace: of the jobs; the context's own if not given.
        context: of the kubeconfig; the current one if not given.
        kubeconfig: the only kubeconfig to read; else KUBECONFIG, or ~/.kube/config.
        local: run jobs as processes of this machine. They end with this process.

    Raises:
        ClientError: there is no usable kubeconfig.
    """

    def __init__(
        self, namespace: str | None = None, *, context: str = "", kubeconfig: str = "", local: bool = False
    ) -> None:
        # Each side needs packages that the other does not: those of the extra `cli`, or those of `runtime-cpu`.
        if local:
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
            program: a function, which travels as its source and may use nothing from outside itself; or the path of a
                script.
            name: of the job; by default the program's with a random end.
            arguments: keyword arguments of the function, or the words of the script's command line.
            files: paths of modules that the program imports, and of other text files.
            options: ps and workers, the numbers of parameter servers and workers (1); image (required on a cluster);
                packages, requirements that pip installs before the program starts; training, as spec.training;
                resources of each task, as {"cpu": 2, "memory": "4Gi", "nvidia.com/gpu": 1}, or with requests and
                limits; checkpoint, the size of a claim as "10Gi", or a dict as spec.checkpoint; env, variables; spec,
                laid over the job's spec for everything else.

        Raises:
            ClientError: the program cannot travel, an option is wrong, or the cluster refuses the job.
        """
        unknown = set(options) - set(JobOptions.__dataclass_fields__)
        if unknown:
            known = ", ".join(JobOptions.__dataclass_fields__)
            raise ClientError(f"train has no option {', '.join(sorted(unknown))}; its options are {known}.")
        empty: Mapping[str, Any] | Sequence[str] = {} if callable(program) else ()
        found = program_of(program, empty if arguments is None else arguments, files)
        return self._backend.create(name or default_name(found.name), found, JobOptions(**options))

    def wait(self, job: Job | str, timeout: float | None = None) -> Job:
        """Wait until a job has succeeded, and return it.

        Args:
            job: the job, or its name.
            timeout: seconds to wait; None for no limit.

        Raises:
            JobFailedError: it has failed; with the last lines of the log of the task that failed.
            TimeoutError: it has not ended in time.
            ClientError: it was deleted.
        """
        return self._backend.wait(str(job), timeout)

    def logs(
        self, job: Job | str, *, follow: bool = True, role: str | None = None, index: int | None = None
    ) -> Iterator[LogLine]:
        """Yield the lines of the tasks' logs; with `follow`, wait for pods and lines until the job has ended.

        Args:
            job: the job, or its name.
            follow: whether to wait for what is to come.
            role: chief, worker, ps or evaluator; all if not given.
            index: the task's; all of the role if not given.
        """
        return self._backend.logs(str(job), follow=follow, role=role, index=index)

    def progress(self, job: Job | str) -> Progress | None:
        """Return a job's newest progress; None if its program has reported none yet."""
        return self._backend.progress(str(job))

    def get(self, job: Job | str) -> Job:
        """Return a job as it is now."""
        return self._backend.get(str(job))

    def list(self) -> list[Job]:
        """Return all jobs of the namespace; of a local client, those that it has started."""
        return self._backend.jobs()

    def scale(self, job: Job | str, workers: int) -> None:
        """Change the number of workers; the others keep training."""
        self._backend.scale(str(job), workers)

    def suspend(self, job: Job | str) -> None:
        """Stop a job; `resume` continues from its newest checkpoint."""
        self._backend.suspend(str(job), True)

    def resume(self, job: Job | str) -> None:
        """Resume a suspended job."""
        self._backend.suspend(str(job), False)

    def delete(self, job: Job | str) -> None:
        """Delete a job and its pods; a claim for checkpoints stays, as `spec.checkpoint.retainPolicy` says."""
        self._backend.delete(str(job))


def default_name(program: str) -> str:
    """Return a name for a job: the program's, as Kubernetes allows it, with a random end."""
    stem = re.sub(r"[^a-z0-9]+", "-", program.lower()).strip("-")[:STEM_MAX].strip("-")
    return f"{stem if stem[:1].isalpha() else f'job-{stem}'.strip('-')}-{secrets.token_hex(2)}"
