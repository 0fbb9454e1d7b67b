"""CPU time and memory of a process, from /proc."""

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Final

TICKS: Final = os.sysconf("SC_CLK_TCK")


@dataclass(frozen=True)
class Usage:
    """CPU time and memory of a process since its start."""

    cpu: float
    """Seconds of CPU time, user and system."""
    rss: float
    """Resident megabytes."""


def usage(pid: int) -> Usage:
    """Return the present cost of a running process."""
    folder = Path(f"/proc/{pid}")
    fields = (folder / "stat").read_text().rpartition(")")[2].split()
    status = dict(line.split(":", 1) for line in (folder / "status").read_text().splitlines())
    return Usage((int(fields[11]) + int(fields[12])) / TICKS, int(status["VmRSS"].split()[0]) / 1024)
