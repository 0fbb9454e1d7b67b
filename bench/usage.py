"""What a process has cost so far, by /proc."""

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Final

TICKS: Final = os.sysconf("SC_CLK_TCK")


@dataclass(frozen=True)
class Usage:
    """What a process has cost so far."""

    cpu: float
    """Seconds, user and system."""
    rss: float
    peak: float
    """Megabytes now and at most."""


def usage(pid: int) -> Usage:
    """The cost of a process that runs."""
    folder = Path(f"/proc/{pid}")
    fields = (folder / "stat").read_text().rpartition(")")[2].split()
    status = dict(line.split(":", 1) for line in (folder / "status").read_text().splitlines())
    rss, peak = (int(status[name].split()[0]) / 1024 for name in ("VmRSS", "VmHWM"))
    return Usage((int(fields[11]) + int(fields[12])) / TICKS, rss, peak)
