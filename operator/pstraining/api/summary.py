"""The history of a job: `summary.json` and a folder of logs beside its checkpoints. The chief writes it for the CLI.

The file outlives the job, the operator and their versions. Fields may be added. `schema` changes if a field's meaning
changes.
"""

from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from typing import Any, Final, Literal

from pydantic import Field

from pstraining.api.base import ApiModel

SCHEMA: Final = "pstraining.dev/summary/v1"
SUMMARY_FILE: Final = "summary.json"
LOGS_FOLDER: Final = "history"
"""Folder of the logs beside the summary, with one file per run of a container."""
LOG_BYTES: Final = 1 << 20
"""Maximum bytes, from the end of a log, that the operator returns and the history keeps."""
LOG_LINES: Final = 10_000
"""Maximum number of lines that the operator reads from the end of a log."""
LOGS_KEPT_SECONDS: Final = 50
"""Seconds for which the operator keeps the pod of a worker that has succeeded, so that the chief reads its log."""
HEADER_WHOLE: Final = "Pstraining-Log-Whole"
"""Header of the operator's response with a log: `true` for the whole log, `false` for its end."""


class HistoryPolicy(StrEnum):
    """Whether the history of a job is written."""

    KEEP = "Keep"
    NONE = "None"


class JobOutcome(StrEnum):
    """The outcome of a job, as reported by its chief."""

    SUCCEEDED = "Succeeded"
    FAILED = "Failed"
    UNFINISHED = "Unfinished"


@dataclass(frozen=True)
class LogEnd:
    """The end of a container's log."""

    content: bytes
    whole: bool
    """Whether the content is all of the log that the kubelet has kept."""


class KeptLog(ApiModel):
    """The log of one run of a task's container, or the reason why it is missing."""

    task: str = Field(description="Name of the task, such as worker-0.")
    pod: str = Field(description="Name of the task's pod.")
    previous: bool = Field(default=False, description="Whether the run is the one before the container's restart.")
    file: str = Field(default="", description="Path of the log, relative to the summary; empty if there is none.")
    whole: bool = Field(
        default=True,
        description="Whether the file has all of the log that the kubelet has kept; otherwise it has the log's end.",
    )
    missing: str = Field(default="", description="Reason why the log is missing; empty otherwise.")


class Summary(ApiModel):
    """The content of `summary.json`."""

    schema_: Literal["pstraining.dev/summary/v1"] = Field(default=SCHEMA, alias="schema")
    name: str = Field(description="Name of the job.")
    namespace: str = Field(description="Namespace of the job.")
    uid: str = Field(default="", description="UID of the job.")
    outcome: JobOutcome = Field(description="Outcome of the job. Unfinished: no chief has written its end.")
    message: str = Field(default="", description="Human-readable explanation of the end by the chief.")
    time: datetime = Field(description="Time at which the chief wrote the file.")
    term: int = Field(default=0, description="Number of the attempt of the chief that wrote the file.")
    result: dict[str, float | None] | None = Field(
        default=None, description="Return value of Trainer.run on the chief; null if training has not ended."
    )
    training: dict[str, Any] | None = Field(
        default=None, description="Last progress and metrics, with the fields of status.training."
    )
    settings: dict[str, Any] = Field(
        default_factory=dict, description="Settings of training and of checkpoints that were in force."
    )
    job: dict[str, Any] | None = Field(
        default=None,
        description="The job with its spec and status, from the operator; null if the operator did not answer.",
    )
    pods: list[dict[str, Any]] = Field(
        default_factory=list, description="The job's pods, with the fields that the operator reads."
    )
    logs: list[KeptLog] = Field(default_factory=list, description="The logs, one for each run of a container.")
    notes: list[str] = Field(default_factory=list, description="Missing data, with reasons.")
