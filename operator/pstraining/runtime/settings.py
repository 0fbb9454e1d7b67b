"""What a training run may be told, from its program and from the job's own fields.

The job's `spec.training` and `spec.checkpoint` arrive in the cluster file and override what the program passed, field
by field.
"""

from collections.abc import Mapping
from typing import Any, Literal, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError
from pydantic.alias_generators import to_camel

Settings = TypeVar("Settings", bound=BaseModel)


class SettingsError(ValueError):
    """A field that is unknown or has a wrong value; the message names it."""


class TrainingSettings(BaseModel):
    """How the parameters are updated, and for how long."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, alias_generator=to_camel, populate_by_name=True)

    mode: Literal["Async"] = "Async"
    """Async: every worker's gradient is applied when it arrives."""
    steps: int = Field(gt=0)
    """Updates of the parameters in the whole job, by all workers together; a few more may be applied at the end."""


class CheckpointSettings(BaseModel):
    """Where and how often the state of training is saved."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, alias_generator=to_camel, populate_by_name=True)

    path: str | None = None
    """Folder; None: no checkpoints, and the loss of a parameter server starts training from the beginning."""
    keep: int = Field(default=3, ge=1)
    """How many of the newest checkpoints stay."""
    interval_seconds: int = Field(default=60, ge=1)
    """Seconds from the end of one checkpoint to the start of the next."""


def resolve(name: str, model: type[Settings], script: Mapping[str, Any], job: Mapping[str, Any]) -> Settings:
    """The program's values with the job's over them.

    Args:
        name: the job's field, for messages: "training" or "checkpoint".
        model: the settings to build.
        script: values by Python name, as the program passed them.
        job: values by the job's own field names.

    Raises:
        SettingsError: names the first field that is unknown or wrong, and all others with it.
    """
    aliases = {field: info.alias or field for field, info in model.model_fields.items()}
    merged = {aliases.get(key, key): value for key, value in script.items()} | dict(job)
    try:
        return model.model_validate(merged, by_name=False, by_alias=True)
    except ValidationError as error:
        problems = "; ".join(
            f"{'.'.join([name, *map(str, item['loc'])])}: {_message(item['type'], item['msg'])}"
            for item in error.errors()
        )
        raise SettingsError(problems) from None


def _message(kind: str, text: str) -> str:
    return "unknown field" if kind == "extra_forbidden" else text[:1].lower() + text[1:]
