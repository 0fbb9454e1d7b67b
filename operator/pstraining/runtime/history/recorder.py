"""Writes a job's history beside its checkpoints: at the chief's start, when training has ended, and when the job fails.

A killed chief leaves the history of its start, with the operator's data on earlier attempts. The history never fails
the job: an event reports the parts that could not be written.
"""

import threading
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from typing import Any, Final, TypeVar

from pstraining import progress
from pstraining.api.summary import LOGS_FOLDER, SUMMARY_FILE, HistoryPolicy, JobOutcome, Summary
from pstraining.runtime.checkpoint.fencing import Writer
from pstraining.runtime.checkpoint.objects.choice import storage_at
from pstraining.runtime.checkpoint.ports.checkpoint_storage import CheckpointStorage
from pstraining.runtime.checkpoint.state import SupersededError
from pstraining.runtime.config.cluster import Cluster, Task
from pstraining.runtime.config.settings import CheckpointSettings
from pstraining.runtime.errors import final_error
from pstraining.runtime.history.gathering import Gathered, JobSource, gather, incomplete
from pstraining.runtime.history.operator import KubernetesObject, OperatorClient
from pstraining.runtime.replication.renewal import RenewalDueError
from pstraining.runtime.telemetry.events import event

Result = TypeVar("Result")

END_SECONDS: Final = 60.0
"""Seconds for the logs of a job whose training has ended."""
STOP_SECONDS: Final = 10.0
"""Seconds for the logs after SIGTERM: a pod has 30 s by default, and its state is saved meanwhile."""
LEAVING_SECONDS: Final = 10.0
"""Seconds in which workers that have left the job end, and the operator learns of it."""
WORKERS_SECONDS: Final = 30.0
"""Seconds for the logs while the chief saves and evaluates; the operator keeps the pods of workers that have succeeded
for `LOGS_KEPT_SECONDS`."""


def failure(job: KubernetesObject) -> str | None:
    """Return why the operator has failed the job; None if it has not."""
    for condition in (job.get("status") or {}).get("conditions") or ():
        if condition.get("type") == "Failed" and condition.get("status") == "True":
            return f"{condition.get('reason', '')}: {condition.get('message', '')}"
    return None


class HistoryRecorder:
    """Records the history of a job that has a folder for checkpoints, unless its settings turn the history off.

    Args:
        cluster: this task's view of the job.
        checkpoint: the settings of checkpoints, whose `history` may turn the history off.
        operator: the source of spec, status and logs.
    """

    def __init__(
        self,
        cluster: Cluster | None = None,
        checkpoint: CheckpointSettings | None = None,
        operator: JobSource | None = None,
    ) -> None:
        self._cluster, self._operator = cluster or Cluster("", Task("chief", 0), {}), operator or OperatorClient()
        keeps = checkpoint is not None and checkpoint.history is HistoryPolicy.KEEP
        self._folder = checkpoint.path if checkpoint and checkpoint.path and keeps else None
        self._is_on = self._folder is not None and self._cluster.is_chief
        self._checkpoints: CheckpointStorage | None = None
        self.settings: dict[str, object] = {}
        """The settings in force, by the API's names."""
        self._training: dict[str, object] | None = None
        self._start: _Background | None = None
        """The request for the job at the chief's start, until its reply is written."""
        self._stop: _Background | None = None
        """The request for the job and its logs after SIGTERM."""
        self._workers: _Background | None = None
        """The request for the job and its logs after the workers have left, while the chief saves and evaluates."""
        self._has_ended = threading.Event()

    def attach(self, checkpoints: CheckpointStorage) -> None:
        """Use the chief's checkpoints, with its term of the folder, and start the history."""
        self._checkpoints = checkpoints
        if self._is_on:
            self._start = _Background(lambda: gather(self._operator, seconds=0, wants_logs=lambda job: False))

    def report(self, **now: Any) -> None:
        """Report progress to the operator, and keep it as the last one."""
        self._training = progress.Progress(**now).content()
        progress.report(**now)

    def tend(self) -> None:
        """Write the history of the start once the operator has answered; called in the chief's thread, as it trains."""
        self._stop = None  # of a save for another layout that failed: the next stop reads the job again
        if self._start is not None and (found := self._start.result(0)) is not None:
            self._start = None
            self._write(JobOutcome.UNFINISHED, "No chief has written the end of the job.", found)

    def stopping(self) -> None:
        """Start to gather after SIGTERM, because pods and their logs may soon be deleted."""
        if self._is_on and self._stop is None:
            self._stop = _Background(lambda: gather(self._operator, seconds=STOP_SECONDS, wants_logs=failure))

    def workers_left(self) -> None:
        """Gather soon, unless the chief ends sooner: workers' pods are deleted while it saves and evaluates.

        After the loss of a parameter server, workers may train and leave again.
        """
        earlier = self._workers
        if self._is_on and (earlier is None or earlier.result(0) is not None):
            self._workers = _Background(lambda: self._while_working(earlier))

    def _while_working(self, earlier: "_Background | None") -> Gathered:
        found = Gathered()
        if not self._has_ended.wait(LEAVING_SECONDS):
            found = gather(self._operator, seconds=WORKERS_SECONDS, is_over=self._has_ended.is_set)
        return _completed(found, earlier, 0)

    def recorded(self, run: Callable[[], Result]) -> Result:
        """Call a function that leads the job to its end, and record the end."""
        try:
            result = run()
        except (RenewalDueError, SupersededError):
            raise
        except SystemExit:
            self._stopped()
            raise
        except BaseException as error:
            self._failed(error)
            raise
        if self._is_on:
            values = dict(result) if isinstance(result, Mapping) else None
            self._write(JobOutcome.SUCCEEDED, "", self._gathered(END_SECONDS), values)
        return result

    def _gathered(self, seconds: float) -> Gathered:
        """Return the job and its logs as they are now, with the logs of pods that are deleted meanwhile."""
        self._has_ended.set()
        return _completed(gather(self._operator, seconds=seconds), self._workers, seconds)

    def _stopped(self) -> None:
        self._has_ended.set()
        self.stopping()
        found = self._stop.result(STOP_SECONDS) if self._stop else None
        if found is not None and found.job is not None and (message := failure(found.job)) is not None:
            self._write(JobOutcome.FAILED, message, _completed(found, self._workers, STOP_SECONDS))

    def _failed(self, error: BaseException) -> None:
        if not self._is_on:
            return
        final = final_error(error)
        shown = f"{type(final or error).__name__}: {final or error}"
        policy = "" if final else " A later attempt may follow."
        message = f"Attempt {self._cluster.term} of the chief has ended with {shown}.{policy}"
        outcome = JobOutcome.FAILED if final else JobOutcome.UNFINISHED
        self._write(outcome, message, self._gathered(STOP_SECONDS))

    def _write(
        self, outcome: JobOutcome, message: str, found: Gathered, result: dict[str, float] | None = None
    ) -> None:
        try:
            summary = self._summary(outcome, message, found, result)
            checkpoints = self._writable()
            if found.texts:  # otherwise the logs of a former attempt are kept
                checkpoints.write_folder_whole(LOGS_FOLDER, found.texts)
            text = summary.model_dump_json(by_alias=True, indent=1) + "\n"
            checkpoints.write_whole(SUMMARY_FILE, lambda path: path.write_text(text, encoding="utf-8"))
            event("history", outcome=outcome, path=f"{checkpoints.location}/{SUMMARY_FILE}", logs=len(found.texts))
        except Exception as error:  # noqa: BLE001 - the history never fails the job
            help_ = "training is not affected; the history of the job is incomplete"
            event("history_failed", outcome=outcome, reason=f"{type(error).__name__}: {error}", help=help_)

    def _summary(self, outcome: JobOutcome, message: str, found: Gathered, result: dict[str, float] | None) -> Summary:
        cluster = self._cluster
        return Summary(
            name=cluster.job,
            namespace=cluster.namespace,
            uid=cluster.job_uid,
            outcome=outcome,
            message=found.redactor.text(message),
            time=datetime.now(UTC),
            term=cluster.term,
            result=result,
            training=self._training,
            settings=found.redactor.redacted(self.settings),
            job=found.job,
            pods=found.pods,
            logs=found.logs,
            notes=found.notes,
        )

    def _writable(self) -> CheckpointStorage:
        """Return the chief's checkpoints, or new ones if the chief failed before it opened them."""
        if self._checkpoints is None:
            assert self._folder is not None  # noqa: S101 - without a folder nothing is written
            writer = Writer(self._cluster.job_uid, self._cluster.term) if self._cluster.task.type == "chief" else None
            self._checkpoints = storage_at(self._folder, keep=1, writer=writer)
        return self._checkpoints


class _Background:
    """Gathers in a separate thread."""

    def __init__(self, run: Callable[[], Gathered]) -> None:
        self._result: list[Gathered] = []
        self._thread: threading.Thread | None = threading.Thread(
            target=lambda: self._result.append(run()), name="pstraining-history", daemon=True
        )
        try:
            self._thread.start()
        except RuntimeError as error:  # the process has too many threads
            self._thread = None
            self._result.append(Gathered(notes=[incomplete(error)]))

    def result(self, seconds: float) -> Gathered | None:
        """Wait for the gathered data for a number of seconds; return None if they are not complete."""
        if self._thread is not None:
            self._thread.join(seconds)
        return self._result[0] if self._result else None


def _completed(found: Gathered, earlier: _Background | None, seconds: float) -> Gathered:
    """Return gathered data with those of an earlier reading, if it ends within a number of seconds."""
    if earlier is not None and (known := earlier.result(seconds)) is not None:
        found.complete(known)
    return found
