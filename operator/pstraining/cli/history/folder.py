"""A folder with the history of a job, as a substitute for the API server in commands that only read.

It sends no requests to a cluster.
"""

from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Final, cast

import typer
from pydantic import ValidationError

from pstraining.api import names
from pstraining.api.conditions import Condition
from pstraining.api.summary import SUMMARY_FILE, JobOutcome, KeptLog, Summary
from pstraining.api.values import path_of
from pstraining.cli.client import ClusterClient, Object, lines
from pstraining.cli.connection.overrides import Overrides
from pstraining.cli.errors import ArgumentError, CommandError, RequestError

REASON: Final = "History"
"""Reason of the events that are created from the summary."""

From = Annotated[
    Path | None,
    typer.Option(
        "--from",
        metavar="FOLDER",
        help="Folder with the history of a deleted job: read it instead of a cluster. Its summary.json is beside the "
        "job's checkpoints.",
    ),
]


def history_in(folder: Path, context: Overrides | None, namespace: str | None) -> ClusterClient:
    """Return a client that reads the history in a folder.

    Raises:
        CommandError: options select a cluster as well, or the folder has no history.
    """
    if namespace is not None or context not in (None, Overrides()):
        raise ArgumentError(
            "--from reads a folder instead of a cluster: remove the options of the cluster and --namespace."
        )
    return cast(ClusterClient, HistoryFolder(folder))  # commands that take --from only read


def read_summary(folder: Path) -> Summary:
    """Return the summary in a folder.

    Raises:
        CommandError: the summary does not exist, or this version cannot read it.
    """
    path = folder / SUMMARY_FILE
    try:
        return Summary.model_validate_json(path.read_bytes())
    except OSError as error:
        hint = "The history of a job is beside its checkpoints, at spec.checkpoint: mount it, or copy it from a bucket."
        raise CommandError(f"--from: {path} cannot be read: {error.strerror}. {hint}") from error
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        place = path_of(first["loc"]) or "the file"
        raise CommandError(
            f"--from: {path} is not a summary that this version can read ({place}: {first['msg']})."
        ) from None


class HistoryFolder:
    """The reading part of `ClusterClient`, for the job of a history.

    Args:
        folder: the folder with the summary and the logs.

    Raises:
        CommandError: the summary does not exist, or this version cannot read it.
    """

    def __init__(self, folder: Path) -> None:
        self._folder, self._summary = folder, read_summary(folder)
        self.namespace = self._summary.namespace
        self._job = job_of(self._summary)

    def job(self, namespace: str, name: str) -> Object | None:
        """Return the job, or None if it has another name."""
        return self._job if (namespace, name) == (self.namespace, self._summary.name) else None

    def jobs(self, namespace: str | None) -> list[Object]:
        """Return the job, unless it is in another namespace."""
        return [self._job] if namespace in (None, self.namespace) else []

    def pods(self, namespace: str, job: str) -> list[Object]:
        """Return the pods that the job had at its end."""
        return self._summary.pods if self.job(namespace, job) else []

    def events(self, namespace: str, uid: str) -> list[Object]:
        """Return the summary's texts as events. The history has no Kubernetes events."""
        if uid != self._job["metadata"]["uid"]:
            return []
        warnings = [("Warning", note) for note in self._summary.notes]
        texts = [("Normal", text) for text in _sentences(self._summary)] + warnings
        moment = _stamp(self._summary.time)
        return [
            {"type": kind, "reason": REASON, "message": text, "lastTimestamp": moment, "metadata": {}}
            for kind, text in texts
        ]

    def log(self, namespace: str, pod: str, query: Mapping[str, str]) -> Iterator[str]:
        """Yield the lines of a log.

        Raises:
            RequestError: the history does not have the log.
        """
        kept = self._kept(pod, query.get("previous") == "true")
        try:
            content = (self._folder / kept.file).read_bytes()
        except OSError as error:
            raise RequestError(f"{self._folder / kept.file}: {error.strerror}", 404) from error
        found = list(lines([content]))  # as those of a container: a progress bar with carriage returns is one line
        if (tail := query.get("tailLines")) is not None:
            found = found[max(0, len(found) - int(tail)) :]
        # The history has no times of single lines.
        begin = f"{_stamp(self._summary.time)} " if query.get("timestamps") else ""
        yield from (begin + line for line in found)

    def metrics(self, namespace: str, pod: str, port: int, seconds: float = 0) -> str:
        """Raise a RequestError, because the history has no metrics of tasks."""
        raise RequestError("The history has no metrics of single tasks.", 404)

    def _kept(self, pod: str, previous: bool) -> KeptLog:
        found = next((log for log in self._summary.logs if (log.pod, log.previous) == (pod, previous)), None)
        if found is None:
            raise RequestError(f"the history has no {'previous log' if previous else 'log'} of this pod", 404)
        inside = found.file and (self._folder / found.file).resolve().is_relative_to(self._folder.resolve())
        if not inside:
            raise RequestError(found.missing or "its file is not in the folder", 404)
        return found


def job_of(summary: Summary) -> Object:
    """Return the job at its end. The chief's summary completes a status that the operator wrote before the end."""
    known = summary.job or {"spec": {names.PS: {"replicas": 0}, names.WORKER: {"replicas": 0}}}
    moment = _stamp(summary.time)
    metadata = {
        "name": summary.name,
        "namespace": summary.namespace,
        "uid": summary.uid,
        "creationTimestamp": moment,
        **(known.get("metadata") or {}),
    }
    metadata.pop("deletionTimestamp", None)  # the job is known to be deleted
    status = {"observedGeneration": metadata.get("generation", 0), **(known.get("status") or {})}
    if summary.training is not None:
        status["training"] = {**summary.training, "lastUpdatedTime": moment}
    if summary.outcome is not JobOutcome.UNFINISHED:
        status |= {"phase": summary.outcome.value, "conditions": [*_ended(status, summary, moment)]}
    return {**known, "metadata": metadata, "status": status}


def _ended(status: Mapping[str, list[Object]], summary: Summary, moment: str) -> Iterator[Object]:
    """Yield the conditions at the end. The chief's outcome is added if the operator had not recorded it yet."""
    known = status.get("conditions") or []
    kinds = (Condition.SUCCEEDED, Condition.FAILED)
    if any(c["type"] in kinds and c["status"] == "True" for c in known):
        yield from known
        return
    yield from (c for c in known if c["type"] not in (*kinds, Condition.RUNNING))
    yield {
        "type": summary.outcome.value,
        "status": "True",
        "reason": "ReportedByChief",
        "message": summary.message,
        "lastTransitionTime": moment,
    }


def _sentences(summary: Summary) -> Iterator[str]:
    yield f"Written by attempt {summary.term} of the chief; the job was {summary.outcome.value.lower()} then."
    if summary.message:
        yield summary.message
    if summary.result:
        numbers = (f"{name}={value:.6g}" for name, value in summary.result.items() if value is not None)
        yield f"Result: {' '.join(numbers)}"


def _stamp(moment: datetime) -> str:
    return moment.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
