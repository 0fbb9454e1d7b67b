"""The comparison of runs' scores in pairs: an upper bound of a variant's loss, and its limit. Pure.

A pair has a variant's run and the plain run of the same fold and seed: with equal test samples, initial values and
batches. The bound is that of a one-sided t-interval of 95 % over the pairs' differences. Runs of one fold share test
samples: the pairs are not entirely independent, and the interval is slightly too narrow.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import sqrt
from statistics import mean, stdev
from typing import Final

CONFIDENCE: Final = 0.95
PLAIN: Final = "Sync"
"""The variant that other variants are compared with."""
CONTROL: Final = "without feedback"
"""Part of the name of a variant that must lose more than the limit in some task; otherwise the comparison proves
nothing.
"""

Scores = Mapping[str, float]
"""Points out of 100, by fold and seed."""


@dataclass(frozen=True)
class Loss:
    """A variant's loss compared with the plain variant, in points."""

    mean: float
    deviation: float
    """Standard deviation of the pairs' differences."""
    bound: float
    """Upper bound of the mean, at the confidence of the module's docstring."""
    pairs: int


def loss(plain: Scores, variant: Scores) -> Loss:
    """Compare two variants' runs.

    Raises:
        ValueError: the runs have different folds and seeds, or there is only one.
    """
    if plain.keys() != variant.keys() or len(plain) < 2:
        raise ValueError("two variants are compared over the same folds and seeds, two at least")
    lost = [plain[key] - variant[key] for key in plain]
    from scipy.stats import t  # most of a second, also for callers that only read a table

    deviation = stdev(lost)
    bound = mean(lost) + float(t.ppf(CONFIDENCE, len(lost) - 1)) * deviation / sqrt(len(lost))
    return Loss(mean(lost), deviation, bound, len(lost))


def failures(tasks: Mapping[str, Mapping[str, Scores]], limits: Mapping[str, float]) -> list[str]:
    """Return the exceeded limits as text.

    Args:
        tasks: scores by task and variant.
        limits: the maximum loss of a variant in points, by task.
    """
    found = []
    controls = []
    for task, variants in tasks.items():
        for name, scores in variants.items():
            if name == PLAIN:
                continue
            lost = loss(variants[PLAIN], scores)
            if CONTROL in name:
                controls.append(lost.bound > limits[task])
            elif lost.bound > limits[task]:
                found.append(f"{task}, {name}: up to {lost.bound:.2f} points are lost, {limits[task]} may be")
    if not any(controls):
        found.append(f"no variant {CONTROL} failed: the comparison cannot distinguish a bad codec from a good one")
    return found


def table(tasks: Mapping[str, Mapping[str, Scores]], limits: Mapping[str, float]) -> str:
    """Return a table in Markdown."""
    rows = [
        "| task | variant | mean score | lost, mean | deviation | lost at most | limit | |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for task, variants in tasks.items():
        for name, scores in variants.items():
            row: Sequence[str] = ["", "", "", "", "the measure"]
            if name != PLAIN:
                lost = loss(variants[PLAIN], scores)
                verdict = "holds" if lost.bound <= limits[task] else "fails"
                verdict += ", as it has to" if CONTROL in name and verdict == "fails" else ""
                row = [f"{lost.mean:+.2f}", f"{lost.deviation:.2f}", f"{lost.bound:+.2f}", str(limits[task]), verdict]
            rows.append("| " + " | ".join([task, name, f"{mean(scores.values()):.2f}", *row]) + " |")
    return "\n".join(rows) + "\n"
