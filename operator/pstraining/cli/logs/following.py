"""Logs as they come: a thread for each pod's log, one queue, one writer; so lines of several pods stay whole.

Every second the job is looked at: pods that have come up are read too, and it ends when the job has. A log that breaks
off is read on from the last line that came: lines carry the kubelet's timestamps, which are taken off here.
"""

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import partial
from queue import Empty, Queue
from typing import Final

from pstraining.api.conditions import Condition
from pstraining.cli.client import ClusterClient, Object
from pstraining.cli.errors import DeniedError, RequestError
from pstraining.cli.exit_codes import ExitCode
from pstraining.cli.jobs import end_of, job_named
from pstraining.cli.logs.log_lines import LogSelection, LogWriter
from pstraining.cli.status.pod_state import state, why
from pstraining.cli.tasks import TaskPod, check_choice, chosen, tasks_of
from pstraining.core.snapshot import Pod

EVERY: Final = 1.0
"""Seconds between two looks at the job."""
QUIET: Final = 3.0
"""Seconds without a line after the job's end, after which pods that it keeps are left alone."""
LATEST: Final = 15.0
"""Seconds after the job's end, after which they are left alone even if they say more."""
PATIENCE: Final = 60.0
"""Seconds for which the API server may be away."""
ROOM: Final = 10_000
"""Limit of lines that wait to be written; beyond it, readers wait."""


@dataclass
class LogCursor:
    """What has been read of one pod's log."""

    restarts: int = 0
    """Of the container, when it was last opened."""
    open: bool = True
    last: datetime | None = None
    """When the newest line was written."""


@dataclass(frozen=True)
class _Line:
    task: str
    text: str


@dataclass(frozen=True)
class _Over:
    """A log has come to its end, or cannot be read."""

    task: TaskPod
    error: RequestError | None


def opens(pod: Pod, before: LogCursor | None) -> bool:
    """Whether a pod's log is to be opened now.

    Args:
        pod: the pod.
        before: what was read of it; None if it never was opened.
    """
    container = pod.container
    if not (container.running or container.terminated or container.restarts):
        return False
    if before is None:
        return True
    # A log that ended while the container runs broke off; one of a container that was started again continues.
    return not before.open and (container.running or container.restarts > before.restarts)


def stamped(line: str) -> tuple[datetime | None, str]:
    """When a line was written, and the line; what the kubelet itself says carries no time."""
    stamp, _, text = line.partition(" ")
    try:
        moment = datetime.fromisoformat(stamp)
    except ValueError:
        return None, line
    return (moment, text) if moment.tzinfo else (None, line)


def in_thread(work: Callable[[], None]) -> None:
    """Do it in a thread that does not keep the process alive."""
    threading.Thread(target=work, daemon=True).start()


@dataclass
class Follower:
    """Follows one job.

    Args:
        cluster: where it is.
        namespace: its namespace.
        name: the job.
        selection: which logs; tail and since hold for pods that run when it begins.
        writer: where lines are written.
        every: seconds between two looks.
        clock: seconds that pass.
        start: begins to read a log, beside everything else.
    """

    cluster: ClusterClient
    namespace: str
    name: str
    selection: LogSelection
    writer: LogWriter
    every: float = EVERY
    clock: Callable[[], float] = time.monotonic
    start: Callable[[Callable[[], None]], None] = in_thread
    _queue: Queue[_Line | _Over] = field(default_factory=lambda: Queue(ROOM), init=False)
    _cursors: dict[str, LogCursor] = field(default_factory=dict, init=False)
    """By the pod's uid."""
    _remarks: set[str] = field(default_factory=set, init=False)
    """What was said already."""
    _answered: float = field(default=0.0, init=False)
    """When the API server last answered."""
    _newest: float = field(default=0.0, init=False)
    """When the last line came."""
    _ended: float | None = field(default=None, init=False)
    """When it was seen that the job has ended."""
    _result: ExitCode = field(default=ExitCode.SUCCESS, init=False)

    def run(self) -> ExitCode:
        """Write lines until the job has ended and nothing comes any more.

        Returns:
            How the job has ended.

        Raises:
            CommandError: there is no such job, role or index; the API server refuses, or is away for too long.
        """
        job = job_named(self.cluster, self.namespace, self.name)
        tasks = tasks_of(job, self.cluster.pods(self.namespace, self.name))
        check_choice(job, tasks, self.selection.role, self.selection.index)
        self._answered = self._newest = self.clock()
        self._take_up(job, tasks, self.selection)
        while not self._is_over():
            self._write_until(self.clock() + self.every)
            if not self._is_over():
                self._look()
        self.writer.flush()
        return self._result

    def _is_over(self) -> bool:
        """Whether the job has ended and what it printed is written."""
        if self._ended is None:
            return False
        reads = any(cursor.open for cursor in self._cursors.values())
        now = self.clock()
        quiet = now - max(self._newest, self._ended) >= QUIET or now - self._ended >= LATEST
        return quiet or (self._queue.empty() and not reads)

    def _look(self) -> None:
        """Open what has come up, and see whether the job has ended."""
        try:
            job = self.cluster.job(self.namespace, self.name)
            pods = self.cluster.pods(self.namespace, self.name) if job else []
        except RequestError as error:
            if isinstance(error, DeniedError) or self.clock() - self._answered > PATIENCE:
                raise
            self._remark(f"{error} Retrying.")
            return
        self._answered = self.clock()
        if job is not None:
            self._take_up(job, tasks_of(job, pods), LogSelection(self.selection.role, self.selection.index))
        elif self._ended is None:
            self._end("it was deleted", ExitCode.JOB_DELETED)

    def _take_up(self, job: Object, tasks: list[TaskPod], selection: LogSelection) -> None:
        over = end_of(job)
        for task in chosen(tasks, selection.role, selection.index):
            before = self._cursors.get(task.pod.uid)
            if opens(task.pod, before):
                self._open(task, before, selection)
            elif before is None and not over:
                said = [state(task), *why(task)]
                self._remark(f"{task.name} ({task.pod.name}): no log yet: {': '.join(said)}")
        if over and self._ended is None:
            self._end(over, ExitCode.JOB_FAILED if over is Condition.FAILED else ExitCode.SUCCESS)
        elif not (over or self._cursors or self._remarks):
            self._remark(f"{self.name} has no matching pods yet. Waiting for them.")

    def _end(self, how: str, result: ExitCode) -> None:
        self._ended, self._result = self.clock(), result
        self._remark(f"{self.name} has ended: {how}.")

    def _open(self, task: TaskPod, before: LogCursor | None, selection: LogSelection) -> None:
        cursor = before or LogCursor()
        cursor.open, cursor.restarts = True, task.pod.container.restarts
        query = selection.query(task.container) | {"follow": "true", "timestamps": "true"}
        if cursor.last is not None:
            # To the second, so that some lines come once more: they are left out by their time.
            query["sinceTime"] = cursor.last.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
        self._cursors[task.pod.uid] = cursor
        self.start(partial(self._read, task, cursor, query))

    def _read(self, task: TaskPod, cursor: LogCursor, query: dict[str, str]) -> None:
        """One log to its end."""
        known, error = cursor.last, None
        try:
            for line in self.cluster.log(self.namespace, task.pod.name, query):
                moment, text = stamped(line)
                if moment is not None:
                    if known is not None and moment <= known:
                        continue
                    cursor.last = moment
                self._queue.put(_Line(task.name, text))
        except RequestError as caught:
            error = caught
        finally:
            self._queue.put(_Over(task, error))

    def _write_until(self, moment: float) -> None:
        """Write what comes until then; not longer than there is something to come."""
        while True:
            try:
                found = self._queue.get(timeout=max(0.0, moment - self.clock()))
            except Empty:
                return
            if isinstance(found, _Line):
                self._newest = self.clock()
                self.writer.line(found.task, found.text)
            else:
                self._close(found)
            if self._queue.empty():
                self.writer.flush()
            if self.clock() >= moment or self._is_over():
                return

    def _close(self, over: _Over) -> None:
        self._cursors[over.task.pod.uid].open = False
        if isinstance(over.error, DeniedError):
            raise over.error
        # 400: it has not started; 404: it is gone; no answer: the next look shows more.
        if over.error is not None and over.error.status not in (0, 400, 404):
            # Its words may hold a port that is another one with every try.
            self._remark(f"{over.task.name} ({over.task.pod.name}): {over.error}", of=over.task.pod.uid)

    def _remark(self, text: str, of: str = "") -> None:
        """Say something once; with `of`, one thing of that kind."""
        if (of or text) not in self._remarks:
            self._remarks.add(of or text)
            self.writer.remark(text)
