"""How busy the cores of the machine are: pods and daemons count as well as the tests."""

import os
from dataclasses import dataclass
from pathlib import Path

STAT = Path("/proc/stat")
_BUSY = (0, 1, 2, 5, 6)
"""user, nice, system, irq, softirq; idle and iowait are not, and steal (7) is another machine's."""
_COLUMNS = 8
"""guest and guest_nice, which follow, are in user and nice already."""


@dataclass(frozen=True)
class Cores:
    """Seconds of all cores, since the machine started or between two looks."""

    busy_s: float
    total_s: float

    @property
    def share(self) -> float:
        """The part of the time in which a core was busy."""
        return self.busy_s / self.total_s if self.total_s else 0.0

    def since(self, before: "Cores") -> "Cores":
        """What was added after an earlier look."""
        return Cores(self.busy_s - before.busy_s, self.total_s - before.total_s)


NOTHING = Cores(0.0, 0.0)


def look(stat: Path = STAT) -> Cores:
    """The seconds so far; nothing where the kernel does not count them so."""
    try:
        first = stat.read_text("ascii").split("\n", 1)[0].split()
    except OSError:
        return NOTHING
    ticks = [int(column) for column in first[1 : 1 + _COLUMNS]]
    per_second = os.sysconf("SC_CLK_TCK")
    return Cores(sum(ticks[i] for i in _BUSY) / per_second, sum(ticks) / per_second)
