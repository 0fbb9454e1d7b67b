"""Bytes on the busiest link of hybrid training, pure schemes and the optimum: `python -m bench.training.hybrid`.

The bytes on a task's link are those that its sockets send or receive, whichever is more: links are full duplex. They
are the kernel's counts of TCP connections, without headers. The optimum for dense gradients on n workers and k
parameter servers is Theorem 1 of BytePS (Jiang et al., OSDI 2020). Needs root, for a separate network, and `ss`.
"""

import argparse
import json
import os
import re
import subprocess
import sys
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from bench.training import hybrid_program, network
from pstraining.runtime.local import LocalJob

PACE = 0.5
"""Minimum seconds of a step."""
WORST = 1.05
"""Maximum ratio of bytes on the busiest link: hybrid training to the better pure scheme."""


@dataclass(frozen=True)
class Load:
    """A job."""

    mode: str
    table: str
    workers: int
    ps: int


@dataclass(frozen=True)
class Figures:
    """The traffic of a job's step."""

    busiest: str
    """The task with the busiest link."""
    busiest_bytes: float
    """Bytes on that link, in the direction with more."""
    total_bytes: float
    """Bytes that all tasks send."""
    steps: int
    """Number of measured steps."""


def optimum(workers: int, ps: int, size: float) -> float:
    """Return the minimum bytes on every link for dense gradients of this size (BytePS, Theorem 1)."""
    return 2 * workers * (workers - 1) * size / (workers**2 + ps * workers - 2 * ps)


def measure(load: Load, *, steps: int, limit: float = 300.0) -> Figures:
    """Run a job, and count its bytes over a number of steps.

    Raises:
        TimeoutError: the job does not train.
    """
    os.environ |= {"BENCH_TABLE": load.table, "BENCH_PACE": str(PACE)}
    deadline = time.monotonic() + limit
    with LocalJob(
        ["-m", "bench.training.hybrid_program"],
        ps=load.ps,
        workers=load.workers,
        chief=True,
        training={"mode": load.mode},
    ) as job:
        first, before = _at_a_report(job, 5, deadline)
        last, after = _at_a_report(job, first + steps, deadline)
        tasks = {process.popen.pid: name for name, process in job.processes.items()}
    links = {
        name: tuple((after[pid][way] - before[pid][way]) / (last - first) for way in (0, 1))
        for pid, name in tasks.items()
    }
    busiest = max(links, key=lambda name: max(links[name]))
    return Figures(busiest, max(links[busiest]), sum(sent for sent, _ in links.values()), last - first)


def _at_a_report(job: LocalJob, step: int, deadline: float) -> tuple[int, dict[int, tuple[int, int]]]:
    """Return the step and every process's bytes, right after a report of this step or a later one."""
    worker = job.processes["worker-0"]
    seen = len(worker.events("worker"))
    while True:
        if job.supervise() is not None or time.monotonic() > deadline:
            raise TimeoutError("\n".join(["the job does not train", *worker.lines[-30:]]))
        events = worker.events("worker")
        if len(events) > seen and events[-1]["step"] >= step:
            time.sleep(PACE / 4)  # other workers fetch this step meanwhile; the next step has not started
            return int(events[-1]["step"]), _carried()
        seen = len(events)
        time.sleep(0.01)


def _carried() -> dict[int, tuple[int, int]]:
    """Return the bytes that every process's open TCP connections have sent and received."""
    lines = subprocess.run(["ss", "-tinpH"], check=True, capture_output=True, text=True).stdout.splitlines()
    found: dict[int, tuple[int, int]] = {}
    pids: list[int] = []
    for line in lines:
        if not line.startswith(("\t", " ")):
            pids = [int(pid) for pid in dict.fromkeys(re.findall(r"pid=(\d+)", line))]
            continue
        sent, received = (_number(line, name) for name in ("bytes_sent", "bytes_received"))
        for pid in pids:
            former = found.get(pid, (0, 0))
            found[pid] = (former[0] + sent, former[1] + received)
    return found


def _number(line: str, name: str) -> int:
    match = re.search(rf"\b{name}:(\d+)", line)
    return int(match[1]) if match else 0


LOADS = {
    "mixed, parameter servers (Sync)": Load("Sync", "servers", workers=4, ps=1),
    "mixed, all-reduce (the table dense)": Load("Hybrid", "dense", workers=4, ps=1),
    "mixed, Hybrid": Load("Hybrid", "servers", workers=4, ps=1),
    "dense, Hybrid, n=4 k=1": Load("Hybrid", "none", workers=4, ps=1),
    "dense, Hybrid, n=8 k=2": Load("Hybrid", "none", workers=8, ps=2),
}


def judge(found: dict[str, Figures]) -> dict[str, float]:
    """Return the ratios for the measured loads."""
    ratios: dict[str, float] = {}
    mixed = [found.get(name) for name in list(LOADS)[:3]]
    if all(mixed):
        servers, ring, hybrid = (figures.busiest_bytes for figures in mixed if figures)
        ratios["hybrid / better pure scheme"] = hybrid / min(servers, ring)
    for name, load in LOADS.items():
        if load.table == "none" and name in found:
            least = optimum(load.workers, load.ps, hybrid_program.DENSE_BYTES)
            ratios[f"{name} / optimum"] = found[name].busiest_bytes / least
    return ratios


def main(arguments: list[str] | None = None) -> int:
    """Run the command line; return 1 if hybrid training exceeds the limit."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", default="", help="names of loads that contain this")
    parser.add_argument("--steps", type=int, default=10, help="over which bytes are counted")
    parser.add_argument("--out", type=Path, help="a file for the figures, as JSON")
    options = parser.parse_args(arguments)
    network.leave()
    found: dict[str, Figures] = {}
    for name, load in LOADS.items():
        if options.only in name:
            found[name] = measure(load, steps=options.steps)
            sys.stdout.write(f"{name}: {found[name]}\n")
            sys.stdout.flush()
    ratios = judge(found)
    sys.stdout.write(json.dumps(ratios) + "\n")
    if options.out:
        document: dict[str, Any] = {"loads": {name: asdict(figures) for name, figures in found.items()}}
        options.out.write_text(json.dumps(document | {"ratios": ratios}, indent=1) + "\n")
    return int(ratios.get("hybrid / better pure scheme", 0.0) > WORST)


if __name__ == "__main__":
    sys.exit(main())
