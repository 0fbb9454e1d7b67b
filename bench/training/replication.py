"""The cost of hot standbys without a loss: the same job with and without standbys, in alternation.

By the analysis, a standby receives its shard's mean gradient once per step, a 2n-th of the bytes that n workers send
and fetch. It also applies every step, and holds a copy of its primary's state.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Final

from bench.training.figures import Taken
from bench.training.measurement import Effort, Measurement
from bench.training.network import Links
from bench.training.runs import Figures, Load, in_turn, measure
from bench.training.volume import SYNC

MODELS: Final = {"medium": "4 MB", "big": "100 MB"}
KINDS: Final = (
    "step time, with / without",
    "bytes a step, with / without",
    "bytes a step, with / without, by the analysis",
    "processor time a step, with / without",
    "steps/s, without",
    "resident MB of a server, without",
    "resident MB of a primary",
    "resident MB of a standby",
)
WORKERS: Final = 2


def named(size: str, kind: str) -> str:
    """Return a figure's name."""
    return f"hot standby, {size}: {kind}"


def take(model: str, size: str, effort: Effort) -> Taken:
    """Measure one model."""
    training = {**SYNC, "minShardBytes": 0}
    loads = [Load(model, ps=2, standbys=number, workers=WORKERS, training=training) for number in (0, 1)]
    rounds = in_turn(loads, effort)

    def ratio(value: Callable[[Figures], float]) -> list[float]:
        return [value(hot) / value(plain) for plain, hot in rounds]

    def resident(number: int, name: str) -> list[float]:
        return [row[number].resident[name] / 1e6 for row in rounds]

    found: tuple[float | list[float], ...] = (
        ratio(lambda figures: 1 / figures.steps_per_second),
        ratio(lambda figures: figures.bytes / figures.steps),
        1 + 1 / (2 * WORKERS),
        ratio(lambda figures: figures.processor_seconds / figures.steps),
        [plain.steps_per_second for plain, _ in rounds],
        resident(0, "ps-0"),
        resident(1, "ps-0"),
        resident(1, "ps-2"),
    )
    return {named(size, kind): values for kind, values in zip(KINDS, found, strict=True)}


@dataclass(frozen=True)
class Shaped:
    """Measure a load that leaves the cores idle time, on links of 1 Gbit/s."""

    model: str
    workers: int
    compute: float
    """Duration of a gradient's computation in seconds."""

    def take(self, name: str, effort: Effort) -> Taken:
        """Measure the load with and without standbys, in alternation."""
        training = {**SYNC, "minShardBytes": 0}
        delay = {"BENCH_DELAY": str(self.compute)}
        load = Load(self.model, ps=2, workers=self.workers, training=training, environment=delay)
        found = []
        for _ in range(effort.rounds):
            row = []
            for one in (load, replace(load, standbys=1)):
                with Links(one.tasks, "1gbit") as links:
                    row.append(1 / measure(one, effort, links).steps_per_second)
            found.append(row)
        plain, hot = zip(*found, strict=True)
        ratios = [with_standby / without for without, with_standby in found]
        return dict(zip(shaped(name), (ratios, list(plain), list(hot)), strict=True))


SHAPED: Final = {
    "digits CNN, 4 workers, 0.1 s of computing": Shaped("digits", 4, 0.1),
    "17 MB, 2 workers": Shaped("dense", 2, 0.0),
}


def shaped(name: str) -> tuple[str, ...]:
    """Return the names of the load's figures."""
    kinds = ("step time, with / without", "seconds a step, without", "seconds a step, with")
    return tuple(f"hot standby, 1 Gbit/s, {name}: {kind}" for kind in kinds)


MEASUREMENTS: Final = (
    *(
        Measurement(f"hot standby: {size}", tuple(named(size, kind) for kind in KINDS), partial(take, model, size))
        for model, size in MODELS.items()
    ),
    *(Measurement(f"hot standby: {name}", shaped(name), partial(load.take, name)) for name, load in SHAPED.items()),
)
