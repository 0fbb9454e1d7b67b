"""Workers' counters, summed on the chief.

A worker sends its counters with its heartbeats, as JSON: outside of steps, and at most a second old. A counter starts
at 0 with its process; the aggregate keeps the sums of replaced processes.

Pure; importing it imports no TensorFlow.
"""

import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

Counters = dict[str, float]

SAMPLES = "samples"
SENT = "sent_bytes"
RECEIVED = "received_bytes"
LINK = "link/"
"""Prefix of a parameter server's name: bytes to and from that server."""
METRIC = "metric/"
"""Prefix of a metric's name: the sum of its values times their samples."""
WEIGHT = "weight/"
"""Prefix of a metric's name: the number of its samples."""
STATE = "state/"
"""Prefix of an index in the states of Keras' metrics: the sum of that number over batches."""
OF_BATCHES = METRIC, WEIGHT, STATE
"""Prefixes of the counters from which the logs of an epoch follow."""


def encode(
    incarnation: int,
    counters: Mapping[str, float],
    outputs: str = "",
    order: str = "",
    session: "SessionCounters | None" = None,
) -> str:
    """Return a worker's report, without counters that are not finite.

    Args:
        incarnation: start of the worker's process, in nanoseconds since 1970.
        counters: the process's counters.
        outputs: description of the model's outputs for Keras' metrics, see `model.training.training_metrics`.
        order: the splits of assigned data and their order as text, see `data.sources`; empty: the data is not assigned.
        session: the worker's session; None: the first one, on any set of parameters.
    """
    report = {"incarnation": incarnation, "counters": _finite(counters), "outputs": outputs, "order": order}
    if session:
        report |= {"before": _finite(session.before), "generation": session.generation}
    return json.dumps(report)


def _finite(counters: Mapping[str, float]) -> Counters:
    return {name: value for name, value in counters.items() if math.isfinite(value)}


class SessionCounters:
    """A worker's counters at the beginning of its present session."""

    def __init__(self) -> None:
        self._fence: int | None = None
        self.generation = 0
        """The number of the set of parameters: each restore puts another set on the servers."""
        self.before: Counters = {}
        """The counters; empty in the first session of the process."""

    def begin(self, fence: int, generation: int, count: Callable[[], Counters]) -> None:
        """Note a session under a chief's fence; `count` returns the counters at present."""
        if self._fence is not None and (self._fence, self.generation) != (fence, generation):
            self.before = count()
        self._fence, self.generation = fence, generation


class CounterAggregate:
    """Sums the counters of all workers."""

    def __init__(self) -> None:
        self._last: dict[int, tuple[int, Counters]] = {}
        self._generations: dict[int, int] = {}  # of the set of parameters that each worker trains
        self._replaced = set[tuple[int, int]]()  # former processes, by index and incarnation
        self._begun = False
        self.total: Counters = {}
        """Counters of all workers since the first reports; earlier work does not count."""
        self.outputs = ""
        """The description of the model's outputs that a worker reported; empty before the first report."""
        self.orders: dict[int, str] = {}
        """The order of assigned data in each worker that has reported since the first reports."""

    def names(self, prefix: str) -> list[str]:
        """Return the names of the counters with a prefix, without it."""
        return [name.removeprefix(prefix) for name in self.total if name.startswith(prefix)]

    def note(self, reports: Sequence[str]) -> None:
        """Add every worker's newest report, by index; an empty report is ignored."""
        for worker, text in enumerate(reports):
            if not text:
                continue
            report = json.loads(text)
            incarnation, counters = int(report["incarnation"]), dict(report["counters"])
            if self._is_outdated(worker, incarnation, counters):
                continue
            self.outputs = str(report["outputs"]) or self.outputs
            if self._begun and self._last.get(worker) != (incarnation, counters):  # of a process that is alive
                self.orders[worker] = str(report.get("order", ""))
            # Servers that came back empty have no report of a worker's time before they were lost.
            start: Counters = dict(report.get("before", {}))
            generation = int(report.get("generation", 0))
            former, last = self._last.get(worker, (incarnation, start if self._begun else counters))
            if former != incarnation:
                self._replaced.add((worker, former))
                last = {}
            if generation != self._generations.get(worker, generation):  # a restore took back what was not reported yet
                last = last | {name: start.get(name, 0.0) for name in counters if name.startswith(OF_BATCHES)}
            for name, value in counters.items():
                self.total[name] = self.total.get(name, 0.0) + value - last.get(name, 0.0)
            self._last[worker], self._generations[worker] = (incarnation, counters), generation
        self._begun = True

    def _is_outdated(self, worker: int, incarnation: int, counters: Counters) -> bool:
        """Return whether a report precedes the last one: a member that was cut off still has it when it returns."""
        if (worker, incarnation) in self._replaced:
            return True
        last, known = self._last.get(worker, (incarnation, counters))
        return last == incarnation and counters.get(SAMPLES, 0.0) < known.get(SAMPLES, 0.0)


@dataclass(frozen=True)
class Sums:
    """What a window has at a moment."""

    loss: float = 0.0
    samples: float = 0.0
    counted: Counters = field(default_factory=dict)


class Window:
    """The growth of an aggregate, and the losses, since a moment.

    Args:
        aggregate: the counters of all workers.
        sums: what the window has at its beginning.
    """

    def __init__(self, aggregate: CounterAggregate, sums: Sums | None = None) -> None:
        begun = sums or Sums()
        names = aggregate.total.keys() | begun.counted.keys()
        self._aggregate = aggregate
        self._from = {name: aggregate.total.get(name, 0.0) - begun.counted.get(name, 0.0) for name in names}
        self._loss, self._samples = begun.loss, begun.samples

    def sums(self) -> Sums:
        """Return what the window has at present."""
        return Sums(self._loss, self._samples, {name: self.counted(name) for name in self._aggregate.total})

    def add_losses(self, total: float, number: float) -> None:
        """Add losses, given by the sum of their values times samples, and the number of samples."""
        self._loss, self._samples = self._loss + total, self._samples + number

    @property
    def loss(self) -> float:
        """Mean of the losses over their samples; NaN if there was none."""
        return self._loss / self._samples if self._samples else math.nan

    @property
    def losses(self) -> Counters:
        """Return the loss by its name in logs; as in `fit`, it is NaN after a loss that was NaN. Empty: none was."""
        return {"loss": self.loss} if self._samples else {}

    def counted(self, name: str) -> float:
        """Return the growth of a counter."""
        return self._aggregate.total.get(name, 0.0) - self._from.get(name, 0.0)

    def state(self) -> dict[int, float]:
        """Return the growth of the states of Keras' metrics, by index."""
        return {int(place): self.counted(STATE + place) for place in self._aggregate.names(STATE)}

    def metrics(self) -> dict[str, float]:
        """Return the mean of every metric of the program's own training step."""
        weights = {name: self.counted(WEIGHT + name) for name in self._aggregate.names(METRIC)}
        return {name: self.counted(METRIC + name) / weight for name, weight in weights.items() if weight}
