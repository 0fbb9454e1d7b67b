"""The two clocks of the reconciler: they are parameters, so tests need not wait."""

import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime


def _now() -> datetime:
    return datetime.now(UTC)


@dataclass(frozen=True)
class ReconcilerClocks:
    """The time of day for written times, and monotonic seconds for delays, because the time of day may be set back."""

    time_of_day: Callable[[], datetime] = _now
    monotonic: Callable[[], float] = time.monotonic


SYSTEM = ReconcilerClocks()
"""The clocks of the machine."""
