"""Computes rates from two scrapes of each task. Pure. A counter that decreased shows a restarted process."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from statistics import median
from typing import Any, Final

from pstraining.cli.metrics.samples import Samples

SLOW: Final = 0.75
"""A straggler is a worker with less than this share of the median worker's steps."""
ENOUGH_STEPS: Final = 5
"""Minimum steps of the median worker in the interval. With fewer steps, differences are random: none is a straggler."""


@dataclass(frozen=True)
class Scrape:
    """A task's metrics at one moment."""

    at: float
    """Time of the scrape on a monotonic clock, in seconds."""
    samples: Samples


@dataclass(frozen=True)
class TaskRates:
    """A task's rates between two scrapes. None is a missing metric."""

    devices: dict[str, int] | None = None
    """Number of devices that the task computes on, by type."""
    steps_per_second: float | None = None
    examples_per_second: float | None = None
    step_seconds: float | None = None
    """Mean time from the end of a step to the end of the next."""
    staleness: float | None = None
    """Mean number of other workers' updates between the task's pull and its update."""
    dropped: int | None = None
    """Number of steps that missed their round."""
    sent_bytes_per_second: float | None = None
    """Bytes sent to parameter servers, per second."""
    received_bytes_per_second: float | None = None
    straggler: bool = False
    steps: float = 0.0
    """Number of steps in the interval."""
    problem: str = ""
    """The reason that the task has no rates; empty otherwise."""


@dataclass(frozen=True)
class JobRates:
    """The job's rates, from the chief's metrics."""

    step: int | None
    steps_per_second: float | None
    epoch: int | None
    loss: float | None
    workers_present: int | None
    load_skew: float | None
    """Bytes exchanged with the heaviest shard, as a multiple of the mean."""


def task_rates(before: Scrape, after: Scrape) -> TaskRates:
    """Return a task's rates between two scrapes."""
    between = _Between(before, after)
    if between.is_restarted():
        return TaskRates(problem="its program was restarted between the scrapes")
    worker = "pstraining_worker_"
    dropped = between.increase(f"{worker}dropped_total")
    return TaskRates(
        devices=compute_devices(after.samples),
        steps_per_second=between.rate(f"{worker}steps_total"),
        examples_per_second=between.rate(f"{worker}samples_total"),
        step_seconds=between.mean(f"{worker}step_seconds"),
        staleness=between.mean(f"{worker}staleness"),
        dropped=None if dropped is None else int(dropped),
        sent_bytes_per_second=_total(between.by_peer("pstraining_sent_bytes_total")),
        received_bytes_per_second=_total(between.by_peer("pstraining_received_bytes_total")),
        steps=between.increase(f"{worker}steps_total") or 0.0,
    )


def compute_devices(samples: Samples) -> dict[str, int] | None:
    """Return the number of devices that a task computes on, by type; None without the metric."""
    return {kind: int(number) for kind, number in samples.by("pstraining_compute_devices", "type").items()} or None


def stragglers(found: Mapping[str, TaskRates]) -> set[str]:
    """Return the workers with far fewer steps than the median worker."""
    steps = {name: rates for name, rates in found.items() if rates.steps_per_second is not None}
    if len(steps) < 2 or median(r.steps for r in steps.values()) < ENOUGH_STEPS:
        return set()
    usual = median(r.steps_per_second or 0.0 for r in steps.values())
    return {name for name, rates in steps.items() if (rates.steps_per_second or 0.0) < SLOW * usual}


def server_rates(pairs: Sequence[tuple[Scrape, Scrape]]) -> list[dict[str, Any]]:
    """Return the rates of each parameter server, summed over the tasks' counters."""
    found: dict[str, dict[str, float]] = {}
    directions = {"received": "pstraining_sent_bytes_total", "sent": "pstraining_received_bytes_total"}
    for before, after in pairs:
        between = _Between(before, after)
        if between.is_restarted():
            continue
        for direction, name in directions.items():
            for peer, rate in between.by_peer(name).items():
                both = found.setdefault(peer, dict.fromkeys(directions, 0.0))
                both[direction] += rate
    return [
        {"server": peer, "receivedBytesPerSecond": both["received"], "sentBytesPerSecond": both["sent"]}
        for peer, both in sorted(found.items(), key=lambda item: (len(item[0]), item[0]))
    ]


def job_rates(pairs: Sequence[tuple[Scrape, Scrape]]) -> JobRates | None:
    """Return the job's rates from the task that reports the global step; None without one."""
    name = "pstraining_global_step"
    for before, after in pairs:
        samples = after.samples
        if samples.value(name) is None:
            continue
        return JobRates(
            step=_whole(samples.value(name)),
            # The step decreases when a checkpoint is restored.
            steps_per_second=_Between(before, after).rate(name),
            epoch=_whole(samples.value("pstraining_epoch")),
            loss=_finite(samples.value("pstraining_loss")),
            workers_present=_whole(samples.value("pstraining_workers_present")),
            load_skew=_finite(samples.value("pstraining_load_skew")),
        )
    return None


def as_data(rates: TaskRates | JobRates) -> dict[str, Any]:
    """Return rates for programs, with the field names of the API."""
    return {_camel(name): value for name, value in asdict(rates).items()}


class _Between:
    """Two scrapes of one process."""

    def __init__(self, before: Scrape, after: Scrape) -> None:
        self._before, self._after = before.samples, after.samples
        self._seconds = after.at - before.at

    def is_restarted(self) -> bool:
        """Return whether a counter decreased or disappeared."""
        return any(
            name.endswith("_total") and self._after.values.get((name, labels), math.inf) < value
            for (name, labels), value in self._before.values.items()
        )

    def increase(self, name: str) -> float | None:
        """Return the increase of a metric; None if it is missing in a scrape or decreased."""
        before, after = self._before.value(name), self._after.value(name)
        return None if before is None or after is None or after < before else after - before

    def rate(self, name: str) -> float | None:
        """Return the increase of a metric per second."""
        grown = self.increase(name)
        return None if grown is None or self._seconds <= 0 else grown / self._seconds

    def mean(self, name: str) -> float | None:
        """Return the mean of the values that a histogram observed."""
        count, total = self.increase(f"{name}_count"), self.increase(f"{name}_sum")
        return None if not count or total is None else total / count

    def by_peer(self, name: str) -> dict[str, float]:
        """Return rates by the label `peer`. A new peer has counted from 0."""
        before, after = self._before.by(name, "peer"), self._after.by(name, "peer")
        if self._seconds <= 0:
            return {}
        return {peer: (value - before.get(peer, 0.0)) / self._seconds for peer, value in after.items()}


def _total(rates: Mapping[str, float]) -> float | None:
    return sum(rates.values()) if rates else None


def _finite(value: float | None) -> float | None:
    return value if value is not None and math.isfinite(value) else None


def _whole(value: float | None) -> int | None:
    return None if _finite(value) is None else int(value or 0)


def _camel(name: str) -> str:
    first, *rest = name.split("_")
    return first + "".join(part.capitalize() for part in rest)
