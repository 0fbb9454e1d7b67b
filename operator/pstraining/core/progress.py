"""Progress of training: reports of programs, the pods that may send them, and the moments of their writes. Pure.

A report has the format of Kubeflow's KEP-2779, with further fields that KEP-2779's clients do not send.
"""

from collections.abc import Mapping
from datetime import datetime
from typing import Any, Final

from pydantic import Field, ValidationError, field_validator

from pstraining.api import contract, names
from pstraining.api.base import ApiModel
from pstraining.api.numbers import number
from pstraining.api.status import TrainingProgress
from pstraining.api.text import with_printable_texts
from pstraining.api.values import path_of
from pstraining.progress import PERIOD_SECONDS, is_milestone

MILESTONE_SECONDS: Final = 10.0
"""Seconds from a write to the next if an epoch, or a further 5 % of training, has ended meanwhile."""
STEP_METRICS: Final = ("step", "global_step")
"""Names of metrics that contain the step, in reports of programs that only send metrics."""


class TrainerStatus(TrainingProgress):
    """The content of a report."""

    stalled: str = Field(default="", max_length=contract.STALL_MAX)
    """Why training makes no steps; empty while it makes steps."""

    @field_validator("*")
    @classmethod
    def _is_stored(cls, value: object) -> object:
        """Refuse a value that the API server would refuse in the job's status, again and again."""
        if isinstance(value, int) and value > contract.INTEGER_MAX:
            raise ValueError("the number has more than 64 bits")
        if isinstance(value, datetime) and value.tzinfo is None:
            raise ValueError("the time has no time zone")
        return value


class _Report(ApiModel):
    trainer_status: TrainerStatus


def read_report(body: object) -> TrainerStatus | str:
    """Return a report, or the sentence with which it is refused.

    Loss and step are taken from the metrics if the report has no fields for them: KEP-2779 has none. Texts become
    printable, because they are copied to the job's status.
    """
    try:
        report = _Report.model_validate(with_printable_texts(body)).trainer_status
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        place = path_of(first["loc"]) or "the body"
        return f"{place}: {first['msg']}. A report is an object with the field trainerStatus, as in KEP-2779."
    metrics = {metric.name: metric.value for metric in report.metrics}
    changes: dict[str, object] = {}
    if report.loss is None and "loss" in metrics:
        changes["loss"] = metrics["loss"]
    if report.step is None and (step := _step(metrics)) is not None:
        changes["step"] = step
    return report.model_copy(update=changes)


def _step(metrics: Mapping[str, str]) -> int | None:
    for name in STEP_METRICS:
        try:
            number = float(metrics.get(name, ""))
        except ValueError:
            continue
        if 0 <= number <= contract.INTEGER_MAX:
            return int(number)
    return None


def progress_of(report: TrainerStatus) -> dict[str, Any]:
    """Return `status.training` for a report, with null for each field that it leaves out."""
    fields = set(TrainingProgress.model_fields)
    return report.model_dump(by_alias=True, mode="json", include=fields)


def may_report(job: Mapping[str, Any], pod: Mapping[str, Any]) -> bool:
    """Whether a pod of a job may report the job's progress: it does the chief's work, and is not being deleted."""
    return not pod["metadata"].get("deletionTimestamp") and has_chief_duty(job, pod)


def has_chief_duty(job: Mapping[str, Any], pod: Mapping[str, Any]) -> bool:
    """Whether a pod of a job does the chief's work, and no later attempt exists.

    The pod may read the job's history even while it is being deleted, because a failed job deletes its chief.
    """
    labels = pod["metadata"].get("labels") or {}
    if ((job.get("spec") or {}).get("chief") or {}).get("enabled", True):
        term = int((job.get("status") or {}).get("term") or 0)
        found = number(labels.get(names.LABEL_TERM) or "0")
        return labels.get(names.LABEL_ROLE) == names.CHIEF and found is not None and found >= term
    return (labels.get(names.LABEL_ROLE), labels.get(names.LABEL_INDEX)) == (names.WORKER, "0")


def write_delay(written: Mapping[str, Any] | None, newest: Mapping[str, Any], seconds: float) -> float | None:
    """Return the seconds until the newest progress is written; None if it contains nothing new.

    Args:
        written: the progress that was written last; None if none was.
        newest: the newest progress.
        seconds: time since the last write.
    """
    if written is None:
        return 0.0
    if _without_time(written) == _without_time(newest):
        return None
    if newest.get("progressPercentage") == 100 and written.get("progressPercentage") != 100:
        return 0.0
    period = MILESTONE_SECONDS if is_milestone(written, newest) else PERIOD_SECONDS
    return max(0.0, period - seconds)


def _without_time(progress: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in progress.items() if name != "lastUpdatedTime"}
