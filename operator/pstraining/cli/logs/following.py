"""Follows the logs of a job's pods: one thread per log, one queue and one writer, so that lines stay whole.

The job is polled every second, to follow new pods and to end with the job. A broken log is continued after its last
line, by the kubelet's timestamps, which are removed from the output.
"""

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import partial
from queue import Empty, Full, Queue
from typing import Final

from pstraining.api.conditions import Condition
from pstraining.cli.client import ClusterClient, Object
from pstraining.cli.errors import CommandError, DeniedError, RequestError
from pstraining.cli.exit_codes import ExitCode
from pstraining.cli.jobs import end_of, is_sent, job_named, last_state, without
from pstraining.cli.logs.log_lines import LogSelection, LogWriter
from pstraining.cli.logs.reading import program_log
from pstraining.cli.status.pod_state import state, why
from pstraining.cli.tasks import TaskPod, check_choice, chosen, tasks_of
from pstraining.core.observe import parse_time
from pstraining.core.snapshot import Pod

EVERY: Final = 1.0
"""Seconds between two polls of the job."""
QUIET: Final = 3.0
"""Seconds without a line, after the job's end, until logs of kept pods are closed."""
STALLED: Final = 15.0
"""The same for logs of ended containers, which end by themselves."""
LATEST: Final = 15.0
"""Seconds after the job's end until a log is closed at its first line that is newer than the end."""
PATIENCE: Final = 60.0
"""Seconds of failed requests until the command fails."""
ROOM: Final = 10_000
"""Maximum number of lines in the queue. Readers block while it is full."""
_TIMED: Final = {"follow": "true", "timestamps": "true"}
_RESULTS: Final = {Condition.SUCCEEDED: ExitCode.SUCCESS, Condition.FAILED: ExitCode.JOB_FAILED}


@dataclass
class LogCursor:
    """The position in one pod's log."""

    restarts: int = 0
    """The container's restarts when the log was last opened."""
    open: bool = True
    runs: bool = True
    """Whether the container was running at the last poll."""
    complete: bool = False
    """Whether the log was closed because it continues after the job's end."""
    last: datetime | None = None
    """Timestamp of the last line."""


@dataclass(frozen=True)
class _Line:
    task: str
    text: str


@dataclass(frozen=True)
class _Over:
    """The end of a log, or the error of reading it."""

    task: TaskPod
    error: CommandError | None


def opens(pod: Pod, before: LogCursor | None) -> bool:
    """Return whether a pod's log must be opened now.

    Args:
        pod: the pod.
        before: the position in its log; None if it was never opened.
    """
    container = pod.container
    if not (container.running or container.terminated or container.restarts):
        return False
    if before is None:
        return True
    # Reopen a log that ended while its container runs, or whose container was restarted.
    return not (before.open or before.complete) and (container.running or container.restarts > before.restarts)


def stamped(line: str) -> tuple[datetime | None, str]:
    """Split a line into its timestamp and text. The kubelet's own messages have no timestamp."""
    stamp, _, text = line.partition(" ")
    try:
        moment = datetime.fromisoformat(stamp)
    except ValueError:
        return None, line
    return (moment, text) if moment.tzinfo else (None, line)


def in_thread(work: Callable[[], None]) -> None:
    """Run a function in a daemon thread.

    Raises:
        CommandError: this machine, or the user's limit, permits no further thread.
    """
    try:
        threading.Thread(target=work, daemon=True).start()
    except RuntimeError as error:
        raise CommandError(
            f"The logs of all these tasks cannot be followed ({error}): choose --role and --index."
        ) from error


@dataclass
class Follower:
    """Follows the logs of one job.

    Args:
        cluster: the job's cluster.
        namespace: the job's namespace.
        name: the job's name.
        selection: the selected logs; tail and since apply to pods that run at the start.
        writer: writes lines and remarks.
        every: seconds between two polls.
        clock: a monotonic clock, in seconds.
        start: runs a reader in the background.
        uid: the job's uid.
    """

    cluster: ClusterClient
    namespace: str
    name: str
    selection: LogSelection
    writer: LogWriter
    every: float = EVERY
    clock: Callable[[], float] = time.monotonic
    start: Callable[[Callable[[], None]], None] = in_thread
    uid: str = ""
    """The job's uid: another job may get its name. By default that of the job which has the name at the start."""
    _queue: Queue[_Line | _Over] = field(default_factory=lambda: Queue(ROOM), init=False)
    _stopped: threading.Event = field(default_factory=threading.Event, init=False)
    """Set when no more lines are written: readers end."""
    _cursors: dict[str, LogCursor] = field(default_factory=dict, init=False)
    """Positions in logs, by the pod's uid."""
    _remarks: set[str] = field(default_factory=set, init=False)
    """Remarks that were written, or their kinds."""
    _answered: float = field(default=0.0, init=False)
    """Time of the API server's last response."""
    _newest: float = field(default=0.0, init=False)
    """Time of the last line's arrival."""
    _ended: float | None = field(default=None, init=False)
    """Time when the job's end was observed."""
    _end_time: datetime = field(default_factory=lambda: datetime.now(UTC), init=False)
    """Time of the job's end, by the cluster's clocks."""
    _result: ExitCode = field(default=ExitCode.SUCCESS, init=False)
    _seen: Object = field(default_factory=dict, init=False)
    """The job as it was read last."""

    def run(self) -> ExitCode:
        """Write lines until the job has ended and its logs are complete.

        Returns:
            The exit status for the job's end.

        Raises:
            CommandError: the job, role or index does not exist, another job has the name, a right is missing, or the
                API server does not respond.
        """
        job = job_named(self.cluster, self.namespace, self.name)
        self.uid = self.uid or str(job["metadata"]["uid"])
        if job["metadata"]["uid"] != self.uid:
            raise CommandError(f"{self.name} was deleted in the meantime.", ExitCode.JOB_DELETED)
        tasks = tasks_of(job, self.cluster.pods(self.namespace, self.name))
        check_choice(job, tasks, self.selection.role, self.selection.index)
        self._answered = self._newest = self.clock()
        try:
            self._take_up(job, tasks, self.selection)
            while not self._is_over():
                self._write_until(self.clock() + self.every)
                if not self._is_over():
                    self._look()
            self.writer.flush()
        finally:
            self._stopped.set()
        return self._result

    def _is_over(self) -> bool:
        """Return whether the job has ended and its logs are written."""
        # A slow reader of the output, such as a pager, is not a quiet log.
        if self._ended is None or not self._queue.empty():
            return False
        open_logs = [cursor for cursor in self._cursors.values() if cursor.open]
        limit = QUIET if all(cursor.runs for cursor in open_logs) else STALLED
        return not open_logs or self.clock() - max(self._newest, self._ended) >= limit

    def _look(self) -> None:
        """Poll the job: open logs of new pods and check for its end."""
        try:
            job = self.cluster.job(self.namespace, self.name)
            job = job if job and job["metadata"]["uid"] == self.uid else None
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
            self._end_time = datetime.now(UTC)
            self._end_deleted()

    def _take_up(self, job: Object, tasks: list[TaskPod], selection: LogSelection) -> None:
        self._seen, over = job, end_of(job)
        for task in chosen(tasks, selection.role, selection.index):
            before = self._cursors.get(task.pod.uid)
            if before is not None:
                before.runs = task.pod.container.running
            if opens(task.pod, before):
                self._open(task, before, selection, is_over=over is not None)
            elif before is None and not over:
                reasons = [state(task), *why(task)]
                self._remark(f"{task.name} ({task.pod.name}): no log yet: {': '.join(reasons)}")
        if over and self._ended is None:
            self._end_time = parse_time(job["status"].get("completionTime")) or datetime.now(UTC)
            self._end(f"{over}.", _RESULTS[over])
        elif not (over or self._cursors or self._remarks):
            waits = f"{self.name} has no matching pods yet. Waiting for them."
            self._remark(without(job, "no pods") if is_sent(job) else waits)

    def _end_deleted(self) -> None:
        """End with a deleted job, which may have ended before."""
        found = last_state(self.cluster, self._seen)
        if isinstance(found, str):
            self._end(f"it was deleted. {found}".rstrip(), ExitCode.JOB_DELETED)
        elif (over := end_of(found)) is not None:
            self._end(f"{over}. It was deleted afterwards.", _RESULTS[over])

    def _end(self, how: str, result: ExitCode) -> None:
        self._ended, self._result = self.clock(), result
        self._remark(f"{self.name} has ended: {how}")

    def _open(self, task: TaskPod, before: LogCursor | None, selection: LogSelection, *, is_over: bool) -> None:
        cursor = before or LogCursor()
        again = before is not None and task.pod.container.restarts > before.restarts
        cursor.open, cursor.restarts, cursor.runs = True, task.pod.container.restarts, task.pod.container.running
        since = cursor.last
        self._cursors[task.pod.uid] = cursor
        if since is None:
            queries = partial(self._queries, task, selection, is_over)
        else:
            queries = partial(self._queries_since, task, since, restarted=again)
        self.start(partial(self._read, task, cursor, queries))

    def _queries(self, task: TaskPod, selection: LogSelection, is_over: bool) -> Iterator[dict[str, str]]:
        """Yield the queries of a task's whole log."""
        for query in program_log(self.cluster, self.namespace, task, selection, is_over=is_over):
            yield query | _TIMED

    def _queries_since(self, task: TaskPod, since: datetime, *, restarted: bool) -> Iterator[dict[str, str]]:
        """Yield the queries of a task's log from a moment on, also of a run that ended while its log was broken."""
        # sinceTime has whole seconds; `_read` skips the lines that repeat.
        moment = {"sinceTime": since.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")}
        for previous in (True, False) if restarted else (False,):
            yield LogSelection(previous=previous).query(task.container) | _TIMED | moment

    def _read(self, task: TaskPod, cursor: LogCursor, queries: Callable[[], Iterator[dict[str, str]]]) -> None:
        """Read one log to its end."""
        known, error = cursor.last, None
        try:
            for query in queries():
                for line in self.cluster.log(self.namespace, task.pod.name, query):
                    moment, text = stamped(line)
                    if moment is not None:
                        if known is not None and moment <= known:
                            continue
                        if cursor.runs and self._is_too_late(moment):
                            cursor.complete = True
                            return
                        cursor.last = moment
                    if not self._put(_Line(task.name, text)):
                        return
        except CommandError as caught:
            error = caught
        finally:
            self._put(_Over(task, error))

    def _put(self, found: _Line | _Over) -> bool:
        """Queue a line or the end of a log, and return whether the follower still reads the queue."""
        while not self._stopped.is_set():
            with suppress(Full):
                self._queue.put(found, timeout=self.every)
                return True
        return False

    def _is_too_late(self, moment: datetime) -> bool:
        """Return whether a line belongs to a log that continues after the job's end. Its backlog is still written."""
        return self._ended is not None and moment > self._end_time and self.clock() - self._ended >= LATEST

    def _write_until(self, moment: float) -> None:
        """Write arriving lines until a moment, or until all logs are complete."""
        while True:
            try:
                found = self._queue.get(timeout=max(0.0, moment - self.clock()))
            except Empty:
                return
            if isinstance(found, _Line):
                self.writer.line(found.task, found.text)
                self._newest = self.clock()
            else:
                self._close(found)
            if self._queue.empty():
                self.writer.flush()
            if self.clock() >= moment or self._is_over():
                return

    def _close(self, over: _Over) -> None:
        self._cursors[over.task.pod.uid].open = False
        if over.error is None:
            return
        if isinstance(over.error, DeniedError) or not isinstance(over.error, RequestError):
            raise over.error
        # 400: not started; 404: deleted; 0: no response. The next poll handles these.
        if over.error.status not in (0, 400, 404):
            # The message may contain a port that differs with every try.
            self._remark(f"{over.task.name} ({over.task.pod.name}): {over.error}", of=over.task.pod.uid)

    def _remark(self, text: str, of: str = "") -> None:
        """Write a remark once; with `of`, only one remark of that kind."""
        if (of or text) not in self._remarks:
            self._remarks.add(of or text)
            self.writer.remark(text)
