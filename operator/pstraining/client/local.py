"""Jobs as processes of this machine, with the environment of pods."""

import atexit
import os
import re
import subprocess
import sys
import tempfile
import threading
import time
import uuid
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from pstraining.api.names import task_name
from pstraining.api.schemas import QUANTITY_PATTERN
from pstraining.client.client import Job, JobKey, LogLine
from pstraining.client.errors import ClientError, JobFailedError
from pstraining.client.manifest import JobOptions, checkpoint_of
from pstraining.client.program import JobProgram
from pstraining.progress import ENV_FILE, Progress, read_file
from pstraining.runtime.config.cluster import Task
from pstraining.runtime.local import LocalJob

PROGRESS_FILE: Final = "progress.json"
RESTARTS: Final = 3
"""Maximum number of restarts of a failed process."""
EVERY: Final = 0.1
END_SECONDS: Final = 15.0
"""Maximum of seconds that the end of this process waits for the end of a job's processes."""
TAIL: Final = 60
_SIZE: Final = re.compile(QUANTITY_PATTERN)
_SOURCES: Final = ("uri", "volume", "volumeClaimTemplate")
"""Fields of spec.checkpoint that say where checkpoints are."""


@dataclass
class _Run:
    job: LocalJob
    folder: Path
    stack: ExitStack
    ended: threading.Event = field(default_factory=threading.Event)
    deleted: threading.Event = field(default_factory=threading.Event)
    code: int | None = None
    problem: str = ""
    """Why a process that has failed could not be started again."""
    last: Progress | None = None
    """The progress at the end."""
    uid: str = field(default_factory=lambda: str(uuid.uuid4()))

    @property
    def progress(self) -> Progress | None:
        return self.last if self.ended.is_set() else read_file(self.folder / PROGRESS_FILE)

    @property
    def phase(self) -> str:
        if not self.ended.is_set():
            return "Running"
        return "Succeeded" if self.code == 0 else "Failed"


class LocalBackend:
    """The jobs that this process has started. They end with it."""

    namespace: Final = "local"

    def __init__(self) -> None:
        self._runs: dict[str, _Run] = {}
        self._starting: set[str] = set()
        """Names of jobs whose processes are being started, in any thread."""
        atexit.register(_end, self._runs, os.getpid())

    def create(self, name: str, program: JobProgram, options: JobOptions) -> Job:
        """Start a job's processes."""
        if options.spec:
            raise ClientError("spec: a local job has no manifest: leave it out, or use training, ps and workers.")
        if options.ps < 1 or options.workers < 1:
            raise ClientError("ps and workers: a job has at least one parameter server and one worker.")
        if options.packages:
            _require_installed(options.packages)
        variables = {key: str(value) for key, value in options.env.items()}
        with self._reserved(name), ExitStack() as stack:
            folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="pstraining-program-")))
            for file, text in program.files.items():
                (folder / file).write_text(text, encoding="utf-8")
            job = LocalJob(
                [str(folder / program.main), *program.arguments],
                ps=options.ps,
                workers=options.workers,
                restarts=RESTARTS,
                training=options.training,
                checkpoint=_checkpoint(name, options.checkpoint),
                environment={**variables, ENV_FILE: str(folder / PROGRESS_FILE)},
                name=name,
            )
            stack.enter_context(job)
            self._runs[name] = run = _Run(job, folder, stack.pop_all())  # only a job that has started has a name
        threading.Thread(target=_supervise, args=(run,), name=f"pstraining-{name}", daemon=True).start()
        return self._job(name, run)

    def get(self, key: JobKey) -> Job:
        """Return a job's current state."""
        return self._job(key.name, self._run(key))

    def jobs(self) -> list[Job]:
        """Return all jobs that this process has started."""
        return [self._job(name, run) for name, run in list(self._runs.items())]

    def wait(self, key: JobKey, seconds: float | None) -> Job:
        """Wait until a job has succeeded, and return it."""
        name, run = key.name, self._run(key)
        if not run.ended.wait(None if seconds is None else min(seconds, threading.TIMEOUT_MAX)):
            raise TimeoutError(f"{name} has not ended after {seconds:.10g} s.")
        if run.deleted.is_set():
            raise ClientError(f"{name} was deleted in the meantime.")
        if run.code != 0:
            how = f": {run.problem}" if run.problem else f" with exit code {run.code}"
            raise JobFailedError(f"{name} has failed{how}.", _log_of_the_failure(run))
        return self.get(key)

    def logs(self, key: JobKey, *, follow: bool, role: str | None, index: int | None) -> Iterator[LogLine]:
        """Yield lines of the processes' output. The lines of each process are in order."""
        run = self._run(key)
        _check_choice(key.name, run.job.cluster, role, index)
        return _lines(run, follow, role, index)

    def progress(self, key: JobKey) -> Progress | None:
        """Return the newest progress."""
        return self._run(key).progress

    def scale(self, key: JobKey, workers: int) -> None:
        """Refuse to change the number of workers."""
        raise ClientError(f"{key.name} is a local job, whose number of workers is fixed: delete it and train again.")

    def suspend(self, key: JobKey, suspended: bool) -> None:
        """Refuse to suspend or resume a job."""
        raise ClientError(f"{key.name} is a local job, which cannot be suspended: delete it and train again.")

    def delete(self, key: JobKey) -> None:
        """End a job's processes."""
        run = self._run(key)
        run.deleted.set()
        run.ended.wait()
        if self._runs.get(key.name) is run:  # no other thread has deleted it
            del self._runs[key.name]

    @contextmanager
    def _reserved(self, name: str) -> Iterator[None]:
        """Reserve the name of a job while it starts.

        Raises:
            ClientError: another job has the name, or this machine cannot start the processes.
        """
        if name in self._runs or name in self._starting:
            raise ClientError(f"The local job {name} already exists: delete it, or choose another name.")
        self._starting.add(name)
        try:
            yield
        except OSError as error:
            why = f"{error.strerror or error}. This machine needs free processes, memory and disk space"
            raise ClientError(f"The local job {name} cannot start: {why}.") from error
        finally:
            self._starting.discard(name)

    def _job(self, name: str, run: _Run) -> Job:
        return Job(name, self.namespace, run.uid, run.phase)

    def _run(self, key: JobKey) -> _Run:
        try:
            run = self._runs[key.name]
        except KeyError:
            known = ", ".join(self._runs) or "none"
            raise ClientError(f"There is no local job {key.name}. Jobs of this process: {known}.") from None
        key.check(run.uid)
        return run


def _supervise(run: _Run) -> None:
    try:
        while (code := run.job.supervise()) is None and not run.deleted.is_set():
            time.sleep(EVERY)
        run.code = code
    except OSError as error:
        run.problem = f"a process that had failed could not be started again: {error.strerror or error}"
    finally:
        run.job.stop()
        run.last = read_file(run.folder / PROGRESS_FILE)
        run.stack.close()
        run.ended.set()


def _end(runs: Mapping[str, _Run], owner: int) -> None:
    """End the processes of all jobs, unless this process is a fork of the jobs' owner."""
    if os.getpid() != owner:
        return
    for run in runs.values():
        run.deleted.set()
    for run in runs.values():
        run.ended.wait(END_SECONDS)


def _check_choice(name: str, tasks: Mapping[str, Sequence[str]], role: str | None, index: int | None) -> None:
    """Check that a job has tasks of a role and an index.

    Raises:
        ClientError: an index without a role, or a role or an index that the job does not have.
    """
    if role is None:
        if index is not None:
            raise ClientError("index requires role, because each role counts its tasks from 0.")
    elif role not in tasks:
        raise ClientError(f"role: {role!r} is not one of {', '.join(tasks)}.")
    elif index is not None and not 0 <= index < len(tasks[role]):
        raise ClientError(f"{name} has no {role} with index {index}: it has {len(tasks[role])}.")


def _lines(run: _Run, follow: bool, role: str | None, index: int | None) -> Iterator[LogLine]:
    seen: dict[str, int] = {}
    while True:
        over = not follow or run.ended.is_set()
        for label, process in list(run.job.processes.items()):
            if role not in (None, process.task.type) or index not in (None, process.task.index):
                continue
            lines = process.lines[seen.get(label, 0) :]
            seen[label] = seen.get(label, 0) + len(lines)
            yield from (LogLine(_name(process.task), text) for text in lines)
        if over:
            return
        run.ended.wait(EVERY)


def _log_of_the_failure(run: _Run) -> str:
    """Return the end of the output of the process that failed. Others may fail when they are stopped afterwards."""
    failed = run.job.failed
    return "" if failed is None else "\n".join(f"{_name(failed.task)}: {line}" for line in failed.lines[-TAIL:])


def _name(task: Task) -> str:
    """Return a task's name as on a cluster, whose chief is chief-0."""
    return task_name(task.type, task.index)


def _checkpoint(name: str, wanted: str | Mapping[str, Any] | None) -> dict[str, Any] | None:
    """Return spec.checkpoint for processes, with a local folder instead of a volume; a URI stays.

    Raises:
        ClientError: a cluster would refuse it, such as a folder, which is not that of the checkpoints.
    """
    if wanted is None:
        return None
    folder = Path.cwd() / "checkpoints" / name
    hint = f"This local job has its checkpoints in {folder}."
    if isinstance(wanted, str) and "://" not in wanted and not _SIZE.fullmatch(wanted):
        raise ClientError(
            f"checkpoint: it must be the size of a claim, such as '10Gi', or a URI, is {wanted!r}. {hint}"
        )
    asked = checkpoint_of(wanted)
    if sum(asked.get(source) is not None for source in _SOURCES) != 1:
        raise ClientError(f"checkpoint: it needs exactly one of {', '.join(_SOURCES)}. {hint}")
    if asked.get("uri") is not None:
        return {"path": asked.pop("uri"), **asked}
    kept = {k: v for k, v in asked.items() if k not in _SOURCES}
    return {**kept, "path": str(folder)}


def _require_installed(packages: Sequence[str]) -> None:
    """Check that packages are installed, because a local job does not install them.

    Raises:
        ClientError: a package is missing, or has another version.
    """
    command = [sys.executable, "-m", "pip", "install", "--quiet", "--dry-run", "--no-index", *packages]
    done = subprocess.run(command, check=False, capture_output=True, text=True)
    if done.returncode:
        errors = done.stderr.strip().splitlines() or ["pip has failed"]
        raise ClientError(f"packages: a local job does not install packages. Install them yourself: {errors[-1]}")
