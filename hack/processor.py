"""The use of the machine's cores by all processes, including pods and daemons."""

import os
from dataclasses import dataclass
from pathlib import Path

STAT = Path("/proc/stat")
_BUSY = (0, 1, 2, 5, 6)
"""Columns of busy time: user, nice, system, irq, softirq; not idle, iowait, and steal (7) by other machines."""
_COLUMNS = 8
"""Columns to read; guest and guest_nice, which follow, are included in user and nice."""


@dataclass(frozen=True)
class Cores:
    """Seconds of all cores, since the machine's start or between two measurements."""

    busy_s: float
    total_s: float

    @property
    def share(self) -> float:
        """The share of the time in which a core was busy, from 0 to 1."""
        return self.busy_s / self.total_s if self.total_s else 0.0

    def since(self, before: "Cores") -> "Cores":
        """Return the seconds since an earlier measurement."""
        return Cores(self.busy_s - before.busy_s, self.total_s - before.total_s)


NOTHING = Cores(0.0, 0.0)


def look(stat: Path = STAT) -> Cores:
    """Return the seconds so far; None where the kernel does not count them."""
    try:
        first = stat.read_text("ascii").split("\n", 1)[0].split()
    except OSError:
        return NOTHING
    ticks = [int(column) for column in first[1 : 1 + _COLUMNS]]
    per_second = os.sysconf("SC_CLK_TCK")
    return Cores(sum(ticks[i] for i in _BUSY) / per_second, sum(ticks) / per_second)
