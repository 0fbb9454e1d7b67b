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
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return Usage((int(fields[11]) + int(fields[12])) / TICKS, _megabytes(pid, "VmRSS"))


def anonymous_megabytes(pid: int) -> float:
    """Return the resident megabytes of a running process without the pages of files."""
    return _megabytes(pid, "RssAnon")


def _megabytes(pid: int, field: str) -> float:
    status = dict(line.split(":", 1) for line in Path(f"/proc/{pid}/status").read_text().splitlines())
    return int(status[field].split()[0]) / 1024
