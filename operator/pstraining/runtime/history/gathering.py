"""Gathers the data of a job's history from the operator, within limits of time and size, without secrets.

Notes report the data that could not be gathered.
"""

import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Final, Protocol

from pstraining.api import contract
from pstraining.api.summary import LOG_BYTES, LOGS_FOLDER, KeptLog, LogEnd
from pstraining.redaction import Redactor
from pstraining.runtime.history.operator import Known, KubernetesObject, LogRun, OperatorError

TOTAL_BYTES: Final = 64 << 20
"""Maximum bytes of all logs; with more than 64 logs, each has a smaller share."""
AT_ONCE: Final = 2
"""Requests for logs at a time: the operator reads one log of a job at a time, while the next request is on its way."""
NO_ENDPOINT: Final = (
    "The chief had no endpoint of the operator, so the job's spec, its conditions and the logs of its tasks are not "
    "here. An operator has one unless the chart's progress.enabled is false, or is auto and watch.namespaces is set."
)


class JobSource(Protocol):
    """The source of a job's data."""

    @property
    def is_there(self) -> bool:
        """Whether the source is available."""

    def job(self) -> Known:
        """Return the data on the job."""

    def log(self, pod: str, *, previous: bool) -> LogEnd:
        """Return the end of a log."""


@dataclass
class Gathered:
    """The gathered data."""

    job: KubernetesObject | None = None
    """The job, without secrets; None if it could not be read."""
    pods: list[KubernetesObject] = field(default_factory=list)
    """The job's pods, without secrets."""
    logs: list[KeptLog] = field(default_factory=list)
    texts: dict[str, bytes] = field(default_factory=dict)
    """The logs' content, without secrets, by the file's name in the folder of logs."""
    notes: list[str] = field(default_factory=list)
    redactor: Redactor = field(default_factory=Redactor)

    def keep(self, run: LogRun, content: LogEnd | str, limit: int) -> None:
        """Keep the log of a run, or the reason why there is none.

        Args:
            run: the log's task, pod and run.
            content: the log, or the reason why it could not be read.
            limit: maximum number of bytes to keep.
        """
        log = KeptLog(task=run["task"], pod=run["pod"], previous=run["previous"])
        if isinstance(content, str):
            self.logs.append(log.model_copy(update={"missing": self.redactor.text(content)}))
            return
        kept = shortened(content, limit)
        name = f"{run['pod']}{'.previous' if run['previous'] else ''}.log"
        self.texts[name] = self.redactor.text(kept.content.decode(errors="replace")).encode()
        self.logs.append(log.model_copy(update={"file": f"{LOGS_FOLDER}/{name}", "whole": kept.whole}))

    def complete(self, earlier: "Gathered") -> None:
        """Add what an earlier reading had and this one lacks: logs of pods that are deleted now, and the job."""
        if self.job is None and earlier.job is not None:
            self.job, self.pods, self.redactor = earlier.job, earlier.pods, earlier.redactor
        logs = {(log.pod, log.previous): log for log in self.logs}
        for log in earlier.logs:
            held = logs.get((log.pod, log.previous))
            if not log.missing and (held is None or held.missing):
                logs[log.pod, log.previous] = log
                self.texts[_name(log)] = earlier.texts[_name(log)]
        self.logs = list(logs.values())
        if sum(map(len, self.texts.values())) > TOTAL_BYTES:
            limit = share(len(self.texts))
            self.logs = [log if log.missing else self._cut(log, limit) for log in self.logs]

    def _cut(self, log: KeptLog, limit: int) -> KeptLog:
        text = self.texts[_name(log)]
        if len(text) <= limit:
            return log
        self.texts[_name(log)] = shortened(LogEnd(text, whole=False), limit).content
        return log.model_copy(update={"whole": False})


def _name(log: KeptLog) -> str:
    """Return the name of a log's file in the folder of logs."""
    return log.file.rpartition("/")[2]


def share(number: int) -> int:
    """Return the maximum bytes of each log, for this number of logs."""
    return min(LOG_BYTES, TOTAL_BYTES // max(1, number))


def shortened(log: LogEnd, limit: int) -> LogEnd:
    """Return the end of a log: at most this number of bytes, and complete lines."""
    if log.whole and len(log.content) <= limit:
        return log
    kept = log.content[-limit:]
    return LogEnd(kept.partition(b"\n")[2] or kept, whole=False)


def gather(
    operator: JobSource,
    *,
    seconds: float,
    wants_logs: Callable[[KubernetesObject], object] = lambda job: True,
    is_over: Callable[[], bool] = lambda: False,
    clock: Callable[[], float] = time.monotonic,
) -> Gathered:
    """Request the job and its logs from the operator, and return them without secrets.

    Args:
        operator: the source of the data.
        seconds: time for the logs; no request for a log starts later.
        wants_logs: whether the logs of this job are requested at all.
        is_over: returns whether no further log is needed.
        clock: returns a monotonic time in seconds.
    """
    found, until = Gathered(), clock() + seconds
    try:
        _gather(operator, found, wants_logs, lambda: is_over() or clock() >= until)
    except Exception as error:  # noqa: BLE001 - the history never fails the job
        found.notes.append(incomplete(error))
    return found


def incomplete(error: Exception) -> str:
    """Return the note on data that an unexpected error has kept from the history."""
    return f"The job and its logs are not complete here: {type(error).__name__}: {error}"


def _gather(
    operator: JobSource, found: Gathered, wants_logs: Callable[[KubernetesObject], object], is_late: Callable[[], bool]
) -> None:
    if not operator.is_there:
        found.notes.append(NO_ENDPOINT)
        return
    try:
        known = operator.job()
    except OperatorError as error:
        found.notes.append(f"The operator did not return the job and its logs: {error}")
        return
    found.redactor.learn(known.job)
    found.job, found.pods = found.redactor.redacted(known.job), found.redactor.redacted([*known.pods])
    if wants_logs(known.job):
        _gather_logs(operator, known.logs, found, is_late)


def _gather_logs(operator: JobSource, runs: Sequence[LogRun], found: Gathered, is_late: Callable[[], bool]) -> None:
    def read(run: LogRun) -> LogEnd | str:
        if is_late():
            return "there was no time left to read it"
        try:
            return operator.log(run["pod"], previous=run["previous"])
        except OperatorError as error:
            return str(error)

    # The log of an idle run is short, so the log of the run before it is kept as well. A run whose log is still empty
    # may be such a run, or the first one of a program that has logged nothing.
    limit, known, perhaps = share(len(runs)), {(run["pod"], run["previous"]) for run in runs}, set[str]()
    with ThreadPoolExecutor(AT_ONCE) as pool:
        while runs:
            earlier: list[LogRun] = []
            for run, content in zip(runs, pool.map(read, runs), strict=True):
                if isinstance(content, LogEnd) or run["pod"] not in perhaps:
                    found.keep(run, content, limit)
                is_empty = isinstance(content, LogEnd) and not content.content
                if (is_empty or _only_waits(content)) and (run["pod"], True) not in known:
                    earlier.append({**run, "previous": True})
                    if is_empty:
                        perhaps.add(run["pod"])
            known |= {(run["pod"], True) for run in earlier}
            runs = earlier


def _only_waits(content: LogEnd | str) -> bool:
    """Return whether a log's last line reports that its container only waits, without a program.

    Workers end at the same time as the chief. The kubelet restarts a worker's container, but the operator may list the
    job's runs before the kubelet has reported the restart.
    """
    return isinstance(content, LogEnd) and contract.IDLES.encode() in content.content.rstrip().rpartition(b"\n")[2]
