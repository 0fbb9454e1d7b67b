"""What a task's worker and chief are built from. Imports no TensorFlow."""

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from pstraining.runtime.config.settings import CheckpointSettings, TrainingSettings
from pstraining.runtime.data.sources import Source
from pstraining.runtime.replication.renewal import Renewal
from pstraining.runtime.telemetry.summaries_folder import SummariesFolder
from pstraining.runtime.tracking.tracking import Tracking

if TYPE_CHECKING:
    from pstraining.runtime.data.epochs import Epochs
    from pstraining.runtime.history.recorder import HistoryRecorder
    from pstraining.runtime.model.keras_model import Model
    from pstraining.runtime.telemetry.counters import ChiefCounters, WorkerCounters
    from pstraining.runtime.transport.client import PSClient
    from pstraining.runtime.updates.factory import UpdateFactory


@dataclass(frozen=True)
class Outputs:
    """What the chief writes beside checkpoints, and for a tracker of experiments."""

    history: "HistoryRecorder"
    tracking: Tracking
    summaries: SummariesFolder


@dataclass(frozen=True)
class TaskContext:
    """Inputs of a task's worker and chief."""

    client: "PSClient"
    training: TrainingSettings
    checkpoint: CheckpointSettings
    renewal: Renewal
    outputs: Outputs
    mode: "UpdateFactory"
    source: Source | None
    """Source of assigned data; None if each worker has its dataset."""
    epochs: "Epochs"
    counters: "WorkerCounters"
    chiefs: "ChiefCounters"
    models: "list[Model]" = field(default_factory=list)
    """The models of this process: that of the chief, that of the worker, or both."""
