"""One of several workers computes ten times as slowly as the others.

The computation is a sleep: the machine's cores do not affect the figures.
"""

from dataclasses import replace
from typing import Final

from bench.training.figures import Taken
from bench.training.measurement import Effort, Measurement
from bench.training.runs import Figures, Load, measure
from bench.training.volume import SYNC

WITH: Final = "straggler, 1 backup worker: updates/s, over those of all workers without a straggler"
WITHOUT: Final = "straggler, no backup worker: updates/s, over those of all workers without a straggler"
SAMPLES: Final = "straggler, 1 backup worker: samples/s, over those of all workers without a straggler"
DELAY: Final = 0.5
"""Duration of a gradient's computation in seconds."""


def without_backup(effort: Effort) -> Taken:
    """Measure a straggler's effect without backup workers: each update takes as long as the slowest gradient."""
    base, slow = _jobs(effort)
    return {WITHOUT: _rate(slow, effort, updates=30).steps_per_second / _rate(base, effort).steps_per_second}


def with_backup(effort: Effort) -> Taken:
    """Measure the same with one backup worker: an update has the first gradients of all workers but one."""
    base, slow = _jobs(effort)
    whole = _rate(base, effort)
    saved = _rate(replace(slow, training={**SYNC, "backupWorkers": 1}), effort)
    return {
        WITH: saved.steps_per_second / whole.steps_per_second,
        SAMPLES: saved.samples_per_second / whole.samples_per_second,
    }


def _jobs(effort: Effort) -> tuple[Load, Load]:
    """Return the load with equal workers, and the one whose last worker is slow."""
    workers, delay = (2, 0.2) if effort.small else (8, DELAY)
    even = {"BENCH_DELAY": str(delay)}
    base = Load("small", workers=workers, chief=False, reporters=("worker-0",), training=SYNC, environment=even)
    return base, replace(base, environment={**even, "BENCH_SLOW": str(workers - 1)})


def _rate(load: Load, effort: Effort, *, updates: int = 20) -> Figures:
    """Return a job's rate, measured for at least the time of this number of gradients."""
    assert load.environment
    seconds = max(effort.seconds, updates * float(load.environment["BENCH_DELAY"]))
    return measure(load, replace(effort, seconds=seconds))


MEASUREMENTS: Final = (
    Measurement("straggler: backup", (WITH, SAMPLES), with_backup),
    Measurement("straggler: no backup", (WITHOUT,), without_backup),
)
