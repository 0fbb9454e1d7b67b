"""The settings of a training run, from its program and from the job's spec.

The job's `spec.training` and `spec.checkpoint` are in the cluster file, and override the program's settings field by
field.
"""

import json
import math
import re
from collections.abc import Mapping
from numbers import Integral
from pathlib import PurePath
from types import MappingProxyType
from typing import Final, Self, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator, model_validator
from pydantic.alias_generators import to_camel

from pstraining.api.codec_sizes import MIN_SHARD_BYTES
from pstraining.api.summary import HistoryPolicy
from pstraining.api.training import Codec, Mode, NonFinite
from pstraining.api.values import merged
from pstraining.runtime.errors import FinalError

Settings = TypeVar("Settings", bound=BaseModel)

ENDLESS: Final = 2**62
"""A position that is never reached."""


class SettingsError(FinalError, ValueError):
    """A field that is unknown or has a wrong value; the message names it."""


class ProgramSettings(BaseModel):
    """Settings that a program may create.

    Raises:
        SettingsError: names all fields that are unknown or wrong.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, alias_generator=to_camel, populate_by_name=True)

    def __init__(self, **values: object) -> None:
        try:
            super().__init__(**values)
        except ValidationError as error:
            own = {field.alias: name for name, field in type(self).model_fields.items()}
            raise SettingsError(_problems(type(self).__name__, error, own)) from None

    # Only a call of the class calls it: validation of JSON would otherwise do so as well, with other rules.
    __init__.__pydantic_base_init__ = True  # type: ignore[attr-defined]


class CompressionSettings(ProgramSettings):
    """The encoding of gradients and parameters on the network. See the job's `spec.training.compression`."""

    push: Codec = Codec.NONE
    pull: Codec = Codec.NONE
    error_feedback: bool = True
    top_k_permille: int = Field(default=10, ge=1, le=1000)


class TrainingSettings(ProgramSettings):
    """The update mode and the length of training. See the job's `spec.training`."""

    mode: Mode = Mode.ASYNC
    steps: int | None = Field(default=None, ge=1, le=2**53)
    """Updates of the parameters in the whole job, by all workers together; Async may apply a few more at the end."""
    epochs: int | None = Field(default=None, ge=1, le=2**31)
    accumulation_steps: int = Field(default=1, ge=1, le=65536)
    local_steps: int = Field(default=1, ge=1, le=65536)
    min_shard_bytes: int = Field(default=MIN_SHARD_BYTES, ge=0, le=2**40)
    compression: CompressionSettings = CompressionSettings()
    max_staleness: int | None = Field(default=None, ge=1, le=65536)
    overlap_communication: bool = False
    backup_workers: int = Field(default=0, ge=0, le=4095)
    ordered_sums: bool = False
    non_finite: NonFinite = NonFinite.FAIL

    def is_over(self, step: int) -> bool:
        """Return whether training is over after this number of steps."""
        return self.steps is not None and step >= self.steps

    def positions(self, splits: int | None) -> int:
        """Return the first position after all data to train, for a number of splits per epoch; ENDLESS without one."""
        return ENDLESS if self.epochs is None or splits is None else self.epochs * splits

    @property
    def batches_per_update(self) -> int:
        """Batches that a worker trains for one update."""
        return max(self.accumulation_steps, self.local_steps)

    def optimizer_steps(self, updates: int, workers: int) -> int:
        """Return how often an optimizer is applied in a number of updates; with `localSteps` each worker's own one."""
        if self.local_steps == 1:
            return updates
        return math.ceil(updates * self.local_steps / (workers if self.mode is Mode.ASYNC else 1))

    @model_validator(mode="after")
    def _fits_together(self) -> Self:
        if self.steps is None and self.epochs is None:
            raise ValueError("one of steps and epochs must be given")
        if self.mode is not Mode.SYNC and (self.backup_workers or self.ordered_sums):
            raise ValueError("backupWorkers and orderedSums need mode Sync")
        if self.mode is not Mode.SYNC and self.compression.pull not in (Codec.NONE, Codec.BF16, Codec.AUTO):
            raise ValueError("compression.pull may be None, Bf16 or Auto in mode Async: other codecs need mode Sync")
        if self.mode is not Mode.ASYNC and self.max_staleness is not None:
            raise ValueError("maxStaleness needs mode Async")
        if self.overlap_communication and (self.mode is not Mode.ASYNC or self.local_steps > 1):
            raise ValueError("overlapCommunication needs mode Async without localSteps")
        coded = {self.compression.push, self.compression.pull} != {Codec.NONE}
        if self.mode is Mode.HYBRID and (self.local_steps > 1 or coded):
            raise ValueError("localSteps and compression cannot be used with mode Hybrid")
        if self.local_steps > 1 and self.accumulation_steps > 1:
            raise ValueError("localSteps and accumulationSteps cannot be used together; remove one of them")
        if self.backup_workers and self.ordered_sums:
            raise ValueError("orderedSums waits for every worker and cannot be used with backupWorkers")
        if self.ordered_sums and Codec.AUTO in (self.compression.push, self.compression.pull):
            raise ValueError(
                "orderedSums repeats a run bit for bit, and cannot be used with compression Auto, which depends on "
                "measured times; choose a fixed codec"
            )
        return self


class CheckpointSettings(ProgramSettings):
    """Where and how often the state of training is saved."""

    path: str | None = None
    """Folder, or a URI of an object store (see OBJECT_STORES); None: no checkpoints, and the loss of a parameter server
    starts training from the beginning."""
    keep: int = Field(default=3, ge=1)
    """How many of the newest checkpoints are kept."""
    interval_seconds: int | None = Field(default=None, ge=1)
    """Seconds from the end of one checkpoint to the start of the next; None: by Young's rule, see
    `checkpoint.interval`."""
    full_every: int = Field(default=1, ge=1, le=100)
    """Number of saves of which one is full. The others write, of large tables, only the rows that have changed."""
    history: HistoryPolicy = Field(default=HistoryPolicy.KEEP, strict=False)
    """Whether the chief writes the job's history, `summary.json` and the logs, beside the checkpoints."""

    @field_validator("path", "keep", "interval_seconds", "full_every", mode="before")
    @classmethod
    def _of_python(cls, value: object) -> object:
        if isinstance(value, PurePath) and _URI.match(str(value)):
            raise ValueError(f"give a URI as a text; {value!r} has lost one of its slashes")
        return plain(value)


OBJECT_STORES: Final = ("s3://", "gs://", "file://")
"""Beginnings of the URIs of object stores. A `file://` one has the objects as files, for trials without a store."""


_URI: Final = re.compile(r"[A-Za-z]\w+:/")
"""The beginning of a URI, also of one that has lost a slash, as in a `Path`: its folder would be lost with the pod."""


def plain(value: object) -> object:
    """Return a setting, or a mapping of settings, with paths as texts and NumPy's whole numbers as Python's."""
    if isinstance(value, Mapping):
        return {name: plain(part) for name, part in value.items()}
    if isinstance(value, PurePath):
        return str(value)
    return value if isinstance(value, bool) or not isinstance(value, Integral) else int(value)


def encodable(name: str, values: Mapping[str, object]) -> dict[str, object]:
    """Return settings of a program as values that JSON can contain.

    Args:
        name: the job's field, for messages: "training" or "checkpoint".
        values: values by name.

    Raises:
        SettingsError: names a value of another type, such as a tensor.
    """
    found = {field: plain(value) for field, value in values.items()}
    _json(name, found)
    return found


def is_object_store(path: str | None) -> bool:
    """Return whether checkpoints are in an object store.

    Raises:
        SettingsError: the URI has another scheme, or a single slash.
    """
    if path is None or not ("://" in path or _URI.match(path)):
        return False
    if not path.startswith(OBJECT_STORES):
        raise SettingsError(f"checkpoint.path: {path} must be a folder, or begin with {', '.join(OBJECT_STORES)}")
    return True


def resolve(name: str, model: type[Settings], script: Mapping[str, object], job: Mapping[str, object]) -> Settings:
    """Return the program's settings, overridden by the job's.

    Args:
        name: the job's field, for messages: "training" or "checkpoint".
        model: the settings to build.
        script: values by Python name, as the program passed them.
        job: values by the job's own field names.

    Raises:
        SettingsError: names all fields that are unknown or wrong.
    """
    found = merged(_by_alias(model, script), job)
    try:
        # As JSON, because a strict model accepts an enumeration's value from JSON only.
        return model.model_validate_json(_json(name, found), by_name=False, by_alias=True)
    except ValidationError as error:
        raise SettingsError(_problems(name, error)) from None


def _json(name: str, values: Mapping[str, object]) -> str:
    """Return values as JSON.

    Raises:
        SettingsError: names a value of another type, such as a tensor.
    """
    for field, value in values.items():
        try:
            json.dumps(value)
        except (TypeError, ValueError):
            kind = type(value).__name__
            raise SettingsError(
                f"{name}.{field}: give one of Python's values, such as int(...); it is {value!r}, of the type {kind}"
            ) from None
    return json.dumps(values)


def _by_alias(model: type[BaseModel], values: Mapping[str, object]) -> dict[str, object]:
    """Return values by the API's names, from values by Python's names or the API's.

    Raises:
        SettingsError: a setting has different values under its two names.
    """
    found: dict[str, object] = {}
    for name, value in values.items():
        field = model.model_fields.get(name)
        inner = field.annotation if field else None
        if isinstance(value, Mapping) and isinstance(inner, type) and issubclass(inner, BaseModel):
            value = _by_alias(inner, value)  # noqa: PLW2901 - the same value, by other names
        alias = field.alias or name if field else name
        if alias in found and found[alias] != value:
            former = found[alias]
            raise SettingsError(f"{alias}: it is {value!r}, and under another name {former!r}; leave one of them out")
        found[alias] = value
    return found


def _problems(name: str, error: ValidationError, named: Mapping[str | None, str] = MappingProxyType({})) -> str:
    """Return the problems in words, each with its path below a name; `named` has other names of fields."""
    return "; ".join(
        f"{'.'.join([name, *(named.get(str(step), str(step)) for step in item['loc'])])}: "
        f"{_message(item['type'], item['msg'])}"
        for item in error.errors()
    )


def _message(kind: str, text: str) -> str:
    if kind == "value_error":  # a message of this module
        return text.removeprefix("Value error, ")
    return "unknown field" if kind == "extra_forbidden" else text[:1].lower() + text[1:]
