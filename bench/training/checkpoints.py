"""The cost of a checkpoint of a large table: the chief's memory, the delay of steps, and the time compared with `dd`.

A job has a table of 2.1 GB on two servers, one chief and one worker. A full save is followed by an incremental one.
Then the servers are killed, and the chief restores them from both. With --small the table has 21 MB.
"""

import itertools
import os
import statistics
import subprocess
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from bench.training.checkpoint_program import WIDTH
from bench.training.figures import Taken
from bench.training.measurement import Effort, Measurement
from bench.usage import usage
from pstraining.runtime.local import LocalJob

NAME: Final = "a table of 2.1 GB on two servers"
SAVE_MEMORY: Final = f"{NAME}: MB by which the chief grows in a save"
RESTORE_MEMORY: Final = f"{NAME}: MB by which the chief grows in a restore"
STALL: Final = f"{NAME}: seconds that steps wait in a save"
SAVE: Final = f"{NAME}: seconds of a save"
RATIO: Final = f"{NAME}: seconds of a save / of dd"
RESTORE: Final = f"{NAME}: seconds of a restore"
CHANGED: Final = f"{NAME}: seconds of an incremental save / of a full one"
CHANGED_BYTES: Final = f"{NAME}: bytes that an incremental save writes / a full one"
CHANGED_STALL: Final = f"{NAME}: seconds that steps wait in an incremental save"
ROWS: Final = {False: 8 << 20, True: 80 << 10}
LIMIT: Final = 400.0
QUIET: Final = 5
"""Seconds of training before a save, from which the chief's memory and the usual step are taken."""


@dataclass
class Sampled:
    """A process's memory over time."""

    seen: list[tuple[float, float]]

    def growth(self, begin: float, end: float) -> float:
        """MB by which the process was larger between two moments than in the seconds before."""
        before = [size for at, size in self.seen if begin - QUIET / 2 < at <= begin]
        during = [size for at, size in self.seen if begin < at <= end]
        return max(during) - statistics.median(before)


@contextmanager
def sampled(pid: int) -> Iterator[Sampled]:
    """Read a process's resident memory every 20 ms."""
    found, over = Sampled([]), threading.Event()

    def sample() -> None:
        while not over.wait(0.02):
            found.seen.append((time.time(), usage(pid).rss))

    thread = threading.Thread(target=sample, daemon=True)
    thread.start()
    try:
        yield found
    finally:
        over.set()
        thread.join()


def take(effort: Effort) -> Taken:
    """Measure a full save, an incremental one, and a restore in every round."""
    rounds = [_round(ROWS[effort.small]) for _ in range(1 if effort.small else effort.rounds)]
    return {name: [row[name] for row in rounds] for name in FIGURES}


def _round(rows: int) -> dict[str, float]:
    with tempfile.TemporaryDirectory() as folder:
        times = Path(folder) / "times"
        environment = {"BENCH_ROWS": str(rows), "BENCH_TIMES": str(times)}
        checkpoint = {"path": f"{folder}/saved", "intervalSeconds": 6 * QUIET, "keep": 2, "fullEvery": 2}
        command = ["-m", "bench.training.checkpoint_program"]
        options: dict[str, Any] = {"checkpoint": checkpoint, "environment": environment, "restarts": 3}
        with LocalJob(command, ps=2, workers=1, training={"minShardBytes": 0}, **options) as job:
            chief = job.processes["chief"]
            _until(job, times.exists)
            with sampled(chief.popen.pid) as memory:
                (saved,) = _until(job, lambda: chief.events("checkpoint"))[:1]
                end, seconds = time.time(), float(saved["seconds"])
                found = {SAVE: seconds, SAVE_MEMORY: memory.growth(end - seconds - 1, end)}
                found[STALL] = _stall(times, end - seconds - 3, end)
                found |= _incremental(_until(job, lambda: chief.events("checkpoint")[1:])[0], seconds, times)
                began = time.time()
                for name in ("ps-0", "ps-1"):
                    job.kill(name)
                (restored,) = _until(job, lambda: chief.events("restored"))[:1]
                found |= {RESTORE_MEMORY: memory.growth(began, time.time()), RESTORE: float(restored["seconds"])}
        return {**found, RATIO: seconds / _dd(folder, rows * WIDTH * 4)}


def _incremental(saved: dict[str, Any], full: float, times: Path) -> dict[str, float]:
    """Return the figures of an incremental save; `full`: seconds of the full one before it."""
    if saved["full"]:
        raise RuntimeError("the second save is full: too many rows have changed")
    end, seconds = time.time(), float(saved["seconds"])
    sizes = {file.name: file.stat().st_size for file in Path(saved["path"]).iterdir()}
    changed = sum(size for name, size in sizes.items() if "-changed-" in name)
    return {
        CHANGED: seconds / full,
        CHANGED_BYTES: changed / (sum(sizes.values()) - changed),
        CHANGED_STALL: _stall(times, end - seconds - 3, end),
    }


def _until(job: LocalJob, look: Callable[[], Any]) -> Any:
    """Wait for a value, and return it."""
    deadline = time.monotonic() + LIMIT
    while not (found := look()):
        if time.monotonic() > deadline:
            raise TimeoutError("\n".join(job.processes["chief"].lines[-20:]))
        job.supervise()
        time.sleep(0.02)
    return found


def _stall(times: Path, begin: float, end: float) -> float:
    """Return the longest time between two batches in this span, beyond the usual one."""
    taken = [float(line) for line in times.read_text().split("\n")[:-1]]
    steps = [(after, after - before) for before, after in itertools.pairwise(taken)]
    usual = statistics.median(length for at, length in steps if at < begin)
    return max(length for at, length in steps if begin <= at <= end) - usual


def _dd(folder: str, size: int) -> float:
    """Return the seconds in which dd writes a number of bytes to disk."""
    blocks = max(1, size >> 23)
    command = ["dd", "if=/dev/zero", f"of={folder}/dd", "bs=8M", f"count={blocks}", "conv=fsync"]
    began = time.monotonic()
    subprocess.run(command, check=True, stderr=subprocess.DEVNULL)
    os.unlink(f"{folder}/dd")
    return time.monotonic() - began


FIGURES: Final = (
    *(SAVE_MEMORY, RESTORE_MEMORY, STALL, SAVE, RATIO, RESTORE),
    *(CHANGED, CHANGED_BYTES, CHANGED_STALL),
)
MEASUREMENTS: Final = (Measurement("checkpoint: 2.1 GB", FIGURES, take),)
