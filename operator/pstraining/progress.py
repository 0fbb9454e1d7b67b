"""Reports a training program's progress to the operator, which shows it in `kubectl get pstrainingjobs`.

Reports have the format of Kubeflow's KEP-2779. The module only needs the standard library, so any program may use it:

    from pstraining import progress

    for step in range(steps):
        ...
        progress.report(step=step, steps=steps, loss=loss)

A report never blocks training and never raises: a thread sends the newest one, at most once a minute and at milestones.
A warning names the reason for the first report that is not sent. Outside a job, no report is sent. `pstraining.runtime`
reports by itself.
"""

import atexit
import http.client
import json
import logging
import math
import os
import ssl
import threading
import time
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final
from urllib.parse import SplitResult, urlsplit

from pstraining.api import contract

logger = logging.getLogger(__name__)

ENV_FILE: Final = "PSTRAINING_PROGRESS_FILE"
"""In a job on one machine: the file to which the newest report is written, as JSON."""
PERIOD_SECONDS: Final = 59.0
"""Seconds between two reports of a job, and between two writes of its status, without milestones. Users read progress
that is at most a minute old, and 1,000 jobs cause at most 17 writes per second."""
MILESTONE_SECONDS: Final = 5.0
"""Minimum seconds between two reports at a milestone: the end of an epoch, or of a further 5 % of training."""
TIMEOUT_SECONDS: Final = 5.0
"""Seconds after which a report is given up; a later report has newer numbers."""
METRICS_BYTES: Final = 96 * 1024
"""Maximum bytes of the metrics in a report. The operator refuses a report of more than 128 KiB."""
NAMED: Final = 10
"""Maximum number of names of metrics in a warning."""
SHARE: Final = 5
"""Percent of training after which progress is a milestone."""


def is_milestone(before: Mapping[str, Any], newest: Mapping[str, Any]) -> bool:
    """Whether an epoch, a share of training or a change of the layout is done between two reports, or a stall began or
    ended.
    """
    shares = {(report.get("progressPercentage") or 0) // SHARE for report in (before, newest)}
    return len(shares) > 1 or any(before.get(name) != newest.get(name) for name in ("epoch", "layout", "stalled"))


def due_in(sent: Mapping[str, Any] | None, newest: Mapping[str, Any], seconds: float) -> float:
    """Return the seconds until the newest report is sent.

    Args:
        sent: the report that was sent last; None before the first one.
        newest: the newest report.
        seconds: seconds since the last report was sent.
    """
    if sent is None:
        return 0.0
    period = MILESTONE_SECONDS if is_milestone(sent, newest) else PERIOD_SECONDS
    return max(0.0, period - seconds)


_left_out: list[str] = []
"""The metrics of the first report that had no room for all of them."""


@dataclass(frozen=True, kw_only=True)
class Progress:
    """The progress of training; fields that are unknown, not finite or out of range are not reported."""

    step: int | None = None
    """Parameter updates so far, in the whole job."""
    steps: int | None = None
    """Parameter updates that the job will make."""
    epoch: int | None = None
    """The current epoch, from 0."""
    loss: float | None = None
    """The newest mean loss."""
    metrics: Mapping[str, float] = field(default_factory=dict)
    """Further numbers by name. The first 256 are reported, up to 96 KiB, without those whose name has more than 253
    characters. A warning names the others."""
    samples_per_second: float | None = None
    """Samples of all workers per second."""
    remaining_seconds: float | None = None
    """Estimated time until the end."""
    percentage: float | None = None
    """Share of training that is done, from 0 to 100; by default `step` of `steps`."""
    checkpoint_step: int | None = None
    """Step of the newest checkpoint."""
    checkpoint_time: float | None = None
    """Time of the newest checkpoint, in seconds since 1970."""
    layout: int | None = None
    """Number of the layout in which the parameters are partitioned over the servers."""
    term: int | None = None
    """The chief's attempt; with `layout`."""
    stalled: str = ""
    """Why training makes no steps; empty while it makes steps. The first 1,024 characters are reported."""

    def content(self) -> dict[str, Any]:
        """Return the content of a report."""
        share = self.percentage
        if share is None and self.step is not None and self.steps:
            share = 100.0 * self.step / self.steps
        if share is not None and math.isfinite(share):
            share = min(100.0, share)
        known = {
            "step": _whole(self.step),
            "steps": _whole(self.steps),
            "epoch": _whole(self.epoch),
            "progressPercentage": _whole(share),
            "estimatedRemainingSeconds": _whole(self.remaining_seconds),
            "loss": _text(self.loss),
            "metrics": self._reported_metrics(),
            "samplesPerSecond": _text(self.samples_per_second),
            "checkpointStep": _whole(self.checkpoint_step),
            "checkpointTime": _time(self.checkpoint_time),
            "layout": _whole(self.layout),
            "term": _whole(self.term),
            "stalled": str(self.stalled)[: contract.STALL_MAX] if self.stalled else None,
        }
        return {name: value for name, value in known.items() if value not in (None, [])}

    def _reported_metrics(self) -> list[dict[str, str]]:
        """Return the metrics that a report has room for; a warning names the others once."""
        reported: list[dict[str, str]] = []
        left_out, room = [], METRICS_BYTES
        for name, value in self.metrics.items():
            if (text := _text(value)) is None:
                continue
            metric = {"name": name, "value": text}
            size = len(json.dumps(metric)) + 2
            if len(name) > contract.METRIC_NAME_MAX or len(reported) == contract.METRICS_MAX or size > room:
                left_out.append(name)
            else:
                reported.append(metric)
                room -= size
        if left_out and not _left_out:
            _left_out.extend(left_out)
            more = f" and {len(left_out) - NAMED} more" if len(left_out) > NAMED else ""
            names = ", ".join(left_out[:NAMED])
            logger.warning("Reports of progress have no room for these metrics, which are left out: %s%s", names, more)
        return reported

    @classmethod
    def of(cls, content: Mapping[str, Any]) -> "Progress":
        """Return the progress that a report's content, or `status.training`, describes."""
        time_text = content.get("checkpointTime")
        return cls(
            step=content.get("step"),
            steps=content.get("steps"),
            epoch=content.get("epoch"),
            loss=_number(content.get("loss")),
            metrics=dict(_numbers(content.get("metrics") or ())),
            samples_per_second=_number(content.get("samplesPerSecond")),
            remaining_seconds=content.get("estimatedRemainingSeconds"),
            percentage=content.get("progressPercentage"),
            checkpoint_step=content.get("checkpointStep"),
            checkpoint_time=None if time_text is None else datetime.fromisoformat(time_text).timestamp(),
            layout=content.get("layout"),
            term=content.get("term"),
            stalled=content.get("stalled") or "",
        )


def _numbers(metrics: Iterable[Mapping[str, str]]) -> Iterator[tuple[str, float]]:
    for metric in metrics:
        if (value := _number(metric["value"])) is not None:
            yield metric["name"], value


def _number(text: str | None) -> float | None:
    """Return a reported number; None for other texts, which other clients may report."""
    try:
        return None if text is None else float(text)
    except ValueError:
        return None


def read_file(path: Path) -> Progress | None:
    """Return the progress in the file of a job on one machine; None if there is none yet."""
    try:
        return Progress.of(json.loads(path.read_text(encoding="utf-8")))
    except FileNotFoundError:
        return None


def _whole(number: float | None) -> int | None:
    if number is None or not math.isfinite(number) or number < 0:
        return None
    whole = int(number)
    return whole if whole <= contract.INTEGER_MAX else None


def _text(number: float | None) -> str | None:
    return f"{float(number):.5g}" if number is not None and math.isfinite(number) else None


def _time(seconds: float | None) -> str | None:
    if seconds is None or not math.isfinite(seconds):
        return None
    return datetime.fromtimestamp(seconds, UTC).isoformat(timespec="seconds")


@dataclass(frozen=True)
class OperatorServer:
    """The operator's endpoint, from the variables of KEP-2779."""

    url: SplitResult
    """The URL for reports of progress; it has no host if there is no endpoint."""
    certificate: str | None
    """The file with the authority's certificate."""
    token: str | None
    """The file with the pod's token."""

    @classmethod
    def of(cls, environ: Mapping[str, str]) -> "OperatorServer":
        """Read the variables of a program's environment."""
        url = urlsplit(environ.get(contract.ENV_SERVER_URL, ""))
        return cls(url, environ.get(contract.ENV_SERVER_CERTIFICATE), environ.get(contract.ENV_SERVER_TOKEN))

    def connection(self, timeout: float) -> http.client.HTTPSConnection:
        """Return a connection that is opened by its first request.

        Args:
            timeout: seconds for connecting, and for each answer.

        Raises:
            OSError: the certificate cannot be read.
        """
        context = ssl.create_default_context(cafile=self.certificate)
        return http.client.HTTPSConnection(self.url.hostname or "", self.url.port, timeout=timeout, context=context)

    def authorization(self) -> dict[str, str]:
        """Return the header with the token, which is read each time, because the kubelet renews it.

        Raises:
            OSError: the token cannot be read.
        """
        if not self.token:
            return {}
        with open(self.token, encoding="ascii") as file:
            return {"Authorization": f"Bearer {file.read().strip()}"}


class ProgressReporter:
    """Sends the newest report from a separate thread.

    Args:
        environ: the program's environment, with the variables of KEP-2779; without them no report is sent.
    """

    def __init__(self, environ: Mapping[str, str] = os.environ) -> None:
        self._server = OperatorServer.of(environ)
        self._file = Path(environ[ENV_FILE]) if environ.get(ENV_FILE) else None
        self._changed = threading.Condition()
        self._newest: dict[str, Any] | None = None
        self._closing = False
        self._connection: http.client.HTTPSConnection | None = None
        self._warned: set[str] = set()
        self._thread: threading.Thread | None = None

    def report(self, newest: dict[str, Any]) -> None:
        """Send a report, as `Progress.content` returns it, when it is due; a newer one replaces it."""
        if self._file is not None:
            part = self._file.with_suffix(f".{os.getpid()}")
            try:
                part.write_text(json.dumps(newest), encoding="utf-8")
                part.replace(self._file)
            except OSError as error:
                self.warn(f"written to {self._file}: {error}")
        if not self._server.url.hostname:
            return
        with self._changed:
            self._newest = newest
            self._changed.notify()
            if self._thread is None:
                thread = threading.Thread(target=self._run, name="pstraining-progress", daemon=True)
                try:
                    thread.start()
                except RuntimeError as error:  # the process has too many threads; the next report starts one
                    self.warn(f"reported: {error}")
                else:
                    self._thread = thread

    def close(self) -> None:
        """Send the last report, if it has not been sent, within TIMEOUT_SECONDS."""
        with self._changed:
            self._closing = True
            self._changed.notify()
        if self._thread is not None:
            self._thread.join(2 * TIMEOUT_SECONDS)

    def _run(self) -> None:
        sent: dict[str, Any] | None = None
        sent_at = 0.0
        while (newest := self._next(sent, sent_at)) is not None:
            sent, sent_at = newest, time.monotonic()  # a slow answer must not delay the next report
            self._send(newest)
        if self._connection is not None:
            self._connection.close()

    def _next(self, sent: dict[str, Any] | None, sent_at: float) -> dict[str, Any] | None:
        """Wait until a report is due; None at the end."""
        with self._changed:
            while True:
                if self._newest is sent:
                    if self._closing:
                        return None
                    self._changed.wait()
                elif self._newest is not None:
                    wait = 0.0 if self._closing else due_in(sent, self._newest, time.monotonic() - sent_at)
                    if wait <= 0:
                        return self._newest
                    self._changed.wait(wait)

    def _send(self, newest: dict[str, Any]) -> None:
        body = json.dumps({"trainerStatus": newest | {"lastUpdatedTime": datetime.now(UTC).isoformat()}}).encode()
        problem = ""
        for _ in range(2):  # the server closes idle connections
            try:
                problem = self._post(body)
                break
            except (OSError, ValueError, http.client.HTTPException) as error:
                problem = f"{type(error).__name__}: {error}"
                if self._connection is None:
                    break
                self._connection.close()
                self._connection = None
        if problem:
            self.warn(f"reported to {self._server.url.netloc}: {problem}")

    def warn(self, problem: str) -> None:
        """Log that progress cannot be reported, and why; once for each text before the colon."""
        kind = problem.partition(":")[0]
        if kind not in self._warned:
            self._warned.add(kind)
            logger.warning("Progress cannot be %s", problem)

    def _post(self, body: bytes) -> str:
        """Send one report; return the problem, or an empty text."""
        if self._connection is None:
            self._connection = self._server.connection(TIMEOUT_SECONDS)
        headers = {"Content-Type": "application/json", **self._server.authorization()}
        self._connection.request("POST", self._server.url.path, body, headers)
        answer = self._connection.getresponse()
        text = answer.read(500).decode(errors="replace")
        return "" if answer.status == 200 else f"{answer.status} {answer.reason}: {text}"


_reporter: ProgressReporter | None = None


def _after_fork() -> None:
    """Let a forked process report with a thread of its own, as the one of its parent is not in it."""
    global _reporter  # noqa: PLW0603 - see `report`
    if _reporter is not None:
        atexit.unregister(_reporter.close)  # its lock may be held for good, by that thread
        _reporter = None


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)


def report(**progress: Any) -> None:
    """Report progress; the arguments are the fields of `Progress`.

    A report with an unknown field, or with a value of another type, is not sent. A warning names the reason.
    """
    global _reporter  # noqa: PLW0603 - one connection for the whole program
    if _reporter is None:
        _reporter = ProgressReporter()
        atexit.register(_reporter.close)
    try:
        content = Progress(**progress).content()
    except Exception as error:  # noqa: BLE001 - a value of any library: a report ends no program
        _reporter.warn(f"encoded: {error}; pstraining.progress.Progress has the names and types of the fields")
        return
    _reporter.report(content)
