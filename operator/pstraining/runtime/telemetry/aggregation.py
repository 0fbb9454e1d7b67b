"""Workers' counters, summed on the chief.

A worker sends its counters with its heartbeats, as JSON: outside of steps, and at most a second old. A counter starts
at 0 with its process; the aggregate keeps the sums of replaced processes.

Pure; importing it imports no TensorFlow.
"""

import json
import math
from collections.abc import Callable, Mapping, Sequence

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


def encode(
    incarnation: int,
    counters: Mapping[str, float],
    outputs: str = "",
    order: str = "",
    before: Mapping[str, float] | None = None,
) -> str:
    """Return a worker's report, without counters that are not finite.

    Args:
        incarnation: start of the worker's process, in nanoseconds since 1970.
        counters: the process's counters.
        outputs: description of the model's outputs for Keras' metrics, see `model.training.training_metrics`.
        order: the splits of assigned data and their order as text, see `data.sources`; empty: the data is not assigned.
        before: the counters when the process began to train under the chief's term; None: all were 0.
    """
    report = {"incarnation": incarnation, "counters": _finite(counters), "outputs": outputs, "order": order}
    return json.dumps(report | ({"before": _finite(before)} if before else {}))


def _finite(counters: Mapping[str, float]) -> Counters:
    return {name: value for name, value in counters.items() if math.isfinite(value)}


class TermCounters:
    """A worker's counters when it began to train under the present chief's term."""

    def __init__(self) -> None:
        self._term: int | None = None
        self.before: Counters = {}
        """The counters; empty under the term in which the process began."""

    def begin(self, term: int, count: Callable[[], Counters]) -> None:
        """Note a session under a term. `count` returns the counters at present."""
        if self._term not in (None, term):
            self.before = count()
        self._term = term


class CounterAggregate:
    """Sums the counters of all workers."""

    def __init__(self) -> None:
        self._last: dict[int, tuple[int, Counters]] = {}
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
            # Servers that came back empty have no report of a worker's time under the former chief.
            start = dict(report.get("before", {})) if self._begun else counters
            former, before = self._last.get(worker, (incarnation, start))
            for name, value in counters.items():
                known = before.get(name, 0.0) if former == incarnation else 0.0
                self.total[name] = self.total.get(name, 0.0) + value - known
            if former != incarnation:
                self._replaced.add((worker, former))
            self._last[worker] = (incarnation, counters)
        self._begun = True

    def _is_outdated(self, worker: int, incarnation: int, counters: Counters) -> bool:
        """Return whether a report precedes the last one: a member that was cut off still has it when it returns."""
        if (worker, incarnation) in self._replaced:
            return True
        last, known = self._last.get(worker, (incarnation, counters))
        return last == incarnation and counters.get(SAMPLES, 0.0) < known.get(SAMPLES, 0.0)


class Window:
    """The growth of an aggregate, and the losses, since a moment."""

    def __init__(self, aggregate: CounterAggregate) -> None:
        self._aggregate, self._from = aggregate, dict(aggregate.total)
        self._loss = self._samples = 0.0

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
