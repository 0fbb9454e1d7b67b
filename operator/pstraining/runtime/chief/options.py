"""The chief's settings."""

import zlib
from collections.abc import Callable
from dataclasses import dataclass, field

from pstraining.runtime.chief.recovery import ORDER_BITS
from pstraining.runtime.chief.reports.reporting import FitOptions
from pstraining.runtime.config.settings import CheckpointSettings, TrainingSettings
from pstraining.runtime.data.sources import Order
from pstraining.runtime.history.recorder import HistoryRecorder
from pstraining.runtime.model.tensor import Dataset
from pstraining.runtime.telemetry.counters import ChiefCounters


@dataclass(frozen=True)
class ChiefOptions:
    """The chief's settings."""

    training: TrainingSettings
    checkpoint: CheckpointSettings
    evaluate: Callable[[], Dataset] | None
    positions: int | None = None
    """Number of positions of assigned data; None if data does not limit training."""
    by_splits: bool = False
    """Whether epochs are counted in splits of assigned data; otherwise in steps."""
    order: Order | None = None
    """The splits of assigned data and their order; None: the data is not assigned."""
    fit: FitOptions = field(default_factory=FitOptions)
    counters: ChiefCounters = field(default_factory=ChiefCounters)
    history: HistoryRecorder = field(default_factory=HistoryRecorder)

    @property
    def order_number(self) -> int:
        """Return the number of `order` in generations, see `recovery.ORDER_BITS`; 0: the data is not assigned."""
        return (zlib.crc32(self.order.text().encode()) % (1 << ORDER_BITS) or 1) if self.order else 0
